package httpd

import (
	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/server/engine/reads"
)

// maxSummary bounds the bytes of a summary or an activity in a list.
const maxSummary = 240

func runActivity(c *call, _ *none) (int, *api.Activity, error) {
	a, err := c.s.engine.Runs.Activity(c.Context(), c.tenant(), c.run())
	if err != nil {
		return 0, nil, err
	}
	return 0, c.s.showActivity(&a), nil
}

// childActivity shows the activity of a child to the worker that has leased its parent. The
// worker's key need not have the scope to read other runs.
func childActivity(c *call, _ *none) (int, *api.Activity, error) {
	epoch, _, _, t, err := leaseQuery(c)
	if err != nil {
		return 0, nil, err
	}
	if epoch == 0 {
		return 0, nil, perdure.Invalid("epoch", "is missing")
	}
	a, err := c.s.engine.Runs.ChildActivity(c.Context(), t, c.run(), epoch, perdure.RunID(c.PathValue("child")))
	if err != nil {
		return 0, nil, err
	}
	return 0, c.s.showActivity(&a), nil
}

func (s *Server) showActivity(a *reads.Activity) *api.Activity {
	r, now := &a.Run, s.engine.Now()
	short := s.childLine(r, now)
	out := &api.Activity{RunID: r.ID, Kind: r.Kind, Status: short.Status, State: r.State, Tier: short.Tier,
		Attempt: r.Attempt, MaxAttempts: r.MaxAttempts, WorkerID: r.Worker, ElapsedMS: short.ElapsedMS,
		DeadlineAt: r.DeadlineAt, SilentMS: short.SilentMS, Operation: short.Operation, Error: r.Failure,
		Hold:    showHold(r),
		Summary: short.Summary, Text: a.Text, Recent: []api.Happening{}, Waits: []api.OpenWait{},
		Children: []api.ChildActivity{}, Skipped: []api.SkippedItem{}, Spawned: r.Children, LastSeq: r.Seq}
	out.WaitingFor, out.Unserved, out.Paused = a.WaitingFor, a.Unserved, a.Paused
	if r.Cancel.RequestedAt != 0 {
		out.Cancel = &r.Cancel
	}
	if r.Progress != "" {
		out.Progress, _ = r.Progress.MarshalJSON()
	} else {
		out.ProgressSize = a.SoFar
	}
	for _, h := range a.Recent {
		out.Recent = append(out.Recent, api.Happening(h))
	}
	for i := range a.Waits {
		out.Waits = append(out.Waits, showOpenWait(&a.Waits[i]))
	}
	for i := range a.Family {
		out.Children = append(out.Children, s.childLine(&a.Family[i], now))
	}
	for i := range a.Skipped {
		x := &a.Skipped[i]
		out.Skipped = append(out.Skipped, api.SkippedItem{Seq: x.Seq, Type: x.Type, Name: x.Name, At: x.CreatedAt,
			WatchdogError: x.WatchdogError, WatchdogAt: optional(x.WatchdogAt)})
	}
	return out
}

// childLine returns the activity of a run in short, as lists of children show it.
func (s *Server) childLine(r *perdure.Run, now perdure.Instant) api.ChildActivity {
	out := api.ChildActivity{RunID: r.ID, Key: r.JournalKey, Kind: r.Kind, Status: r.Status(), State: r.State,
		Tier: s.engine.Policy().Tier(r, now), Attempt: r.Attempt, Summary: reads.Clip(r.Summary, maxSummary)}
	end := now
	switch {
	case r.State.Terminal():
		end = r.FinishedAt
	case r.State.Leased():
		silent := now.Sub(r.SeenAt).Milliseconds()
		out.SilentMS = &silent
		if r.Activity != "" && r.ActivityAt >= r.GrantedAt { // reported by the current worker
			out.Operation = &api.Operation{Activity: reads.Clip(r.Activity, maxSummary), Since: r.ActivityAt}
		}
	}
	out.ElapsedMS = end.Sub(r.CreatedAt).Milliseconds()
	if r.Failure != nil {
		out.Error = r.Failure.Code
	}
	return out
}

func showOpenWait(w *perdure.Wait) api.OpenWait {
	return api.OpenWait{WaitID: w.ID, Type: w.Type, Mode: w.Mode, Name: w.Name, OnStall: w.OnStall,
		Children: len(w.Targets), Ended: w.Ended, OpenedAt: w.OpenedAt, TimeoutAt: optional(w.TimeoutAt)}
}
