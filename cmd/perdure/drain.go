package main

import (
	"fmt"
	"io"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/client/admin"
	"github.com/perdure/perdure/internal/wire/timer"
)

// drainLook is how often a drain counts the leased runs.
const drainLook = 500 * time.Millisecond

// drained is what a drain prints.
type drained struct {
	*api.QueuePaused
	// Leased counts the runs that workers still hold.
	Leased int `json:"leased"`
}

func (h *queuesCall) drain() error {
	return drain(&h.subcommandCall, func(c *admin.Client, name string, in api.PauseQueue) (*api.QueuePaused, error) {
		return c.PauseQueue(h.ctx, name, in)
	}, func(name string) client.Filter { return client.Filter{Queue: name} })
}

func (h *kindsCall) drain() error {
	return drain(&h.subcommandCall, func(c *admin.Client, name string, in api.PauseQueue) (*api.QueuePaused, error) {
		return c.PauseKind(h.ctx, name, in)
	}, func(name string) client.Filter { return client.Filter{Kind: name} })
}

// drain pauses a queue or a kind, and says how many of its runs are still leased. With --wait it returns
// when there is none.
func drain(
	h *subcommandCall, pause func(*admin.Client, string, api.PauseQueue) (*api.QueuePaused, error),
	of func(name string) client.Filter,
) error {
	reason := h.flags.String("reason", "", "`why`, for those who look at it")
	wait := h.flags.Bool("wait", false, "return when no run is leased")
	args, c, err := h.begin()
	if err != nil {
		return err
	}
	out := drained{}
	if out.QueuePaused, err = pause(admin.New(c), args[0], api.PauseQueue{Reason: *reason}); err != nil {
		return err
	}
	for last := -1; ; timer.Sleep(h.ctx, drainLook) {
		if out.Leased, err = leased(h, c, of(args[0])); err != nil {
			return err
		}
		if out.Leased == 0 || !*wait {
			break
		}
		if out.Leased != last {
			fmt.Fprintf(h.stderr, "%s is paused; %d runs are still leased\n", visible(out.Name), out.Leased)
		}
		last = out.Leased
	}
	return h.print(out, func(w io.Writer) {
		fmt.Fprintf(w, "%s is paused %s; %d runs are still leased\n", visible(out.Name), pauseText(out.Paused),
			out.Leased)
	})
}

// leased counts the runs that workers hold.
func leased(h *subcommandCall, c *client.Client, f client.Filter) (n int, err error) {
	for _, state := range []perdure.State{perdure.Dispatched, perdure.Running} {
		f.State = state
		counts, err := c.Counts(h.ctx, f)
		if err != nil {
			return 0, err
		}
		n += counts.State[string(state)]
		if n == 0 && counts.AtLeast { // not all of them were counted
			n = 1
		}
	}
	return n, nil
}
