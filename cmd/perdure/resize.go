package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/process/jobdir"
)

// ownSize returns the size of this program's terminal, if it has one.
func ownSize() (rows, cols uint16, ok bool) {
	for fd := range 3 {
		if ws, err := unix.IoctlGetWinsize(fd, unix.TIOCGWINSZ); err == nil && ws.Row > 0 && ws.Col > 0 {
			return ws.Row, ws.Col, true
		}
	}
	return 0, 0, false
}

// followSize gives the terminal of a command the size of this program's: now, and whenever it changes. It
// needs the job's folder, so it works on the machine of the command. The function that it returns ends it.
func followSize(ctx context.Context, d jobdir.Dir) (stop func()) {
	tell := func() {
		if rows, cols, ok := ownSize(); ok {
			_ = d.Resize(rows, cols) // a terminal of another size is no reason to stop showing the output
		}
	}
	changed := make(chan os.Signal, 1)
	signal.Notify(changed, syscall.SIGWINCH)
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		tell()
		for {
			select {
			case <-changed:
				tell()
			case <-ctx.Done():
				return
			}
		}
	}()
	return func() {
		signal.Stop(changed)
		cancel()
		<-done
	}
}

// followSizeOf is followSize for a run whose folder is looked for in the usual workspace.
func followSizeOf(ctx context.Context, conn *connFlags, id perdure.RunID) (stop func()) {
	_, workspace, _, err := runnerSettings(conn, "")
	if err != nil {
		return func() {}
	}
	d, err := jobdir.Of(workspace, string(id))
	if err != nil {
		return func() {}
	}
	return followSize(ctx, d)
}
