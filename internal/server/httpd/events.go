package httpd

import (
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/server/engine/reads"
	"github.com/perdure/perdure/internal/server/httpd/stream"
)

// maxEvents is about the number of bytes of a log in one answer.
const maxEvents = 4 << 20

// runEvents reads a page of a run's log. With wait it waits for lines after the cursor.
func runEvents(c *call, _ *none) (int, *api.Events, error) {
	after, err := c.intParam("after", 0, 0, maxSeq)
	if err != nil {
		return 0, nil, err
	}
	limit, err := c.intParam("limit", 500, 1, maxEventPage)
	if err != nil {
		return 0, nil, err
	}
	wait, err := c.durationParam("wait", 0, time.Minute)
	if err != nil {
		return 0, nil, err
	}
	out := &api.Events{Events: []api.Event{}, NextAfter: after}
	wait, leave := mayBlockFor(c, stream.Wait, wait)
	defer leave()
	err = waitUntil(c, string(c.run()), wait, func(bool) (bool, error) {
		if err := c.share.reserveAnswer(c.Context(), maxEvents); err != nil {
			return false, err
		}
		l := &reads.Look{Tenant: c.tenant(), RunID: c.run(), After: after, Lines: int(limit), Bytes: maxEvents}
		if err := c.s.engine.Runs.Look(c.Context(), l); err != nil {
			return false, err
		}
		if !l.Found {
			return false, perdure.Errorf(perdure.CodeNotFound, "no such run")
		}
		if after > l.Head.Seq {
			return false, perdure.Invalid("after", "lies beyond the end of the log, %d", l.Head.Seq)
		}
		for i := range l.Log {
			out.Events = append(out.Events, stream.Event(&l.Log[i]))
		}
		if first := l.First(); first > after+1 {
			out.Gap = &api.Gap{RunID: c.run(), From: after + 1, To: first - 1}
		}
		out.NextAfter, out.Ended = l.Upto(), l.Ended()
		found := out.NextAfter > after || l.Head.State.Terminal()
		if !found {
			c.share.releaseAnswer()
		}
		return found, nil
	})
	if err != nil {
		return 0, nil, err
	}
	return 0, out, nil
}
