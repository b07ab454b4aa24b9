package pgtest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// patience is how long a server may take to start, to recover or to stop before that is an error.
const patience = 60 * time.Second

// A process is a program that was started and dies with this one.
type process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
	err  error         // how it ended, once it has
}

// start starts a program to which the kernel sends the signal when this process ends, in whatever way.
func start(cmd *exec.Cmd, end syscall.Signal) (*process, error) {
	cmd.SysProcAttr.Pdeathsig = end
	// A session of its own: Ctrl-C is for the tests, which still need the server to clean up.
	cmd.SysProcAttr.Setsid = true
	p := &process{cmd: cmd, done: make(chan struct{})}
	started := make(chan error)
	go func() {
		// The kernel means the thread that started the program, so that thread must not end before it.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			p.err = cmd.Wait()
			close(p.done)
		}
	}()
	return p, <-started
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// stop sends a signal and waits for the end.
func (p *process) stop(s syscall.Signal) error {
	select {
	case <-p.done:
		return nil
	default:
	}
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-p.done:
		return nil
	case <-time.After(patience):
		return fmt.Errorf("process %d does not end after %v", p.pid(), s)
	}
}

// kill ends the process and all its children at once, as a power cut would: none of them gets to do anything
// about the end of another.
func (p *process) kill() error {
	// Stopped, it neither starts more children nor takes note of those that end.
	if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	if err := eventually(func() bool { return stopped(p.pid()) }); err != nil {
		return fmt.Errorf("stopping process %d: %w", p.pid(), err)
	}
	children, err := childrenOf(p.pid())
	if err != nil {
		return err
	}
	for _, pid := range children {
		// Nobody collects what has ended, so the number can't be that of another process by now.
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			return fmt.Errorf("killing process %d: %w", pid, err)
		}
	}
	for _, pid := range children {
		if err := eventually(func() bool { return ended(pid) }); err != nil {
			return fmt.Errorf("killing process %d: %w", pid, err)
		}
	}
	return p.stop(syscall.SIGKILL)
}

func stopped(pid int) bool {
	state, _, err := stat(pid)
	return err != nil || state == 'T' || state == 'Z'
}

func ended(pid int) bool {
	state, _, err := stat(pid)
	return err != nil || state == 'Z'
}

// childrenOf lists the processes whose parent is pid.
func childrenOf(pid int) ([]int, error) {
	all, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	var out []int
	for _, dir := range all {
		child, err := strconv.Atoi(filepath.Base(dir))
		if err != nil {
			continue
		}
		if _, parent, err := stat(child); err == nil && parent == pid {
			out = append(out, child)
		}
	}
	return out, nil
}

// stat reads the state of a process and its parent from its line in /proc: "7 (the name) S 1 …".
func stat(pid int) (state byte, parent int, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, 0, err
	}
	line := string(text)
	fields := strings.Fields(line[strings.LastIndexByte(line, ')')+1:])
	if len(fields) < 2 {
		return 0, 0, fmt.Errorf("/proc/%d/stat reads %q", pid, line)
	}
	parent, err = strconv.Atoi(fields[1])
	return fields[0][0], parent, err
}

// eventually waits for a condition.
func eventually(holds func() bool) error {
	for end := time.Now().Add(patience); ; time.Sleep(2 * time.Millisecond) {
		if holds() {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("not within %v", patience)
		}
	}
}
