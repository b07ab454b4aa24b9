package httpd

import (
	"encoding/json"
	"net/http"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/engine/reads"
	"github.com/perdure/perdure/internal/server/httpd/stream"
)

// startRunOnThread starts a run on the thread of the path.
func startRunOnThread(c *call, in *api.StartRun) (int, *api.Run, error) {
	if in.ThreadID != "" && string(in.ThreadID) != c.PathValue("id") {
		return 0, nil, perdure.Invalid("thread_id", "differs from the one in the path")
	}
	in.ThreadID = perdure.ThreadID(c.PathValue("id"))
	return startRun(c, in)
}

// startRun creates a run. With wait it then waits for the run's end, as joinRun does.
func startRun(c *call, in *api.StartRun) (int, *api.Run, error) {
	key, err := c.idempotencyKey()
	if err != nil {
		return 0, nil, err
	}
	if in.Wait < 0 || time.Duration(in.Wait) > maxWait {
		return 0, nil, perdure.Invalid("wait", "must lie between 0s and %s", maxWait)
	}
	if in.Webhook != "" {
		if err := checkURL(c, "webhook", in.Webhook); err != nil {
			return 0, nil, err
		}
	}
	in.Submission.Foreground = in.Foreground || in.Wait > 0
	op := &life.Submit{Tenant: c.tenant(), Submission: in.Submission, Key: key}
	if in.Wait > 0 {
		op.Node = c.s.opt.Node
	}
	op.Expects = in.Foreground
	if err := c.s.engine.Do(c.Context(), op); err != nil {
		return 0, nil, err
	}
	if in.Wait > 0 {
		var made *reads.Detail // the row of a new run, which then need not be read
		if op.Created {
			made = &reads.Detail{Run: op.Run, InputText: perdure.Value(in.Input)}
		}
		// The input may be large and the wait long, so it is freed.
		in.Submission, op.Submission = perdure.Submission{}, perdure.Submission{}
		c.share.changed = true
		status, out, err := await(c, op.Run.ID, time.Duration(in.Wait), true, made)
		if out != nil {
			out.WebhookSecret, out.Existing = op.WebhookSecret, op.Existing
		}
		return status, out, err
	}
	if !op.Created {
		status, out, err := answerRun(c, op.Run.ID, false)
		if out != nil {
			out.WebhookSecret, out.Existing = op.WebhookSecret, op.Existing
		}
		return status, out, err
	}
	// The row of a new run is known, so nothing is read for the answer.
	out := showRun(c, &reads.Detail{Run: op.Run, InputText: perdure.Value(in.Input)})
	out.WebhookSecret = op.WebhookSecret
	return http.StatusCreated, out, nil
}

func getRun(c *call, _ *none) (int, *api.Run, error) {
	d, err := c.s.engine.Runs.Get(c.Context(), c.tenant(), c.run())
	if err != nil {
		return 0, nil, err
	}
	return 0, showRun(c, &d), nil
}

func getRunByName(c *call, _ *none) (int, *api.Run, error) {
	id, from, err := c.s.engine.Runs.ByName(c.Context(), c.tenant(), c.PathValue("name"))
	if err != nil {
		return 0, nil, err
	}
	d, err := c.s.engine.Runs.Get(c.Context(), c.tenant(), id)
	if err != nil {
		return 0, nil, err
	}
	out := showRun(c, &d)
	out.FromSeq = from
	return 0, out, nil
}

func nameRun(c *call, in *api.NameRun) (int, *api.Name, error) {
	key, err := c.idempotencyKey()
	if err != nil {
		return 0, nil, err
	}
	op := &life.NameRun{Tenant: c.tenant(), RunID: c.run(), Name: c.PathValue("name"), FromSeq: in.FromSeq, Key: key}
	if err := c.s.engine.Do(c.Context(), op); err != nil {
		return 0, nil, err
	}
	return createdStatus(op.Created), &api.Name{Name: op.Name, RunID: op.RunID, FromSeq: op.FromSeq}, nil
}

func jobStatus(c *call, _ *none) (int, *api.JobStatus, error) {
	r, changed, err := c.s.engine.Runs.Status(c.Context(), c.tenant(), c.run())
	if err != nil {
		return 0, nil, err
	}
	return 0, showJobStatus(&r, changed), nil
}

func joinRun(c *call, _ *none) (int, *api.Run, error) {
	d, err := c.durationParam("timeout", 10*time.Minute, maxWait)
	if err != nil {
		return 0, nil, err
	}
	return await(c, c.run(), d, false, nil)
}

// runDeliverable shows the result of an ended run, or its fallback if it has none, and its
// artifacts.
func runDeliverable(c *call, _ *none) (int, *api.Deliverable, error) {
	d, err := c.s.engine.Runs.Get(c.Context(), c.tenant(), c.run())
	if err != nil {
		return 0, nil, err
	}
	if d.State.Live() {
		return 0, nil, perdure.Errorf(perdure.CodeWrongState,
			"the run is %s: it hands over something when it ends", d.State)
	}
	out := &api.Deliverable{DeliverableID: d.DeliverableID(), RunID: d.ID, Kind: "result",
		Content: jsonValue(d.ResultText), Error: d.Failure}
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

// cancelRun asks a run to stop. With wait it then waits for the run's end.
func cancelRun(c *call, in *api.CancelRun) (int, *api.Run, error) {
	wait, err := c.durationParam("wait", 0, maxWait)
	if err != nil {
		return 0, nil, err
	}
	key, err := c.idempotencyKey()
	if err != nil {
		return 0, nil, err
	}
	op := &life.Cancel{Tenant: c.tenant(), RunID: c.run(), Reason: in.Reason, Key: key}
	if err := c.s.engine.Do(c.Context(), op); err != nil {
		return 0, nil, err
	}
	status := http.StatusOK
	if wait > 0 {
		status = http.StatusAccepted // until the run has ended
	}
	c.share.changed = true
	wait, leave := mayBlockFor(c, stream.Cancel, wait)
	defer leave()
	var out *api.Run
	err = waitUntil(c, string(c.run()), wait, func(bool) (bool, error) {
		d, err := c.s.engine.Runs.Get(c.Context(), c.tenant(), c.run())
		if err != nil {
			return false, err
		}
		out = showRun(c, &d)
		if d.State.Terminal() {
			status = http.StatusOK
		}
		return d.State.Terminal(), nil
	})
	return status, out, err
}

func deferRun(c *call, _ *none) (int, *api.Run, error) {
	op := &life.Defer{Tenant: c.tenant(), RunID: c.run(), Reason: "detached"}
	if err := c.s.engine.Do(c.Context(), op); err != nil {
		return 0, nil, err
	}
	return getRun(c, nil)
}

// answerRun answers with a run that this call or an earlier one with the same key has created.
func answerRun(c *call, id perdure.RunID, created bool) (int, *api.Run, error) {
	d, err := c.s.engine.Runs.Get(c.Context(), c.tenant(), id)
	if err != nil {
		return 0, nil, err
	}
	return createdStatus(created), showRun(c, &d), nil
}

func continueRun(c *call, in *api.ContinueRun) (int, *api.Continued, error) {
	op := &life.Continue{Tenant: c.tenant(), RunID: c.run(), Trigger: in.Trigger, JobID: in.JobID,
		WorkerID: in.WorkerID, Status: in.Status, Summary: in.Summary}
	if err := c.s.engine.Do(c.Context(), op); err != nil {
		return 0, nil, err
	}
	return createdStatus(op.Created), &api.Continued{RunID: c.run(), ContinuedByID: op.Made}, nil
}
