package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client/admin"
)

const queuesUsage = `Usage:

  perdure queues                                list them, with their runs and whether they are paused
  perdure queues pause QUEUE [--reason "…"] [--for 30m | --until 2026-01-31T18:00:00Z]
  perdure queues resume QUEUE
  perdure queues drain QUEUE [--wait]           pause it, and say how many of its runs are still leased
  perdure queues set QUEUE [--concurrency 3] [--limits openai,shop]   what its new runs are under; nothing: no limit

Every one takes --json. A paused queue accepts runs and grants none; see docs/api.md#pausing-a-queue.
`

// queuesCommand implements "perdure queues".
func queuesCommand(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	h := &queuesCall{subcommandCall{ctx: ctx, args: args, stdout: stdout, stderr: stderr}}
	return h.dispatch("queues", queuesUsage, "list", []subcommand{
		{"list", "Lists queues.", h.list},
		{"pause QUEUE", "Pauses a queue: it accepts runs and grants none, until it is resumed or its pause ends.\n\n" +
			"  perdure queues pause QUEUE --reason \"the model is down\" --for 30m", h.pause},
		{"drain QUEUE", "Pauses a queue, and says how many of its runs are still leased. " +
			"With --wait it returns at 0.\n\n" +
			"  perdure queues drain QUEUE --wait", h.drain},
		{"set QUEUE", "Puts new runs of a queue under limits. What is not given is taken away. Runs that were " +
			"accepted before keep theirs.\n\n  perdure queues set shop --concurrency 3 --limits openai", h.set},
		{"resume QUEUE", "Ends the pause of a queue.\n\n  perdure queues resume QUEUE", h.resume},
	})
}

// A queuesCall is one call of "perdure queues".
type queuesCall struct{ subcommandCall }

func (h *queuesCall) list() error {
	_, c, err := h.begin()
	if err != nil {
		return err
	}
	list, err := c.Queues(h.ctx)
	if err != nil {
		return err
	}
	return h.print(list, func(w io.Writer) {
		if len(list) == 0 {
			fmt.Fprintln(w, "No queues: the first run of a queue makes it.")
			return
		}
		fmt.Fprintln(w, "QUEUE\tQUEUED\tCLAIMABLE\tRUNNING\tWAITING\tOLDEST\tLIMITS\tPAUSED")
		for i := range list {
			q := &list[i]
			oldest := "-"
			if q.OldestClaimable > 0 {
				oldest = millis(q.OldestClaimable)
			}
			fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\t%s\t%s\t%s\n", visible(q.Name), q.Queued, q.Claimable, q.Running,
				q.Suspended, oldest, limitsText(q.Limits, q.Concurrency, q.MissingLimits), pauseText(q.Paused))
		}
	})
}

// limitsText says what runs of a queue or a kind are under.
func limitsText(names []string, concurrency int, missing []string) string {
	var parts []string
	if concurrency > 0 {
		parts = append(parts, fmt.Sprintf("%d at once", concurrency))
	}
	for _, name := range names {
		text := visible(name)
		if slices.Contains(missing, name) {
			text += " (there is no such limit)"
		}
		parts = append(parts, text)
	}
	return first(strings.Join(parts, ", "), "-")
}

func (h *queuesCall) set() error {
	var in api.QueueLimits
	h.flags.IntVar(&in.Concurrency, "concurrency", 0, "how `many` of its runs may be leased at once")
	names := h.flags.String("limits", "", "`limits` that its runs are under, separated by commas")
	args, c, err := h.begin()
	if err != nil {
		return err
	}
	in.Limits = separated(*names)
	out, err := admin.New(c).SetQueueLimits(h.ctx, args[0], in)
	if err != nil {
		return err
	}
	return h.print(out, func(w io.Writer) {
		fmt.Fprintf(w, "%s\t%s\n", visible(out.Name), limitsText(out.Limits, out.Concurrency, nil))
	})
}

// separated gives the names of a list that is separated by commas.
func separated(text string) (out []string) {
	for _, name := range strings.FieldsFunc(text, func(r rune) bool { return r == ',' }) {
		out = append(out, strings.TrimSpace(name))
	}
	return out
}

// pauseText says since when a queue is paused, by whom, why, and until when.
func pauseText(p *perdure.QueuePause) string {
	if p == nil {
		return "-"
	}
	by := p.By
	if p.Platform {
		by = "the platform"
	}
	text := "since " + p.At.Time().Local().Format(time.DateTime)
	if by != "" {
		text += " by " + visible(by)
	}
	if p.Until != 0 {
		text += ", until " + p.Until.Time().Local().Format(time.DateTime)
	}
	if p.Reason != "" {
		text += ": " + visible(p.Reason)
	}
	return text
}

func (h *queuesCall) pause() error {
	return pausePlace(&h.subcommandCall,
		func(c *admin.Client, name string, in api.PauseQueue) (*api.QueuePaused, error) {
			return c.PauseQueue(h.ctx, name, in)
		})
}

func (h *kindsCall) pause() error {
	return pausePlace(&h.subcommandCall,
		func(c *admin.Client, name string, in api.PauseQueue) (*api.QueuePaused, error) {
			return c.PauseKind(h.ctx, name, in)
		})
}

// pausePlace pauses a queue or a kind.
func pausePlace(
	h *subcommandCall, pause func(*admin.Client, string, api.PauseQueue) (*api.QueuePaused, error),
) error {
	reason := h.flags.String("reason", "", "`why`, for those who look at it")
	length := h.flags.Duration("for", 0, "`how long`, such as 30m (default: until it is resumed)")
	until := h.flags.String("until", "", "the `instant` at which it ends, such as 2026-01-31T18:00:00Z")
	args, c, err := h.begin()
	if err != nil {
		return err
	}
	in := api.PauseQueue{Reason: *reason, For: perdure.Duration(*length)}
	if *until != "" {
		t, err := time.Parse(time.RFC3339, *until)
		if err != nil {
			fmt.Fprintf(h.stderr, "%s: --until takes an instant such as 2026-01-31T18:00:00Z\n", h.flags.Name())
			return errUsage
		}
		at := perdure.At(t)
		in.Until = &at
	}
	out, err := pause(admin.New(c), args[0], in)
	if err != nil {
		return err
	}
	return pauseChanged(h, out)
}

func (h *queuesCall) resume() error {
	return resumePlace(&h.subcommandCall, func(c *admin.Client, name string) (*api.QueuePaused, error) {
		return c.ResumeQueue(h.ctx, name)
	})
}

func (h *kindsCall) resume() error {
	return resumePlace(&h.subcommandCall, func(c *admin.Client, name string) (*api.QueuePaused, error) {
		return c.ResumeKind(h.ctx, name)
	})
}

// resumePlace resumes a queue or a kind.
func resumePlace(h *subcommandCall, resume func(*admin.Client, string) (*api.QueuePaused, error)) error {
	args, c, err := h.begin()
	if err != nil {
		return err
	}
	out, err := resume(admin.New(c), args[0])
	if err != nil {
		return err
	}
	return pauseChanged(h, out)
}

// pauseChanged prints whether a queue or a kind is paused now.
func pauseChanged(h *subcommandCall, q *api.QueuePaused) error {
	return h.print(q, func(w io.Writer) {
		if q.Paused == nil {
			fmt.Fprintf(w, "%s is not paused\n", visible(q.Name))
			return
		}
		fmt.Fprintf(w, "%s is paused %s\n", visible(q.Name), pauseText(q.Paused))
	})
}
