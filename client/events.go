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

// eventsWait is how long one request waits for a new event.
const eventsWait = 30 * time.Second

// eventsPage limits the events of one answer, so that large ones fit into maxAnswer.
const eventsPage = 200

// Events is [Client.Stream] by long polling, for networks that buffer an unfinished answer. It
// yields the same events, each once and in order, after the given number (zero: from the beginning)
// until the run has ended. While the server is away, it retries until the context ends. An error is
// its last value: a refusal, for example not_found, or the end of the context. Only a [*StreamGapError]
// does not end it.
func (c *Client) Events(ctx context.Context, id perdure.RunID, after int64) iter.Seq2[api.Event, error] {
	return c.pages(ctx, id, after, eventsWait, func() {})
}

// pages is Events with requests that wait for the given time. It calls idle after each one that has
// waited and brought nothing.
func (c *Client) pages(
	ctx context.Context, id perdure.RunID, after int64, wait time.Duration, idle func(),
) iter.Seq2[api.Event, error] {
	return func(yield func(api.Event, error) bool) {
		for empty := 0; ; {
			began := time.Now()
			page, err := c.EventPage(ctx, id, after, wait)
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
			if g := page.Gap; g != nil && !yield(api.Event{}, &StreamGapError{RunID: id, From: g.From, To: g.To}) {
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
			// A server that shuts down answers at once. The pause prevents a busy loop.
			waited := time.Since(began) > wait/2
			if waited && err == nil && len(page.Events) == 0 {
				idle()
			}
			if len(page.Events) > 0 || waited {
				empty = 0
			} else if empty++; !c.pause(ctx, time.Time{}, empty, 0) {
				<-ctx.Done() // the context ends before the next attempt
				yield(api.Event{}, ctx.Err())
				return
			}
		}
	}
}

// EventPage returns the next events of a run's log. If there are none, it waits up to the given
// time.
func (c *Client) EventPage(
	ctx context.Context, id perdure.RunID, after int64, wait time.Duration,
) (*api.Events, error) {
	q := url.Values{"after": {strconv.FormatInt(after, 10)}, "limit": {strconv.Itoa(eventsPage)}}
	if wait > 0 {
		q.Set("wait", wait.String())
	}
	r := &request{method: "GET", path: path(v1+"/runs/%s/events", string(id)), query: q, wait: wait}
	return answer[api.Events](ctx, c, r)
}
