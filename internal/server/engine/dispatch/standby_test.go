package dispatch

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/doorbell"
	"github.com/perdure/perdure/internal/server/engine/access"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/engine/outbox"
	"github.com/perdure/perdure/internal/server/engine/rules"
	"github.com/perdure/perdure/internal/server/store"
	"github.com/perdure/perdure/internal/server/store/sqlite"
)

// rung collects the queues whose doorbell was rung.
type rung struct{ queues []string }

func (r *rung) Ring(t doorbell.Topic) {
	if t.Queue != "" {
		r.queues = append(r.queues, t.Queue+"/"+t.Kind)
	}
}

// engineOn opens an engine on a store in memory with these hooks. Its clock stands still.
func engineOn(t *testing.T, hooks store.Hooks) (*kernel.Engine, *rung) {
	t.Helper()
	hooks.Clock = func() perdure.Instant { return 1000 }
	s, err := store.Open(store.Options{Hooks: hooks})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	bell := &rung{}
	return engineOver(t, s, bell), bell
}

// engineOver makes an engine with the wings up to this one.
func engineOver(t *testing.T, s *store.Store, bell doorbell.Ringer) *kernel.Engine {
	t.Helper()
	e, err := kernel.New(s, kernel.Options{Bell: bell})
	if err != nil {
		t.Fatal(err)
	}
	access.Add(e, nil)
	outbox.Add(e)
	rules.Add(e, rules.Options{})
	Add(e)
	return e
}

func submit(kind string) *life.Submit {
	return &life.Submit{Tenant: "a", Submission: perdure.Submission{Kind: kind}}
}

func poll(change ...func(*Claim)) *Claim {
	op := &Claim{Tenant: "a", Worker: "w", Queues: []string{"default"}, Slots: 10, Start: true}
	for _, f := range change {
		f(op)
	}
	return op
}

func do(t *testing.T, e *kernel.Engine, ops ...kernel.Op) {
	t.Helper()
	for i, err := range e.Step(1000, ops...) {
		if err != nil {
			t.Fatalf("operation %d: %v", i, err)
		}
	}
}

// A run and its lease are written together, if a poll stands by.
func TestBatchGrantsToStandingPoll(t *testing.T) {
	batches := 0
	e, bell := engineOn(t, store.Hooks{Written: func([]perdure.RunID) { batches++ }})
	s := StandBy(e, poll())
	op := submit("job")
	batches = 0
	do(t, e, op)
	<-s.Settled()
	got := s.End()
	if len(got) != 1 || got[0].Run.ID != op.Run.ID || got[0].Run.State != perdure.Running || batches != 1 {
		t.Fatalf("%d batches, grants %+v, want one of each, with the run that was submitted", batches, got)
	}
	var r perdure.Run
	err := e.Store().View(t.Context(), func(v *store.View) (err error) {
		r, _, err = v.Runs.Get("a", op.Run.ID)
		return err
	})
	if err != nil || r.State != perdure.Running || r.Epoch != got[0].Run.Epoch || r.Worker != "w" {
		t.Errorf("stored: %s, epoch %d, worker %q, %v, want running with the epoch of the grant", r.State, r.Epoch,
			r.Worker,
			err)
	}
	if len(bell.queues) > 0 {
		t.Errorf("rung: %v, want none, because nothing is left to claim", bell.queues)
	}
	if op.Run.State != perdure.Queued {
		t.Errorf("the caller sees its run as %s, want %s", op.Run.State, perdure.Queued)
	}
	do(t, e, submit("job"))
	if len(s.End()) != 1 || len(bell.queues) != 1 {
		t.Errorf("a poll that has its answer got %d grants, and %v was rung, want 1 and its queue", len(s.End()),
			bell.queues)
	}
}

func TestStandingPollsTakeTurns(t *testing.T) {
	e, bell := engineOn(t, store.Hooks{})
	one := func(c *Claim) { c.Slots = 1 }
	polls := []*Standby{StandBy(e, poll()), StandBy(e, poll(one)), StandBy(e, poll())}
	do(t, e, submit("a"), submit("b"), submit("c"), submit("d"), submit("e"), submit("f"))
	var got []int
	for _, s := range polls {
		got = append(got, len(s.End()))
	}
	if slices.Sort(got); !slices.Equal(got, []int{1, 2, 3}) || len(bell.queues) > 0 {
		t.Errorf("the polls got %v runs, and %v was rung, want 1 (it has one slot), 2 and 3, and nothing", got,
			bell.queues)
	}
}

// A run that a standing poll does not get is rung for.
func TestWhatIsNotHandedOver(t *testing.T) {
	kinds := func(n int) (out []string) {
		for i := range n {
			out = append(out, strings.Repeat("k", i+1))
		}
		return append(out, "job")
	}
	for name, x := range map[string]struct {
		poll   func(*Claim)
		submit func(*perdure.Submission)
		rings  bool
	}{
		"a large input": {nil, func(s *perdure.Submission) {
			s.Input = []byte(`"` + strings.Repeat("x", 9000) + `"`)
		}, true},
		"another queue":      {nil, func(s *perdure.Submission) { s.Queue = "slow" }, true},
		"another kind":       {func(c *Claim) { c.Kinds = []string{"other"} }, nil, true},
		"another tenant":     {func(c *Claim) { c.Tenant = "b" }, nil, true},
		"a delayed run":      {nil, func(s *perdure.Submission) { s.Delay = perdure.Duration(time.Minute) }, false},
		"a key that expired": {func(c *Claim) { c.KeyExpires = 1000 }, nil, true},
		"very many kinds":    {func(c *Claim) { c.Kinds = kinds(maxStandbyTopics) }, nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			e, bell := engineOn(t, store.Hooks{})
			claim, op := poll(), submit("job")
			if x.poll != nil {
				x.poll(claim)
			}
			if x.submit != nil {
				x.submit(&op.Submission)
			}
			s := StandBy(e, claim)
			do(t, e, op)
			if got := s.End(); len(got) != 0 || (len(bell.queues) > 0) != x.rings {
				t.Errorf("%d grants, rung %v, want none, and rung: %t", len(got), bell.queues, x.rings)
			}
		})
	}
}

func TestRevokedKeyEndsStandingPoll(t *testing.T) {
	e, bell := engineOn(t, store.Hooks{})
	s := StandBy(e, poll(func(c *Claim) { c.Key = "k1" }))
	other := StandBy(e, poll(func(c *Claim) { c.Key, c.Slots = "k2", 1 }))
	if gone, err := access.KeysOf(e).Invalid(t.Context(), []string{"k1"}); len(gone) != 1 || err != nil {
		t.Fatalf("%v are no longer valid (%v), want k1", gone, err)
	}
	<-s.Settled()
	do(t, e, submit("job"), submit("job"))
	if a, b := len(s.End()), len(other.End()); a != 0 || b != 1 || len(bell.queues) == 0 {
		t.Errorf("the poll of the revoked key got %d runs, the other one %d, rung: %v, want 0, 1 and the rest", a, b,
			bell.queues)
	}
}

// A failing session makes the first commit after arm fail as if another writer had been first.
type failing struct {
	store.Conn
	armed *bool
}

func (f failing) Commit() error {
	if *f.armed {
		*f.armed = false
		return errors.Join(&sqlite.Error{Code: 517}, f.Rollback()) // SQLITE_BUSY_SNAPSHOT
	}
	return f.Conn.Commit()
}

// A batch that is decided again grants again, and its poll gets each run once.
func TestDroppedBatchGivesStandingPollBack(t *testing.T) {
	armed := false
	e, bell := engineOn(t, store.Hooks{Wrap: func(s store.Conn) store.Conn { return failing{s, &armed} }})
	s := StandBy(e, poll())
	op := submit("job")
	armed = true
	do(t, e, op)
	if armed {
		t.Fatal("no commit failed")
	}
	got := s.End()
	if len(got) != 1 || got[0].Run.ID != op.Run.ID || len(bell.queues) > 0 {
		t.Errorf("%d grants, rung %v, want the run once", len(got), bell.queues)
	}
	if n := standing.Of(e).n.Load(); n != 0 || len(standing.Of(e).byTopic) != 0 {
		t.Errorf("%d polls are left in the registry, in %d topics, want none", n, len(standing.Of(e).byTopic))
	}
}

// A poll that gives up while a batch grants to it waits for the batch.
func TestEndWaitsForItsBatch(t *testing.T) {
	var s *Standby
	ended := make(chan []Grant, 1)
	e, _ := engineOn(t, store.Hooks{BeforeWrite: func() {
		if s == nil {
			return
		}
		waiting := s
		s = nil
		begun := make(chan struct{})
		go func() {
			close(begun)
			ended <- waiting.End()
		}()
		<-begun
		select {
		case <-ended:
			t.Error("the poll ended while a batch was granting to it")
		case <-time.After(10 * time.Millisecond):
		}
	}})
	s = StandBy(e, poll())
	do(t, e, submit("job"))
	if got := <-ended; len(got) != 1 {
		t.Errorf("%d grants, want 1", len(got))
	}
}

// asked counts how often a batch looks for a kind in the registry.
type asked struct {
	store.Conn
	kinds *int
}

func (a asked) Query(query string, args []any, row func(scan func(dest ...any) error) error) error {
	if strings.Contains(query, "FROM kinds k ") {
		*a.kinds++
	}
	return a.Conn.Query(query, args, row)
}

// Runs of a kind that nobody has announced are granted without a look at the registry for each. The next
// batch looks again, because another node may have taken an announcement.
func TestClaimLooksOnceForUnknownKind(t *testing.T) {
	kinds := 0
	e, _ := engineOn(t, store.Hooks{Wrap: func(s store.Conn) store.Conn { return asked{s, &kinds} }})
	for batch := range 2 {
		for range 8 {
			do(t, e, submit("job"))
		}
		kinds = 0
		op := poll()
		do(t, e, op)
		if len(op.Grants) != 8 || kinds == 0 || kinds > 2 { // a batch may be decided twice
			t.Errorf("batch %d: %d grants with %d looks for their kind, want 8 grants with 1 or 2", batch,
				len(op.Grants), kinds)
		}
	}
}
