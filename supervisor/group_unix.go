//go:build unix

package supervisor

import (
	"os/exec"
	"syscall"
)

// killGroup makes the end of a command's context kill the processes that the command has started, too.
func killGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
}
