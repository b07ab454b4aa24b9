package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/internal/testkit/eventually"
	"github.com/perdure/perdure/internal/testkit/pgtest"
	"github.com/perdure/perdure/internal/testkit/stage"
	"github.com/perdure/perdure/worker"
)

// released matches a release in CHANGELOG.md with the commit that it names.
var released = regexp.MustCompile(
	"(?m)^## \\[(\\d+\\.\\d+\\.\\d+)\\] - \\d{4}-\\d\\d-\\d\\d\n\nCommit: `([0-9a-f]{40})`$")

// previous is the program of the last release, built from the commit that CHANGELOG.md names. It is kept in the
// user's cache folder.
var previous = sync.OnceValues(func() (string, error) {
	page, err := os.ReadFile("../CHANGELOG.md")
	if err != nil {
		return "", err
	}
	found := released.FindStringSubmatch(string(page))
	if found == nil {
		return "", errors.New("CHANGELOG.md names no release with its commit")
	}
	release, commit := found[1], found[2]
	if out, err := exec.Command("git", "cat-file", "-e", commit+"^{commit}").CombinedOutput(); err != nil {
		return "", fmt.Errorf("the commit %s of release %s is missing, and the test needs its program: fetch the "+
			"whole history (git fetch --unshallow): %w: %s", commit, release, err, out)
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, "perdure", "releases")
	path := filepath.Join(dir, release+"-"+commit[:12])
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	tree, err := os.MkdirTemp(dir, "tree-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(tree)
	// Paths are trimmed, so that the build shares the cache with this tree. A rename makes it complete.
	build := exec.Command("sh", "-ec", `git archive "$1" | tar -x -C "$2"
		cd "$2" && go build -trimpath -buildvcs=false -ldflags="-s -w" -o "$2/program" ./cmd/perdure
		mv "$2/program" "$3"`,
		"sh", commit, tree, path)
	build.Dir = ".."
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build release %s: %w: %s", release, err, out)
	}
	return path, nil
})

// previousProgram is the program of the release before this one.
func previousProgram(t *testing.T) string {
	t.Helper()
	path, err := previous()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// becomes replaces the program of a node: another release, on the same data.
func (n *node) becomes(program string, sig syscall.Signal) {
	n.t.Helper()
	n.kill(sig)
	n.program = program
	n.start()
}

// A fleet of the release before is upgraded node by node, a crashed old node comes back, all go back, and forth
// again. Nothing that was acknowledged is lost, doubled or refused.
func TestRollingUpgradeAndRollback(t *testing.T) {
	stage.Long(t)
	t.Parallel()
	old := previousProgram(t)
	f := &fleet{t: t, store: pgtest.New(t),
		http: &http.Client{Timeout: time.Minute, Transport: &http.Transport{MaxIdleConnsPerHost: 200}}}
	t.Cleanup(f.http.CloseIdleConnections)
	for range 3 {
		n := prepareNode(t, append([]string{"--store", f.store, "--webhook-allow", "127.0.0.0/8"}, leases...)...)
		n.program = old
		n.start()
		f.nodes = append(f.nodes, n)
	}
	f.key = f.nodes[0].key
	u := &upgrade{load: f.load(4, 4), old: old, ended: make(map[string]bool), witness: f.follow()}
	talking, stop := context.WithCancel(t.Context())
	defer stop()
	var talkers sync.WaitGroup
	talkers.Go(func() {
		for i := 0; talking.Err() == nil; i++ {
			u.talk(i)
		}
	})
	u.replaceAll()
	stop()
	talkers.Wait()
	u.finish()
	u.checkTalks()
	u.witness.finish(u.ended)
	t.Logf("%d times a node was replaced; acknowledged: %d submits, %d results, %d calls that were made before at "+
		"another node, %d runs with a step, a wait and a signal", u.replaced, len(u.submitted), len(u.completed),
		u.repeated, len(u.ended))
	if len(u.ended) == 0 || len(u.groups) == 0 || u.elsewhere == 0 {
		t.Errorf("%d runs had a signal, %d were in groups, and %d calls were repeated at a node of the other release; "+
			"want some", len(u.ended), len(u.groups), u.elsewhere)
	}
	u.writeEvidence()
}

// An upgrade is a fleet whose nodes change their release under load.
type upgrade struct {
	*load
	old      string
	replaced int
	witness  *witness

	repeated, elsewhere int             // calls that were made again, and those of them at the other release
	ended               map[string]bool // runs that talk has completed
	groups              []string        // of a run and the one before it
	before              string          // the run that talk has made last
	releases            [3]atomic.Bool  // whether a node is of this release
	signals             sync.Map        // runs that have got their signal
}

// replaceAll replaces the nodes, one after the other, and goes on after each when work was acknowledged.
func (u *upgrade) replaceAll() {
	to := func(n int, program string, sig syscall.Signal) {
		u.t.Helper()
		u.nodes[n].becomes(program, sig)
		u.releases[n].Store(program == "")
		u.replaced++
		u.more(10)
	}
	u.more(10)
	u.told("upgrade", "connected release 0.1.0, ", "migration 0031_schedules: ", "expand 0.2.0")
	to(0, "", syscall.SIGTERM)
	u.told("upgrade", "connected release 0.1.0, ", "A start changes nothing.")
	u.told("doctor", "0.1.0 (", "what it does not know is refused")
	u.schedules("first", 409)
	to(1, u.old, syscall.SIGKILL) // a crashed old node comes back
	to(1, "", syscall.SIGKILL)
	u.schedules("first", 409)
	to(2, "", syscall.SIGTERM)
	u.schedules("first", 201)
	for n := range u.nodes {
		to(n, u.old, syscall.SIGTERM)
	}
	to(0, "", syscall.SIGTERM)
	u.schedules("first", 200) // it is as it was
	u.schedules("second", 409)
	to(1, "", syscall.SIGTERM)
	to(2, "", syscall.SIGTERM)
	u.schedules("second", 201)
}

// schedules makes a schedule at node 0, which is of this release, until the answer has a status. Nodes
// of the release before do not know schedules: while one is connected, none is made or changed.
func (u *upgrade) schedules(name string, want int) {
	u.t.Helper()
	var body string
	eventually.True(u.t, fmt.Sprintf("the answer to the schedule %s is %d", name, want), func() bool {
		res, b, err := exchange(u.http, u.key, "PUT", "http://"+u.nodes[0].addr+"/api/v1/schedules/"+name, "",
			obj{"every": "1h", "kind": "scheduled"})
		if body = string(b); err == nil && res.StatusCode < 300 && want == 409 {
			u.t.Fatalf("the schedule %s at a fleet with an older node = %d, want 409", name, res.StatusCode)
		}
		return err == nil && res.StatusCode == want
	})
	if want == 409 && (!strings.Contains(body, `"older_node"`) || !strings.Contains(body, "release 0.1.0")) {
		u.t.Errorf("the refusal of the schedule %s = %s, want older_node with the release", name, body)
	}
}

// told checks what a command of this release says about the store.
func (u *upgrade) told(command string, want ...string) {
	u.t.Helper()
	path, err := program()
	if err != nil {
		u.t.Fatal(err)
	}
	args := []string{"doctor", "--store", u.store, "--url", "http://" + u.nodes[0].addr, "--key", u.key}
	if command == "upgrade" {
		args = []string{"upgrade", "check", "--store", u.store}
	}
	cmd := exec.Command(path, args...)
	cmd.Dir = u.t.TempDir()
	out, err := cmd.CombinedOutput()
	for _, text := range want {
		if !strings.Contains(string(out), text) {
			u.t.Errorf("perdure %s = %v, want a line with %q:\n%s", command, err, text, out)
		}
	}
}

// talk makes a run that commits a step and waits for a signal. Each call is made at two nodes, under the same key.
func (u *upgrade) talk(i int) {
	key := fmt.Sprintf("talk-%d", i)
	var r runView
	u.twice("POST", "/api/v1/runs", key, obj{"kind": "talk", "queue": "talk", "max_attempts": 100,
		"input": obj{"b": 2, "a": []any{1.5, "x"}}, "metadata": obj{"n": key}}, &r)
	u.witness.stream(r.RunID)
	u.gather(key, r.RunID)
	for waits := true; waits; {
		g := u.granted(r.RunID)
		if g.RunID == "" {
			return
		}
		commit := func(id string, more obj) bool {
			c := obj{"commit_id": fmt.Sprint(id, "-", g.Epoch), "run_id": g.RunID, "epoch": g.Epoch}
			maps.Copy(c, more)
			return u.twice("POST", "/api/v1/workers/talker/commit", "", obj{"commits": []obj{c}}, nil)
		}
		if u.signalled(r.RunID) {
			waits = !commit("end", obj{"outcome": obj{"type": "complete", "result": i}})
			continue
		}
		if commit("step", obj{"journal": []obj{{"key": "step#1", "value": obj{"z": 1, "a": 1.0}}}}) &&
			commit("wait", obj{"waits": []obj{{"id": "answer", "type": "signal", "name": "answer"}},
				"outcome": obj{"type": "suspend"}}) {
			u.twice("POST", "/api/v1/runs/"+r.RunID+"/signals/answer", key, obj{"data": obj{"y": 1, "x": i}}, nil)
			u.signals.Store(r.RunID, true)
		}
	}
	u.ended[r.RunID] = true
}

// gather makes a group of a run and the one before it, which has ended.
func (u *upgrade) gather(key, run string) {
	var g struct {
		GroupID string `json:"group_id"`
	}
	runs := []string{run}
	if u.before != "" {
		runs = append(runs, u.before)
	}
	if u.twice("POST", "/api/v1/groups", key+"-group", obj{"run_ids": runs, "timeout": "1h"}, &g) {
		u.groups = append(u.groups, g.GroupID)
	}
	u.before = run
}

// signalled tells whether a run has got its signal.
func (u *upgrade) signalled(run string) bool {
	_, ok := u.signals.Load(run)
	return ok
}

// granted polls until a run is granted.
func (u *upgrade) granted(run string) (g runView) {
	for end := time.Now().Add(eventually.Within); time.Now().Before(end); {
		var p polled
		s, _ := u.insist("POST", "/api/v1/workers/talker/poll", "",
			obj{"queues": []string{"talk"}, "slots": 1, "start": true, "wait": "200ms"}, &p)
		if s == 200 && len(p.Runs) == 1 && p.Runs[0].RunID == run {
			return p.Runs[0]
		}
	}
	u.t.Errorf("run %s was not granted in time", run)
	return g
}

// twice makes a call at two nodes, and tells whether it took effect. A commit whose lease has been lost meanwhile is
// 409 at each.
func (u *upgrade) twice(method, path, key string, in, out any) bool {
	first, at := u.insist(method, path, key, in, out)
	again, then := u.insist(method, path, key, in, out)
	u.repeated++
	if u.releases[at].Load() != u.releases[then].Load() {
		u.elsewhere++
	}
	lost := first == 409 && again == 409
	if !lost && first != 200 && first != 201 || !lost && again != 200 && again != 201 {
		u.t.Errorf("%s %s, key %q: %d at node %d, then %d at node %d; want 200 or 201", method, path, key, first, at,
			again, then)
	}
	return !lost
}

// checkTalks looks whether every run with a signal has ended as was acknowledged, and every group with its
// runs.
func (u *upgrade) checkTalks() {
	for id := range u.ended {
		var r runView
		if s, _ := u.insist("GET", "/api/v1/runs/"+id, "", nil, &r); s != 200 || r.State != "completed" {
			u.t.Errorf("run %s = %d %s, want 200 and completed", id, s, r.State)
		}
	}
	for _, id := range u.groups {
		var g struct {
			State                   string
			Total, Ended, Completed int
		}
		if s, _ := u.insist("GET", "/api/v1/groups/"+id+"/join?timeout=10s", "", nil, &g); s != 200 ||
			g.State != "satisfied" || g.Total == 0 || g.Completed != g.Total {
			u.t.Errorf("group %s = %d %+v, want 200, satisfied, and all of its runs completed", id, s, g)
		}
	}
}

// writeEvidence prints docs/evidence/upgrade.md, if it is asked for.
func (u *upgrade) writeEvidence() {
	at := os.Getenv("PERDURE_EVIDENCE")
	if at == "" {
		return
	}
	commit, err := exec.Command("git", "describe", "--always", "--abbrev=10", "--dirty=, with changes").Output()
	if err != nil {
		u.t.Fatalf("which commit this is: %v", err)
	}
	verdict := "Nothing acknowledged was lost, doubled or stuck, and no call was answered 5xx but 503 with Retry-After."
	if u.t.Failed() {
		verdict = "**The check failed.**"
	}
	page := fmt.Sprintf(upgradePage, wrapped(fmt.Sprintf("The commit is %s, and the release before is %s, built from "+
		"the commit that the changelog names.", strings.TrimSpace(string(commit)), filepath.Base(u.old)), 100),
		u.replaced, len(u.submitted), len(u.completed), len(u.ended), len(u.groups), u.repeated, u.elsewhere,
		wrapped(verdict, 100))
	if err := os.WriteFile(filepath.Join(at, "upgrade.md"), []byte(page), 0o644); err != nil {
		u.t.Error(err)
	}
}

const upgradePage = `# A rolling upgrade and its rollback

Printed by

    PERDURE_EVIDENCE=$PWD/docs/evidence go test ./e2e -run TestRollingUpgradeAndRollback -v

Three nodes of the release before work on one PostgreSQL under load. They are replaced one after the
other by this release, a crashed old node comes back meanwhile, all go back to the release before,
and all come forward again. Clients repeat their calls at other nodes under the same keys.

%s

| | |
| --- | --- |
| nodes replaced | %d |
| submits acknowledged | %d |
| results acknowledged | %d |
| runs with a step, a wait and a signal that ended, each with a stream and a webhook | %d |
| groups of these runs that ended with them | %d |
| calls made twice under one key | %d |
| of these, at nodes of both releases | %d |

%s
`

// A folder of SQLite is used by the release before, by this one, and by the one before again.
func TestSQLiteUpgradeAndRollback(t *testing.T) {
	stage.Long(t)
	t.Parallel()
	n := prepareNode(t)
	n.program = previousProgram(t)
	n.start()
	var ids []string
	for i, program := range []string{"", n.program, ""} {
		key := fmt.Sprint("key", i)
		var r, again runView
		body := obj{"kind": "job", "input": obj{"i": i}}
		if s := n.insist("POST", "/api/v1/runs", key, body, &r); s != 201 {
			t.Fatalf("submit %d = %d, want 201", i, s)
		}
		ids = append(ids, r.RunID)
		n.becomes(program, []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL}[i%2])
		if s := n.insist("POST", "/api/v1/runs", key, body, &again); s != 200 || again.RunID != r.RunID {
			t.Errorf("submit %d again at the other release = %d %s, want 200 and run %s", i, s, again.RunID, r.RunID)
		}
	}
	for range ids {
		var p polled
		s := n.insist("POST", "/api/v1/workers/w/poll", "", obj{"slots": 1, "start": true, "wait": "5s"}, &p)
		if s != 200 || len(p.Runs) != 1 {
			t.Fatalf("poll = %d with %d runs, want 200 and one", s, len(p.Runs))
		}
		if s := n.insist("POST", "/api/v1/workers/w/commit", "", complete(p.Runs[0], "done"), nil); s != 200 {
			t.Errorf("commit = %d, want 200", s)
		}
	}
	for _, id := range ids {
		if r := n.get(id); r.State != "completed" {
			t.Errorf("run %s is %s, want completed", id, r.State)
		}
	}
}

// A worker of this release works at a server of the one before, which refuses fields that it does not know.
func TestWorkerOfThisReleaseAtOldServer(t *testing.T) {
	stage.Long(t)
	t.Parallel()
	n := prepareNode(t)
	n.program = previousProgram(t)
	n.start()
	c := client.New("http://"+n.addr, n.key, client.Options{})
	defer c.Close()
	w := worker.New(c, worker.Options{ID: "new", Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
	worker.Handle(w, "double", func(_ context.Context, in int) (int, error) { return 2 * in, nil })
	ctx, cancel := context.WithTimeout(t.Context(), eventually.Left(t))
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	got, err := client.Call[int](ctx, c, "double", 21)
	if err != nil || got != 42 {
		t.Errorf("a task at an old server = %d, %v, want 42", got, err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("the worker ended with %v, want none", err)
	}
}

// The runner of the release before executes a command at a server of this one.
func TestOldRunnerAtThisServer(t *testing.T) {
	stage.Long(t)
	t.Parallel()
	n := newNode(t)
	cmd := exec.Command(previousProgram(t), "exec", "--url", "http://"+n.addr, "--key", n.key, "--", "echo", "hello")
	cmd.Dir = t.TempDir()
	cmd.Env = append(os.Environ(), "XDG_STATE_HOME="+cmd.Dir)
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "hello") {
		t.Errorf("perdure exec of the release before = %v, %s; want hello", err, out)
	}
}
