package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/client/admin"
	"github.com/perdure/perdure/cmd/internal/paint"
)

const dlqUsage = `Usage:

  perdure dlq                                  dead letters by cause and kind
  perdure dlq list [--cause C] [--kind K] [--queue Q]
  perdure dlq show RUN_ID                      what led there
  perdure dlq add RUN_ID…                      give up runs that a defect holds
  perdure dlq redrive RUN_ID…                  make new runs of them
  perdure dlq redrive --cause C [--kind K] [--queue Q] [--limit N]
  perdure dlq redrive RUN_ID… --from start     with an empty journal: its steps are executed again
  perdure dlq redrive RUN_ID… --resign         although its signature is not valid: you have looked at it
  perdure dlq discard RUN_ID…
  perdure dlq discard --cause C [--kind K] [--queue Q] [--limit N]

Every one takes --json. More in docs/deadletters.md.
`

// dlqCommand implements "perdure dlq".
func dlqCommand(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	d := &dlqCall{subcommandCall{ctx: ctx, args: args, stdout: stdout, stderr: stderr},
		paint.Painter{On: paint.Colourful(stdout)}}
	return d.dispatch("dlq", dlqUsage, "causes", []subcommand{
		{"causes", "Counts dead letters by cause and kind, the most first.", d.causes},
		{"list", "Lists dead letters, newest first.\n\n  perdure dlq list --cause CAUSE", d.list},
		{"show RUN_ID", "Shows a dead letter and what led to it.\n\n  perdure dlq show RUN_ID", d.show},
		{"add RUN_ID…",
			"Ends runs that are on hold after a defect of their code, as dead letters.\n\n  perdure dlq add RUN_ID…",
			d.add},
		{"redrive [RUN_ID…]",
			"Makes new runs of dead letters: of those named, or of those of a cause, a kind or a queue that " +
				"nobody has " +
				"redriven, the oldest first.\n\n  perdure dlq redrive RUN_ID…\n  perdure dlq redrive --cause CAUSE",
			d.redrive},
		{"discard [RUN_ID…]",
			"Discards dead letters; their runs stay.\n\n  perdure dlq discard RUN_ID…\n" +
				"  perdure dlq discard --cause CAUSE", d.discard},
	})
}

type dlqCall struct {
	subcommandCall
	paint paint.Painter
}

// parseWithLimit is begin for a subcommand with a --limit, which has to be positive.
func (d *dlqCall) parseWithLimit(limit *int) (*client.Client, error) {
	if _, err := parseMixed(d.flags, d.args); err != nil {
		return nil, err
	}
	if *limit < 1 {
		fmt.Fprintf(d.stderr, "perdure %s: --limit has to be positive\n", d.flags.Name())
		return nil, errUsage
	}
	return d.conn.connect(d.ctx)
}

// addLetterFlags adds the flags that select dead letters.
func addLetterFlags(f *flagSet, cause, kind, queue *string, limit *int, byDefault int) {
	f.StringVar(cause, "cause", "", "only of this `cause`: the code of the run's error")
	f.StringVar(kind, "kind", "", "only of this `kind`")
	f.StringVar(queue, "queue", "", "only of this `queue`")
	f.IntVar(limit, "limit", byDefault, "at most so many")
}

func (d *dlqCall) causes() error {
	var f admin.DeadLetterFilter
	addLetterFlags(d.flags, &f.Cause, &f.Kind, &f.Queue, &f.Limit, 100)
	c, err := d.parseWithLimit(&f.Limit)
	if err != nil {
		return err
	}
	found, err := admin.New(c).DeadLetterCauses(d.ctx, f)
	if err != nil {
		return err
	}
	return d.print(found, func(w io.Writer) {
		if len(found.Causes) == 0 {
			fmt.Fprintln(w, "No dead letters.")
			return
		}
		width := len("CAUSE")
		for i := range found.Causes {
			width = max(width, len(literal(found.Causes[i].Cause)))
		}
		fmt.Fprintf(w, "%-*s  KIND\tLETTERS\tREDRIVEN\tNEWEST\tEXAMPLE\n", width, "CAUSE")
		for _, x := range found.Causes {
			// The padding is written here, because tabwriter would count the bytes of the colour.
			fmt.Fprintf(w, "%s%*s  %s\t%d\t%d\t%s\t%s\n", d.paint.In(paint.Red, literal(x.Cause)),
				width-len(literal(x.Cause)), "", literal(x.Kind), x.Count, x.Redriven, ago(x.NewestAt), x.Example)
		}
		if found.More {
			fmt.Fprintln(w, "… and more causes: choose by --kind or --queue")
		}
	})
}

// ago formats the time since an instant.
func ago(at perdure.Instant) string { return formatDuration(max(0, time.Since(at.Time()))) }

func (d *dlqCall) list() error {
	var f admin.DeadLetterFilter
	addLetterFlags(d.flags, &f.Cause, &f.Kind, &f.Queue, &f.Limit, 20)
	d.flags.StringVar(&f.Cursor, "cursor", "", "go on from here: next_cursor of the list before")
	c, err := d.parseWithLimit(&f.Limit)
	if err != nil {
		return err
	}
	page, err := admin.New(c).DeadLetters(d.ctx, f)
	if err != nil {
		return err
	}
	return d.print(page, func(w io.Writer) {
		if len(page.DeadLetters) == 0 {
			fmt.Fprintln(w, "No dead letters.")
			return
		}
		fmt.Fprintln(w, "RUN\tKIND\tDIED\tREDRIVEN BY\tCAUSE")
		for _, x := range page.DeadLetters {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", x.RunID, literal(x.Kind), ago(x.At),
				first(string(x.RedrivenBy), "-"),
				d.paint.In(paint.Red, literal(x.Cause)))
		}
		if page.NextCursor != "" {
			fmt.Fprintln(w, "… and perhaps more: --cursor "+literal(page.NextCursor))
		}
	})
}

func (d *dlqCall) show() error {
	args, c, err := d.begin()
	if err != nil {
		return err
	}
	l, err := admin.New(c).DeadLetter(d.ctx, perdure.RunID(args[0]))
	if err != nil {
		return err
	}
	return d.print(l, func(w io.Writer) { d.printStory(w, l) })
}

// printStory prints what led to a dead letter.
func (d *dlqCall) printStory(w io.Writer, l *api.DeadLetterStory) {
	fact := func(name, text string) {
		if text != "" {
			fmt.Fprintf(w, "%-10s %s\n", name, text)
		}
	}
	fact("run", string(l.RunID))
	fact("kind", literal(l.Kind+" in "+l.Queue))
	fact("cause", d.paint.In(paint.Red, literal(l.Cause)))
	fact("", literal(l.Message))
	fact("died", formatTime(l.At)+", kept until "+formatTime(l.ExpiresAt))
	if l.Parent != nil {
		fact("parent", fmt.Sprintf("%s, %s", l.Parent.JobID, l.Parent.Status))
	}
	if r := l.Run; r != nil {
		fact("doing", literal(r.Activity))
		fact("progress", oneLine(r.Progress))
		fact("input", oneLine(r.Input))
	}
	if l.RedrivenBy != "" {
		fact("redriven", "as "+string(l.RedrivenBy))
	}
	if len(l.Attempts) > 0 {
		fmt.Fprintln(w, "\nTRY\tGRANTED\tFOR\tWORKER\tOUTCOME")
	}
	for _, a := range l.Attempts {
		took, how := "", literal(a.Outcome)
		if a.EndedAt != 0 {
			took = formatDuration(a.EndedAt.Sub(a.GrantedAt))
		}
		if a.StartedAt == 0 {
			how += ", never started"
		}
		if a.Error != nil {
			how += ": " + literal(strings.TrimSuffix(string(a.Error.Code)+": "+firstLine(a.Error.Message), ": "))
		}
		fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%s\n", a.N, formatTime(a.GrantedAt), took, literal(a.WorkerID), how)
	}
	if len(l.Events) > 0 {
		fmt.Fprintln(w, "\nSEQ\tAT\tEVENT")
	}
	for _, e := range l.Events {
		fmt.Fprintf(w, "%d\t%s\t%s %s\n", e.Seq, formatTime(e.At), literal(string(e.Type)),
			d.paint.Dim(oneLine(e.Data)))
	}
	if l.RedrivenBy == "" {
		again := "perdure dlq redrive " + string(l.RunID)
		if l.Cause == string(perdure.CodeSignatureInvalid) {
			again += " --resign"
		}
		fmt.Fprintln(w, "\n"+again)
	}
}

// oneLine returns the beginning of a value, as much as fits in a line.
func oneLine(v []byte) string {
	text := []rune(literal(string(v)))
	if len(text) > 120 {
		return string(text[:119]) + "…"
	}
	return string(text)
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return line
}

// selectLetters reads which dead letters are selected: by run id, or by cause, kind or queue.
func (d *dlqCall) selectLetters() (in api.ChooseLetters, c *client.Client, err error) {
	limit := 100
	addLetterFlags(d.flags, &in.Cause, &in.Kind, &in.Queue, &limit, limit)
	ids, err := parseMixed(d.flags, d.args)
	if err != nil {
		return in, nil, err
	}
	for _, id := range ids {
		in.IDs = append(in.IDs, perdure.RunID(id))
	}
	d.flags.Visit(func(f *flag.Flag) {
		if f.Name == "limit" {
			in.Limit = &limit
		}
	})
	if named := in.Cause != "" || in.Kind != "" || in.Queue != ""; named == (len(ids) > 0) {
		d.flags.Usage()
		return in, nil, errUsage
	}
	c, err = d.conn.connect(d.ctx)
	return in, c, err
}

func (d *dlqCall) redrive() error {
	var how api.Redrive
	d.flags.BoolVar(&how.Resign, "resign", false,
		"sign them although their signature is not valid: you have looked at them")
	d.flags.StringVar(&how.From, "from", "", fromUsage)
	in, c, err := d.selectLetters()
	if err != nil {
		return err
	}
	done, err := admin.New(c).RedriveMany(d.ctx, api.RedriveMany{ChooseLetters: in, Redrive: how})
	return d.done(done, err, func(x *api.LetterDone) string { return "is run " + string(x.RedrivenBy) })
}

func (d *dlqCall) discard() error {
	in, c, err := d.selectLetters()
	if err != nil {
		return err
	}
	done, err := admin.New(c).DropDeadLetters(d.ctx, in)
	return d.done(done, err, func(*api.LetterDone) string { return "is discarded" })
}

// done prints the result for each dead letter, and returns an error if one of them failed.
func (d *dlqCall) done(all *api.LettersDone, err error, text func(*api.LetterDone) string) error {
	if err != nil {
		return err
	}
	err = d.print(all, func(w io.Writer) {
		if len(all.Results) == 0 {
			fmt.Fprintln(w, "No dead letters.")
		}
		for i := range all.Results {
			x := &all.Results[i]
			if x.Error == nil {
				fmt.Fprintf(w, "%s %s\n", x.RunID, text(x))
			} else {
				fmt.Fprintf(w, "%s %s\n", x.RunID,
					d.paint.In(paint.Red, literal(string(x.Error.Code)+": "+x.Error.Detail)))
			}
		}
	})
	if err == nil && all.Done < len(all.Results) {
		err = exitError(exitFail)
	}
	return err
}
