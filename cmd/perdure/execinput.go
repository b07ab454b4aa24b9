package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/perdure/perdure/internal/process/jobdir"
)

// The standard input of a command that is not typed, but comes from a pipe or a file, is read to its end
// and written to the workspace before the run is made: the command outlives whoever writes to the pipe,
// and can be started again with the same input. More than jobdir.MaxStdin is refused.

// inputPatience is how long the standard input may be silent before exec says that it waits for its end.
var inputPatience = 2 * time.Second

// readInput reads the standard input of the command. A terminal is not read: the command has none, as
// before.
func (x *execFlags) readInput(ctx context.Context, s *execScreen) ([]byte, error) {
	if !x.stdin || isTerminal(os.Stdin) {
		return nil, nil
	}
	if x.again != "" || x.spec.PTY {
		why := "with --pty the command has a terminal"
		if x.again != "" {
			why = "with --again the command has the input of the original run"
		}
		if info, err := os.Stdin.Stat(); err == nil && info.Mode()&os.ModeCharDevice == 0 {
			s.say("the standard input is not passed on: %s", why)
		}
		return nil, nil
	}
	var b bytes.Buffer
	done := make(chan error, 1)
	in := io.LimitReader(os.Stdin, jobdir.MaxStdin+1)
	go func() {
		_, err := io.Copy(&b, in)
		done <- err
	}()
	waiting := time.NewTimer(inputPatience)
	defer waiting.Stop()
	for {
		select {
		case err := <-done:
			switch {
			case errors.Is(err, unix.EBADF): // it is open for writing only, as with nohup
				return nil, nil
			case err != nil:
				return nil, fmt.Errorf("read the standard input: %w", err)
			case b.Len() > jobdir.MaxStdin:
				return nil, fmt.Errorf("the standard input has more than %d MiB, and nothing was started: put it "+
					"into a file that the command reads", jobdir.MaxStdin>>20)
			}
			return b.Bytes(), nil
		case <-waiting.C:
			s.say("waiting for the end of the standard input; </dev/null or --stdin=false start without one")
		case <-ctx.Done():
			return nil, errors.New("interrupted while it read the standard input: nothing was started")
		}
	}
}

// keptInput returns the standard input of the run that is started again.
func (x *execFlags) keptInput(workspace string) ([]byte, error) {
	if x.again == "" || x.spec.StdinBytes == 0 {
		return nil, nil
	}
	d, err := jobdir.Of(workspace, x.again)
	if err != nil {
		return nil, err
	}
	b, err := d.ReadStdin(x.spec.StdinBytes)
	if err != nil {
		return nil, fmt.Errorf("run %s can't be started again with the same input: %w", x.again, err)
	}
	return b, nil
}
