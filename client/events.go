package client

import (
	"context"
	"iter"
	"net/url"
	"strconv"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
)

// eventsWait is how long one look at a log waits for something new.
const eventsWait = 30 * time.Second

// eventsPage is how many lines one look takes: few enough that large ones fit into an answer.
const eventsPage = 200

// Events is [Client.Stream] by asking again and again, for networks that hold an unfinished answer back: the same
// lines, once and in order, from after a line (zero: from the beginning) until the run has ended and everything was
// told. A server that is away is waited for as long as the context lives. An error is the last thing it gives: a
// refusal, such as no such run, or the context's end.
func (c *Client) Events(ctx context.Context, id perdure.RunID, after int64) iter.Seq2[api.Event, error] {
	return func(yield func(api.Event, error) bool) {
		for empty := 0; ; {
			began := time.Now()
			page, err := c.EventPage(ctx, id, after, eventsWait)
			switch {
			case ctx.Err() != nil:
				yield(api.Event{}, ctx.Err())
				return
			case Transient(err):
				page = &api.Events{NextAfter: after}
			case err != nil:
				yield(api.Event{}, err)
				return
			}
			if g := page.Gap; g != nil && !yield(api.Event{}, &GapError{RunID: id, From: g.From, To: g.To}) {
				return
			}
			for _, e := range page.Events {
				if !yield(e, nil) {
					return
				}
			}
			after = page.NextAfter
			if page.Ended {
				return
			}
			// A server that shuts down lets go at once: not a reason to call it in a circle.
			if len(page.Events) > 0 || time.Since(began) > eventsWait/2 {
				empty = 0
			} else if empty++; !c.pause(ctx, empty, 0) {
				<-ctx.Done() // it would be over before the next try
				yield(api.Event{}, ctx.Err())
				return
			}
		}
	}
}

// EventPage gives the next lines of a run's log; without any, it waits for one at most so long.
func (c *Client) EventPage(ctx context.Context, id perdure.RunID, after int64, wait time.Duration) (*api.Events, error) {
	q := url.Values{"after": {strconv.FormatInt(after, 10)}, "limit": {strconv.Itoa(eventsPage)}}
	if wait > 0 {
		q.Set("wait", wait.String())
	}
	return answer[api.Events](ctx, c, &request{method: "GET", path: path(v1+"/runs/%s/events", string(id)), query: q, wait: wait})
}
