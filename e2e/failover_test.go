package e2e

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/perdure/perdure/internal/testkit/eventually"
	"github.com/perdure/perdure/internal/testkit/pgtest"
	"github.com/perdure/perdure/internal/testkit/stage"
)

// A failover is a primary that dies under load, its standby that is promoted, and the primary that
// comes back untouched.
type failover struct {
	*load
	t        *testing.T
	a, b     *pgtest.Cluster // the primary and its standby
	waits    bool            // the primary waits for the standby
	promoted time.Duration
	wrote    time.Duration // from the promotion until each node has written
	counts   lost
}

// lost counts what was acknowledged, and what of it the promoted standby does not have.
type lost struct{ submits, results, grants, submitsLost, resultsLost int }

func TestFailover(t *testing.T) {
	stage.Long(t)
	t.Parallel()
	var done []*failover
	for _, waits := range []bool{true, false} {
		t.Run(map[bool]string{true: "synchronous", false: "asynchronous"}[waits], func(t *testing.T) {
			x := &failover{t: t, waits: waits}
			x.run()
			done = append(done, x)
		})
	}
	if !t.Failed() {
		writeFailovers(t, done)
	}
}

func (x *failover) cluster(c *pgtest.Cluster, err error) *pgtest.Cluster {
	x.t.Helper()
	if err != nil {
		x.t.Fatal(err)
	}
	x.t.Cleanup(func() {
		if err := c.Stop(); err != nil {
			x.t.Error(err)
		}
	})
	return c
}

func (x *failover) must(err error) {
	x.t.Helper()
	if err != nil {
		x.t.Fatal(err)
	}
}

func (x *failover) run() {
	t := x.t
	x.a = x.cluster(pgtest.Start(pgtest.Options{InMemory: true}))
	x.b = x.cluster(x.a.Standby())
	if x.waits {
		x.must(x.a.WaitsFor(true))
	}
	f, log := newFleet(t, 0, x.b.URL("postgres")), &record{}
	policy := slices.Clone(leases)
	if x.waits { // a lease has to outlive the failover, also on a machine that stands still meanwhile
		policy = append(policy, "--policy", "lease=40s")
	}
	// A node starts whichever address comes first: the primary's, the standby's, or one where nothing listens.
	for _, address := range []string{pgtest.URL("postgres", x.b, x.a),
		strings.Replace(pgtest.URL("postgres", x.a, x.b), "@", "@127.0.0.1:1,", 1)} {
		n := prepareNode(t, append([]string{"--store", address}, append(slices.Clone(policy),
			"--log-level", "info")...)...)
		n.log = log
		if f.key != "" {
			keys.Store(address, f.key) // of the same store
		}
		n.start()
		f.nodes, f.key = append(f.nodes, n), n.key
	}
	lonely := obj{"kind": "lonely", "queue": "lonely", "input": "x", "max_attempts": 100}
	var r runView
	if s, _ := f.insist("POST", "/api/v1/runs", "lonely", lonely, &r); s != 201 {
		t.Fatalf("submit: %d", s)
	}
	x.saysWhatMayBeLost(f, log)
	x.load = f.load(4, 3)
	x.more(40)
	if !x.waits {
		x.must(x.b.CaughtUp())
		x.mu.Lock()
		x.lossy = true
		x.mu.Unlock()
		x.must(x.b.CutOff())
	}
	first := x.lease("w1", r.RunID)
	x.more(40)
	x.must(x.a.Halt(pgtest.Kill))
	begin := time.Now()
	x.must(x.b.Promote())
	x.promoted = time.Since(begin)
	x.must(x.a.Launch()) // nobody has told it
	for at := range f.nodes {
		x.serves(at, fmt.Sprintf("after-%d", at))
	}
	x.wrote = time.Since(begin)
	f.nodes[0].kill(syscall.SIGKILL)
	f.nodes[0].start()
	f.nodes = append(f.nodes, newNode(t, f.nodes[0].args...)) // it has seen nothing yet
	x.oneRunPerKey()
	x.leaseAgain(first)
	x.more(40)
	x.finishLossy()
	x.oldPrimaryIsUntouched()
}

// saysWhatMayBeLost checks that the operator is told of the standby, and what a failover loses: by a line of
// the start, by doctor and by metrics. The standby comes first in the address of doctor.
func (x *failover) saysWhatMayBeLost(f *fleet, log *record) {
	x.t.Helper()
	line, sync, loses, loss := "level=WARN msg=\"a failover of PostgreSQL may lose", "async", 1, "may lose"
	if x.waits {
		line, sync, loses, loss = "level=INFO msg=\"a failover of PostgreSQL loses no", "sync", 0, "loses no"
	}
	if got := log.lines(line); len(got) != len(f.nodes) {
		x.t.Errorf("lines of %d starts about standbys = %q, want one each with %q", len(f.nodes), got, line)
	}
	res, text, err := exchange(f.http, f.key, "GET", "http://"+f.nodes[0].addr+"/metrics", "", nil)
	if err != nil || res.StatusCode != 200 {
		x.t.Fatalf("metrics: %v", err)
	}
	for _, want := range []string{fmt.Sprintf("perdure_store_standbys{sync=%q} 1\n", sync),
		fmt.Sprintf("perdure_store_failover_loses %d\n", loses)} {
		if !strings.Contains(string(text), want) {
			x.t.Errorf("the metrics have no line %q", want)
		}
	}
	path, err := program()
	x.must(err)
	cmd := exec.Command(path, "doctor", "--store", pgtest.URL("postgres", x.b, x.a), "--url", "http://"+f.nodes[0].addr,
		"--key", f.key)
	cmd.Dir = x.t.TempDir()
	out, _ := cmd.CombinedOutput() // the disk of this machine may be full
	for _, want := range []string{"ok   store ", x.b.Address() + ": a standby",
		x.a.Address() + ": the primary, timeline 1",
		"ok   standbys ", "streaming, " + sync, "a failover " + loss} {
		if !strings.Contains(string(out), want) {
			x.t.Errorf("perdure doctor does not say %q:\n%s", want, out)
		}
	}
}

// lease takes a run of the queue lonely.
func (x *failover) lease(worker, run string) (r runView) {
	x.t.Helper()
	eventually.True(x.t, worker+" is granted the run", func() bool {
		var p polled
		s, err := x.call(0, "POST", "/api/v1/workers/"+worker+"/poll", "",
			obj{"queues": []string{"lonely"}, "slots": 1, "start": true, "wait": "1s"}, &p)
		if err != nil || s != 200 || len(p.Runs) == 0 {
			return false
		}
		r = p.Runs[0]
		return true
	})
	if r.RunID != run {
		x.t.Fatalf("%s was granted run %s, want %s", worker, r.RunID, run)
	}
	x.grantedTo(r, worker)
	return r
}

// leaseAgain checks what becomes of a lease from before the failover. One that is stored goes on. One
// that was lost holds nothing: its result is kept beside the run, and the next holder's counts.
func (x *failover) leaseAgain(first runView) {
	x.t.Helper()
	end := func(r runView, who string) int {
		s, _ := x.insist("POST", "/api/v1/workers/"+who+"/commit", "", obj{"commits": []obj{{"commit_id": who,
			"run_id": r.RunID, "epoch": r.Epoch, "outcome": obj{"type": "complete", "result": who}}}}, nil)
		return s
	}
	want, late := "w1", 0
	if x.waits {
		if s := end(first, "w1"); s != 200 {
			x.t.Errorf("commit under a lease that survived = %d, want 200", s)
		}
	} else {
		second := x.lease("w2", first.RunID)
		if s := end(first, "w1"); s != http.StatusConflict {
			x.t.Errorf("commit under the lost lease = %d, want 409", s)
		}
		if s := end(second, "w2"); s != 200 {
			x.t.Errorf("commit of the holder = %d, want 200", s)
		}
		want, late = "w2", 1
	}
	var r runView
	if s, _ := x.insist("GET", "/api/v1/runs/"+first.RunID, "", nil, &r); s != 200 ||
		string(r.Result) != `"`+want+`"` || r.Late != late {
		x.t.Errorf("run = %d, result %s, %d late results; want the result of %s and %d", s, r.Result, r.Late, want,
			late)
	}
}

// oneRunPerKey checks that all nodes work on the same store.
func (x *failover) oneRunPerKey() {
	x.t.Helper()
	ids := map[string]bool{}
	for at := range x.nodes {
		ids[x.serves(at, "one key at all nodes")] = true
	}
	if len(ids) != 1 {
		x.t.Errorf("one idempotency key has made the runs %v, want one run", ids)
	}
}

// finishLossy ends the load and compares what is stored with what was acknowledged.
func (x *failover) finishLossy() {
	x.t.Helper()
	if x.waits {
		x.finish()
		x.counts = lost{submits: len(x.submitted), results: len(x.completed), grants: len(x.granted)}
		return
	}
	x.stopClients()
	x.clients.Wait()
	// Runs whose results were lost are executed again once their leases are over.
	eventually.True(x.t, "every run that the standby has is completed", func() bool {
		return len(x.rows(x.b, "SELECT id FROM runs WHERE state<>'completed' LIMIT 1")) == 0
	})
	x.stopWorkers()
	x.workers.Wait()
	runs := x.rows(x.b, "SELECT id || ' ' || coalesce(result,'') FROM runs")
	stored := map[string]string{}
	for _, row := range runs {
		id, result, _ := strings.Cut(row, " ")
		stored[id] = result
	}
	x.counts.submits, x.counts.results, x.counts.grants = len(x.submitted), len(x.completed), len(x.granted)
	for _, id := range x.submitted {
		if _, ok := stored[id]; !ok {
			x.counts.submitsLost++
		}
	}
	for id, result := range x.completed {
		if stored[id] != `"`+result+`"` {
			x.counts.resultsLost++
		}
	}
	for _, twice := range x.rows(x.b, "SELECT input FROM runs GROUP BY input HAVING count(*)>1") {
		x.t.Errorf("input %s has several runs, want one: its key was accepted twice", twice)
	}
	if x.counts.submitsLost == 0 {
		x.t.Error("no acknowledged submit was lost, want some: the standby was cut off")
	}
}

// oldPrimaryIsUntouched checks that the server that came back got no write.
func (x *failover) oldPrimaryIsUntouched() {
	x.t.Helper()
	// A crash has reset the statistics of the server.
	const changed = "SELECT relname||' '||n_tup_ins+n_tup_upd+n_tup_del FROM pg_stat_user_tables " +
		"WHERE n_tup_ins+n_tup_upd+n_tup_del>0"
	for _, row := range x.rows(x.a, changed) {
		x.t.Errorf("the old primary was written to: table %s rows", row)
	}
	for _, key := range x.rows(x.a, "SELECT key FROM idempotency WHERE key IN ('one key at all nodes','after-0')") {
		x.t.Errorf("the old primary has the key %s, want none of after the failover", key)
	}
}

// rows gives the first column of a query's answer.
func (x *failover) rows(c *pgtest.Cluster, query string) []string {
	x.t.Helper()
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, c.URL("postgres"))
	x.must(err)
	defer conn.Close(ctx)
	found, err := conn.Query(ctx, query)
	x.must(err)
	out, err := pgx.CollectRows(found, pgx.RowTo[string])
	x.must(err)
	return out
}

// writeFailovers prints docs/evidence/failover.md.
func writeFailovers(t *testing.T, done []*failover) {
	var b strings.Builder
	for _, x := range done {
		c := x.counts
		name, kept := "Synchronous", "nothing was lost"
		if !x.waits {
			name = "Asynchronous, the stream cut off before the last commits"
			kept = fmt.Sprintf("%d submits and %d results were lost", c.submitsLost, c.resultsLost)
		}
		text := fmt.Sprintf("%d submits and %d results were acknowledged, and %d grants given; %s. The promotion took "+
			"%s. %s after its begin each of two nodes had written again. No row of the old primary was changed after "+
			"its return, no key made two runs, and no epoch of a run was granted twice.", c.submits, c.results,
			c.grants, kept, x.promoted.Round(time.Millisecond), x.wrote.Round(time.Millisecond))
		fmt.Fprintf(&b, "\n## %s\n\n%s\n", name, wrapped(text, 100))
	}
	t.Log(b.String())
	at := os.Getenv("PERDURE_EVIDENCE")
	if at == "" {
		return
	}
	commit, err := exec.Command("git", "describe", "--always", "--abbrev=10", "--dirty=, with changes").Output()
	if err != nil {
		t.Fatalf("which commit this is: %v", err)
	}
	page := fmt.Sprintf(strings.ReplaceAll(failoverPage, "^", "`"), strings.TrimSpace(string(commit))) + b.String()
	if err := os.WriteFile(filepath.Join(at, "failover.md"), []byte(page), 0o644); err != nil {
		t.Error(err)
	}
}

const failoverPage = `# Failover of PostgreSQL

Printed by

    PERDURE_EVIDENCE=$PWD/docs/evidence go test ./e2e -run TestFailover -v

which ^make campaign^ runs. The commit is %s.

Two nodes have the address of a primary and its standby. Four clients and three workers call both.
The primary is killed with all its processes, the standby is promoted, and the old primary is
started again as it was. One node is then killed and started again, and a third one joins that has
an empty data folder.
`
