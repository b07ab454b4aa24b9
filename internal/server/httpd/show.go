package httpd

import (
	"encoding/json"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/server/engine/reads"
	"github.com/perdure/perdure/internal/server/largejson"
)

// jsonValue returns a stored value as JSON. A damaged value becomes a string with its text.
func jsonValue(v perdure.Value) json.RawMessage {
	if v == "" {
		return nil
	}
	valid := json.Valid
	if len(v) > largejson.Size {
		valid = largejson.Valid
	}
	if !valid([]byte(v)) {
		b, _ := json.Marshal(string(v))
		return b
	}
	return json.RawMessage(v)
}

// showRun returns a run as the API shows it. Large values take a turn, because checking them keeps a
// processor busy.
func showRun(c *call, d *reads.Detail) *api.Run {
	c.found = int64(len(d.InputText) + len(d.ResultText))
	end, _ := c.share.turn(c.Context(), c.found) // the values are in memory already, so they are shown even without it
	defer end()
	return c.s.show(d, c.s.engine.Now())
}

// webhookOf returns the webhook that a run was started with, if it has one. A run from before webhooks
// had ids has a URL instead.
func webhookOf(r *perdure.Run) perdure.WebhookID {
	if id := string(r.Options.Webhook); strings.HasPrefix(id, "wh_") {
		return perdure.WebhookID(id)
	}
	return ""
}

// show returns a run as the API shows it.
func (s *Server) show(d *reads.Detail, now perdure.Instant) *api.Run {
	r := &d.Run
	out := &api.Run{
		RunID: r.ID, ThreadID: r.ThreadID, Kind: r.Kind, Class: r.ShownClass(), Queue: r.Queue, Priority: r.Priority,
		Status: r.Status(), State: r.State, Epoch: r.Epoch, Attempt: r.Attempt, MaxAttempts: r.MaxAttempts,
		Input: jsonValue(d.InputText), Result: jsonValue(d.ResultText), Summary: r.Summary, Error: r.Failure,
		Activity: r.Activity, Tier: s.engine.Policy().Tier(r, now), WorkerID: r.Worker, Metadata: map[string]string{},
		ParentRunID: r.ParentID, RootRunID: r.RootID, ContinuationOfRunID: r.ContinuationOf,
		ContinuedByRunID: r.ContinuedBy, RetryOfRunID: r.RetryOf, OriginRunID: r.OriginID,
		CreatedAt: r.CreatedAt, DeadlineAt: r.DeadlineAt,
		StartedAt: optional(r.StartedAt), FinishedAt: optional(r.FinishedAt), DeferredAt: optional(r.DeferredAt),
		SeenAt: optional(r.SeenAt), Hold: showHold(r), LastSeq: r.Seq, LateResults: r.Late,
		AttachURL: perdure.AttachURL(r.ID), StatusURL: perdure.StatusURL(r.ID), WaitingFor: d.WaitingFor,
	}
	if r.Damage != nil {
		out.Damaged = r.Damage.What
	}
	out.WebhookID, out.Command = webhookOf(r), commandOf(r)
	if f := r.Options.Firing; f != nil {
		out.ScheduleID, out.ScheduleName, out.ScheduledFor, out.MissedCount = f.ID, f.Name, optional(f.For), f.Missed
	}
	out.Unique = r.Options.Unique
	if d := r.Options.Debounce; d != nil {
		out.DebounceKey, out.Debounced = d.Key, d.Count
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

// optional returns nil for an instant that is not set.
func optional(i perdure.Instant) *perdure.Instant {
	if i == 0 {
		return nil
	}
	return &i
}

func showJobStatus(r *perdure.Run, changed perdure.Instant) *api.JobStatus {
	return &api.JobStatus{JobID: r.ID, Status: r.Status(), State: r.State, UpdatedAt: changed}
}

// showHold returns the hold of a run, or nil if it is not on hold.
func showHold(r *perdure.Run) *api.Hold {
	if !r.OnHold() {
		return nil
	}
	h := r.Hold
	out := &api.Hold{Since: h.Since, Until: h.Until, Count: h.Count, Code: h.Failure.Code, Message: h.Failure.Message,
		Builds: append([]string{}, h.Builds...)}
	if r.State == perdure.Queued {
		out.NextAt = optional(r.ReadyAt)
	}
	return out
}
