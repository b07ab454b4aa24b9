package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
)

const schedulesUsage = `Usage:

  perdure schedules                             list them, with their next instants
  perdure schedules add NAME KIND --cron "30 2 * * mon-fri" --timezone Europe/Berlin [--input JSON] [flags]
  perdure schedules add NAME KIND --every 15m [--input JSON] [flags]
  perdure schedules show NAME
  perdure schedules next NAME [-n 10]           its next instants
  perdure schedules pause NAME
  perdure schedules resume NAME
  perdure schedules trigger NAME                start a run of it now
  perdure schedules rm NAME                     its runs go on

Every one takes --json. See docs/schedules.md.
`

// schedulesCommand implements "perdure schedules".
func schedulesCommand(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	h := &schedulesCall{subcommandCall{ctx: ctx, args: args, stdout: stdout, stderr: stderr}}
	return h.dispatch("schedules", schedulesUsage, "list", []subcommand{
		{"list", "Lists schedules.", h.list},
		{"add NAME KIND", "Makes a schedule, or changes the one of this name.\n\n" +
			"  perdure schedules add nightly report --cron \"30 2 * * *\" --timezone Europe/Berlin\n" +
			"  perdure schedules add poll check --every 15m --overlap skip", h.add},
		{"show NAME", "Shows a schedule.", h.show},
		{"next NAME", "Lists the next instants of a schedule.\n\n  perdure schedules next nightly -n 3", h.next},
		{"pause NAME", "Pauses a schedule. Instants that come meanwhile are missed.", h.pause},
		{"resume NAME", "Resumes a schedule.", h.resume},
		{"trigger NAME", "Starts a run of a schedule now, and prints its id.", h.trigger},
		{"rm NAME", "Deletes a schedule. Runs that it has started go on.", h.remove},
	})
}

// A schedulesCall is one call of "perdure schedules".
type schedulesCall struct{ subcommandCall }

func (h *schedulesCall) list() error {
	_, c, err := h.begin()
	if err != nil {
		return err
	}
	list, err := c.Schedules(h.ctx)
	if err != nil {
		return err
	}
	return h.print(list, func(w io.Writer) {
		if len(list) == 0 {
			fmt.Fprintln(w, "No schedules: perdure schedules add NAME KIND --every 15m makes one.")
			return
		}
		fmt.Fprintln(w, "NAME\tPLAN\tNEXT\tLAST\tFIRED\tMISSED\tSKIPPED\tFAILED")
		for i := range list {
			s := &list[i]
			next := s.State
			if s.State == "active" {
				next = localTime(s.NextAt)
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%d\t%d\t%d\n", visible(s.Name), planText(s), next, localTime(s.LastAt),
				s.Fired, s.MissedCount, s.Skipped, s.Failed)
		}
		for i := range list {
			if s := &list[i]; s.LastError != nil {
				fmt.Fprintf(w, "\n%s was refused %d times in a row: %s\n", visible(s.Name), s.Failures,
					visible(s.LastError.Message))
			}
		}
	})
}

// planText says when a schedule fires.
func planText(s *api.Schedule) string {
	if s.Every != nil {
		return "every " + s.Every.String()
	}
	if s.Timezone == "" {
		return visible(s.Cron)
	}
	return visible(s.Cron) + " " + visible(s.Timezone)
}

// localTime shows an instant by the clock of this computer, or a dash.
func localTime(at *perdure.Instant) string {
	if at == nil {
		return "-"
	}
	return at.Time().Local().Format(time.DateTime)
}

func (h *schedulesCall) add() error {
	var in api.PutSchedule
	f := h.flags
	f.StringVar(&in.Cron, "cron", "", "the `expression`: minute, hour, day, month, day of the week; or @daily")
	f.TextVar(&in.Every, "every", perdure.Duration(0), "the interval, such as 15m")
	f.StringVar(&in.Timezone, "timezone", "", "the time `zone` of --cron, such as Europe/Berlin (default: UTC)")
	f.TextVar(&in.Jitter, "jitter", perdure.Duration(0), "how much later an instant may fire")
	f.StringVar(&in.Overlap, "overlap", "", "while the last run is live: allow (default), skip, queue or cancel_old")
	f.StringVar(&in.Missed, "missed", "", "what happens to missed instants: once (default), skip or all")
	f.StringVar(&in.Description, "description", "", "what it is for")
	startAt := f.String("start-at", "", "the first `instant`, such as 2026-01-31T18:00:00Z")
	endAt := f.String("end-at", "", "the last `instant`")
	paused := f.Bool("paused", false, "pause it; --paused=false resumes it")
	input := f.String("input", "", "the input: `JSON`, @file, or - for standard input")
	f.StringVar(&in.Queue, "queue", "", "the `queue`")
	thread := f.String("thread", "", "the `thread` that its runs are on")
	class := f.String("class", "", "task, agent or process")
	f.IntVar(&in.Priority, "priority", 0, "-100 to 100, higher first")
	f.IntVar(&in.MaxAttempts, "max-attempts", 0, "attempts of a run before it is given up")
	f.TextVar(&in.Timeout, "timeout", perdure.Duration(0), "when a run ends at the latest, from its start on")
	args, c, err := h.begin()
	if err != nil {
		return err
	}
	in.Kind, in.ThreadID, in.Class = args[1], perdure.ThreadID(*thread), perdure.Class(*class)
	if f.given("paused") {
		in.Paused = paused
	}
	for _, x := range []struct {
		flag, text string
		to         *perdure.Instant
	}{{"start-at", *startAt, &in.StartAt}, {"end-at", *endAt, &in.EndAt}} {
		if x.text == "" {
			continue
		}
		t, err := time.Parse(time.RFC3339, x.text)
		if err != nil {
			fmt.Fprintf(h.stderr, "perdure schedules add: --%s takes an instant such as 2026-01-31T18:00:00Z\n", x.flag)
			return errUsage
		}
		*x.to = perdure.At(t)
	}
	if in.Input, err = readJSON("--input", *input); err != nil {
		return err
	}
	s, err := c.PutSchedule(h.ctx, args[0], in)
	if err != nil {
		return err
	}
	return h.shown(s)
}

// shown prints a schedule, one line for each thing that is known.
func (h *schedulesCall) shown(s *api.Schedule) error {
	return h.print(s, func(w io.Writer) {
		item := func(name, text string) {
			if text != "" && text != "-" {
				fmt.Fprintf(w, "%s\t%s\n", name, visible(text))
			}
		}
		item("name", s.Name)
		item("description", s.Description)
		item("plan", planText(s))
		item("state", s.State)
		item("next", localTime(s.NextAt))
		item("overlap", s.Overlap)
		item("missed", s.Missed)
		item("last", localTime(s.LastAt))
		item("last run", string(s.LastRun))
		item("counts", fmt.Sprintf("%d fired, %d missed, %d skipped, %d failed", s.Fired, s.MissedCount, s.Skipped,
			s.Failed))
		if s.LastError != nil {
			item("refused", fmt.Sprintf("%d times in a row: %s", s.Failures, s.LastError.Message))
		}
		item("submission", string(s.Submission))
	})
}

// one calls a method of the client for the schedule that is named, and prints what it gives.
func (h *schedulesCall) one(call func(c *client.Client, name string) (*api.Schedule, error)) error {
	args, c, err := h.begin()
	if err != nil {
		return err
	}
	s, err := call(c, args[0])
	if err != nil {
		return err
	}
	return h.shown(s)
}

func (h *schedulesCall) show() error {
	return h.one(func(c *client.Client, name string) (*api.Schedule, error) { return c.Schedule(h.ctx, name) })
}

func (h *schedulesCall) pause() error {
	return h.one(func(c *client.Client, name string) (*api.Schedule, error) { return c.PauseSchedule(h.ctx, name) })
}

func (h *schedulesCall) resume() error {
	return h.one(func(c *client.Client, name string) (*api.Schedule, error) { return c.ResumeSchedule(h.ctx, name) })
}

func (h *schedulesCall) next() error {
	n := h.flags.Int("n", 10, "how many")
	args, c, err := h.begin()
	if err != nil {
		return err
	}
	list, err := c.UpcomingInstants(h.ctx, args[0], *n)
	if err != nil {
		return err
	}
	return h.print(list, func(w io.Writer) {
		if len(list) == 0 {
			fmt.Fprintln(w, "No instant is left.")
		}
		for _, x := range list {
			fmt.Fprintf(w, "%s\t%s\n", x.At.Time().Format(time.RFC3339), visible(x.Local))
		}
	})
}

func (h *schedulesCall) trigger() error {
	args, c, err := h.begin()
	if err != nil {
		return err
	}
	r, err := c.TriggerSchedule(h.ctx, args[0])
	if err != nil {
		return err
	}
	return h.print(r, func(w io.Writer) { fmt.Fprintln(w, r.RunID) })
}

func (h *schedulesCall) remove() error {
	args, c, err := h.begin()
	if err != nil {
		return err
	}
	if err := c.DeleteSchedule(h.ctx, args[0]); err != nil {
		return err
	}
	return h.print(map[string]string{"deleted": args[0]}, func(w io.Writer) {
		fmt.Fprintf(w, "%s is deleted; runs that it has started go on\n", visible(args[0]))
	})
}
