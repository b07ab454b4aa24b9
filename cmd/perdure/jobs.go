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
	"github.com/perdure/perdure/cmd/internal/paint"
)

// Exit codes of commands that wait for a run. A completed run gives 0, and a failed one 1.
const (
	exitDeferred  = 3 // the run goes on
	exitTimeout   = 4
	exitCancelled = 5
	// exitLeft: the command of a process goes on. Its own exit code may be 3. Codes from 64 to 78 have a
	// meaning in sysexits.h, and shells use those from 124 on.
	exitLeft = 79
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
	f := flags("jobs",
		"Lists runs, newest first. Live ones have a number: other commands take %1 for a run, %% for the one that\n"+
			"was last started or attached to, %- for the one before, and %name for the one whose name begins so,\n"+
			"also after its end.\n\n"+
			"  perdure jobs --status running --kind KIND\n  perdure fg %1", stderr)
	conn := addConnFlags(f)
	var filter client.Filter
	f.StringVar(&filter.Status, "status", "",
		"only runs of this `status`: queued, running, suspended, deferred, completed, failed, …")
	f.StringVar(&filter.Kind, "kind", "", "only runs of this `kind`")
	f.StringVar(&filter.Queue, "queue", "", "only runs of this `queue`")
	f.StringVar(&filter.WorkerID, "worker", "", "only runs that this `worker` has, or had last")
	f.Var((*codeFlag)(&filter.ErrorCode), "error", "only runs that ended with this error `code`")
	f.StringVar(&filter.MetadataValue, "metadata", "", "only runs with this `value` of metadata, under any name")
	f.BoolVar(&filter.Held, "held", false, "only runs that are on hold")
	since := f.Duration("since", 0, "only runs that were created in the last `duration`, such as 2h")
	f.IntVar(&filter.Limit, "limit", 20, "at most so many")
	asJSON := f.Bool("json", false, "print JSON")
	if err := parse(f, args); err != nil {
		return err
	}
	if *since > 0 {
		filter.CreatedAfter = time.Now().Add(-*since)
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
	numbers := conn.number(ctx, c, page.Runs)
	if *asJSON {
		return printJSON(stdout, numberedRuns(page, numbers))
	}
	if len(page.Runs) == 0 {
		fmt.Fprintln(stdout, "No runs.")
		return nil
	}
	w := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "RUN\tJOB\tKIND\tSTATUS\tAGE\tTRY\tNAME\tDOING")
	paint := statusPainter(stdout)
	for i := range page.Runs {
		r := &page.Runs[i]
		j := numbers[r.RunID]
		number := "-"
		if j.N > 0 {
			number = fmt.Sprintf("%%%d", j.N)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%d\t%s\t%s\n", r.RunID, number, visible(r.Kind),
			paint(visible(r.Status)), formatDuration(time.Duration(r.ElapsedMS)*time.Millisecond), r.Attempt,
			first(visible(j.ownName(r)), "-"), visible(doing(r, j.About)))
	}
	return w.Flush()
}

// A codeFlag is a flag for the code of an error.
type codeFlag perdure.Code

func (c *codeFlag) String() string         { return string(*c) }
func (c *codeFlag) Set(value string) error { *c = codeFlag(value); return nil }

// A numberedRun is a run with the number of its job, and the name by which %name means it.
type numberedRun struct {
	api.Run
	Job  int    `json:"job,omitempty"`
	Name string `json:"name,omitempty"`
}

// numberedRuns returns a page of runs with the numbers of their jobs.
func numberedRuns(page *api.Runs, numbers map[perdure.RunID]job) any {
	out := struct {
		Runs       []numberedRun `json:"runs"`
		NextCursor string        `json:"next_cursor,omitempty"`
	}{[]numberedRun{}, page.NextCursor}
	for i := range page.Runs {
		r := &page.Runs[i]
		j := numbers[r.RunID]
		out.Runs = append(out.Runs, numberedRun{*r, j.N, j.ownName(r)})
	}
	return out
}

// doing returns the last column of a run. Of a process it has the command, and when it was last heard
// from.
func doing(r *api.Run, command string) string {
	text := activityOf(r)
	if !isCommand(r) || command == "" {
		return text
	}
	if r.State.Terminal() {
		if r.Error == nil {
			return command
		}
		return command + " (" + text + ")"
	}
	var more []string
	if text != "" {
		more = append(more, text)
	}
	if r.SeenAt != nil {
		// The elapsed time is by the server's clock, as is the last sign of life.
		silent := time.Duration(r.ElapsedMS)*time.Millisecond - r.SeenAt.Sub(r.CreatedAt)
		more = append(more, "seen "+formatDuration(max(0, silent))+" ago")
	}
	if r.Tier != "" && r.Tier != perdure.TierFresh {
		more = append(more, r.Tier)
	}
	if len(more) == 0 {
		return command
	}
	return command + " (" + strings.Join(more, ", ") + ")"
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

// activityOf returns the last column of a run: its error, its cancel request, its hold, its activity,
// or when it has ended the summary of its result.
func activityOf(r *api.Run) string {
	switch {
	case r.Error != nil:
		return string(r.Error.Code)
	case r.Cancel != nil && r.FinishedAt == nil:
		return "asked to stop"
	case r.Hold != nil && r.State == perdure.Queued:
		return "on hold: " + string(r.Hold.Code)
	case r.WaitingFor != nil:
		return r.WaitingFor.Text
	case r.FinishedAt == nil && r.Activity != "":
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
			"Ctrl-C and Ctrl-Z detach; the run goes on. "+exitCodes+"\n\n  perdure run KIND [--input JSON] [flags]\n"+
			"  perdure run --batch FILE [--idempotency-key KEY] [--json]", stderr)
	conn := addConnFlags(f)
	batch := addBatchFlag(f)
	var sub perdure.Submission
	input := f.String("input", "", "the input: `JSON`, @file, or - for standard input")
	f.StringVar(&sub.Queue, "queue", "", "the `queue`")
	thread := f.String("thread", "", "the `thread` that it runs on")
	class := f.String("class", "",
		"task, agent or process; by default that of its kind, or else `agent` on a thread, "+
			"or else what the first worker says that leases it")
	f.IntVar(&sub.Priority, "priority", 0, "-100 to 100, higher first")
	f.IntVar(&sub.MaxAttempts, "max-attempts", 0, "attempts before it is given up")
	f.TextVar(&sub.Timeout, "timeout", perdure.Duration(0), "when it ends at the latest")
	f.TextVar(&sub.Delay, "delay", perdure.Duration(0), "start it after this")
	f.StringVar(&sub.Webhook, "webhook", "", "a `URL` that is told when it ends or stalls")
	format := f.String("webhook-format", "", "the `form` of what the webhook is sent: perdure, openai or langgraph")
	key := f.String("idempotency-key", "", "start it once per `key`")
	keys := addKeyFlags(f)
	wait := f.Duration("wait", time.Hour, "stay with it for so long")
	detach := f.Bool("detach", false, "don't stay: print its id")
	f.BoolVar(detach, "d", false, "the same as --detach")
	asJSON := f.Bool("json", false, "print JSON")
	names, err := parseMixed(f, args)
	if err != nil {
		return err
	}
	if batch.file != "" {
		return batch.run(ctx, conn, *key, stdout, stderr, *asJSON)
	}
	sub.Kind, sub.ThreadID, sub.Class = names[0], perdure.ThreadID(*thread), perdure.Class(*class)
	sub.WebhookFormat = perdure.WebhookFormat(*format)
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
	keys.apply(&sub)
	ctx, stopSignals := detachable(ctx)
	defer stopSignals()
	c, err := conn.connect(ctx)
	if err != nil {
		return err
	}
	var opts []client.CallOptions
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
	n := conn.attached(r)
	if *detach {
		if *asJSON {
			line := map[string]any{"run_id": r.RunID}
			if r.Existing {
				line["existing"] = true
			}
			return printJSONLine(stdout, line)
		}
		_, err := fmt.Fprintln(stdout, r.RunID)
		return err
	}
	if !*asJSON {
		what := "started"
		if r.Existing {
			what = "has the unique key"
		}
		fmt.Fprintf(stderr, "%s%s %s; Ctrl-C detaches and leaves it running\n", bracketed(n), r.RunID, what)
	}
	stderr = &lockedWriter{w: stderr} // both write to it
	stop := sayWaiting(ctx, c, r.RunID, stderr)
	err = stay(ctx, c, r.RunID, 0, *wait, stdout, stderr, *asJSON)
	var left detachedError
	stop(errors.As(err, &left))
	conn.left(r.RunID, err)
	return err
}

// bracketed writes the number of a job as a shell does, or nothing if there is none.
func bracketed(n int) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("[%d] ", n)
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

// waitingAfter is how long a run may be queued before it is looked up why.
var waitingAfter = 2 * time.Second

// sayWaiting prints why a run is still queued some time after its start. The function that it returns
// ends that. For a caller that detaches before that time it looks at once.
func sayWaiting(ctx context.Context, c *client.Client, id perdure.RunID, stderr io.Writer) (stop func(detached bool)) {
	looked := false
	look := func(ctx context.Context) {
		a, err := c.Activity(ctx, id)
		// An error is no reason to disturb the waiting caller: the log is followed on another connection.
		if looked = err == nil; looked && a.WaitingFor != nil && a.WaitingFor.Reason != perdure.WaitingNoFreeSlot {
			fmt.Fprintf(stderr, "the run waits: %s\n", visible(a.WaitingFor.Text))
		}
	}
	waiting, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		select {
		case <-waiting.Done():
		case <-time.After(waitingAfter):
			look(waiting)
		}
	}()
	return func(detached bool) {
		cancel()
		<-done
		if detached && !looked {
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
			defer cancel()
			look(last)
		}
	}
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
	below := e.Type == perdure.LineWorkerAsks || e.Type == perdure.LineWorkerAnswered // their run_id is another's
	if i := strings.Index(data, ","); !below && strings.HasPrefix(data, `{"run_id":`) {
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
	return printLine(w, e, data)
}

func logs(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	f := flags("logs RUN",
		"Prints a run's events; with -f until it has ended. Of a process it prints the output, as the process has "+
			"written it: its standard\noutput, and on the standard error its standard error. With --events it prints "+
			"its events.\n\n  perdure logs [-f] RUN\n  perdure logs --events %1", stderr)
	conn := addConnFlags(f)
	stay := f.Bool("f", false, "follow it until it has ended")
	after := f.Int64("after", 0, "only events, or output, after the event of this `number`")
	events := f.Bool("events", false, "the events of a process, not its output")
	asJSON := f.Bool("json", false, "print JSON, an event a line")
	ids, err := parseMixed(f, args)
	if err != nil {
		return err
	}
	ctx, stop := detachable(ctx)
	defer stop()
	c, err := conn.connect(ctx)
	if err != nil {
		return err
	}
	id := perdure.RunID(ids[0])
	if !*events && !*asJSON && *after >= 0 {
		r, err := c.Get(ctx, id)
		if err != nil {
			return err
		}
		if isCommand(r) {
			p := newOutputPrinter(c, id, shown{After: *after}, stdout, stderr)
			read := p.soFar
			if *stay {
				read = p.follow
			}
			if err := read(ctx); err != nil && !errors.Is(err, context.Canceled) {
				return err
			}
			return nil
		}
	}
	if *stay {
		if err := follow(ctx, c, id, *after, stdout, *asJSON); err != nil && !errors.Is(err, context.Canceled) {
			return err
		}
		return nil
	}
	return printLog(ctx, c, id, *after, stdout, *asJSON)
}

// printLog prints the events of a run that there are.
func printLog(ctx context.Context, c *client.Client, id perdure.RunID, after int64, stdout io.Writer,
	asJSON bool) error {
	for {
		page, err := c.EventPage(ctx, id, after, 0)
		if err != nil {
			return err
		}
		for i := range page.Events {
			if err := printEvent(stdout, &page.Events[i], asJSON); err != nil {
				return err
			}
		}
		if len(page.Events) == 0 || page.Ended {
			return nil
		}
		after = page.NextAfter
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
