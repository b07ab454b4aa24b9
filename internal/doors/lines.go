package doors

import (
	"context"
	"errors"
	"iter"
	"math/rand/v2"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
)

// Lines yields the lines of a run's log after a number, as they are written, until the run has ended.
// It holds one page of them. A refusal of the API before the first line is yielded as an error, so that
// it can be answered. Later, and if the answer has begun already, the log is asked for again: the caller
// must not lose the answer because its tenant has too many streams at the moment. The end of the context
// is an error. Lines that are no longer stored are left out.
func (c *Call) Lines(ctx context.Context, id perdure.RunID, after int64) iter.Seq2[*api.Event, error] {
	return func(yield func(*api.Event, error) bool) {
		for begun, failed := c.accepted, 0; ; failed++ {
			err := error(nil)
			for e, why := range c.API.Stream(ctx, id, after, client.StreamOptions{Once: true}) {
				if errors.As(why, new(*client.StreamGapError)) {
					continue
				}
				if err = why; err != nil {
					break
				}
				after, begun, failed = e.Seq, true, 0
				if !yield(&e, nil) {
					return
				}
			}
			if err == nil {
				return
			}
			if ctx.Err() != nil {
				err = context.Cause(ctx)
			} else if p := new(api.Problem); begun && (!errors.As(err, &p) || p.Status >= 429) && pause(ctx, failed) {
				continue
			}
			yield(nil, err)
			return
		}
	}
}

// pause waits before a log is read again. It returns false if the context ends.
func pause(ctx context.Context, failed int) bool {
	d := 100 * time.Millisecond << min(failed, 5)
	t := time.NewTimer(d/2 + rand.N(d/2))
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// Past yields the lines of a run's log after a number that are there already, page by page. It does not
// wait for more.
func (c *Call) Past(ctx context.Context, id perdure.RunID, after int64) iter.Seq2[*api.Event, error] {
	return func(yield func(*api.Event, error) bool) {
		for {
			page, err := c.API.EventPage(ctx, id, after, 0)
			if err != nil {
				yield(nil, err)
				return
			}
			for i := range page.Events {
				if !yield(&page.Events[i], nil) {
					return
				}
			}
			if len(page.Events) == 0 || page.NextAfter <= after {
				return
			}
			after = page.NextAfter
		}
	}
}
