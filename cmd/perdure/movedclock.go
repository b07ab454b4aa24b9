package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/perdure/perdure/embedded"
	"github.com/perdure/perdure/internal/server/settings"
)

// clockFromStdin is a flag of "perdure dev" alone. It is no setting: no file and no variable turns it on.
const clockFromStdin = "clock-from-stdin"

// maxMove bounds one move of a clock for tests.
const maxMove = 10 * 365 * 24 * time.Hour

// A movedClock is the clock of a server for tests: this machine's, moved ahead. It never goes back.
type movedClock struct {
	began time.Time
	ahead atomic.Int64 // nanoseconds
}

func newMovedClock() *movedClock { return &movedClock{began: time.Now()} }

// now counts on the monotonic clock of the process.
func (c *movedClock) now() time.Time {
	return c.began.Add(time.Since(c.began) + time.Duration(c.ahead.Load()))
}

// follow moves the clock by each line that it reads, a duration such as 24h, until the input ends. It answers each with
// how far the clock is ahead, or with an error.
func (c *movedClock) follow(in io.Reader, out io.Writer) error {
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		switch by, err := time.ParseDuration(lines.Text()); {
		case err != nil:
			fmt.Fprintf(out, "error: %v\n", err)
		case by <= 0 || by > maxMove:
			fmt.Fprintf(out, "error: %s is not between 0s and %s\n", by, maxMove)
		default:
			fmt.Fprintf(out, "ahead %s\n", time.Duration(c.ahead.Add(int64(by))))
		}
	}
	return lines.Err()
}

// checkMovedClock refuses data that exists, and callers from elsewhere: a clock that was moved ends the waits and
// deadlines of all runs.
func checkMovedClock(cfg *settings.Config) error {
	if cfg.Store != "" {
		return fmt.Errorf("--%s: it is for tests, and not for a store that nodes share", clockFromStdin)
	}
	if !cfg.Loopback() {
		return fmt.Errorf("--%s: it is for tests, and %s is reachable from elsewhere", clockFromStdin, cfg.Listen)
	}
	switch _, err := os.Stat(filepath.Join(cfg.Dir, "perdure.db")); {
	case err == nil:
		return fmt.Errorf("--%s: it is for tests, and %s has data already: name a new folder with --data",
			clockFromStdin, cfg.Dir)
	case !errors.Is(err, os.ErrNotExist):
		return err
	}
	return nil
}

// serveMoved runs a server whose clock is moved by its standard input. It ends with that: nobody could move it then.
func serveMoved(ctx context.Context, cfg *settings.Config, in io.Reader, stdout, stderr io.Writer) error {
	if err := checkMovedClock(cfg); err != nil {
		return err
	}
	clock := newMovedClock()
	cfg.Options.Clock = clock.now
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	return serveWith(ctx, cfg, stdout, stderr, func(url string, _ *embedded.Server) {
		fmt.Fprintln(stdout, url)
		go func() { stop(clock.follow(in, stdout)) }()
	})
}
