package conformance

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
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

// faults say which of the calls that reach the database fails, before or after it is executed.
type faults struct {
	nth   int  // 0: none
	each  bool // the n-th of each operation's first try, instead of the n-th of the story
	after bool

	calls  int
	failed int
}

func (f *faults) hit() bool {
	if f.calls++; f.nth == 0 || f.calls != f.nth {
		return false
	}
	f.failed++
	return true
}

// failing is a session with faults.
type failing struct {
	store.Conn
	*faults
}

var errBroken = errors.New("the wire broke")

func (f failing) Exec(q string, args []any) (int64, error) {
	if !f.hit() {
		return f.Conn.Exec(q, args)
	}
	if f.after {
		f.Conn.Exec(q, args)
	}
	return 0, errBroken
}

func (f failing) Query(q string, args []any, row func(func(...any) error) error) error {
	if f.hit() {
		return errBroken
	}
	return f.Conn.Query(q, args, row)
}

func (f failing) Commit() error {
	if !f.hit() {
		return f.Conn.Commit()
	}
	if f.after {
		if err := f.Conn.Commit(); err != nil {
			return err
		}
	}
	return errBroken
}

// stubborn is a client and a worker that try again until they have an answer, and a server that is
// restarted when its store is in doubt.
type stubborn struct {
	*World
	at     store.Options
	faults *faults
}

func (s *stubborn) boot() {
	s.at.Hooks.Wrap = func(x store.Conn) store.Conn { return failing{x, s.faults} }
	st, err := store.Open(s.at)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { st.Close() })
	s.S = st
	for {
		e, err := engine.New(st, engine.Options{Roll: func() float64 { return 0.5 }})
		if err == nil {
			s.E, s.W = e, watchdog.New(e, nil)
			return
		}
		if st.Err() != nil {
			s.boot()
			return
		}
	}
}

func (s *stubborn) insist(op kernel.Op) {
	s.t.Helper()
	if s.faults.each {
		s.faults.calls = 0
	}
	s.repeat(op)
}

// repeat is insist without another fault for the operation.
func (s *stubborn) repeat(op kernel.Op) {
	s.t.Helper()
	for range 5 {
		err := s.E.Step(s.Now, op)[0]
		if err == nil {
			return
		}
		if code := perdure.CodeOf(err); code != perdure.CodeUnavailable && code != perdure.CodeUnknown {
			s.t.Fatalf("%T: %v", op, err)
		}
		if s.S.Err() != nil {
			s.boot()
		}
	}
	s.t.Fatalf("%T does not get through", op)
}

// lease polls until it has a run of a kind: an answer that was lost is redelivered.
func (s *stubborn) lease(kind string) dispatch.Grant {
	s.t.Helper()
	do := s.insist
	for range 20 {
		op := &dispatch.Claim{Tenant: tenant, Worker: "w", Kinds: []string{kind}, Slots: 1, Start: true}
		do(op)
		if len(op.Grants) == 1 {
			return op.Grants[0]
		}
		s.Now = s.Now.Add(3 * time.Second)
		do(s.W.Pass())
		do = s.repeat // or an answer that is lost every time never comes
	}
	s.t.Fatalf("no %s to claim", kind)
	return dispatch.Grant{}
}

func (s *stubborn) finish(g dispatch.Grant, id string, c perdure.Commit) life.CommitAnswer {
	s.t.Helper()
	c.ID, c.RunID, c.Epoch = id, g.Run.ID, g.Run.Epoch
	op := &life.Commit{Tenant: tenant, Worker: "w", Commit: c}
	s.insist(op)
	if op.Refused != nil {
		s.t.Fatalf("%s: %v", id, op.Refused)
	}
	return op.Answer
}

// story is a history that touches most tables: a thread, children, a join, a signal, a chord, its
// continuation, a retry and a cancel.
func (s *stubborn) story() string {
	th := &life.CreateThread{Tenant: tenant}
	s.insist(th)
	sub := &life.Submit{Tenant: tenant, Key: "boss", Submission: perdure.Submission{Kind: "boss",
		ThreadID: th.Thread.ID, Messages: user("hi")}}
	s.insist(sub)
	g := s.lease("boss")
	spawns, keys := kids(2)
	s.finish(g, "b1", perdure.Commit{Children: spawns,
		Journal: []perdure.JournalEntry{{Key: "s", Value: json.RawMessage(`1`)}},
		Waits: []perdure.WaitSpec{{ID: "j", Type: perdure.WaitChildren, Keys: keys},
			{ID: "go", Type: perdure.WaitSignal, Name: "go"}}, Outcome: suspend})
	s.insist(&life.Signal{Tenant: tenant, RunID: sub.Run.ID, Name: "go", Key: "go"})
	k := s.lease("kid")
	s.finish(k, "k1", perdure.Commit{Outcome: done(`1`)})
	g = s.lease("boss")
	o := done(`"on it"`)
	o.ContinueOn = keys
	s.finish(g, "b2", perdure.Commit{Messages: []perdure.Message{{Role: "assistant",
		Content: json.RawMessage(`"soon"`)}}, Outcome: o})
	k = s.lease("kid")
	s.finish(k, "k2", perdure.Commit{Outcome: failed("flaky")})
	k = s.lease("kid")
	s.finish(k, "k3", perdure.Commit{Outcome: done(`2`)})
	g = s.lease("boss")
	s.finish(g, "c1", perdure.Commit{Outcome: done(`"the answer"`)})
	other := &life.Submit{Tenant: tenant, Key: "other", Submission: perdure.Submission{Kind: "other"}}
	s.insist(other)
	s.insist(&life.Cancel{Tenant: tenant, RunID: other.Run.ID})

	s.faults.nth = 0 // from here on nothing fails
	var out []string
	runs, err := s.E.Runs.List(s.ctx(), tenant, store.RunFilter{Limit: 100})
	if err != nil {
		s.t.Fatal(err)
	}
	for i := range runs {
		out = append(out, fmt.Sprintf("%s %s %s %d children %d journal", runs[i].Kind, runs[i].State, runs[i].Result,
			runs[i].Children, runs[i].JournalSeq))
	}
	slices.Sort(out)
	return fmt.Sprint(out, " ", len(s.messages(th.Thread.ID)), " messages")
}

// lineTypes tells the story on a fresh database with some faults.
func told(t *testing.T, at store.Options, f *faults) string {
	t.Helper()
	s := &stubborn{World: &World{t: t}, at: at, faults: f}
	s.boot()
	s.Now = s.S.Now()
	story := s.story()
	s.fsck()
	s.S.Close()
	return story
}

func TestEveryStatementFailsOnce(t *testing.T) {
	tell := func(f *faults) string {
		m, err := store.NewMemory()
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		return told(t, store.Options{Memory: m}, f)
	}
	want := tell(&faults{})
	for _, after := range []bool{false, true} {
		n, fired := 0, true
		for ; fired; n++ {
			f := &faults{nth: n + 1, after: after}
			if got := tell(f); got != want {
				t.Fatalf("call %d (after executing: %v):\n%s\nwithout a fault:\n%s", n+1, after, got, want)
			}
			fired = f.failed > 0
		}
		if n < 100 {
			t.Fatalf("only %d calls were made to fail", n)
		}
		t.Logf("each of %d calls failed once (after executing: %v)", n-1, after)
	}
}

// On PostgreSQL a story takes longer, so that one has many faults: the first call of each operation fails, then the
// second of each, and so on.
func TestEveryStatementFailsOnceOnPostgreSQL(t *testing.T) {
	want := told(t, store.Options{URL: storetest.Postgres(t)}, &faults{})
	for _, after := range []bool{false, true} {
		all := 0
		for n, fired := 1, true; fired; n++ {
			fired = false
			t.Run(fmt.Sprintf("call %d, after executing: %v", n, after), func(t *testing.T) {
				f := &faults{nth: n, each: true, after: after}
				if got := told(t, store.Options{URL: storetest.Postgres(t)}, f); got != want {
					t.Fatalf("%s\nwithout a fault:\n%s", got, want)
				}
				all += f.failed
				fired = f.failed > 0
			})
		}
		if all < 100 {
			t.Errorf("only %d calls were made to fail", all)
		}
		t.Logf("each of %d calls failed once (after executing: %v)", all, after)
	}
}
