package worker

import (
	"context"
	"slices"
	"time"

	"github.com/perdure/perdure"
)

// CloseLimit closes a limit, or one of its keys, for a time: somebody else has refused work until then, for
// example with a 429. Nobody is granted a run under the limit meanwhile, on whatever worker. It goes with the
// run's next commit, and does not wait for it. A closure that holds for longer stays, and a limit that is not
// there is left out.
func CloseLimit(ctx context.Context, name, key string, d time.Duration, reason string) error {
	r := from(ctx)
	if r == nil {
		return errNoRun
	}
	return r.closeLimit(ctx, perdure.LimitClosure{Name: name, Key: key, ClosedFor: perdure.Duration(d), Reason: reason})
}

// closeLimit closes a limit with the next commit.
func (r *run) closeLimit(ctx context.Context, c perdure.LimitClosure) error {
	if err := c.Validate("limit"); err != nil {
		return err
	}
	err := r.add(ctx, 0, func() int {
		same := func(x perdure.LimitClosure) bool { return x.Name == c.Name && x.Key == c.Key }
		r.closures = append(slices.DeleteFunc(r.closures, same), c)
		r.sendAt = time.Now()
		return 0
	})
	kick(r.w.kickOutcome)
	return err
}
