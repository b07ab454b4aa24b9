package client

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
)

const v1 = api.Prefix

// DefaultWait is how long [Client.Run] and the joins wait when they are given no time.
const DefaultWait = 10 * time.Minute

// longestWait is the longest that the server blocks on one call; longer waits are several.
const longestWait = time.Hour

// lastStretch of a wait is not worth another call: a server's timer and ours never agree that well.
const lastStretch = 50 * time.Millisecond

// JSON is a value as JSON: an input, a signal's data, a message's content. It panics on what JSON can't hold
// (a channel, a function, a cycle), which is a mistake in the program and not in its data.
func JSON(v any) json.RawMessage {
	b, err := encode(v)
	if err != nil {
		panic(fmt.Sprintf("client.JSON: %T: %v", v, err))
	}
	return b
}

// A RunError says that a run ended otherwise than completed, or has not ended. errors.Is compares its code.
type RunError struct {
	RunID   perdure.RunID
	State   perdure.State
	Failure perdure.Failure
}

func (e *RunError) Error() string {
	if e.Failure.Code == "" {
		return fmt.Sprintf("run %s is %s", e.RunID, e.State)
	}
	return fmt.Sprintf("run %s is %s: %s: %s", e.RunID, e.State, e.Failure.Code, e.Failure.Message)
}

// Is makes errors.Is compare by code.
func (e *RunError) Is(target error) bool {
	switch t := target.(type) {
	case *perdure.Error:
		return t.Code == e.Failure.Code
	case *api.Problem:
		return t.Code == e.Failure.Code
	}
	return false
}

// Result is what a completed run resulted in. For any other run it is a [*RunError].
func Result[T any](run *api.Run) (T, error) {
	var out T
	if run.State != perdure.Completed {
		e := &RunError{RunID: run.RunID, State: run.State}
		if run.Error != nil {
			e.Failure = *run.Error
		}
		return out, e
	}
	if len(bytes.TrimSpace(run.Result)) == 0 {
		return out, nil
	}
	if err := json.Unmarshal(run.Result, &out); err != nil {
		return out, fmt.Errorf("the result of run %s is no %T: %w", run.RunID, out, err)
	}
	return out, nil
}

// Start starts a run in the background and returns at once.
func (c *Client) Start(ctx context.Context, sub perdure.Submission, opts ...CallOption) (*api.Run, error) {
	return answer[api.Run](ctx, c, &request{method: "POST", path: v1 + "/runs", body: api.StartRun{Submission: sub, Foreground: sub.Foreground}}, opts...)
}

// Run starts a run in the foreground and waits for its end, at most so long (zero: [DefaultWait]). When that
// passes, deferred is true and the run goes on. A server that restarts meanwhile is waited for like a run. A context
// that ends sooner cuts the wait: the deferral comes a little before its deadline, up to a second, so that the run is known.
func (c *Client) Run(ctx context.Context, sub perdure.Submission, wait time.Duration, opts ...CallOption) (run *api.Run, deferred bool, err error) {
	left := countdown(ctx, wait)
	body := &api.StartRun{Submission: sub}
	r := &request{method: "POST", path: v1 + "/runs", body: body}
	r.fresh = func() {
		r.wait = left()
		body.Wait = perdure.Duration(r.wait)
	}
	r.fresh()
	run = new(api.Run)
	status, err := c.do(ctx, r, run, opts...)
	if err != nil {
		return nil, false, err
	}
	return c.stay(ctx, run, status, left)
}

// Join waits for the end of a run, at most so long (zero: [DefaultWait]); the outcomes are those of
// [Client.Run]. Any number of callers may join a run, and a run that has ended is joined at once.
func (c *Client) Join(ctx context.Context, id perdure.RunID, wait time.Duration) (run *api.Run, deferred bool, err error) {
	left := countdown(ctx, wait)
	run, status, err := c.join(ctx, id, left)
	if err != nil {
		return nil, false, err
	}
	return c.stay(ctx, run, status, left)
}

func (c *Client) join(ctx context.Context, id perdure.RunID, left func() time.Duration) (*api.Run, int, error) {
	r := &request{method: "GET", path: path(v1+"/runs/%s/join", string(id))}
	r.fresh = func() {
		r.wait = left()
		r.query = url.Values{"timeout": {r.wait.String()}}
	}
	r.fresh()
	out := new(api.Run)
	status, err := c.do(ctx, r, out)
	return out, status, err
}

// stay joins again when a server let go before the time was over: it shuts down, and its successor, or itself
// after a restart, knows the run too. What is known by then is an answer, even if nobody comes back.
func (c *Client) stay(ctx context.Context, run *api.Run, status int, left func() time.Duration) (*api.Run, bool, error) {
	for n := 0; status == http.StatusAccepted && !run.State.Terminal(); n++ {
		if left() <= lastStretch || !c.pause(ctx, min(n, 4), 0) {
			return run, true, nil
		}
		next, s, err := c.join(ctx, run.RunID, left)
		if ctx.Err() != nil || Transient(err) {
			return run, true, nil
		}
		if err != nil {
			return nil, false, err
		}
		run, status = next, s
	}
	return run, false, nil
}

// countdown gives what is left of a wait, bounded by what one call may take. The server refuses a wait of
// nothing at a start, so that the last bit stays. Of the caller's own time some is kept for the answer to arrive: who
// is gone by then does not even have the run's id.
func countdown(ctx context.Context, wait time.Duration) func() time.Duration {
	if wait <= 0 {
		wait = DefaultWait
	}
	now := time.Now()
	if end, ok := ctx.Deadline(); ok {
		left := end.Sub(now)
		wait = min(wait, left-min(left/3, time.Second))
	}
	end := now.Add(wait)
	return func() time.Duration {
		return min(max(time.Until(end), time.Millisecond), longestWait).Round(time.Microsecond)
	}
}

// Get looks at a run.
func (c *Client) Get(ctx context.Context, id perdure.RunID) (*api.Run, error) {
	return answer[api.Run](ctx, c, &request{method: "GET", path: path(v1+"/runs/%s", string(id))})
}

// A Filter selects runs; what is empty selects all.
type Filter struct {
	Status      string // a state, or "deferred"
	State       perdure.State
	Kind        string
	Queue       string
	ThreadID    perdure.ThreadID
	ParentRunID perdure.RunID
	RootRunID   perdure.RunID
	Metadata    map[string]string
	Limit       int    // of a page; default 50
	Cursor      string // where a page begins: NextCursor of the one before
}

func (f *Filter) query() url.Values {
	q := url.Values{}
	for name, v := range map[string]string{"status": f.Status, "state": string(f.State), "kind": f.Kind, "queue": f.Queue, "thread_id": string(f.ThreadID),
		"parent_run_id": string(f.ParentRunID), "root_run_id": string(f.RootRunID), "cursor": f.Cursor} {
		if v != "" {
			q.Set(name, v)
		}
	}
	for k, v := range f.Metadata {
		q.Set("metadata."+k, v)
	}
	if f.Limit > 0 {
		q.Set("limit", strconv.Itoa(f.Limit))
	}
	return q
}

// List gives a page of runs, newest first, without their inputs and results. A page may have fewer runs than its limit and still have a
// NextCursor: it is bounded in bytes, and in how many runs are looked at for it.
func (c *Client) List(ctx context.Context, f Filter) (*api.Runs, error) {
	return filled(ctx, c, v1+"/runs", f.query(), ofRuns)
}

// All goes through all runs of a filter, newest first, page by page. An error is the last thing it gives.
func (c *Client) All(ctx context.Context, f Filter) iter.Seq2[api.Run, error] {
	return func(yield func(api.Run, error) bool) {
		for {
			page, err := c.List(ctx, f)
			if err != nil {
				yield(api.Run{}, err)
				return
			}
			for _, r := range page.Runs {
				if !yield(r, nil) {
					return
				}
			}
			if f.Cursor = page.NextCursor; f.Cursor == "" {
				return
			}
		}
	}
}

// Tree gives a page of the runs of a run's tree.
func (c *Client) Tree(ctx context.Context, id perdure.RunID, cursor string) (*api.Runs, error) {
	return filled(ctx, c, path(v1+"/runs/%s/tree", string(id)), cursorQuery(cursor), ofRuns)
}

// Signal sends a named signal to a run. One that nobody waits for yet is kept for the wait to come.
func (c *Client) Signal(ctx context.Context, id perdure.RunID, name string, data json.RawMessage, opts ...CallOption) (*api.SignalSent, error) {
	return answer[api.SignalSent](ctx, c, &request{method: "POST", path: path(v1+"/runs/%s/signals/%s", string(id), name), body: api.SendSignal{Data: data}}, opts...)
}

// Cancel asks a run to stop, and waits for its end at most so long; zero does not wait. Cancelling an ended run
// is no error. The run that is returned says how far it got: requested, delivered, acknowledged, stopped.
func (c *Client) Cancel(ctx context.Context, id perdure.RunID, reason string, wait time.Duration) (*api.Run, error) {
	r := &request{method: "POST", path: path(v1+"/runs/%s/cancel", string(id)), body: api.CancelRun{Reason: reason}}
	if wait <= 0 {
		return answer[api.Run](ctx, c, r)
	}
	left := countdown(ctx, wait)
	r.fresh = func() {
		r.wait = left()
		r.query = url.Values{"wait": {r.wait.String()}}
	}
	var run *api.Run
	for n := 0; ; n++ {
		r.fresh()
		next, err := answer[api.Run](ctx, c, r) // the same request, under the same key: it only waits on
		switch {
		case err != nil && run != nil && (ctx.Err() != nil || Transient(err)):
			return run, nil
		case err != nil:
			return nil, err
		}
		if run = next; run.State.Terminal() || left() <= lastStretch || !c.pause(ctx, min(n, 4), 0) {
			return run, nil
		}
	}
}

// Activity shows what a run is doing: its operation, what happened last, what it waits for, and its children in a line each.
func (c *Client) Activity(ctx context.Context, id perdure.RunID) (*api.Activity, error) {
	return answer[api.Activity](ctx, c, &request{method: "GET", path: path(v1+"/runs/%s/activity", string(id))})
}

// ChildActivity shows what a child of a leased run is doing, to who holds the lease.
func (c *Client) ChildActivity(ctx context.Context, parent api.Lease, child perdure.RunID) (*api.Activity, error) {
	return answer[api.Activity](ctx, c, &request{method: "GET", path: path(v1+"/runs/%s/children/%s/activity", string(parent.RunID), string(child)),
		query: url.Values{"epoch": {strconv.FormatInt(parent.Epoch, 10)}}})
}

// Defer says that nobody waits for a run any more. The run goes on.
func (c *Client) Defer(ctx context.Context, id perdure.RunID) (*api.Run, error) {
	return c.act(ctx, path(v1+"/runs/%s/defer", string(id)))
}

// Retry makes a new run with the input of an ended one.
func (c *Client) Retry(ctx context.Context, id perdure.RunID, opts ...CallOption) (*api.Run, error) {
	return c.act(ctx, path(v1+"/runs/%s/retry", string(id)), opts...)
}

// act is a call without a body that answers with a run.
func (c *Client) act(ctx context.Context, path string, opts ...CallOption) (*api.Run, error) {
	return answer[api.Run](ctx, c, &request{method: "POST", path: path}, opts...)
}

// Delete removes an ended run and all that belongs to it: its log, its result, what it left. Nothing brings it back.
func (c *Client) Delete(ctx context.Context, id perdure.RunID, opts ...CallOption) error {
	_, err := c.do(ctx, &request{method: "DELETE", path: path(v1+"/runs/%s", string(id))}, nil, opts...)
	return err
}

// Deliverable gets what an ended run hands over: its result, or the fallback that was written for it.
func (c *Client) Deliverable(ctx context.Context, id perdure.RunID) (*api.Deliverable, error) {
	return answer[api.Deliverable](ctx, c, &request{method: "GET", path: path(v1+"/runs/%s/deliverable", string(id))})
}

// LateResults lists finished work of a run that came too late.
func (c *Client) LateResults(ctx context.Context, id perdure.RunID) ([]api.LateResult, error) {
	return pages(ctx, c, path(v1+"/runs/%s/late-results", string(id)), func(p *api.LateResults) ([]api.LateResult, string) { return p.LateResults, p.NextCursor })
}

// Adopt takes a late result: it completes a live run, and becomes the deliverable of an ended one.
func (c *Client) Adopt(ctx context.Context, id perdure.RunID, n int) (*api.Run, error) {
	return c.act(ctx, path(v1+"/runs/%s/late-results/%s/adopt", string(id), strconv.Itoa(n)))
}

// Discard throws a late result away.
func (c *Client) Discard(ctx context.Context, id perdure.RunID, n int) (*api.Run, error) {
	return c.act(ctx, path(v1+"/runs/%s/late-results/%s/discard", string(id), strconv.Itoa(n)))
}

// Continue says that work outside, which a run started, has finished. It counts once per job.
func (c *Client) Continue(ctx context.Context, id perdure.RunID, in api.ContinueRun) (*api.Continued, error) {
	return answer[api.Continued](ctx, c, &request{method: "POST", path: path("/api/internal/runs/%s/continue", string(id)), body: in})
}

// Callback answers a callback wait by its token; it needs no key. The same answer again is no error.
func (c *Client) Callback(ctx context.Context, token string, in api.UseCallback) (*api.CallbackUsed, error) {
	return answer[api.CallbackUsed](ctx, c, &request{method: "POST", path: path(v1+"/callbacks/%s", token), body: in})
}

// pages reads all pages of a list.
func pages[P, T any](ctx context.Context, c *Client, path string, entries func(*P) (list []T, next string)) (out []T, err error) {
	for cursor := ""; ; {
		page, err := answer[P](ctx, c, &request{method: "GET", path: path, query: cursorQuery(cursor)})
		if err != nil {
			return nil, err
		}
		list, next := entries(page)
		if out = append(out, list...); next == "" {
			return out, nil
		}
		cursor = next
	}
}

// filled reads pages until one has an entry, or there are no more. The server looks at a bounded number of rows for a page, which may
// then be empty although there is more to come.
func filled[P any](ctx context.Context, c *Client, path string, q url.Values, entries func(*P) (n int, next string)) (*P, error) {
	for {
		page, err := answer[P](ctx, c, &request{method: "GET", path: path, query: q})
		if err != nil {
			return nil, err
		}
		n, next := entries(page)
		if n > 0 || next == "" {
			return page, nil
		}
		if q == nil {
			q = url.Values{}
		}
		q.Set("cursor", next)
	}
}

func ofRuns(p *api.Runs) (int, string) { return len(p.Runs), p.NextCursor }

func cursorQuery(cursor string) url.Values {
	if cursor == "" {
		return nil
	}
	return url.Values{"cursor": {cursor}}
}
