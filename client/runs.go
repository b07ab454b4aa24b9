package client

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"net/http"
	"net/url"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/wire/session"
)

const v1 = api.Prefix

// DefaultWait is the wait of [Client.Run] and the joins if none is given.
const DefaultWait = 10 * time.Minute

// maxWait is the longest wait of one call on the server. A longer wait takes several calls.
const maxWait = time.Hour

// minRemaining is the rest of a wait that is not worth another call.
const minRemaining = 50 * time.Millisecond

// JSON encodes a value for an input, a signal's data or a message's content. Of a value that JSON
// cannot hold, such as a channel, a cycle or NaN, it returns no JSON, and the call that sends it
// returns an error that says why.
func JSON(v any) json.RawMessage {
	b, err := perdure.Marshal(v)
	if err != nil {
		return fmt.Appendf(nil, "%sa %T can't be written as JSON: %v", notJSON, v, err)
	}
	return b
}

// notJSON begins what JSON returns instead of a value that it can't encode. The rest is the reason.
const notJSON = "!client.JSON: "

// unencoded returns the reason for which JSON could not encode a part of a request's body, or an
// empty string.
func unencoded(body reflect.Value) string {
	switch body.Kind() {
	case reflect.Pointer, reflect.Interface:
		if !body.IsNil() {
			return unencoded(body.Elem())
		}
	case reflect.Struct:
		for _, f := range body.Fields() {
			if why := unencoded(f); why != "" {
				return why
			}
		}
	case reflect.Slice:
		if body.Type().Elem().Kind() == reflect.Uint8 {
			why, _ := strings.CutPrefix(string(body.Bytes()), notJSON)
			if len(why) < body.Len() {
				return why
			}
			return ""
		}
		for i := range body.Len() {
			if why := unencoded(body.Index(i)); why != "" {
				return why
			}
		}
	}
	return ""
}

// A RunError says that a run has not completed: it ended otherwise, or is still live. errors.Is
// compares its code.
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

// Result decodes the result of a completed run. For any other run it returns a [*RunError].
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
func (c *Client) Start(ctx context.Context, sub perdure.Submission, opts ...CallOptions) (*api.Run, error) {
	body := api.StartRun{Submission: sub, Foreground: sub.Foreground}
	return answer[api.Run](ctx, c, &request{method: "POST", path: v1 + "/runs", body: body}, opts...)
}

// Run starts a run in the foreground and waits for its end, up to the given time (zero:
// [DefaultWait]). When the time has passed, deferred is true and the run continues. If the server
// restarts meanwhile, Run waits for it. A context with an earlier deadline shortens the wait: Run
// returns up to a second before that deadline, so that the caller gets the run's id. A server that
// does not answer does not lengthen the wait: the error comes two seconds after its end at the
// latest.
func (c *Client) Run(
	ctx context.Context, sub perdure.Submission, wait time.Duration, opts ...CallOptions,
) (run *api.Run, deferred bool, err error) {
	w := newCountdown(ctx, wait)
	body := &api.StartRun{Submission: sub}
	r := &request{method: "POST", path: v1 + "/runs", body: body}
	r.beforeResend = func() {
		r.wait, r.end = w.left(), w.lastTry()
		body.Wait = perdure.Duration(r.wait)
	}
	r.beforeResend()
	run = new(api.Run)
	status, err := c.do(ctx, r, run, opts...)
	if err != nil {
		return nil, false, err
	}
	return c.rejoin(ctx, run, status, w)
}

// Join waits for the end of a run, up to the given time (zero: [DefaultWait]). It returns the same
// values as [Client.Run]. Any number of callers may join a run. Joining an ended run returns at
// once.
func (c *Client) Join(
	ctx context.Context, id perdure.RunID, wait time.Duration,
) (run *api.Run, deferred bool, err error) {
	w := newCountdown(ctx, wait)
	run, status, err := c.join(ctx, id, w)
	if err != nil {
		return nil, false, err
	}
	return c.rejoin(ctx, run, status, w)
}

func (c *Client) join(ctx context.Context, id perdure.RunID, w countdown) (*api.Run, int, error) {
	r := &request{method: "GET", path: path(v1+"/runs/%s/join", string(id))}
	r.beforeResend = func() {
		r.wait, r.end = w.left(), w.lastTry()
		r.query = url.Values{"timeout": {r.wait.String()}}
	}
	r.beforeResend()
	out := new(api.Run)
	status, err := c.do(ctx, r, out)
	return out, status, err
}

// rejoin joins a run again if the server answered before the time was over, because it shuts down.
// Another node, or the same one after its restart, continues the wait. If none answers, the run as
// it was last seen is returned as deferred.
func (c *Client) rejoin(
	ctx context.Context, run *api.Run, status int, w countdown,
) (*api.Run, bool, error) {
	for n := 0; status == http.StatusAccepted && !run.State.Terminal(); n++ {
		if w.left() <= minRemaining || !c.pause(ctx, w.end, min(n, 4), 0) {
			return run, true, nil
		}
		next, s, err := c.join(ctx, run.RunID, w)
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

// A countdown is the wait of a caller.
type countdown struct{ begin, end time.Time }

// newCountdown begins a wait. A third of the context's time, up to a second, is reserved for the
// answer: without it the caller would not learn the run's id.
func newCountdown(ctx context.Context, wait time.Duration) countdown {
	if wait <= 0 {
		wait = DefaultWait
	}
	now := time.Now()
	if end, ok := ctx.Deadline(); ok {
		left := end.Sub(now)
		wait = min(wait, left-min(left/3, time.Second))
	}
	return countdown{now, now.Add(wait)}
}

// left returns the rest of the wait, limited by the maximum of one call. It is at least a
// millisecond, because the server refuses a start with a wait of zero.
func (w countdown) left() time.Duration {
	return min(max(time.Until(w.end), time.Millisecond), maxWait).Round(time.Microsecond)
}

// lastTry returns when the last call may be sent. A call with a very short wait may still be
// repeated for a second, because its answer may be lost.
func (w countdown) lastTry() time.Time {
	if first := w.begin.Add(time.Second); w.end.Before(first) {
		return first
	}
	return w.end
}

// Get returns a run.
func (c *Client) Get(ctx context.Context, id perdure.RunID) (*api.Run, error) {
	return answer[api.Run](ctx, c, &request{method: "GET", path: path(v1+"/runs/%s", string(id))})
}

// A Filter selects runs. An empty field selects all.
type Filter struct {
	Status      string // a state, or "deferred"; or several, with commas
	State       perdure.State
	Kind        string
	Queue       string
	ThreadID    perdure.ThreadID
	ParentRunID perdure.RunID
	RootRunID   perdure.RunID
	Metadata    map[string]string
	// CreatedAfter and CreatedBefore bound the creation. Zero is no bound.
	CreatedAfter, CreatedBefore time.Time
	IDPart                      string // a part of the id, such as its last eight letters
	KindPrefix                  string
	MetadataValue               string // the value of any entry of metadata
	WorkerID                    string // the worker that has the run, or had it last
	// ErrorCode selects runs that ended with this code.
	ErrorCode perdure.Code
	Held      bool // on hold
	Class     perdure.Class
	// DeadlineBefore selects live runs, FinishedAfter ended ones, and SeenBefore those of workers that gave
	// no sign of life since. Zero is no bound.
	DeadlineBefore, FinishedAfter, SeenBefore time.Time
	Limit                                     int    // entries of a page; default 50
	Cursor                                    string // NextCursor of the page before
}

func (f *Filter) query() url.Values {
	q := url.Values{}
	for name, v := range map[string]string{
		"status": f.Status, "state": string(f.State), "kind": f.Kind, "queue": f.Queue,
		"thread_id": string(f.ThreadID), "parent_run_id": string(f.ParentRunID),
		"root_run_id": string(f.RootRunID), "cursor": f.Cursor, "id_part": f.IDPart, "kind_prefix": f.KindPrefix,
		"metadata_value": f.MetadataValue, "worker_id": f.WorkerID, "error_code": string(f.ErrorCode),
		"class": string(f.Class),
	} {
		if v != "" {
			q.Set(name, v)
		}
	}
	if f.Held {
		q.Set("held", "true")
	}
	for name, at := range map[string]time.Time{"created_after": f.CreatedAfter, "created_before": f.CreatedBefore,
		"deadline_before": f.DeadlineBefore, "finished_after": f.FinishedAfter, "seen_before": f.SeenBefore} {
		if !at.IsZero() {
			q.Set(name, at.UTC().Format(time.RFC3339Nano))
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

// List returns a page of runs, newest first, without their inputs and results. A page with fewer
// runs than its limit can still have a NextCursor, because the server also limits its bytes and the
// rows it reads.
func (c *Client) List(ctx context.Context, f Filter) (*api.Runs, error) {
	return filled(ctx, c, v1+"/runs", f.query(), ofRuns)
}

// Counts counts the runs that match, by status, state, kind and queue. Limit and Cursor are not used.
func (c *Client) Counts(ctx context.Context, f Filter) (*api.RunCounts, error) {
	f.Limit, f.Cursor = 0, ""
	return answer[api.RunCounts](ctx, c, &request{method: "GET", path: v1 + "/runs/counts", query: f.query()})
}

// Attention says what may need a person: approvals, failures of the last hour, queues that nobody serves,
// holds, and runs near their deadline.
func (c *Client) Attention(ctx context.Context) (*api.Attention, error) {
	return answer[api.Attention](ctx, c, &request{method: "GET", path: v1 + "/attention"})
}

// KindStats says how the newest runs of a kind went.
func (c *Client) KindStats(ctx context.Context, kind string) (*api.KindStats, error) {
	return answer[api.KindStats](ctx, c, &request{method: "GET", path: path(v1+"/kinds/%s/stats", kind)})
}

// RunHistory counts what happened to runs since a while ago, at most a week, in steps. With a step of
// zero the server chooses one.
func (c *Client) RunHistory(ctx context.Context, since, step time.Duration) (*api.History, error) {
	q := url.Values{"since": {since.String()}}
	if step > 0 {
		q.Set("step", step.String())
	}
	return answer[api.History](ctx, c, &request{method: "GET", path: v1 + "/history", query: q})
}

// All yields all runs of a filter, newest first, and reads page by page. An error is its last
// value.
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

// Tree returns a page of the runs in a run's tree.
func (c *Client) Tree(ctx context.Context, id perdure.RunID, cursor string) (*api.Runs, error) {
	return filled(ctx, c, path(v1+"/runs/%s/tree", string(id)), cursorQuery(cursor), ofRuns)
}

// Signal sends a named signal to a run. If the run does not wait for it yet, the server keeps it
// for a later wait.
func (c *Client) Signal(
	ctx context.Context, id perdure.RunID, name string, data json.RawMessage, opts ...CallOptions,
) (*api.SignalSent, error) {
	at := path(v1+"/runs/%s/signals/%s", string(id), name)
	return answer[api.SignalSent](ctx, c, &request{method: "POST", path: at, body: api.SendSignal{Data: data}}, opts...)
}

// Cancel asks a run to stop and waits for its end, up to the given time; zero does not wait.
// Cancelling an ended run is not an error. The field Cancel of the returned run says how far the
// request got: requested, delivered, acknowledged, stopped.
func (c *Client) Cancel(
	ctx context.Context, id perdure.RunID, reason string, wait time.Duration, opts ...CallOptions,
) (*api.Run, error) {
	r := &request{method: "POST", path: path(v1+"/runs/%s/cancel", string(id)), body: api.CancelRun{Reason: reason}}
	if wait <= 0 {
		return answer[api.Run](ctx, c, r, opts...)
	}
	w := newCountdown(ctx, wait)
	r.beforeResend = func() {
		r.wait, r.end = w.left(), w.lastTry()
		r.query = url.Values{"wait": {r.wait.String()}}
	}
	var run *api.Run
	for n := 0; ; n++ {
		r.beforeResend()
		next, err := answer[api.Run](ctx, c, r, opts...) // the same idempotency key, so it only continues the wait
		switch {
		case err != nil && run != nil && (ctx.Err() != nil || Transient(err)):
			return run, nil
		case err != nil:
			return nil, err
		}
		if run = next; run.State.Terminal() || w.left() <= minRemaining || !c.pause(ctx, w.end, min(n, 4), 0) {
			return run, nil
		}
	}
}

// Activity returns a summary of what a run is doing: its operation, recent events, waits and
// children.
func (c *Client) Activity(ctx context.Context, id perdure.RunID) (*api.Activity, error) {
	return answer[api.Activity](ctx, c, &request{method: "GET", path: path(v1+"/runs/%s/activity", string(id))})
}

// Defer marks a run as deferred: no caller waits for it any more. The run continues.
func (c *Client) Defer(ctx context.Context, id perdure.RunID, opts ...CallOptions) (*api.Run, error) {
	return c.act(ctx, path(v1+"/runs/%s/defer", string(id)), opts)
}

// Retry starts a new run with the input of an ended one, and with the part of its journal that
// in.From says.
func (c *Client) Retry(ctx context.Context, id perdure.RunID, in api.Retry, opts ...CallOptions) (*api.Run, error) {
	r := &request{method: "POST", path: path(v1+"/runs/%s/retry", string(id)), body: in}
	return answer[api.Run](ctx, c, r, opts...)
}

// RetryMany starts new runs with the inputs of many ended ones, at most 1,000, and returns a result
// for each.
func (c *Client) RetryMany(ctx context.Context, in api.RetryMany, opts ...CallOptions) (*api.RetriesDone, error) {
	return answer[api.RetriesDone](ctx, c, &request{method: "POST", path: v1 + "/runs/retry", body: in}, opts...)
}

// act makes a call without a body whose answer is a run.
func (c *Client) act(ctx context.Context, path string, opts []CallOptions) (*api.Run, error) {
	return answer[api.Run](ctx, c, &request{method: "POST", path: path}, opts...)
}

// Delete removes an ended run with its log, its result and its artifacts. It cannot be undone.
func (c *Client) Delete(ctx context.Context, id perdure.RunID, opts ...CallOptions) error {
	_, err := c.do(ctx, &request{method: "DELETE", path: path(v1+"/runs/%s", string(id))}, nil, opts...)
	return err
}

// Deliverable returns the deliverable of an ended run: its result, or its fallback.
func (c *Client) Deliverable(ctx context.Context, id perdure.RunID) (*api.Deliverable, error) {
	return answer[api.Deliverable](ctx, c, &request{method: "GET", path: path(v1+"/runs/%s/deliverable", string(id))})
}

// LateResults lists the results of a run that came too late.
func (c *Client) LateResults(ctx context.Context, id perdure.RunID) ([]api.LateResult, error) {
	entries := func(p *api.LateResults) ([]api.LateResult, string) { return p.LateResults, p.NextCursor }
	return pages(ctx, c, path(v1+"/runs/%s/late-results", string(id)), entries)
}

// Adopt accepts a late result: it completes a live run, and becomes the deliverable of an ended
// one.
func (c *Client) Adopt(ctx context.Context, id perdure.RunID, n int, opts ...CallOptions) (*api.Run, error) {
	return c.act(ctx, path(v1+"/runs/%s/late-results/%s/adopt", string(id), strconv.Itoa(n)), opts)
}

// Discard discards a late result.
func (c *Client) Discard(ctx context.Context, id perdure.RunID, n int, opts ...CallOptions) (*api.Run, error) {
	return c.act(ctx, path(v1+"/runs/%s/late-results/%s/discard", string(id), strconv.Itoa(n)), opts)
}

// Continue reports that external work, which a run has started, has finished. It counts once per
// job.
func (c *Client) Continue(
	ctx context.Context, id perdure.RunID, in api.ContinueRun, opts ...CallOptions,
) (*api.Continued, error) {
	at := path("/api/internal/runs/%s/continue", string(id))
	return answer[api.Continued](ctx, c, &request{method: "POST", path: at, body: in}, opts...)
}

// Callback answers a callback wait by its token. It needs no key. The same answer sent again is not
// an error.
func (c *Client) Callback(
	ctx context.Context, token string, in api.UseCallback, opts ...CallOptions,
) (*api.CallbackUsed, error) {
	r := &request{method: "POST", path: path(v1+"/callbacks/%s", token), body: in}
	return answer[api.CallbackUsed](ctx, c, r, opts...)
}

// pages reads all pages of a list.
func pages[P, T any](
	ctx context.Context, c *Client, path string, entries func(*P) (list []T, next string),
) ([]T, error) {
	return session.Pages(func(q url.Values) (*P, error) {
		return answer[P](ctx, c, &request{method: "GET", path: path, query: q})
	}, entries)
}

// filled reads pages until one has an entry or there are no more.
func filled[P any](
	ctx context.Context, c *Client, path string, q url.Values, entries func(*P) (n int, next string),
) (*P, error) {
	return session.Filled(func(q url.Values) (*P, error) {
		return answer[P](ctx, c, &request{method: "GET", path: path, query: q})
	}, q, entries)
}

func ofRuns(p *api.Runs) (int, string) { return len(p.Runs), p.NextCursor }

func cursorQuery(cursor string) url.Values {
	if cursor == "" {
		return nil
	}
	return url.Values{"cursor": {cursor}}
}
