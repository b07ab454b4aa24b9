package agent

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/wire/session"
)

// A step has its own time and patience: how long one try of its function may take, and how often and
// how fast it is tried again within an attempt of the run. Attempts of the run are the server's.

// again tells whether a step is tried again after its n-th failure, counted from 0, and after which
// pause.
func (r *Retry) again(n int, err error) (pause time.Duration, ok bool) {
	if n+1 >= r.Attempts || session.IsPermanent(err) {
		return 0, false
	}
	if len(r.Except) > 0 && slices.Contains(r.Except, session.Describe(err).Code) {
		return 0, false
	}
	most := cmp.Or(r.Max, time.Minute)
	for pause = min(cmp.Or(r.First, time.Second), most); n > 0 && pause < most; n-- {
		pause = min(2*pause, most)
	}
	return pause, true
}

// patience returns the retries of a step, however they are given.
func (o *StepOptions) patience() Retry {
	r := o.Retry
	r.Attempts = max(r.Attempts, 1)
	return r
}

// checkPatience returns an error if a number or a time of the options is negative. A negative time
// limit is none: it is the rest of a time that has passed.
func (o *StepOptions) checkPatience(c *execution, what string) error {
	if min(o.Retry.Attempts, int(o.Retry.First), int(o.Retry.Max)) < 0 {
		return c.misuse("%s: a negative number of tries, or a negative pause between them", what)
	}
	return nil
}

// errTryTimeout is the cause of a context that ends with the time of a try.
var errTryTimeout = errors.New("the time of this try of the step is over")

// limited calls a function once, within the time limit of a step.
func limited[T any](
	ctx context.Context, key string, f func(ctx context.Context) (T, error), limit time.Duration,
) (out T, err error) {
	if limit == 0 {
		return f(ctx)
	}
	inside, cancel := context.WithTimeoutCause(ctx, limit, errTryTimeout)
	defer cancel()
	out, err = f(inside)
	if err == nil || ctx.Err() != nil || !errors.Is(context.Cause(inside), errTryTimeout) || session.IsPermanent(err) {
		return out, err
	}
	return out, perdure.Errorf(CodeStepTimeout, "step %s: a try took longer than %s: %v", key, limit, err)
}

// lineRetried is the line of the log about a try that failed and is followed by another one.
const lineRetried = "x:step_retried"

// tellRetry writes that a step is tried again. A line that can't be written stops no step.
func tellRetry(ctx context.Context, c *execution, key string, n int, err error, pause time.Duration) {
	why := session.Describe(err)
	_ = c.s.Emit(ctx, lineRetried, map[string]any{"step": key, "try": n + 1, "code": why.Code, "message": why.Message,
		"pause_ms": pause.Milliseconds()})
}
