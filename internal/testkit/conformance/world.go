// Package conformance is the suite that every store has to pass. Each promise of the engine and the
// watchdog is a [Scenario]: a function that drives both step by step, with a clock that it moves
// itself. The tests of the package run all scenarios on SQLite and on PostgreSQL.
//
// A scenario gets a [World]: an empty store with an engine and a watchdog. Its helpers drive a run
// (submit, take, complete) and check operations. do expects success. refuse expects an error code
// and an unchanged store. pass advances the clock with sweeps, and offline without.
//
// Start reading with world.go, then life.go (the simplest scenarios). To add a promise, append a
// Scenario to the list of its theme. No scenario reads the real clock or sleeps.
package conformance

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine"
	"github.com/perdure/perdure/internal/server/engine/dispatch"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/engine/reads"
	"github.com/perdure/perdure/internal/server/store"
	"github.com/perdure/perdure/internal/server/watchdog"
)

// A Scenario is one promise. Its name says the promise in ordinary words.
type Scenario struct {
	Name string
	Run  func(w *World)
}

// Scenarios lists all promises by theme.
func Scenarios() []Scenario {
	var all []Scenario
	for _, part := range [][]Scenario{lifeScenarios, leaseScenarios, waitScenarios, childScenarios,
		cancelScenarios, threadScenarios,
		gatheringScenarios, lateScenarios, inputScenarios, watchdogScenarios, edgeScenarios, webhookScenarios,
		fanOutScenarios, approvalScenarios, undoScenarios, onceScenarios, letterScenarios, signedScenarios,
		livenessScenarios, cancelTable, artifactScenarios, retentionScenarios, unusedScenarios,
		deletionScenarios, endScenarios, boundScenarios, secretScenarios, heldScenarios,
		retryFromScenarios, sdkWaitScenarios, viewScenarios, kindScenarios, pauseScenarios,
		kindPauseScenarios, uniqueScenarios, scheduleScenarios, limitScenarios, stepLimitScenarios, rateScenarios,
		singleScenarios,
		cleanupScenarios, chatScenarios, openClassScenarios,
		signalSchemaScenarios, anewScenarios, nameScenarios, questionScenarios} {
		all = append(all, part...)
	}
	return all
}

// World is a store with an engine and a watchdog. Its clock moves only when a scenario moves it.
type World struct {
	t   testing.TB
	S   *store.Store
	E   *engine.Engine
	W   *watchdog.Watchdog
	Now perdure.Instant
	// Acted collects the actions of the watchdog.
	Acted []watchdog.Action
	// Signer signs accepted runs, from the next restart on.
	Signer *perdure.Signer
	// Demanded names tenants whose runs have to be signed by configuration, from the next restart
	// on.
	Demanded []perdure.TenantID
	// SealKeys seal the root secret, from the next restart on.
	SealKeys [][]byte
	// Policy is decided by from the next restart on; nil: the default.
	Policy *perdure.Policy
	// Other is a second node on the same database, for scenarios that have one.
	Other *World
	// quiet lets time pass with fewer sweeps; see passQuietly.
	quiet bool
	n     int
}

const tenant perdure.TenantID = "acme"

// NewWorld makes a world over a store.
func NewWorld(t testing.TB, s *store.Store) *World {
	w := &World{t: t, S: s}
	w.restart()
	w.Now = s.Now()
	return w
}

// restart makes a new engine and watchdog, as a restart of the server does.
func (w *World) restart() {
	w.t.Helper()
	e, err := engine.New(w.S, engine.Options{Entropy: entropy{rand.New(rand.NewPCG(uint64(w.n)+1, 2))},
		Roll: func() float64 { return 0.5 }, Signer: w.Signer, SigningRequired: w.Demanded, SealKeys: w.SealKeys,
		Policy: w.Policy})
	w.n++
	if err != nil {
		w.t.Fatal(err)
	}
	w.E, w.W = e, watchdog.New(e, nil)
}

type entropy struct{ r *rand.Rand }

func (e entropy) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = byte(e.r.Uint32())
	}
	return len(b), nil
}

var _ io.Reader = entropy{}

// do runs an operation that must not be refused.
func (w *World) do(op kernel.Op) {
	w.t.Helper()
	if err := w.E.Step(w.Now, op)[0]; err != nil {
		w.t.Fatalf("%T: %v", op, err)
	}
}

// refuse runs an operation that must fail with that code, and checks that nothing was written.
func (w *World) refuse(code perdure.Code, op kernel.Op) {
	w.t.Helper()
	before := w.fingerprint()
	err := w.E.Step(w.Now, op)[0]
	if got := perdure.CodeOf(err); got != code {
		w.t.Fatalf("%T: got %q (%v), want %q", op, got, err, code)
	}
	if after := w.fingerprint(); after != before {
		w.t.Fatalf("%T was refused with %s and changed something:\n%s\n%s", op, code, before, after)
	}
}

// fingerprint summarizes all stored rows.
func (w *World) fingerprint() string {
	w.t.Helper()
	out := ""
	err := w.S.View(context.Background(), func(v *store.View) error {
		for _, q := range []string{"SELECT count(*), coalesce(sum(version),0), coalesce(sum(seq),0) FROM runs",
			"SELECT count(*), 0, 0 FROM events",
			"SELECT count(*), coalesce(sum(epoch),0), 0 FROM inbox",
			"SELECT count(*), coalesce(sum(ended),0), 0 FROM waits",
			"SELECT count(*), coalesce(sum(version),0), coalesce(sum(seq),0) FROM threads",
			"SELECT count(*), 0, 0 FROM commits",
			"SELECT count(*), 0, 0 FROM late_results", "SELECT count(*), 0, 0 FROM idempotency",
			"SELECT count(*), 0, 0 FROM journal",
			"SELECT count(*), coalesce(sum(decided_at),0), 0 FROM approvals",
			"SELECT count(*), coalesce(sum(size),0), 0 FROM artifacts",
			"SELECT count(*), coalesce(sum(version),0), coalesce(sum(size),0) FROM run_views",
			"SELECT count(*), 0, 0 FROM removals", "SELECT count(*), 0, 0 FROM chunks",
			"SELECT count(*), coalesce(sum(version),0), 0 FROM webhooks",
			"SELECT count(*), coalesce(sum(version),0), 0 FROM outbox",
			"SELECT count(*), coalesce(sum(version),0), 0 FROM fanouts",
			"SELECT count(*), coalesce(sum(until_at),0), 0 FROM queue_pauses",
			"SELECT count(*), coalesce(sum(version),0), coalesce(sum(next_at),0) FROM schedules",
			"SELECT count(*), coalesce(sum(version),0), 0 FROM kinds",
			"SELECT count(*), coalesce(sum(last_seen),0), 0 FROM kind_builds",
			"SELECT count(*), coalesce(sum(kinds),0), coalesce(sum(version),0) FROM kind_quota",
			"SELECT count(*), coalesce(sum(made),0), coalesce(sum(version),0) FROM webhook_quota"} {
			if err := v.Rows(q, nil, func(scan func(...any) error) error {
				var a, b, c int64
				err := scan(&a, &b, &c)
				out += fmt.Sprint(a, " ", b, " ", c, ";")
				return err
			}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return out
}

// fsck checks the store against the invariants.
func (w *World) fsck() {
	w.t.Helper()
	err := w.S.Audit(context.Background(), func(v *store.View) error {
		found, err := v.Check(nil)
		for _, x := range found {
			w.t.Errorf("invariant %s: %s: %s", x.ID, x.Statement, x.Row)
		}
		return err
	})
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *World) submit(s perdure.Submission) perdure.Run {
	w.t.Helper()
	op := &life.Submit{Tenant: tenant, Submission: s}
	w.do(op)
	return op.Run
}

func (w *World) task() perdure.Run {
	w.t.Helper()
	return w.submit(perdure.Submission{Kind: "job", Input: json.RawMessage(`{"n":1}`)})
}

// poll leases up to so many runs.
func (w *World) poll(worker string, slots int) []dispatch.Grant {
	w.t.Helper()
	op := &dispatch.Claim{Tenant: tenant, Worker: worker, Slots: slots}
	w.do(op)
	return op.Grants
}

// take polls one run, which must be there, and starts it.
func (w *World) take(worker string) dispatch.Grant {
	w.t.Helper()
	op := &dispatch.Claim{Tenant: tenant, Worker: worker, Slots: 1, Start: true}
	w.do(op)
	if len(op.Grants) != 1 {
		w.t.Fatalf("nothing to claim")
	}
	w.beat(op.Grants[0])
	return op.Grants[0]
}

func (w *World) beat(g dispatch.Grant) *life.Heartbeat {
	w.t.Helper()
	op := &life.Heartbeat{Tenant: tenant, Worker: g.Run.Worker, Beats: []life.BeatOf{{Lease: lease(g)}}}
	w.do(op)
	return op
}

func lease(g dispatch.Grant) life.Lease { return life.Lease{RunID: g.Run.ID, Epoch: g.Run.Epoch} }

// commitOf makes the operation of a commit under a grant.
func (w *World) commitOf(g dispatch.Grant, c perdure.Commit) *life.Commit {
	w.n++
	if c.ID == "" {
		c.ID = fmt.Sprintf("c%d", w.n)
	}
	c.RunID, c.Epoch = g.Run.ID, g.Run.Epoch
	return &life.Commit{Tenant: tenant, Worker: g.Run.Worker, Commit: c}
}

func (w *World) commit(g dispatch.Grant, c perdure.Commit) life.CommitAnswer {
	w.t.Helper()
	op := w.commitOf(g, c)
	w.do(op)
	if op.Refused != nil {
		w.t.Fatalf("the commit was refused: %v", op.Refused)
	}
	return op.Answer
}

func (w *World) complete(g dispatch.Grant, result string) {
	w.t.Helper()
	w.commit(g, perdure.Commit{Outcome: done(result)})
}

func done(result string) *perdure.Outcome {
	return &perdure.Outcome{Type: perdure.OutcomeComplete, Result: json.RawMessage(result)}
}

func failed(code string) *perdure.Outcome {
	return &perdure.Outcome{Type: perdure.OutcomeFail, Error: &perdure.Failure{Code: perdure.Code(code),
		Message: "it broke"}}
}

var suspend = &perdure.Outcome{Type: perdure.OutcomeSuspend}

// sweep runs the watchdog until it has nothing to do now.
func (w *World) sweep() {
	w.t.Helper()
	for range 1000 {
		op := w.W.Pass()
		w.do(op)
		w.Acted = append(w.Acted, op.Actions...)
		if !op.More {
			return
		}
	}
	w.t.Fatal("the watchdog does not come to rest")
}

// pass advances the clock, with sweeps at the alarms in between.
func (w *World) pass(d time.Duration) {
	w.t.Helper()
	if w.quiet {
		w.passQuietly(d)
		return
	}
	w.passBy(d, 0)
}

// passQuietly is pass for hours in which little happens. A minute without an alarm has one sweep: those
// before it would find nothing, and only note when they were. The sweep before that minute has done
// nothing either, because some parts of a sweep have no alarm.
func (w *World) passQuietly(d time.Duration) { w.t.Helper(); w.passBy(d, time.Minute) }

// passBy sweeps at alarms, and without one before the time without a sweep would count as a gap.
// quiet is how far it goes at once while nothing is due.
func (w *World) passBy(d, quiet time.Duration) {
	w.t.Helper()
	end, idle := w.Now.Add(d), false
	for w.Now < end {
		step := w.E.Policy().GapAfter * 3 / 4
		next := min(end, w.Now.Add(step))
		var alarm perdure.Instant
		if err := w.S.View(context.Background(), func(v *store.View) (err error) {
			alarm, err = v.NextAlarm()
			return err
		}); err != nil {
			w.t.Fatal(err)
		}
		switch later := min(end, w.Now.Add(quiet)); {
		case alarm > w.Now && alarm < next:
			next = alarm
		case idle && later > next && (alarm == 0 || alarm >= later):
			w.Now, next = later.Add(-step), later
			w.do(swept{})
		}
		w.Now = next
		acted := len(w.Acted)
		w.sweep()
		idle = len(w.Acted) == acted
	}
}

// swept notes the time of a sweep, as one does that finds nothing to do.
type swept struct{}

func (swept) Needs() []store.Ref { return nil }

func (swept) Do(tx *kernel.Tx) error {
	text, err := tx.DB.Meta.Get("sweep")
	if err != nil || text == "" {
		return err
	}
	var row map[string]json.RawMessage
	if err := json.Unmarshal([]byte(text), &row); err != nil {
		return err
	}
	if row["swept_at"], err = json.Marshal(tx.Now); err != nil {
		return err
	}
	b, err := json.Marshal(row)
	if err == nil {
		tx.DB.Meta.Set("sweep", string(b))
	}
	return err
}

// offline advances the clock without sweeps, as while the server is off.
func (w *World) offline(d time.Duration) {
	w.Now = w.Now.Add(d)
	w.restart()
}

func (w *World) get(id perdure.RunID) *reads.Detail {
	w.t.Helper()
	d, err := w.E.Runs.Get(context.Background(), tenant, id)
	if err != nil {
		w.t.Fatalf("get %s: %v", id, err)
	}
	return &d
}

func (w *World) state(id perdure.RunID, want perdure.State) perdure.Run {
	w.t.Helper()
	d := w.get(id)
	if d.State != want {
		w.t.Fatalf("the run is %s, want %s (%+v)", d.State, want, d.Failure)
	}
	return d.Run
}

func (w *World) ended(id perdure.RunID, want perdure.State, code perdure.Code) perdure.Run {
	w.t.Helper()
	r := w.state(id, want)
	if r.Failure == nil || r.Failure.Code != code {
		w.t.Fatalf("the run ended with %+v, want %s", r.Failure, code)
	}
	return r
}

func (w *World) lines(id perdure.RunID) []perdure.Line {
	w.t.Helper()
	l := &reads.Look{Tenant: tenant, RunID: id, Lines: 10000, Bytes: 1 << 30}
	if err := w.E.Runs.Look(context.Background(), l); err != nil || !l.Found {
		w.t.Fatalf("no log of %s: %v", id, err)
	}
	return l.Log
}

func (w *World) types(id perdure.RunID) []string {
	w.t.Helper()
	var out []string
	for _, l := range w.lines(id) {
		out = append(out, string(l.Type))
	}
	return out
}

func (w *World) count(id perdure.RunID, typ perdure.LineType) int {
	w.t.Helper()
	n := 0
	for _, x := range w.types(id) {
		if x == string(typ) {
			n++
		}
	}
	return n
}

func (w *World) view(f func(v *store.View) error) {
	w.t.Helper()
	if err := w.S.View(context.Background(), f); err != nil {
		w.t.Fatal(err)
	}
}

func (w *World) lates(id perdure.RunID) (out []perdure.LateResult) {
	w.t.Helper()
	w.view(func(v *store.View) (err error) { out, err = v.LateResults.List(tenant, id); return err })
	return out
}

func (w *World) thread() perdure.ThreadID {
	w.t.Helper()
	op := &life.CreateThread{Tenant: tenant}
	w.do(op)
	return op.Thread.ID
}

func (w *World) messages(id perdure.ThreadID) []perdure.ThreadMessage {
	w.t.Helper()
	_, ms, err := w.E.Threads.Get(context.Background(), tenant, id, 0, 1000)
	if err != nil {
		w.t.Fatal(err)
	}
	return ms
}

func (w *World) check(ok bool, format string, args ...any) {
	w.t.Helper()
	if !ok {
		w.t.Fatalf(format, args...)
	}
}

func (w *World) ctx() context.Context { return context.Background() }

func filter(kind, status string) store.RunFilter {
	f := store.RunFilter{Kind: kind, Limit: 1000}
	if status != "" {
		f.Status = []string{status}
	}
	return f
}

// rowsOf gives the first column of a query.
func (w *World) rowsOf(query string) (out []string) {
	w.t.Helper()
	w.view(func(v *store.View) error {
		return v.Rows(query, nil, func(scan func(...any) error) error {
			var s string
			err := scan(&s)
			out = append(out, s)
			return err
		})
	})
	return out
}
