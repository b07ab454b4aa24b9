package httpd

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/engine"
	"github.com/perdure/perdure/internal/httpd/stream"
)

// maxWait bounds how long a caller may block.
const maxWait = time.Hour

// shown is a stored value as callers see it: one that is damaged as the text that it is.
func jsonValue(v perdure.Value) json.RawMessage {
	if v == "" {
		return nil
	}
	if !json.Valid([]byte(v)) {
		b, _ := json.Marshal(string(v))
		return b
	}
	return json.RawMessage(v)
}

// show is a run as this caller sees it. Large values are looked at in a turn.
func (c *call) show(d *engine.Detail) *api.Run {
	c.found = int64(len(d.InputText) + len(d.ResultText))
	if c.endTurn == nil {
		end, _ := c.turn(c.found) // what was found is in memory already: it is shown in any case
		defer end()
	}
	return c.s.show(d, c.s.engine.Now())
}

// show is a run as callers see it.
func (s *Server) show(d *engine.Detail, now perdure.Instant) *api.Run {
	r := &d.Run
	out := &api.Run{
		RunID: r.ID, ThreadID: r.ThreadID, Kind: r.Kind, Class: r.Class, Queue: r.Queue, Priority: r.Priority, Status: r.Status(), State: r.State,
		Epoch: r.Epoch, Attempt: r.Attempt, MaxAttempts: r.MaxAttempts, Input: jsonValue(d.InputText), Result: jsonValue(d.ResultText),
		Summary: r.Summary, Error: r.Failure, Activity: r.Activity, Tier: s.engine.Policy().Tier(r, now), WorkerID: r.Worker, Metadata: map[string]string{},
		ParentRunID: r.ParentID, RootRunID: r.RootID, ContinuationOfRunID: r.ContinuationOf, ContinuedByRunID: r.ContinuedBy, RetryOfRunID: r.RetryOf,
		CreatedAt: r.CreatedAt, DeadlineAt: r.DeadlineAt, StartedAt: optional(r.StartedAt), FinishedAt: optional(r.FinishedAt), DeferredAt: optional(r.DeferredAt),
		SeenAt: optional(r.SeenAt), LastSeq: r.Seq, LateResults: r.Late, AttachURL: perdure.AttachURL(r.ID), StatusURL: perdure.StatusURL(r.ID),
	}
	if r.Damage != nil {
		out.Damaged = r.Damage.What
	}
	if id := string(r.Options.Webhook); strings.HasPrefix(id, "wh_") {
		out.WebhookID = perdure.WebhookID(id)
	}
	if r.Progress != "" {
		out.Progress, _ = r.Progress.MarshalJSON()
	}
	if r.Cancel.RequestedAt != 0 {
		out.Cancel = &r.Cancel
	}
	if r.Metadata != "" {
		_ = json.Unmarshal([]byte(r.Metadata), &out.Metadata)
	}
	end := now
	if r.State.Terminal() {
		end = r.FinishedAt
		ms := end.Sub(r.CreatedAt).Milliseconds()
		out.DurationMS = &ms
		out.DeliverableID = r.DeliverableID()
	}
	out.ElapsedMS = end.Sub(r.CreatedAt).Milliseconds()
	return out
}

func optional(i perdure.Instant) *perdure.Instant {
	if i == 0 {
		return nil
	}
	return &i
}

// idempotencyKey reads the header, bare or as a structured string.
func (c *call) idempotencyKey() (string, error) {
	values := c.Header.Values("Idempotency-Key")
	if len(values) > 1 {
		return "", perdure.Invalid("Idempotency-Key", "is given %d times", len(values))
	}
	if len(values) == 0 {
		return "", nil
	}
	key := values[0]
	if u, err := strconv.Unquote(key); err == nil {
		key = u
	}
	if key == "" || len(key) > maxKey {
		return "", perdure.Invalid("Idempotency-Key", "has 1 to 255 bytes")
	}
	return key, perdure.CheckText("Idempotency-Key", key)
}

func startRunOnThread(c *call, in *api.StartRun) (int, *api.Run, error) {
	if in.ThreadID != "" && string(in.ThreadID) != c.PathValue("id") {
		return 0, nil, perdure.Invalid("thread_id", "differs from the one in the path")
	}
	in.ThreadID = perdure.ThreadID(c.PathValue("id"))
	return startRun(c, in)
}

func startRun(c *call, in *api.StartRun) (int, *api.Run, error) {
	key, err := c.idempotencyKey()
	if err != nil {
		return 0, nil, err
	}
	if in.Wait < 0 || time.Duration(in.Wait) > maxWait {
		return 0, nil, perdure.Invalid("wait", "must lie between 0s and %s", maxWait)
	}
	if in.Webhook != "" {
		if err := c.checkURL("webhook", in.Webhook); err != nil {
			return 0, nil, err
		}
	}
	in.Submission.Foreground = in.Foreground || in.Wait > 0
	op := &engine.Submit{Tenant: c.tenant(), Submission: in.Submission, Key: key}
	if in.Wait > 0 {
		op.Node = c.s.opt.Node
	}
	op.Expects = in.Foreground
	if err := c.s.engine.Do(c.Context(), op); err != nil {
		return 0, nil, err
	}
	if in.Wait > 0 {
		var made *engine.Detail // what is known needs no look
		if op.Created {
			made = &engine.Detail{Run: op.Run, InputText: perdure.Value(in.Input)}
		}
		// The input may be large and the wait long: nothing holds it meanwhile.
		in.Submission, op.Submission = perdure.Submission{}, perdure.Submission{}
		c.changed = true
		status, out, err := c.await(op.Run.ID, time.Duration(in.Wait), true, made)
		if out != nil {
			out.WebhookSecret = op.WebhookSecret
		}
		return status, out, err
	}
	if !op.Created {
		status, out, err := c.answerRun(op.Run.ID, false)
		if out != nil {
			out.WebhookSecret = op.WebhookSecret
		}
		return status, out, err
	}
	// What was accepted is known; nothing has to be read for the answer.
	out := c.show(&engine.Detail{Run: op.Run, InputText: perdure.Value(in.Input)})
	out.WebhookSecret = op.WebhookSecret
	return http.StatusCreated, out, nil
}

func getRun(c *call, _ *none) (int, *api.Run, error) {
	d, err := c.s.engine.Runs.Get(c.Context(), c.tenant(), c.run())
	if err != nil {
		return 0, nil, err
	}
	return 0, c.show(&d), nil
}

func jobStatus(c *call, _ *none) (int, *api.JobStatus, error) {
	r, changed, err := c.s.engine.Runs.Status(c.Context(), c.tenant(), c.run())
	if err != nil {
		return 0, nil, err
	}
	return 0, showJobStatus(&r, changed), nil
}

func showJobStatus(r *perdure.Run, changed perdure.Instant) *api.JobStatus {
	return &api.JobStatus{JobID: r.ID, Status: r.Status(), State: r.State, UpdatedAt: changed}
}

func joinRun(c *call, _ *none) (int, *api.Run, error) {
	d, err := c.durationParam("timeout", 10*time.Minute, maxWait)
	if err != nil {
		return 0, nil, err
	}
	return c.await(c.run(), d, false, nil)
}

func listRuns(c *call, _ *none) (int, *api.Runs, error) {
	f, err := c.runFilter(50)
	if err != nil {
		return 0, nil, err
	}
	if f.Before, err = c.cursorParam(); err != nil {
		return 0, nil, err
	}
	return c.page(f)
}

// runFilters are the parameters that choose runs.
var runFilters = []string{"status", "state", "kind", "queue", "thread_id", "parent_run_id", "root_run_id", "limit", "metadata.*"}

// runFilter reads which runs are meant.
func (c *call) runFilter(def int64) (f engine.RunFilter, err error) {
	limit, err := c.intParam("limit", def, 1, maxPage)
	if err != nil {
		return f, err
	}
	q := c.URL.Query()
	f = engine.RunFilter{Status: q.Get("status"), State: perdure.State(q.Get("state")), Kind: q.Get("kind"), Queue: q.Get("queue"),
		ThreadID: perdure.ThreadID(q.Get("thread_id")), ParentID: perdure.RunID(q.Get("parent_run_id")), RootID: perdure.RunID(q.Get("root_run_id")),
		Limit: int(limit)}
	for name := range q {
		if key, ok := strings.CutPrefix(name, "metadata."); ok {
			if err := perdure.CheckName(name, key); err != nil {
				return f, err
			}
			if f.Metadata == nil {
				f.Metadata = make(map[string]string)
			}
			f.Metadata[key] = q.Get(name)
			if len(f.Metadata) > perdure.MaxMetadata {
				return f, perdure.Errorf(perdure.CodeTooLarge, "a list is filtered by at most %d entries of metadata", perdure.MaxMetadata)
			}
		}
	}
	if f.State != "" && !f.State.Live() && !f.State.Terminal() {
		return f, perdure.Invalid("state", "%q is none of %v", f.State, perdure.States)
	}
	if s := perdure.State(f.Status); f.Status != "" && f.Status != perdure.StatusDeferred && !s.Live() && !s.Terminal() {
		return f, perdure.Invalid("status", "%q is neither deferred nor one of %v", f.Status, perdure.States)
	}
	return f, nil
}

// pageTime is how long the rows for one page are looked for. The caller goes on with the cursor.
const pageTime = 250 * time.Millisecond

func (c *call) page(f engine.RunFilter) (int, *api.Runs, error) {
	began := time.Now()
	f.Over = func() bool { return c.Context().Err() != nil || time.Since(began) > pageTime }
	p, err := c.s.engine.Runs.Page(c.Context(), c.tenant(), f)
	if err != nil {
		return 0, nil, err
	}
	out := &api.Runs{Runs: []api.Run{}, NextCursor: string(p.Next)}
	now := c.s.engine.Now()
	for i := range p.Runs {
		out.Runs = append(out.Runs, *c.s.show(&engine.Detail{Run: p.Runs[i]}, now))
	}
	return 0, out, nil
}

func runTree(c *call, _ *none) (int, *api.Runs, error) {
	limit, err := c.intParam("limit", 200, 1, maxPage)
	if err != nil {
		return 0, nil, err
	}
	before, err := c.cursorParam()
	if err != nil {
		return 0, nil, err
	}
	d, err := c.s.engine.Runs.Get(c.Context(), c.tenant(), c.run())
	if err != nil {
		return 0, nil, err
	}
	return c.page(engine.RunFilter{RootID: d.RootID, Before: before, Limit: int(limit)})
}

// maxEvents is about how many bytes of a log one answer holds.
const maxEvents = 4 << 20

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
	wait, leave := c.mayBlockFor(stream.Wait, wait)
	defer leave()
	err = c.watch(string(c.run()), wait, func(bool) (bool, error) {
		if err := c.reserveAnswer(maxEvents); err != nil {
			return false, err
		}
		l := &engine.Look{Tenant: c.tenant(), RunID: c.run(), After: after, Lines: int(limit), Bytes: maxEvents}
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
			c.releaseAnswer()
		}
		return found, nil
	})
	if err != nil {
		return 0, nil, err
	}
	return 0, out, nil
}

func runDeliverable(c *call, _ *none) (int, *api.Deliverable, error) {
	d, err := c.s.engine.Runs.Get(c.Context(), c.tenant(), c.run())
	if err != nil {
		return 0, nil, err
	}
	if d.State.Live() {
		return 0, nil, perdure.Errorf(perdure.CodeWrongState, "the run is %s: it hands over something when it ends", d.State)
	}
	out := &api.Deliverable{DeliverableID: d.DeliverableID(), RunID: d.ID, Kind: "result", Content: jsonValue(d.ResultText), Error: d.Failure}
	if d.ResultText == "" && d.State != perdure.Completed {
		out.Kind = "fallback"
		out.Content, _ = d.Fallback.MarshalJSON()
	}
	if len(out.Content) == 0 {
		out.Content = json.RawMessage("null")
	}
	out.Artifacts, err = c.s.engine.Runs.Artifacts(c.Context(), c.tenant(), c.run())
	return 0, out, err
}

func cancelRun(c *call, in *api.CancelRun) (int, *api.Run, error) {
	wait, err := c.durationParam("wait", 0, maxWait)
	if err != nil {
		return 0, nil, err
	}
	key, err := c.idempotencyKey()
	if err != nil {
		return 0, nil, err
	}
	if err := c.s.engine.Do(c.Context(), &engine.Cancel{Tenant: c.tenant(), RunID: c.run(), Reason: in.Reason, Key: key}); err != nil {
		return 0, nil, err
	}
	status := http.StatusOK
	if wait > 0 {
		status = http.StatusAccepted // unless it has ended by then
	}
	c.changed = true
	wait, leave := c.mayBlockFor(stream.Cancel, wait)
	defer leave()
	var out *api.Run
	err = c.watch(string(c.run()), wait, func(bool) (bool, error) {
		d, err := c.s.engine.Runs.Get(c.Context(), c.tenant(), c.run())
		if err != nil {
			return false, err
		}
		out = c.show(&d)
		if d.State.Terminal() {
			status = http.StatusOK
		}
		return d.State.Terminal(), nil
	})
	return status, out, err
}

func deferRun(c *call, _ *none) (int, *api.Run, error) {
	if err := c.s.engine.Do(c.Context(), &engine.Defer{Tenant: c.tenant(), RunID: c.run(), Reason: "detached"}); err != nil {
		return 0, nil, err
	}
	return getRun(c, nil)
}

func retryRun(c *call, _ *none) (int, *api.Run, error) {
	key, err := c.idempotencyKey()
	if err != nil {
		return 0, nil, err
	}
	op := &engine.Retry{Tenant: c.tenant(), RunID: c.run(), Key: key}
	if err := c.s.engine.Do(c.Context(), op); err != nil {
		return 0, nil, err
	}
	return c.answerRun(op.Run.ID, op.Created)
}

// made answers with a run that was made now, or before.
func (c *call) answerRun(id perdure.RunID, created bool) (int, *api.Run, error) {
	d, err := c.s.engine.Runs.Get(c.Context(), c.tenant(), id)
	if err != nil {
		return 0, nil, err
	}
	return createdStatus(created), c.show(&d), nil
}

// createdStatus is the status of an answer with something that was made now, or before.
func createdStatus(created bool) int {
	if created {
		return http.StatusCreated
	}
	return http.StatusOK
}

func sendSignal(c *call, in *api.SendSignal) (int, *api.SignalSent, error) {
	key, err := c.idempotencyKey()
	if err != nil {
		return 0, nil, err
	}
	op := &engine.Signal{Tenant: c.tenant(), RunID: c.run(), Name: c.PathValue("name"), Data: in.Data, Key: key, By: c.key}
	if in.Decision != "" || in.Comment != "" || in.ActionHash != "" || len(in.Answer) > 0 {
		if len(in.Data) > 0 {
			return 0, nil, perdure.Invalid("data", "stands without a decision, or has it inside")
		}
		op.Decision = &perdure.Decision{Decision: in.Decision, Comment: in.Comment, Answer: in.Answer, ActionHash: in.ActionHash}
	}
	if err := c.s.engine.Do(c.Context(), op); err != nil {
		return 0, nil, err
	}
	if op.Refused != nil {
		return 0, nil, op.Refused
	}
	return 0, &api.SignalSent{RunID: op.Run.ID, Status: op.Run.Status(), ApprovalID: op.Approval}, nil
}

// callbackToken refuses a token that this store has not signed. Anybody can send one, so nothing else is done
// for it.
func callbackToken(s *Server, token string) error {
	if !s.engine.ValidToken(token) {
		return perdure.Errorf(perdure.CodeNotFound, "no such callback")
	}
	return nil
}

func useCallback(c *call, in *api.UseCallback) (int, *api.CallbackUsed, error) {
	if in.Error != nil && (len(in.Result) > 0 || in.Error.Code == "") {
		return 0, nil, perdure.Invalid("error", "is {code, message}, and stands without a result")
	}
	op := &engine.Callback{Token: c.PathValue("token"), Result: in.Result, Error: in.Error}
	if err := c.s.engine.Do(c.Context(), op); err != nil {
		if perdure.CodeOf(err) == perdure.CodeReused {
			err = perdure.Errorf(api.CodeAnswered, "this callback was answered with another body")
		}
		return 0, nil, err
	}
	if op.Refused != nil {
		return 0, nil, op.Refused
	}
	return 0, &api.CallbackUsed{RunID: op.RunID}, nil
}

func continueRun(c *call, in *api.ContinueRun) (int, *api.Continued, error) {
	op := &engine.Continue{Tenant: c.tenant(), RunID: c.run(), Trigger: in.Trigger, JobID: in.JobID, WorkerID: in.WorkerID, Status: in.Status, Summary: in.Summary}
	if err := c.s.engine.Do(c.Context(), op); err != nil {
		return 0, nil, err
	}
	return createdStatus(op.Created), &api.Continued{RunID: c.run(), ContinuedByID: op.Made}, nil
}
