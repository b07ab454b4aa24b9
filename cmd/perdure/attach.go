package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
)

func fg(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	f := flags("fg [RUN]",
		"Comes back to a run, or without RUN to the current job: the run that you last started or attached to.\n"+
			"Shows its events from the first, or from --after, then its result. Of a process it shows the "+
			"output from where you\nwere, as the process writes it, and ends with the exit code of its command.\n"+
			"Ctrl-C and Ctrl-Z detach; the run goes on. "+exitCodes+"\n\n  perdure fg RUN\n  perdure fg %1", stderr)
	conn := addConnFlags(f)
	after := f.Int64("after", 0, "only events, or output, after the event of this `number`")
	all := f.Bool("all", false, "all output of a process, also what was shown before")
	wait := f.Duration("wait", time.Hour, "stay with it for so long")
	asJSON := f.Bool("json", false, "print JSON")
	ids, err := parseMixed(f, args)
	if err != nil {
		return err
	}
	var id perdure.RunID
	if len(ids) > 0 {
		id = perdure.RunID(ids[0])
	} else if id, err = conn.currentJob(); err != nil {
		return err
	}
	ctx, stop := detachable(ctx)
	defer stop()
	c, err := conn.connect(ctx)
	if err != nil {
		return err
	}
	if *after < 0 {
		return stay(ctx, c, id, *after, *wait, stdout, stderr, *asJSON) // the server refuses it
	}
	r, err := c.Get(ctx, id)
	if err != nil {
		return err
	}
	if !r.State.Terminal() {
		conn.attached(r)
	}
	if !isCommand(r) || *asJSON {
		err := stay(ctx, c, id, *after, *wait, stdout, stderr, *asJSON)
		conn.left(id, err)
		return err
	}
	from := conn.shown(id)
	if *all || f.given("after") {
		from = shown{After: *after}
	}
	return stayWithProcess(ctx, conn, newOutputPrinter(c, id, from, stdout, stderr), *wait)
}

func bg(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	f := flags("bg RUN…", "Says that nobody waits for a run any more. The run goes on.\n\n  perdure bg RUN…", stderr)
	conn := addConnFlags(f)
	asJSON := f.Bool("json", false, "print JSON")
	ids, err := parseMixed(f, args)
	if err != nil {
		return err
	}
	return conn.each(ctx, ids, stdout, *asJSON, func(c *client.Client, id perdure.RunID) (*api.Run, error) {
		return c.Defer(ctx, id)
	})
}

func waitCommand(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	f := flags("wait RUN",
		"Waits for a run to end, and prints its result. Of a process it ends with the exit code of its command.\n"+
			"Ctrl-C and Ctrl-Z stop waiting; the run goes on. "+exitCodes+
			"\n\n  perdure wait RUN [--timeout 5m]\n  perdure wait %1", stderr)
	conn := addConnFlags(f)
	timeout := f.Duration("timeout", time.Hour, "wait for so long")
	asJSON := f.Bool("json", false, "print JSON")
	ids, err := parseMixed(f, args)
	if err != nil {
		return err
	}
	if *timeout <= 0 {
		fmt.Fprintln(stderr, "perdure wait: --timeout has to be positive")
		return errUsage
	}
	ctx, stop := detachable(ctx)
	defer stop()
	c, err := conn.connect(ctx)
	if err != nil {
		return err
	}
	id := perdure.RunID(ids[0])
	r, deferred, err := c.Join(ctx, id, *timeout)
	switch {
	case deferred || ctx.Err() != nil:
		if r == nil {
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
			defer cancel()
			r, _ = c.Get(last, id)
		}
		return detached(id, r != nil && isCommand(r), stdout, stderr, *asJSON)
	case err != nil:
		return err
	}
	conn.ended(id)
	return finished(r, endCode(ctx, c, r), stdout, stderr, *asJSON)
}

// stay prints a run's log as it is written, and its deliverable at its end. If the person stops or
// the time is over, it defers the run, which goes on.
func stay(ctx context.Context, c *client.Client, id perdure.RunID, after int64, wait time.Duration, stdout,
	stderr io.Writer, asJSON bool) error {
	limit, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	show := stderr
	if asJSON {
		show = io.Discard
	}
	if err := follow(limit, c, id, after, show, false); err != nil {
		if limit.Err() == nil {
			return err
		}
		// The context has ended, so the last call has one of its own.
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		r := deferRun(last, c, id)
		return detached(id, r != nil && isCommand(r), stdout, stderr, asJSON)
	}
	r, err := c.Get(ctx, id)
	if err != nil {
		return err
	}
	return finished(r, endCode(ctx, c, r), stdout, stderr, asJSON)
}

// deferRun tells the server that nobody waits for the run any more. It repeats that, because the
// server may not have noticed yet that the stream is closed. It returns the run, if the server answers.
func deferRun(ctx context.Context, c *client.Client, id perdure.RunID) (last *api.Run) {
	for ctx.Err() == nil {
		r, err := c.Defer(ctx, id)
		if err != nil {
			return last
		}
		if last = r; r.State.Terminal() || r.Status == perdure.StatusDeferred {
			return last
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
		}
	}
	return last
}

// follow prints a run's log until it has ended. Streamed text that a repeated try tells again is
// printed once.
func follow(ctx context.Context, c *client.Client, id perdure.RunID, after int64, w io.Writer, asJSON bool) error {
	events := eventPrinter{w: w, asJSON: asJSON}
	for e, err := range c.Stream(ctx, id, after) {
		var gap *client.StreamGapError
		switch {
		case errors.As(err, &gap) && asJSON:
			err = printJSONLine(w, map[string]any{"type": api.StreamGap,
				"data": map[string]any{"from": gap.From, "to": gap.To}})
		case errors.As(err, &gap):
			_, err = fmt.Fprintf(w, "… %d to %d are no longer kept\n", gap.From, gap.To)
		case err == nil:
			err = events.print(&e)
		}
		if err != nil {
			return err
		}
	}
	return ctx.Err()
}

// A detachedError ends the program because its caller has left a run, which goes on. Of a process it has
// a code of its own: the others may be its command's.
type detachedError struct{ exitError }

func (e detachedError) Unwrap() error { return e.exitError }

// detached prints how to attach to the run again.
func detached(id perdure.RunID, process bool, stdout, stderr io.Writer, asJSON bool) error {
	fmt.Fprintf(stderr, "\nDetached. The run goes on:\n  perdure fg %[1]s\n  perdure kill %[1]s\n", id)
	if asJSON {
		_ = printJSONLine(stdout, map[string]any{"run_id": id, "status": perdure.StatusDeferred})
	}
	if process {
		return detachedError{exitLeft}
	}
	return detachedError{exitDeferred}
}

// finished prints the deliverable of an ended run, and returns its exit code as an error.
func finished(r *api.Run, code error, stdout, stderr io.Writer, asJSON bool) error {
	if asJSON {
		if err := printJSON(stdout, r); err != nil {
			return err
		}
		return code
	}
	if len(r.Result) > 0 {
		fmt.Fprintf(stdout, "%s\n", safeJSON(r.Result))
	}
	if r.Error != nil {
		fmt.Fprintf(stderr, "%s: %s %s\n", r.State, literal(string(r.Error.Code)), block(r.Error.Message))
	}
	return code
}

// printStatus prints a run's id and status, or the whole as JSON.
func printStatus(w io.Writer, r *api.Run, asJSON bool) error {
	if asJSON {
		return printJSONLine(w, r)
	}
	_, err := fmt.Fprintf(w, "%s %s\n", r.RunID, statusPainter(w)(visible(r.Status)))
	return err
}
