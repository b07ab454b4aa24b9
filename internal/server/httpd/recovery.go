package httpd

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"path/filepath"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/process/jobdir"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/engine/upkeep"
	"github.com/perdure/perdure/internal/server/sentinel"
)

// The admin API of processes. Facts about runs come from the store and are equal on all nodes. Facts
// about files are this node's, and there are none on a node without a workspace.

// maxResume bounds the processes of one resume.
const maxResume = 100

// fileTime formats an instant as the files of processes have it. An instant that is not set is empty.
func fileTime(at perdure.Instant) string {
	if at == 0 {
		return ""
	}
	return jobdir.Time(at.Time())
}

// workspacePath returns the folder of a process, or an empty text on a node without a workspace.
func (s *Server) workspacePath(id perdure.RunID) string {
	if s.opt.Processes == nil {
		return ""
	}
	return filepath.Join(s.opt.Processes.Workspace(), "jobs", string(id))
}

// tiers reads all live processes and counts them by tier.
func tiers(c *call) (list []perdure.Run, sum api.JobSummary, now perdure.Instant, err error) {
	list, err = c.s.engine.Processes.Ages(c.Context())
	now = c.s.engine.Now()
	sum.Total = len(list)
	for i := range list {
		switch c.s.engine.Policy().Tier(&list[i], now) {
		case perdure.TierFresh:
			sum.Fresh++
		case perdure.TierStale:
			sum.Stale++
		case perdure.TierDead:
			sum.Dead++
		}
	}
	return list, sum, now, err
}

// pageOf returns the processes after the cursor, at most limit, and the next cursor.
func pageOf(list []perdure.Run, after perdure.RunID, limit int64) (page []perdure.Run, next string) {
	for i := range list {
		if list[i].ID > after {
			if list = list[i:]; int64(len(list)) > limit {
				return list[:limit], string(list[limit-1].ID)
			}
			return list, ""
		}
	}
	return nil, ""
}

func jobHeartbeats(c *call, _ *none) (int, *api.JobHeartbeats, error) {
	limit, err := c.intParam("limit", 100, 1, maxPage)
	if err != nil {
		return 0, nil, err
	}
	after, err := c.cursorParam()
	if err != nil {
		return 0, nil, err
	}
	list, sum, now, err := tiers(c)
	if err != nil {
		return 0, nil, err
	}
	out := &api.JobHeartbeats{Jobs: []api.JobHeartbeat{}, Summary: sum}
	list, out.NextCursor = pageOf(list, after, limit)
	known, err := jobsOf(c, list)
	if err != nil {
		return 0, nil, err
	}
	for i := range list {
		r, job := &list[i], known[list[i].ID]
		out.Jobs = append(out.Jobs, api.JobHeartbeat{JobID: r.ID, LastHeartbeat: fileTime(r.SeenAt),
			AgeSeconds: age(r, now), Status: c.s.engine.Policy().Tier(r, now), AgentEngine: job.engine,
			Command: job.command})
	}
	return 0, out, nil
}

// age returns the age of the last sign of life in seconds.
func age(r *perdure.Run, now perdure.Instant) int64 {
	return max(0, int64(now.Sub(r.SeenAt).Seconds()))
}

// A job is what is known of a process beside its age.
type job struct{ engine, command string }

// jobsOf returns what is known of processes. The engine is that of the sentinel, or else of the input.
func jobsOf(c *call, list []perdure.Run) (map[perdure.RunID]job, error) {
	out := make(map[perdure.RunID]job, len(list))
	ids := make([]perdure.RunID, len(list))
	for i := range list {
		ids[i] = list[i].ID
	}
	runs, err := c.s.engine.Processes.Of(c.Context(), ids)
	for i := range runs {
		var input struct {
			Engine string `json:"engine"`
		}
		// Any input is allowed. One without an engine has the generic one.
		_ = json.Unmarshal([]byte(runs[i].Input), &input)
		if m := c.s.opt.Processes; m != nil {
			if seen, ok := m.Sentinel(string(runs[i].ID)); ok {
				input.Engine = seen.File.AgentEngine
			}
		}
		out[runs[i].ID] = job{cmp.Or(input.Engine, "generic"), commandOf(&runs[i])}
	}
	return out, err
}

func staleJobs(c *call, _ *none) (int, *api.StaleJobs, error) {
	limit, err := c.intParam("limit", 100, 1, maxPage)
	if err != nil {
		return 0, nil, err
	}
	after, err := c.cursorParam()
	if err != nil {
		return 0, nil, err
	}
	list, _, now, err := tiers(c)
	if err != nil {
		return 0, nil, err
	}
	var stale []perdure.Run
	for i := range list {
		if c.s.engine.Policy().Tier(&list[i], now) != perdure.TierFresh {
			stale = append(stale, list[i])
		}
	}
	out := &api.StaleJobs{StaleJobs: []api.StaleJob{}}
	stale, out.NextCursor = pageOf(stale, after, limit)
	for i := range stale {
		r := &stale[i]
		action := "investigate"
		if c.s.engine.Policy().Tier(r, now) == perdure.TierDead {
			action = "wait"
		}
		out.StaleJobs = append(out.StaleJobs, api.StaleJob{JobID: r.ID, LastHeartbeat: fileTime(r.SeenAt),
			AgeMinutes:    math.Round(now.Sub(r.SeenAt).Minutes()*100) / 100,
			WorkspacePath: c.s.workspacePath(r.ID), RecommendedAction: action})
	}
	return 0, out, nil
}

func jobHealth(c *call, _ *none) (int, *api.JobHealth, error) {
	id := perdure.RunID(c.PathValue("jobId"))
	if !isID.MatchString(string(id)) {
		return 0, nil, perdure.Errorf(perdure.CodeNotFound, "no such job")
	}
	r, err := c.s.engine.Processes.Get(c.Context(), id)
	if err != nil {
		return 0, nil, err
	}
	now := c.s.engine.Now()
	out := &api.JobHealth{JobID: id, HeartbeatStatus: c.s.engine.Policy().Tier(&r, now),
		LastHeartbeat: fileTime(r.SeenAt)}
	if out.HeartbeatStatus == "" {
		out.HeartbeatStatus = string(r.State)
	}
	if r.SeenAt != 0 {
		out.AgeSeconds = age(&r, now)
	}
	if m := c.s.opt.Processes; m != nil {
		out.SentinelFileExists, out.WorkspaceExists, out.SessionDataExists = m.Files(string(id))
		if seen, ok := m.Sentinel(string(id)); ok && r.State.Live() && seen.File.SessionID != "" {
			out.SessionDataExists = true
		}
	}
	return 0, out, nil
}

func recoveryStatus(c *call, _ *none) (int, *api.RecoveryStatus, error) {
	m := c.s.opt.Processes
	if m == nil {
		return 0, &api.RecoveryStatus{Recovery: api.Recovery{State: "none"}}, nil
	}
	r := m.Status()
	return 0, &api.RecoveryStatus{Recovery: api.Recovery{State: r.State, StartedAt: fileTime(r.StartedAt),
		FinishedAt: fileTime(r.FinishedAt), Watched: r.Watched, Reattached: r.Reattached, Adopted: r.Adopted,
		Dead:     r.Dead,
		SetAside: r.SetAside}}, nil
}

func listSentinels(c *call, _ *none) (int, *api.Sentinels, error) {
	limit, err := c.intParam("limit", 100, 1, maxPage)
	if err != nil {
		return 0, nil, err
	}
	after, err := c.cursorParam()
	if err != nil {
		return 0, nil, err
	}
	out := &api.Sentinels{Sentinels: []api.Sentinel{}, SetAside: []api.AsideFile{}}
	m := c.s.opt.Processes
	if m == nil {
		return 0, out, nil
	}
	list, more := m.Sentinels(string(after), int(limit))
	// The tier is that of the run, by the thresholds of its kind and activity, as in all other lists.
	ids := make([]perdure.RunID, len(list))
	for i := range list {
		ids[i] = perdure.RunID(list[i].File.JobID)
	}
	rows, err := c.s.engine.Processes.Of(c.Context(), ids)
	if err != nil {
		return 0, nil, err
	}
	runs := make(map[perdure.RunID]*perdure.Run, len(rows))
	for i := range rows {
		runs[rows[i].ID] = &rows[i]
	}
	now := c.s.engine.Now()
	for i := range list {
		x, f := &list[i], &list[i].File
		r := runs[perdure.RunID(f.JobID)]
		if r == nil {
			r = &perdure.Run{}
		}
		out.Sentinels = append(out.Sentinels, api.Sentinel{JobID: perdure.RunID(f.JobID), Status: f.Status,
			LastHeartbeat: f.LastHeartbeat, WorkspacePath: f.WorkspacePath, SessionID: f.SessionID,
			AgentEngine: f.AgentEngine,
			StartedAt:   f.StartedAt, Counter: f.Counter, Epoch: f.Epoch, Tenant: f.Tenant,
			Tier: c.s.engine.Policy().Tier(r, now), LockHeld: x.Lock != sentinel.LockFree,
			ObservedAt: fileTime(x.ObservedAt)})
	}
	if more {
		out.NextCursor = list[len(list)-1].File.JobID
	}
	for _, a := range m.SetAside(int(limit)) {
		out.SetAside = append(out.SetAside, api.AsideFile{Path: a.Path, Reason: a.Reason, MovedTo: a.To})
	}
	return 0, out, nil
}

func recoveryMetrics(c *call, _ *none) (int, *api.RecoveryMetrics, error) {
	_, sum, _, err := tiers(c)
	if err != nil {
		return 0, nil, err
	}
	out := &api.RecoveryMetrics{Fresh: sum.Fresh, Stale: sum.Stale, Dead: sum.Dead}
	if m := c.s.opt.Processes; m != nil {
		counts, failures, ms := m.Counted()
		out.Reattached, out.Adopted, out.WriteFailures, out.ScanMs = counts.Reattached, counts.Adopted, failures, ms
	}
	return 0, out, nil
}

func failedJobs(c *call, _ *none) (int, *api.FailedJobs, error) {
	limit, err := c.intParam("limit", 100, 1, maxPage)
	if err != nil {
		return 0, nil, err
	}
	before, err := c.cursorParam()
	if err != nil {
		return 0, nil, err
	}
	list, next, err := c.s.engine.Processes.Failed(c.Context(), before, int(limit))
	if err != nil {
		return 0, nil, err
	}
	out := &api.FailedJobs{FailedJobs: []api.FailedJob{}, NextCursor: string(next)}
	for i := range list {
		r := &list[i]
		if !lost(r) {
			continue
		}
		out.FailedJobs = append(out.FailedJobs, api.FailedJob{JobID: r.ID, FailedAt: fileTime(r.FinishedAt),
			Reason: string(r.Failure.Code) + ": " + r.Failure.Message, WorkspacePath: c.s.workspacePath(r.ID),
			Command: commandOf(r)})
	}
	return 0, out, nil
}

// lost tells whether a process failed because the server gave it up, and not by its own exit.
func lost(r *perdure.Run) bool {
	if r.Failure == nil {
		return false
	}
	switch r.Failure.Code {
	case perdure.CodeHeartbeatLost, perdure.CodeAttemptsExhausted, perdure.CodeOutcomeUnknown, perdure.CodeReaped,
		perdure.CodeOrphaned:
		return true
	}
	return false
}

func resumeJobs(c *call, in *api.ResumeJobs) (int, *api.ResumedJobs, error) {
	switch {
	case len(in.JobIDs) == 0:
		return 0, nil, perdure.Invalid("jobIds", "names no job")
	case len(in.JobIDs) > maxResume:
		return 0, nil, &perdure.Error{Code: perdure.CodeTooLarge, Field: "jobIds",
			Message: fmt.Sprintf("names at most %d", maxResume)}
	}
	if err := checkIDs("jobIds", in.JobIDs); err != nil {
		return 0, nil, err
	}
	out := &api.ResumedJobs{Results: make([]api.ResumedJob, len(in.JobIDs))}
	for i, id := range in.JobIDs {
		done, err := resumeJob(c, id)
		if done.JobID = id; err != nil {
			refused := c.s.refused(err)
			done.Action, done.Code, done.Reason = api.ResumeRefused, refused.Code, refusal(refused).Detail
		}
		out.Results[i] = done
	}
	return 0, out, nil
}

// resumeJob watches a process once more, or makes a new run of one that was lost. Repeating it is no
// error: a dead letter is redriven once.
func resumeJob(c *call, id perdure.RunID) (done api.ResumedJob, err error) {
	r, err := c.s.engine.Processes.Get(c.Context(), id)
	if err != nil {
		return done, err
	}
	if r.State.Live() {
		window := sentinel.DefaultReattachWindow
		if m := c.s.opt.Processes; m != nil {
			window = m.Window()
		}
		done.Action = api.ResumeWatched
		op := &life.WatchProcess{Tenant: r.Tenant, RunID: r.ID, Epoch: r.Epoch, For: window}
		if err = c.s.engine.Do(c.Context(), op); err == nil && c.s.opt.Processes != nil {
			c.s.opt.Processes.Watch(string(id))
		}
		return done, err
	}
	op := &upkeep.Redrive{Tenant: r.Tenant, RunID: r.ID}
	if err := c.s.engine.Do(c.Context(), op); err != nil {
		return done, err
	}
	done.Action, done.RunID = api.ResumeRedriven, op.Run.ID
	return done, nil
}

func startupLog(c *call, _ *none) (int, *api.StartupLog, error) {
	limit, err := c.intParam("limit", maxPage, 1, maxPage)
	if err != nil {
		return 0, nil, err
	}
	after, err := c.intParam("after", 0, 0, math.MaxInt32)
	if err != nil {
		return 0, nil, err
	}
	out := &api.StartupLog{Lines: []api.StartupLine{}}
	m := c.s.opt.Processes
	if m == nil {
		return 0, out, nil
	}
	lines, total, dropped := m.Startup(int(after), int(limit))
	for _, l := range lines {
		out.Lines = append(out.Lines, api.StartupLine{At: fileTime(l.At), JobID: perdure.RunID(l.JobID),
			Message: l.Message})
	}
	if end := int(after) + len(lines); end < total {
		out.Next = end
	}
	out.Dropped = dropped
	return 0, out, nil
}
