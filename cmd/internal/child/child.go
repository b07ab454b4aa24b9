// Package child starts this program once more, or another one, as a process of its own that can be killed. The demo and
// perdure-bench have servers, workers and clients that way.
package child

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// A Process is a server, a worker or clients. It can be killed.
type Process struct {
	Name   string
	Cmd    *exec.Cmd
	In     io.WriteCloser
	Out    *bufio.Scanner
	Dead   bool // its end was seen
	Errors strings.Builder
}

// Start starts this program once more, with other arguments and more of an environment.
func Start(ctx context.Context, name string, env []string, args ...string) (*Process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return StartProgram(ctx, self, name, env, args...)
}

// StartProgram starts a program, with arguments and more of an environment. The name is for errors.
func StartProgram(ctx context.Context, program, name string, env []string, args ...string) (p *Process, err error) {
	p = &Process{Name: name, Cmd: exec.CommandContext(ctx, program, args...)}
	p.Cmd.Env = append(os.Environ(), env...)
	p.Cmd.Stderr = &p.Errors
	p.Cmd.WaitDelay = time.Second
	if p.In, err = p.Cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.Cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.Out = bufio.NewScanner(out)
	return p, p.Cmd.Start()
}

// Gone says why the process is not there any more.
func (p *Process) Gone(ctx context.Context) error {
	p.Dead = true
	return fmt.Errorf("the %s went away: %w %s", p.Name, errors.Join(p.Cmd.Wait(), ctx.Err()),
		strings.TrimSpace(p.Errors.String()))
}

// Kill is kill -9. It may be called again.
func (p *Process) Kill() {
	if !p.Dead {
		p.Dead = true
		p.Cmd.Process.Signal(syscall.SIGKILL)
		p.Cmd.Wait()
	}
}
