package httpd

import (
	"encoding/json"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/process/jobdir"
	"github.com/perdure/perdure/internal/server/engine/dispatch"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/sentinel"
)

// process starts a process of tenant a and plays its runner: with a lock, and a sentinel.
func (w *world) process(workspace string) (id string, lock *os.File, sent jobdir.Sentinel) {
	w.t.Helper()
	ok := func(err error) {
		w.t.Helper()
		if err != nil {
			w.t.Fatal(err)
		}
	}
	id = w.start(`{"kind":"exec","class":"process","max_attempts":1,
		"input":{"engine":"codex","command":["make","all now"]}}`)
	claim := &dispatch.Claim{Tenant: "a", Worker: "runner", Runs: []perdure.RunID{perdure.RunID(id)}, Slots: 1,
		Start: true}
	ok(w.e.Do(w.t.Context(), claim))
	r := claim.Grants[0].Run
	ok(w.e.Do(w.t.Context(), &life.Heartbeat{Tenant: "a", Worker: "runner",
		Beats: []life.BeatOf{{Lease: life.Lease{RunID: r.ID, Epoch: r.Epoch}}}}))
	d, err := jobdir.Of(workspace, id)
	ok(err)
	ok(d.Create())
	lock, err = d.Lock()
	ok(err)
	w.t.Cleanup(func() { lock.Close() })
	lockID, err := jobdir.LockID(lock)
	ok(err)
	sent = jobdir.Sentinel{JobID: id, Status: jobdir.StatusWaiting, LastHeartbeat: jobdir.Time(time.Now()),
		WorkspacePath: d.Path, SessionID: "s1", AgentEngine: "claude-code", StartedAt: jobdir.Time(time.Now()),
		Counter: 1,
		Epoch:   r.Epoch, Tenant: "a", Lock: lockID}
	ok(d.WriteSentinel(sent, w.e.ProcessTokens("a", r.ID, r.Epoch)[0]))
	return id, lock, sent
}

// has fails unless a part of an answer is as JSON text, with other fields beside it.
func hasJSON(t *testing.T, got any, want string) {
	t.Helper()
	var w obj
	if err := json.Unmarshal([]byte(want), &w); err != nil {
		t.Fatal(err)
	}
	g, _ := got.(obj)
	for k, v := range w {
		if fmt.Sprint(g[k]) != fmt.Sprint(v) {
			t.Errorf("%s = %v, want %v, in %v", k, g[k], v, got)
		}
	}
}

func TestRecoveryAPIShowsProcesses(t *testing.T) {
	workspace := t.TempDir()
	w := newWorld(t, setup{policy: func(p *perdure.Policy) { p.StaleAfter, p.DeadAfter = time.Hour, 2*time.Hour }})
	admin := w.as(w.admin)
	hasJSON(t, admin.get("/api/admin/recovery/jobs/status").is(200)["recovery"], `{"state":"none"}`)
	admin.get("/api/admin/startup-log").is(200)
	m := sentinel.New(w.e, sentinel.Options{Workspace: workspace})
	w.s.opt.Processes = m
	hasJSON(t, admin.get("/api/admin/recovery/jobs/status").is(200)["recovery"], `{"state":"pending"}`)

	alive, _, _ := w.process(workspace)
	gone, lock, _ := w.process(workspace)
	lock.Close()
	elsewhere := w.start(`{"kind":"exec","class":"process","max_attempts":1,"input":{"engine":"codex"}}`)
	claim := &dispatch.Claim{Tenant: "a", Worker: "other", Runs: []perdure.RunID{perdure.RunID(elsewhere)}, Slots: 1,
		Start: true}
	if err := w.e.Do(t.Context(), claim); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(workspace+"/jobs/junk", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	m.Recover(t.Context())

	hasJSON(t, admin.get("/api/admin/recovery/jobs/status").is(200)["recovery"],
		`{"state":"watching","watched":1,"reattached":0,"adopted":0,"dead":1,"setAside":1}`)
	beats := admin.get("/api/admin/recovery/jobs/heartbeats").is(200)
	hasJSON(t, beats["summary"], `{"total":2,"fresh":2,"stale":0,"dead":0}`)
	jobs := beats["jobs"].([]any)
	hasJSON(t, jobs[0], `{"jobId":"`+alive+`","status":"fresh","ageSeconds":0,"agentEngine":"claude-code",
		"command":"make 'all now'"}`)
	hasJSON(t, jobs[1], `{"jobId":"`+elsewhere+`","status":"fresh","agentEngine":"codex"}`)
	page := admin.get("/api/admin/recovery/jobs/heartbeats?limit=1").is(200)
	if page["next_cursor"] != alive {
		t.Errorf("next_cursor = %v, want %s", page["next_cursor"], alive)
	}
	page = admin.get("/api/admin/recovery/jobs/heartbeats?limit=1&cursor=" + alive).is(200)
	hasJSON(t, page["jobs"].([]any)[0], `{"jobId":"`+elsewhere+`"}`)
	if list := admin.get("/api/admin/recovery/jobs/stale").is(200)["staleJobs"].([]any); len(list) != 0 {
		t.Errorf("stale = %v, want none", list)
	}
	hasJSON(t, admin.get("/api/admin/jobs/"+alive+"/health").is(200), `{"jobId":"`+alive+`","heartbeatStatus":"fresh",
		"ageSeconds":0,"sentinelFileExists":true,"workspaceExists":true,"sessionDataExists":true}`)
	hasJSON(t, admin.get("/api/admin/jobs/"+gone+"/health").is(200),
		`{"heartbeatStatus":"failed","sessionDataExists":false}`)
	hasJSON(t, admin.get("/api/admin/jobs/"+elsewhere+"/health").is(200),
		`{"heartbeatStatus":"fresh","workspaceExists":false}`)
	admin.get("/api/admin/jobs/nonsense/health").refuses(404, "not_found")
	admin.get("/api/admin/jobs/"+w.start(`{"kind":"k"}`)+"/health").refuses(404, "not_found")

	seen := admin.get("/api/admin/recovery/jobs/sentinels").is(200)
	hasJSON(t, seen["sentinels"].([]any)[0], `{"jobId":"`+alive+`","status":"waiting","tier":"fresh","lockHeld":true,
		"counter":1,"epoch":1,"sessionId":"s1","tenant":"a"}`)
	hasJSON(t, seen["setAside"].([]any)[0], `{"path":"`+workspace+`/jobs/junk","reason":"is no folder of a job"}`)
	hasJSON(t, admin.get("/api/admin/recovery/jobs/metrics").is(200),
		`{"fresh":2,"stale":0,"dead":0,"reattached":0,"adopted":0,"writeFailures":0}`)
	failed := admin.get("/api/admin/recovery/jobs/failed").is(200)["failedJobs"].([]any)
	if len(failed) != 1 {
		t.Fatalf("failed = %v, want one", failed)
	}
	hasJSON(t, failed[0], `{"jobId":"`+gone+`","workspacePath":"`+workspace+`/jobs/`+gone+`"}`)

	done := admin.do("POST", "/api/admin/recovery/jobs/resume",
		`{"jobIds":["`+alive+`","`+gone+`","00000000-0000-0000-0000-000000000000"]}`).
		is(200)["results"].([]any)
	hasJSON(t, done[0], `{"jobId":"`+alive+`","action":"watched"}`)
	hasJSON(t, done[1], `{"jobId":"`+gone+`","action":"redriven"}`)
	hasJSON(t, done[2], `{"action":"refused","reason":"no such job"}`)
	again := admin.do("POST", "/api/admin/recovery/jobs/resume", `{"jobIds":["`+gone+`"]}`).is(200)["results"].([]any)
	if again[0].(obj)["run_id"] != done[1].(obj)["run_id"] {
		t.Errorf("resumed again as %v, want %v", again[0], done[1])
	}
	admin.do("POST", "/api/admin/recovery/jobs/resume", `{"jobIds":[]}`).refuses(400, "invalid")
	admin.do("POST", "/api/admin/recovery/jobs/resume", `{"jobIds":["x"]}`).refuses(400, "invalid")

	lines := admin.get("/api/admin/startup-log?limit=2").is(200)
	if n := len(lines["lines"].([]any)); n != 2 || lines["next"] == nil {
		t.Errorf("startup log = %v, want two lines and more", lines)
	}
	w.as(w.key).get("/api/admin/recovery/jobs/status").refuses(403, "forbidden")
}
