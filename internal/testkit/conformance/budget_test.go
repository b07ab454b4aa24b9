package conformance

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine"
	"github.com/perdure/perdure/internal/server/engine/dispatch"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/store"
	"github.com/perdure/perdure/internal/server/watchdog"
	"github.com/perdure/perdure/internal/testkit/storetest"
)

// Every operation has a budget. Each of these makes something of its largest legal size, or large enough that
// it would not fit, and looks at what each operation has read and written.

// opRows is the budget of an operation here, and over how much more it may write: its own entries, and the part that it
// had begun.
const (
	opRows = 500
	over   = 400
)

// A meter notes the most that one operation has cost since it was reset.
type meter struct{ read, written, bytes, ops int }

func (m *meter) note(_ store.Op, c store.Cost) {
	m.ops++
	m.read, m.written, m.bytes = max(m.read, c.Read), max(m.written, c.Written), max(m.bytes, c.Bytes)
}

// metered runs a test on both stores, with a meter on every operation.
func metered(t *testing.T, test func(w *World, m *meter)) {
	storetest.OnBoth(t, func(t *testing.T, at store.Options) {
		t.Parallel()
		m := &meter{}
		at.Hooks.Spent, at.Hooks.OpRows = m.note, opRows
		w := node(t, at)
		test(w, m)
		w.fsck()
	})
}

// within fails if an operation since the last reset has cost more than it may.
func (m *meter) within(t testing.TB, what string, read, written, bytes int) {
	t.Helper()
	if m.read > read || m.written > written || m.bytes > bytes {
		t.Errorf("%s: an operation read %d rows, wrote %d and %d bytes; at most %d, %d and %d are allowed", what,
			m.read, m.written, m.bytes, read, written, bytes)
	}
	*m = meter{}
}

// submits accepts runs of a kind, many to a batch.
func (w *World) submits(t perdure.TenantID, n int, s perdure.Submission) (ids []perdure.RunID) {
	w.t.Helper()
	for len(ids) < n {
		ops := make([]kernel.Op, min(200, n-len(ids)))
		for i := range ops {
			ops[i] = &life.Submit{Tenant: t, Submission: s}
		}
		for i, err := range w.E.Step(w.Now, ops...) {
			if err != nil {
				w.t.Fatalf("submit %d: %v", len(ids), err)
			}
			ids = append(ids, ops[i].(*life.Submit).Run.ID)
		}
	}
	return ids
}

func TestChainOfGroupsEndsInSteps(t *testing.T) {
	const runs = 1200
	metered(t, func(w *World, m *meter) {
		first := w.submits(tenant, 1, perdure.Submission{Kind: "job", Timeout: perdure.Duration(time.Second)})
		ids := append(first, w.submits(tenant, runs-1,
			perdure.Submission{Kind: "job", Timeout: perdure.Duration(time.Hour)})...)
		for i := range ids[1:] {
			w.group(&life.CreateGroup{Mode: perdure.ModeAny, RunIDs: ids[i : i+2], OnLosers: "cancel"})
		}
		*m = meter{}
		w.Now = w.Now.Add(2 * time.Second)
		w.sweep()
		if m.ops < 3 {
			t.Errorf("%d runs that end one because of the other took %d sweeps, want several", runs, m.ops)
		}
		m.within(t, "a sweep", store.MostRead, opRows+over, store.OpBytes)
		w.ended(ids[0], perdure.TimedOut, perdure.CodeDeadline)
		for _, id := range ids[1:] {
			w.state(id, perdure.Cancelled)
		}
	})
}

func TestRunHasAtMostAHundredWatchers(t *testing.T) {
	metered(t, func(w *World, m *meter) {
		ids := w.submits(tenant, 2, perdure.Submission{Kind: "job"})
		for range 100 {
			w.group(&life.CreateGroup{RunIDs: ids, Timeout: perdure.Duration(time.Minute)})
		}
		w.refuse(perdure.CodeQuota, &life.CreateGroup{Tenant: tenant, RunIDs: ids})
		*m = meter{}
		w.complete(w.take("w"), `1`)
		m.within(t, "the end of a run with a hundred watchers", 600, 400, 64<<10)
		w.pass(61 * time.Second) // the groups end, and let go of the run
		w.group(&life.CreateGroup{RunIDs: ids})
	})
}

func TestLargeChordIsToldInSteps(t *testing.T) {
	const runs, size = 480, 20 << 10
	metered(t, func(w *World, m *meter) {
		th := w.thread()
		orig, children := w.chord(th, runs)
		result, _ := json.Marshal(strings.Repeat("x", size))
		for range runs - 1 {
			op := &dispatch.Claim{Tenant: tenant, Worker: "w", Kinds: []string{"kid"}, Slots: 1, Start: true}
			w.do(op)
			w.complete(op.Grants[0], string(result))
		}
		*m = meter{}
		w.Now = w.Now.Add(601 * time.Second) // the last one passes its deadline
		w.sweep()
		if m.ops < 2 {
			t.Errorf("a chord of %d took %d sweeps, want several", runs, m.ops)
		}
		m.within(t, "a step of a chord", store.MostRead, opRows+over, 2<<20)
		made := w.get(orig.ID).ContinuedBy
		if made == "" || w.count(orig.ID, "run:continued") != 1 {
			t.Fatalf("continued by %q, %d times told, want one continuation", made, w.count(orig.ID, "run:continued"))
		}
		var after int64
		seen := 0
		for seen < runs {
			_, ms, err := w.E.Threads.Get(w.ctx(), tenant, th, after, 1000)
			if err != nil || len(ms) == 0 {
				t.Fatalf("reading the thread after %d messages: %d, %v", seen, len(ms), err)
			}
			for _, x := range ms {
				var got struct {
					RunID  perdure.RunID `json:"run_id"`
					Result any           `json:"result"`
				}
				if err := json.Unmarshal([]byte(x.Content), &got); err != nil || got.RunID != children[seen].RunID {
					t.Fatalf("message %d is about %s (%v), want child %s", seen, got.RunID, err, children[seen].RunID)
				}
				if text, _ := got.Result.(string); seen < runs-1 && len(text) != size {
					t.Fatalf("message %d has a result of %d bytes, want %d: %.80s", seen, len(text), size, x.Content)
				}
				seen, after = seen+1, x.Seq
			}
		}
	})
}

func TestCancelDropsLargeChordInSteps(t *testing.T) {
	metered(t, func(w *World, m *meter) {
		orig, children := w.chord(w.thread(), 480)
		*m = meter{}
		w.do(&life.Cancel{Tenant: tenant, RunID: orig.ID})
		w.sweep()
		m.within(t, "a step of the cancel", store.MostRead, opRows+over, store.OpBytes)
		for _, c := range children {
			w.state(c.RunID, perdure.Cancelled)
		}
	})
}

func TestThreadBacklogCostsTheEndNothing(t *testing.T) {
	metered(t, func(w *World, m *meter) {
		th := w.thread()
		ids := w.submits(tenant, 500, perdure.Submission{Kind: "job", ThreadID: th})
		next := w.on(th, perdure.Submission{Kind: "job", MultitaskStrategy: perdure.MultitaskInterrupt})
		*m = meter{}
		w.sweep()
		w.state(ids[0], perdure.Cancelled)
		if g := w.takeKind("job"); g.Run.ID != next.ID {
			t.Errorf("the turn went to %s, want %s, which interrupted", g.Run.ID, next.ID)
		} else {
			w.complete(g, `1`)
		}
		if g := w.takeKind("job"); g.Run.ID != ids[1] {
			t.Errorf("then it went to %s, want the oldest, %s", g.Run.ID, ids[1])
		}
		m.within(t, "an end on a thread with 500 runs that wait", 600, 50, 64<<10)
	})
}

func TestLargeFamilyIsStoppedInSteps(t *testing.T) {
	metered(t, func(w *World, m *meter) {
		w.submit(perdure.Submission{Kind: "boss"})
		g := w.takeKind("boss")
		for part := range 2 {
			var spawns []perdure.Spawn
			for i := range 400 {
				s := perdure.Spawn{Key: fmt.Sprintf("kid#%d.%03d", part, i), Kind: "kid"}
				if i%2 == 0 {
					s.OnParentEnd = perdure.DispositionContinue // these are only passed over
				}
				spawns = append(spawns, s)
			}
			w.commit(g, perdure.Commit{Children: spawns})
		}
		*m = meter{}
		w.complete(g, `1`)
		w.sweep()
		m.within(t, "a step of the cascade", store.MostRead, opRows+over, store.OpBytes)
		left, err := w.E.Runs.List(w.ctx(), tenant,
			store.RunFilter{Kind: "kid", State: []perdure.State{perdure.Queued}, Limit: 1000})
		if err != nil || len(left) != 400 {
			t.Errorf("%d children go on (%v), want the 400 that may outlive their parent", len(left), err)
		}
	})
}

func TestSweepGoesRoundTheTenants(t *testing.T) {
	metered(t, func(w *World, m *meter) {
		w.submits("hostile", 1500, perdure.Submission{Kind: "job", Timeout: perdure.Duration(time.Second)})
		w.Now = w.Now.Add(100 * time.Millisecond)
		ids := w.submits(tenant, 1, perdure.Submission{Kind: "job", Timeout: perdure.Duration(time.Second)})
		w.Now = w.Now.Add(2 * time.Second)
		*m = meter{}
		pass := w.W.Pass()
		w.do(pass)
		m.within(t, "a sweep", store.MostRead, opRows+over, store.OpBytes)
		w.ended(ids[0], perdure.TimedOut, perdure.CodeDeadline)
		if !pass.More {
			t.Error("the sweep says that there is nothing left, want more")
		}
		w.sweep()
	})
}

// A run is changed before each write of the sweep that ends it and others.
func TestRunThatChangesAllTheTimeCostsOnlyItsOwnTurn(t *testing.T) {
	storetest.OnBoth(t, func(t *testing.T, at store.Options) {
		t.Parallel()
		b := node(t, at)
		hot := b.submit(perdure.Submission{Kind: "hot", Timeout: perdure.Duration(time.Second)})
		cold := b.submits(tenant, 20, perdure.Submission{Kind: "cold", Timeout: perdure.Duration(time.Second)})
		b.Now = b.Now.Add(2 * time.Second)
		busy, writes := true, 0
		at.Hooks.BeforeWrite = func() {
			if writes++; busy {
				b.do(&life.Signal{Tenant: tenant, RunID: hot.ID, Name: "go"})
			}
		}
		a := node(t, at)
		a.Now, writes = b.Now, 0
		pass := a.W.Pass()
		a.do(pass)
		if writes > 4 {
			t.Errorf("the sweep was decided %d times, want no more than 4", writes)
		}
		for _, id := range cold {
			b.ended(id, perdure.TimedOut, perdure.CodeDeadline)
		}
		if len(pass.Contended) != 1 || pass.Contended[0].Run != hot.ID {
			t.Errorf("contended: %v, want %s alone", pass.Contended, hot.ID)
		}
		busy = false
		a.sweep()
		b.ended(hot.ID, perdure.TimedOut, perdure.CodeDeadline)
		b.fsck()
	})
}

// unwritable is a session that can't write a run.
type unwritable struct {
	store.Conn
	run *perdure.RunID
}

func (s unwritable) Exec(query string, args []any) (int64, error) {
	for _, a := range args { // on PostgreSQL the values of a column are one argument
		if *s.run != "" && strings.Contains(query, "UPDATE") && strings.Contains(fmt.Sprint(a), string(*s.run)) {
			return 0, errors.New("the row is too large")
		}
	}
	return s.Conn.Exec(query, args)
}

// A row that makes its sweep fail when it is written is found and set aside; the others don't wait for it.
func TestRowThatCantBeWrittenIsSetAside(t *testing.T) {
	storetest.OnBoth(t, func(t *testing.T, at store.Options) {
		t.Parallel()
		var bad perdure.RunID
		at.Hooks.Wrap = func(s store.Conn) store.Conn { return unwritable{s, &bad} }
		w := node(t, at)
		ids := w.submits(tenant, 10, perdure.Submission{Kind: "job", Timeout: perdure.Duration(time.Second)})
		group := w.group(&life.CreateGroup{RunIDs: ids[5:], Timeout: perdure.Duration(time.Second)})
		w.S.Close()

		at.Hooks.Clock = func() perdure.Instant { return dawn.Add(2 * time.Second) }
		s := storetest.Open(t, at)
		p := perdure.DefaultPolicy()
		e, err := engine.New(s, engine.Options{Policy: &p})
		if err != nil {
			t.Fatal(err)
		}
		w.S, w.E = s, e
		dog := newDog(e)
		bad = ids[3]
		dog.SweepOnce(t.Context())
		for i, id := range ids {
			want := perdure.TimedOut
			if i == 3 {
				want = perdure.Queued
			}
			w.state(id, want)
		}
		if got := w.gathering(group.ID).State; got == perdure.GatheringOpen {
			t.Errorf("the group is %s, want it ended in the same pass", got)
		}
		if len(dog.set) != 1 {
			t.Errorf("set aside: %v, want one run", dog.set)
		}
		// The next pass leaves it alone, and goes through at once.
		pass := dog.Pass()
		if err := e.Do(t.Context(), pass); err != nil {
			t.Errorf("a sweep with the row set aside: %v", err)
		}
	})
}

// A dog is a watchdog, and what it has set aside.
type dog struct {
	*watchdog.Watchdog
	set []string
}

func newDog(e *engine.Engine) *dog {
	d := &dog{Watchdog: watchdog.New(e, nil)}
	d.OnSetAside = func(part string) { d.set = append(d.set, part) }
	return d
}
