package client

import (
	"context"
	"fmt"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
)

// A DeferredError says that [Call] has stopped waiting. The run continues, and [Client.Join] waits
// for it again.
type DeferredError struct {
	RunID perdure.RunID
	Kind  string
	State perdure.State // as it was last seen
	// WaitingFor says why the run is not executed yet, if it is queued: no worker serves its kind, its queue
	// is paused, …
	WaitingFor *perdure.WaitingFor
}

func (e *DeferredError) Error() string {
	text := fmt.Sprintf("run %s of kind %s is %s and continues: nobody waits for it any more", e.RunID, e.Kind, e.State)
	if e.WaitingFor != nil {
		text += "; it waits: " + e.WaitingFor.Text
	}
	return text
}

// Call runs a kind with an input and returns its result. The input is encoded as JSON; nil means
// none. Class, timeout and retries are those of the kind in the registry.
//
// Call waits until the deadline of its context, or for [DefaultWait] if that has none. If the run
// has not ended by then, the error is a [*DeferredError]. If the run ended without a result, it is a
// [*RunError].
func Call[Out any](ctx context.Context, c *Client, kind string, in any, opts ...CallOptions) (Out, error) {
	var none Out
	sub := perdure.Submission{Kind: kind}
	if in != nil {
		input, err := perdure.Marshal(in)
		if err != nil {
			return none, api.NewProblem(perdure.CodeInvalid, fmt.Sprintf("a %T can't be written as JSON: %v", in, err),
				"input")
		}
		sub.Input = input
	}
	wait := DefaultWait
	if end, ok := ctx.Deadline(); ok {
		wait = max(time.Until(end), time.Millisecond)
	}
	run, deferred, err := c.Run(ctx, sub, wait, opts...)
	if err != nil {
		return none, err
	}
	if deferred {
		return none, &DeferredError{RunID: run.RunID, Kind: kind, State: run.State, WaitingFor: c.waitingFor(ctx, run)}
	}
	return Result[Out](run)
}

// waitingFor says why a queued run is not executed yet. It asks briefly: the caller's own time is over.
func (c *Client) waitingFor(ctx context.Context, run *api.Run) *perdure.WaitingFor {
	if run.State != perdure.Queued {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	if a, err := c.Activity(ctx, run.RunID); err == nil {
		return a.WaitingFor
	}
	return nil
}
