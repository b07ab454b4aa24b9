package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/signal"
	"syscall"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/internal/process/jobdir"
)

// execKind is the kind of runs that are commands.
const execKind = "exec"

// isCommand tells whether a run is a command with output and an exit code. Other programs can be runs
// of class process too, and have only what they put into their log.
func isCommand(r *api.Run) bool { return r.Class == perdure.Process && r.Kind == execKind }

// An outputPrinter writes the output of a process as the process wrote it: its standard output to
// stdout and its standard error to stderr, byte by byte. A line on stderr says which bytes are missing.
//
// The bytes come from the run's log. An event has them, or names an artifact that does. Offsets say
// whether bytes are missing, and which ones were shown before.
type outputPrinter struct {
	client         *client.Client
	id             perdure.RunID
	stdout, stderr io.Writer
	// messages gets what is for people, and say what there is to say about the output.
	messages io.Writer
	say      func(text string)
	// shown is what has been written, by this command and those before.
	shown shown
	// files is the part of it that was shown from files, before any event was.
	files jobdir.Offsets
	// middle tells that the first event of a stream may be in the middle of it.
	middle map[string]bool
}

// newOutputPrinter returns a printer that goes on after what was shown.
func newOutputPrinter(c *client.Client, id perdure.RunID, from shown, stdout, stderr io.Writer) *outputPrinter {
	p := &outputPrinter{client: c, id: id, stdout: stdout, stderr: stderr, messages: stderr, shown: from}
	p.say = func(text string) { fmt.Fprintf(stderr, "[perdure: %s]\n", text) }
	switch {
	case from.After == 0:
		p.files = from.Offsets
	case from.Attempt == 0: // the caller has chosen the event
		p.middle = map[string]bool{jobdir.Stdout: true, jobdir.Stderr: true}
	}
	return p
}

// follow writes the output as it comes, until the run has ended.
func (p *outputPrinter) follow(ctx context.Context) error {
	for e, err := range p.client.Stream(ctx, p.id, p.shown.After) {
		if err := p.print(ctx, &e, err); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// soFar writes the output that is there.
func (p *outputPrinter) soFar(ctx context.Context) error {
	for {
		page, err := p.client.EventPage(ctx, p.id, p.shown.After, 0)
		if err != nil {
			return err
		}
		if g := page.Gap; g != nil {
			p.note("events %d to %d are no longer kept", g.From, g.To)
		}
		for i := range page.Events {
			if err := p.print(ctx, &page.Events[i], nil); err != nil {
				return err
			}
		}
		if p.shown.After = page.NextAfter; len(page.Events) == 0 || page.Ended {
			return nil
		}
	}
}

// print writes the output that an event of the log has, or says what an error of the log means.
func (p *outputPrinter) print(ctx context.Context, e *api.Event, err error) error {
	var gap *client.StreamGapError
	switch {
	case errors.As(err, &gap):
		p.note("events %d to %d are no longer kept", gap.From, gap.To)
		p.shown.After = gap.To
		return nil
	case err != nil:
		return err
	}
	switch e.Type {
	case jobdir.EventOutput:
		var o jobdir.Output
		if json.Unmarshal(e.Data, &o) != nil || o.Stream != jobdir.Stdout && o.Stream != jobdir.Stderr {
			p.note("event %d has output that can't be shown", e.Seq)
			break
		}
		if err := p.output(ctx, e.Attempt, &o); err != nil {
			return err
		}
	case jobdir.EventDropped:
		var d jobdir.Dropped
		if json.Unmarshal(e.Data, &d) == nil && d.Size > 0 {
			p.dropped(e.Attempt, &d)
		}
	case jobdir.EventTruncated, jobdir.EventDiskFull:
		var n jobdir.Notice
		if json.Unmarshal(e.Data, &n) == nil && n.Message != "" {
			p.note("%s", visible(n.Message))
		}
	}
	p.shown.After = e.Seq
	return nil
}

// at returns the count of the bytes of a stream that have been written.
func (p *outputPrinter) at(stream string) *int64 { return countOf(&p.shown.Offsets, stream) }

// countOf returns the count of a stream.
func countOf(o *jobdir.Offsets, stream string) *int64 {
	if stream == jobdir.Stderr {
		return &o.Stderr
	}
	return &o.Stdout
}

// begin tells whether an event is new. The output of another execution begins at zero again.
func (p *outputPrinter) begin(attempt int, offset, size int64, stream string) bool {
	s, at := &p.shown, p.at(stream)
	switch {
	case attempt < s.Attempt:
		return false // it was shown from files
	case attempt > s.Attempt && s.Attempt > 0:
		p.note("attempt %d", attempt)
		s.Offsets, p.files = jobdir.Offsets{}, jobdir.Offsets{}
	case offset == 0 && *at > *countOf(&p.files, stream):
		p.note("the command was started again")
		s.Offsets, p.files = jobdir.Offsets{}, jobdir.Offsets{}
	case p.middle[stream]:
		*at = offset
	}
	delete(p.middle, stream)
	s.Attempt = attempt
	return size > 0 && offset+size > *at
}

// output writes the bytes of an event that were not written yet.
func (p *outputPrinter) output(ctx context.Context, attempt int, o *jobdir.Output) error {
	if !p.begin(attempt, o.Offset, o.Size, o.Stream) {
		return nil
	}
	at, to := p.at(o.Stream), p.stdout
	if o.Stream == jobdir.Stderr {
		to = p.stderr
	}
	if missing := o.Offset - *at; missing > 0 {
		p.note("%d bytes of %s are missing", missing, o.Stream)
		*at = o.Offset
	}
	if o.Artifact != "" {
		return p.artifact(ctx, o, to)
	}
	b := o.Bytes()
	// A server that removes secrets changes the length of the bytes.
	if skip := *at - o.Offset; int64(len(b)) == o.Size {
		b = b[skip:]
	}
	*at = o.Offset + o.Size
	_, err := to.Write(b)
	return err
}

// artifactTries is how often an artifact is got whose bytes break off.
const artifactTries = 5

// artifact writes the bytes of an artifact that were not written yet.
func (p *outputPrinter) artifact(ctx context.Context, o *jobdir.Output, to io.Writer) error {
	at, end := p.at(o.Stream), o.Offset+o.Size
	for n := 1; ; n++ {
		err := p.download(ctx, o, to)
		var broken *writeError
		switch {
		case err == nil:
			*at = end
			return nil
		case errors.As(err, &broken):
			return broken.error
		case ctx.Err() != nil:
			return ctx.Err()
		case client.CodeOf(err) == perdure.CodeNotFound:
			p.note("%d bytes of %s are missing: there is no artifact %s any more", end-*at, o.Stream,
				visible(o.Artifact))
			*at = end
			return nil
		case n == artifactTries:
			return err
		}
	}
}

// A writeError says that the output can't be written, so that getting it again is of no use.
type writeError struct{ error }

// download writes the rest of an artifact.
func (p *outputPrinter) download(ctx context.Context, o *jobdir.Output, to io.Writer) error {
	body, _, err := p.client.Artifact(ctx, p.id, o.Artifact)
	if err != nil {
		return err
	}
	defer body.Close()
	at := p.at(o.Stream)
	if _, err := io.CopyN(io.Discard, body, *at-o.Offset); err != nil {
		return err
	}
	b := make([]byte, 64<<10)
	for {
		n, err := body.Read(b)
		if n > 0 {
			if _, err := to.Write(b[:n]); err != nil {
				return &writeError{err}
			}
			*at += int64(n)
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// dropped says that bytes were not kept.
func (p *outputPrinter) dropped(attempt int, d *jobdir.Dropped) {
	if !p.begin(attempt, d.Offset, d.Size, d.Stream) {
		return
	}
	p.note("%d bytes of %s were not kept: %s", d.Size, visible(d.Stream), visible(d.Reason))
	*p.at(d.Stream) = d.Offset + d.Size
}

// note says something about the output.
func (p *outputPrinter) note(format string, args ...any) { p.say(fmt.Sprintf(format, args...)) }

// stayWithProcess writes the output of a process from where this user was, until it has ended. Its
// error has the exit code of the command.
func stayWithProcess(ctx context.Context, conn *connFlags, p *outputPrinter, wait time.Duration) error {
	limit, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	c := p.client
	defer followSizeOf(limit, conn, p.id)()
	err := p.follow(limit)
	if err != nil {
		conn.setShown(p.id, p.shown)
		if limit.Err() == nil {
			return err
		}
		// The context has ended, so the last call has one of its own.
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		deferRun(last, c, p.id)
		return detached(p.id, true, p.messages, p.messages, false)
	}
	r, err := c.Get(ctx, p.id)
	if err != nil {
		return err
	}
	conn.ended(r.RunID)
	code, known := exitCode(ctx, c, r)
	if !known && r.Error != nil {
		fmt.Fprintf(p.messages, "%s: %s %s\n", r.State, literal(string(r.Error.Code)), block(r.Error.Message))
	}
	return code
}

// exitCode returns the exit code of an ended process as an error: that of its command, or of the run if
// nobody has seen how the command ended.
func exitCode(ctx context.Context, c *client.Client, r *api.Run) (code error, known bool) {
	var p jobdir.Process
	if r.State == perdure.Completed && json.Unmarshal(r.Result, &p) == nil && p.ExitCode != nil {
		return exitWith(*p.ExitCode), true
	}
	v, err := c.View(ctx, r.RunID, jobdir.ProcessView)
	// A run that did not complete has not succeeded, whatever an earlier execution left.
	if err == nil && json.Unmarshal(v.Value, &p) == nil && p.ExitCode != nil && *p.ExitCode != 0 {
		return exitWith(*p.ExitCode), true
	}
	return outcome(r), false
}

// endCode returns the exit code of an ended run as an error. That of a process is its command's.
func endCode(ctx context.Context, c *client.Client, r *api.Run) error {
	if !isCommand(r) {
		return outcome(r)
	}
	code, _ := exitCode(ctx, c, r)
	return code
}

// exitWith returns the error that ends the program with a code.
func exitWith(code int) error {
	if code == 0 {
		return nil
	}
	if code < 0 || code > 255 {
		code = exitFail // a shell would see another code
	}
	return exitError(code)
}

// detachable returns a context that also ends with Ctrl-Z. A command that waits for a run then
// detaches, as with Ctrl-C, instead of being stopped.
func detachable(ctx context.Context) (context.Context, context.CancelFunc) {
	return signal.NotifyContext(ctx, syscall.SIGTSTP)
}
