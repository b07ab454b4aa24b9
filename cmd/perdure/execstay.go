package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/internal/process/jobdir"
	"github.com/perdure/perdure/internal/process/runner"
)

// Times of exec.
const (
	// startPatience is how long exec -d waits for the start of the command.
	startPatience = 5 * time.Second
	// endPatience is how long exec waits, after the command's end, until the server takes the next part of
	// the output, or the end.
	endPatience = 3 * time.Second
)

// stay shows the output of the command until its end.
func (x *execFlags) stay(ctx context.Context, c *client.Client, p *runner.Process, r *api.Run, s *execScreen) error {
	reports := make(chan runner.Report)
	go func() {
		defer close(reports)
		for {
			report, err := p.Next()
			if err != nil {
				return
			}
			reports <- report
		}
	}()
	// Reports that nobody takes must not hold the goroutine.
	defer func() {
		p.Close()
		for range reports {
		}
	}()
	dir, err := jobdir.Of(x.space, string(r.RunID))
	if err != nil {
		return err
	}
	t := &tail{dir: dir, printer: s.printer(c, r.RunID, shown{})}
	defer t.close()
	wait := x.wait
	if x.detach {
		wait = min(wait, startPatience)
	}
	limit, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	pause := tailOften
	for {
		select {
		case <-limit.Done():
			if x.detach { // it waits, for a limit of its tenant
				return x.printID(r, s)
			}
			return x.leave(ctx, c, r, t, s)
		case <-time.After(pause):
		case report, ok := <-reports:
			switch {
			case !ok && x.detach:
				return errors.New("the runner has ended before it has started the command")
			case !ok:
				s.say("the runner of this command is gone")
				return stayWithProcess(limit, x.conn, s.printer(c, r.RunID, t.shown()), x.wait)
			case report.Event == runner.Started && x.detach:
				return x.printID(r, s)
			case report.Event == runner.Started && x.spec.PTY:
				defer followSize(ctx, dir)()
			case report.Event == runner.Notice:
				s.say("%s", visible(report.Message))
			case report.Event == runner.Failed && report.Code != "":
				fmt.Fprintf(s.stderr, "perdure exec: %s: %s\n", literal(string(report.Code)), block(report.Message))
				x.awaitSent(ctx, reports)
				x.conn.ended(r.RunID)
				if report.ExitCode > 0 {
					s.exit = &report.ExitCode
				}
				return exitWith(max(report.ExitCode, exitFail))
			case report.Event == runner.Failed: // it has no lease
				_, _ = c.Cancel(context.WithoutCancel(ctx), r.RunID, "its runner did not get it", 0)
				x.conn.ended(r.RunID)
				return errors.New(report.Message)
			case report.Event == runner.Lost:
				return x.lost(ctx, c, r, t, s)
			case report.Event == runner.Ended:
				if err := t.copy(); err != nil {
					return err
				}
				if !x.awaitSent(ctx, reports) {
					s.say("the server does not know of the end yet; the runner goes on telling it: %s", r.RunID)
				}
				x.conn.ended(r.RunID)
				s.exit = &report.ExitCode
				return exitWith(report.ExitCode)
			}
		}
		if x.detach {
			continue
		}
		before := t.at
		if err := t.copy(); err != nil {
			return err
		}
		if pause = min(pause*2, tailSeldom); t.at != before {
			pause = tailOften
		}
	}
}

// printID prints the id of a run that nobody stays with. With --json the first line has it.
func (x *execFlags) printID(r *api.Run, s *execScreen) error {
	if s.json {
		return nil
	}
	_, err := fmt.Fprintln(s.stdout, r.RunID)
	return err
}

// awaitSent waits until the server knows of the end, as long as there is progress.
func (x *execFlags) awaitSent(ctx context.Context, reports <-chan runner.Report) bool {
	for {
		select {
		case report, ok := <-reports:
			if !ok || report.Event == runner.Sent || report.Event == runner.Lost {
				return ok
			}
		case <-time.After(endPatience):
			return false
		case <-ctx.Done():
			return false
		}
	}
}

// leave detaches.
func (x *execFlags) leave(ctx context.Context, c *client.Client, r *api.Run, t *tail, s *execScreen) error {
	x.conn.setShown(r.RunID, t.shown())
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	deferRun(last, c, r.RunID)
	return detached(r.RunID, true, s.stdout, s.stderr, false)
}

// lost shows the end of a run that the server has ended: its time was over, or it was cancelled.
func (x *execFlags) lost(ctx context.Context, c *client.Client, r *api.Run, t *tail, s *execScreen) error {
	if err := t.copy(); err != nil {
		return err
	}
	r, err := c.Get(ctx, r.RunID)
	if err != nil {
		return err
	}
	x.conn.ended(r.RunID)
	code, known := exitCode(ctx, c, r)
	if !known && r.Error != nil {
		fmt.Fprintf(s.stderr, "%s: %s %s\n", r.State, literal(string(r.Error.Code)), block(r.Error.Message))
	}
	return code
}
