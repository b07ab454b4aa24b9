package httpd

import (
	"net/http"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/server/doorbell"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/reads"
	"github.com/perdure/perdure/internal/server/httpd/stream"
	"github.com/perdure/perdure/internal/server/httpd/waiting"
)

// Waiting for a run. A timeout stops waiting, not working: a caller whose time passes gets 202 with
// status "deferred", and the run goes on. Package waiting has the loops. This file gives them calls:
// a call asks for permission to block first. A refused call does not wait, and is answered as if its
// time had passed.

// maxWait bounds how long a call may block.
const maxWait = time.Hour

// block counts a call that is about to block. The call gives back all else that it holds of the
// node. A refused stream, socket or poll closes its connection, so that idle connections do not add
// up.
func block(c *call, how stream.Transport) error {
	err := c.share.block(how)
	if err != nil && (how == stream.SSE || how == stream.Socket || how == stream.Poll) {
		c.w.Header().Set("Connection", "close")
	}
	return err
}

// mayBlockFor returns how long a call may block: the limit, or zero if too many calls block. A call
// that may not block is answered as if its time had passed, with a Retry-After header.
func mayBlockFor(c *call, how stream.Transport, limit time.Duration) (time.Duration, func()) {
	if limit > 0 {
		if err := block(c, how); err == nil {
			return limit, c.share.unblock
		}
		c.w.Header().Set("Retry-After", "1")
	}
	return 0, func() {}
}

// A waitingCall is a call as package waiting sees it.
type waitingCall struct{ *call }

func (c waitingCall) Watch() error       { return c.watchKey() }
func (c waitingCall) HungUp() bool       { return c.Context().Err() != nil && c.keyEnded() == nil }
func (c waitingCall) Reserve() error     { return c.share.reserveAnswer(c.Context(), largeRun) }
func (c waitingCall) Release()           { c.share.releaseAnswer() }
func (c waitingCall) Woken(leave func()) { c.share.woken(leave) }

// waitUntil waits for something that happens to a run or a group; see [waiting.Waits.Until].
func waitUntil(c *call, id string, limit time.Duration, look func(fresh bool) (bool, error)) error {
	return c.s.waits.Until(waitingCall{c}, doorbell.Run(c.tenant(), id), limit, look)
}

// await waits for the end of a run, at most for the limit. started is set if this call has started
// the run. made has the row of a run that this call has created; its waiter is then recorded
// already.
func await(c *call, id perdure.RunID, limit time.Duration, started bool, made *reads.Detail) (
	int, *api.Run, error) {
	q := waiting.Query{Ref: kernel.Ref{Tenant: c.tenant(), Run: id}, Began: time.Now(), Started: started, Made: made,
		Heard: c.heard, Actor: c.actor()}
	may, unblock := mayBlockFor(c, stream.Wait, limit)
	defer unblock()
	q.Limit, q.Refused = may, may == 0 && limit > 0
	run, ended, err := c.s.waits.Run(waitingCall{c}, q)
	if err != nil {
		return 0, nil, err
	}
	out := showRun(c, run)
	if ended {
		return http.StatusOK, out, nil
	}
	out.Status = perdure.StatusDeferred
	out.Message = "The run is still being worked on. It goes on without you: come back to attach_url or status_url."
	return http.StatusAccepted, out, nil
}
