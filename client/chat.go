package client

import (
	"context"
	"net/http"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
)

// Chat says something to the agent of a conversation. Without a ThreadID it begins one. If the agent is
// live, it takes the message up; otherwise a run is started that answers. Without a Wait, Chat returns
// as soon as the message is stored.
//
// With a Wait it returns when there is an answer, or when that time has passed: the status of the
// answer is then "deferred", the agent goes on, and its answer will be in the thread. As with
// [Client.Run], a server that restarts is waited for, and one that does not answer does not lengthen
// the wait by more than two seconds.
func (c *Client) Chat(ctx context.Context, in api.Chat, opts ...CallOptions) (*api.ChatAnswer, error) {
	r := &request{method: "POST", path: v1 + "/chat", body: &in}
	var w countdown
	if in.Wait > 0 {
		w = newCountdown(ctx, time.Duration(in.Wait))
		r.beforeResend = func() {
			r.wait, r.end = w.left(), w.lastTry()
			in.Wait = perdure.Duration(r.wait)
		}
		r.beforeResend()
	}
	out := new(api.ChatAnswer)
	status, err := c.do(ctx, r, out, opts...)
	// A server that shuts down answers early. The same call to the next one goes on.
	for n := 0; err == nil && status == http.StatusAccepted && !out.State.Terminal(); n++ {
		if w.left() <= minRemaining || !c.pause(ctx, w.end, min(n, 4), 0) {
			return out, nil
		}
		r.beforeResend()
		next := new(api.ChatAnswer)
		if status, err = c.do(ctx, r, next, opts...); ctx.Err() != nil || Transient(err) {
			return out, nil
		}
		out = next
	}
	if err != nil {
		return nil, err
	}
	return out, nil
}
