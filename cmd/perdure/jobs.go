package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/internal/paint"
)

// Exit codes of commands that wait for a run. A completed run gives 0, and a failed one 1.
const (
	exitDeferred  = 3 // the run goes on
	exitTimeout   = 4
	exitCancelled = 5
)

// exitError ends the program with a code, without printing anything.
type exitError int

func (e exitError) Error() string { return fmt.Sprintf("exit %d", int(e)) }

// outcome returns the exit code of an ended run as an error.
func outcome(r *api.Run) error {
	switch r.State {
	case perdure.Completed:
		return nil
	case perdure.TimedOut:
		return exitError(exitTimeout)
	case perdure.Cancelled:
		return exitError(exitCancelled)
	}
	return exitError(exitFail)
}

func jobs(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	f := flags("jobs", "Lists runs, newest first.\n\n  perdure jobs --status running --kind KIND", stderr)
	conn := addConnFlags(f)
	var filter client.Filter
	f.StringVar(&filter.Status, "status", "",
		"only runs of this `status`: queued, running, suspended, deferred, completed, failed, …")
	f.StringVar(&filter.Kind, "kind", "", "only runs of this `kind`")
	f.StringVar(&filter.Queue, "queue", "", "only runs of this `queue`")
	f.IntVar(&filter.Limit, "limit", 20, "at most so many")
	asJSON := f.Bool("json", false, "print JSON")
	if err := parse(f, args); err != nil {
		return err
	}
	if filter.Limit < 1 {
		fmt.Fprintln(stderr, "perdure jobs: --limit has to be positive")
		return errUsage
	}
	c, err := conn.connect(ctx)
	if err != nil {
		return err
	}
	page, err := listJobs(ctx, c, filter)
	if err != nil {
		return err
	}
	if *asJSON {
		return printJSON(stdout, page)
	}
	if len(page.Runs) == 0 {
		fmt.Fprintln(stdout, "No runs.")
		return nil
	}
	w := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "RUN\tKIND\tSTATUS\tAGE\tTRY\tDOING")
	paint := statusPainter(stdout)
	for _, r := range page.Runs {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%s\n", r.RunID, visible(r.Kind), paint(visible(r.Status)),
			formatDuration(time.Duration(r.ElapsedMS)*time.Millisecond), r.Attempt, visible(activityOf(&r)))
	}
	return w.Flush()
}

// listJobs reads pages until it has as many runs as were asked for, or there are no more. A page
// may have fewer runs than its limit, because the server examines a bounded number of runs for it.
func listJobs(ctx context.Context, c *client.Client, filter client.Filter) (*api.Runs, error) {
	out, want := &api.Runs{Runs: []api.Run{}}, filter.Limit
	for {
		filter.Limit = want - len(out.Runs)
		page, err := c.List(ctx, filter)
		if err != nil {
			return nil, err
		}
		out.Runs, out.NextCursor = append(out.Runs, page.Runs...), page.NextCursor
		if filter.Cursor = page.NextCursor; filter.Cursor == "" || len(out.Runs) >= want {
			return out, nil
		}
	}
}

// activityOf returns the last column of a run: its error, its cancel request, its hold or its
// activity.
func activityOf(r *api.Run) string {
	switch {
	case r.Error != nil:
		return string(r.Error.Code)
	case r.Cancel != nil && r.FinishedAt == nil:
		return "asked to stop"
	case r.Hold != nil && r.State == perdure.Queued:
		return "on hold: " + string(r.Hold.Code)
	case r.Activity != "":
		return r.Activity
	}
	return r.Summary
}

// formatDuration formats a duration for a table.
func formatDuration(d time.Duration) string {
	switch {
	case d < time.Second:
		return fmt.Sprintf("%dms", d.Milliseconds())
	case d < time.Minute:
		return fmt.Sprintf("%.1fs", d.Seconds())
	}
	return d.Round(time.Second).String()
}

// statusPainter returns a function that colours a status, if the output is a terminal.
func statusPainter(w io.Writer) func(string) string {
	if !paint.Colourful(w) {
		return func(s string) string { return s }
	}
	colours := map[string]string{"completed": "32", "failed": "31", "timeout": "31", "cancelled": "33",
		"running": "36", "dispatched": "36", "deferred": "35", "suspended": "34", "queued": "37"}
	return func(s string) string {
		if c := colours[s]; c != "" {
			return "\x1b[" + c + "m" + s + "\x1b[0m"
		}
		return s
	}
}

func runCommand(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	f := flags("run KIND",
		"Starts a run and stays with it: its events as they happen, then its result.\n"+
			"Ctrl-C detaches; the run goes on. "+exitCodes+"\n\n  perdure run KIND [--input JSON] [flags]", stderr)
	conn := addConnFlags(f)
	var sub perdure.Submission
	input := f.String("input", "", "the input: `JSON`, @file, or - for standard input")
	f.StringVar(&sub.Queue, "queue", "", "the `queue`")
	thread := f.String("thread", "", "the `thread` that it runs on")
	class := f.String("class", "",
		"task, agent or process; by default that of its kind, or else `agent` on a thread, or else task")
	f.IntVar(&sub.Priority, "priority", 0, "-100 to 100, higher first")
	f.IntVar(&sub.MaxAttempts, "max-attempts", 0, "attempts before it is given up")
	f.TextVar(&sub.Timeout, "timeout", perdure.Duration(0), "when it ends at the latest")
	f.TextVar(&sub.Delay, "delay", perdure.Duration(0), "start it after this")
	f.StringVar(&sub.Webhook, "webhook", "", "a `URL` that is told when it ends or stalls")
	key := f.String("idempotency-key", "", "start it once per `key`")
	wait := f.Duration("wait", time.Hour, "stay with it for so long")
	detach := f.Bool("detach", false, "don't stay: print its id")
	f.BoolVar(detach, "d", false, "the same as --detach")
	asJSON := f.Bool("json", false, "print JSON")
	names, err := parseMixed(f, args)
	if err != nil {
		return err
	}
	sub.Kind, sub.ThreadID, sub.Class = names[0], perdure.ThreadID(*thread), perdure.Class(*class)
	for _, zero := range []struct {
		flag string
		is   bool
	}{{"max-attempts", sub.MaxAttempts == 0}, {"timeout", sub.Timeout == 0}} {
		if zero.is && f.given(zero.flag) {
			fmt.Fprintf(stderr, "perdure run: --%s has to be positive; leave it out for the default\n", zero.flag)
			return errUsage
		}
	}
	if sub.Input, err = readJSON("--input", *input); err != nil {
		return err
	}
	c, err := conn.connect(ctx)
	if err != nil {
		return err
	}
	var opts []client.CallOption
	if *key != "" {
		opts = append(opts, client.IdempotencyKey(*key))
	}
	sub.Foreground = !*detach
	r, err := c.Start(ctx, sub, opts...)
	if err != nil {
		return err
	}
	if r.WebhookSecret != "" {
		fmt.Fprintf(stderr, "The secret of the webhook %s, shown this once: %s\n", r.WebhookID, r.WebhookSecret)
	}
	if *detach {
		if *asJSON {
			return printJSONLine(stdout, map[string]any{"run_id": r.RunID})
		}
		_, err := fmt.Fprintln(stdout, r.RunID)
		return err
	}
	if !*asJSON {
		fmt.Fprintf(stderr, "%s started; Ctrl-C detaches and leaves it running\n", r.RunID)
	}
	stderr = &lockedWriter{w: stderr} // both write to it
	defer sayUnserved(ctx, c, r.RunID, stderr)()
	return stay(ctx, c, r.RunID, 0, *wait, stdout, stderr, *asJSON)
}

// A lockedWriter is a writer for several goroutines.
type lockedWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *lockedWriter) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(b)
}

// unservedAfter is how long a run may wait for a worker before it is looked up whether there is one.
var unservedAfter = 2 * time.Second

// sayUnserved prints a line if nobody serves a run's kind some time after its start. The function
// that it returns ends that.
func sayUnserved(ctx context.Context, c *client.Client, id perdure.RunID, stderr io.Writer) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		select {
		case <-ctx.Done():
			return
		case <-time.After(unservedAfter):
		}
		// An error is no reason to disturb whoever waits: the log is followed on another connection.
		if a, err := c.Activity(ctx, id); err == nil && a.Unserved != nil {
			fmt.Fprintf(stderr, "%s; the run waits for one\n", visible(a.Unserved.Message(a.Kind)))
		}
	}()
	return func() { cancel(); <-done }
}

// readJSON reads a value from the command line: JSON, @file, or - for standard input.
func readJSON(what, text string) (json.RawMessage, error) {
	b := []byte(text)
	var err error
	switch {
	case text == "":
		return nil, nil
	case text == "-":
		b, err = io.ReadAll(io.LimitReader(os.Stdin, perdure.MaxValue+1))
	case strings.HasPrefix(text, "@"):
		b, err = os.ReadFile(text[1:])
	}
	if err != nil {
		return nil, err
	}
	if !json.Valid(b) {
		return nil, fmt.Errorf("%s is not valid JSON: %.60s (a string needs its quotes: '\"text\"')", what, b)
	}
	return b, nil
}

// printEvent prints a line of a run's log.
func printEvent(w io.Writer, e *api.Event, asJSON bool) error {
	if asJSON {
		return printJSONLine(w, e)
	}
	data := visible(string(e.Data))
	if i := strings.Index(data, ","); strings.HasPrefix(data, `{"run_id":`) {
		if i < 0 {
			data = ""
		} else {
			data = "{" + data[i+1:]
		}
	}
	if e.Type == perdure.LineHeartbeat {
		var beat struct{ Activity string }
		if json.Unmarshal(e.Data, &beat) == nil { // otherwise the data is printed as it is
			data = visible(first(beat.Activity, "its worker is there"))
		}
	}
	const maxData = 140
	if len(data) > maxData {
		data = strings.ToValidUTF8(data[:maxData], "") + "…"
	}
	_, err := fmt.Fprintf(w, "%s %4d  %-22s %s\n", e.At.Time().Local().Format("15:04:05.000"), e.Seq,
		visible(e.Type), data)
	return err
}

func logs(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	f := flags("logs RUN", "Prints a run's events; with -f until it has ended.\n\n  perdure logs [-f] RUN", stderr)
	conn := addConnFlags(f)
	stay := f.Bool("f", false, "follow it until it has ended")
	after := f.Int64("after", 0, "only events after this `number`")
	asJSON := f.Bool("json", false, "print JSON, an event a line")
	ids, err := parseMixed(f, args)
	if err != nil {
		return err
	}
	c, err := conn.connect(ctx)
	if err != nil {
		return err
	}
	id := perdure.RunID(ids[0])
	if *stay {
		if err := follow(ctx, c, id, *after, stdout, *asJSON); err != nil && !errors.Is(err, context.Canceled) {
			return err
		}
		return nil
	}
	for next := *after; ; {
		page, err := c.EventPage(ctx, id, next, 0)
		if err != nil {
			return err
		}
		for i := range page.Events {
			if err := printEvent(stdout, &page.Events[i], *asJSON); err != nil {
				return err
			}
		}
		if len(page.Events) == 0 || page.Ended {
			return nil
		}
		next = page.NextAfter
	}
}

func kill(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	f := flags("kill RUN…",
		"Asks runs to stop, waits until they have, and shows the proof: requested, delivered, acknowledged, "+
			"stopped.\n\n  perdure kill RUN…", stderr)
	conn := addConnFlags(f)
	reason := f.String("reason", "perdure kill", "why; the run is told")
	wait := f.Duration("wait", time.Minute, "wait for so long; 0 only asks")
	asJSON := f.Bool("json", false, "print JSON")
	ids, err := parseMixed(f, args)
	if err != nil {
		return err
	}
	if *wait < 0 {
		fmt.Fprintln(stderr, "perdure kill: --wait must not be negative")
		return errUsage
	}
	var last *api.Run
	for _, id := range ids {
		err := conn.each(ctx, []string{id}, stdout, *asJSON,
			func(c *client.Client, id perdure.RunID) (_ *api.Run, err error) {
				last, err = c.Cancel(ctx, id, *reason, *wait)
				return last, err
			})
		if err != nil {
			return err
		}
		if !*asJSON && last.Cancel != nil {
			fmt.Fprintf(stdout, "  %s\n", cancelProof(last.Cancel))
		}
	}
	return nil
}
