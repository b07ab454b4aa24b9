package conformance

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/engine"
	"github.com/perdure/perdure/internal/store"
	"github.com/perdure/perdure/internal/watchdog"
)

// nth fails the n-th call that reaches the database, before or after executing it.
type nth struct {
	store.Session
	left  *int
	after bool
}

var errBroken = errors.New("the wire broke")

func (f nth) hit() bool {
	*f.left--
	return *f.left == 0
}

func (f nth) Exec(q string, args []any) (int64, error) {
	if !f.hit() {
		return f.Session.Exec(q, args)
	}
	if f.after {
		f.Session.Exec(q, args)
	}
	return 0, errBroken
}

func (f nth) Query(q string, args []any, row func(func(...any) error) error) error {
	if f.hit() {
		return errBroken
	}
	return f.Session.Query(q, args, row)
}

func (f nth) Commit() error {
	if !f.hit() {
		return f.Session.Commit()
	}
	if f.after {
		if err := f.Session.Commit(); err != nil {
			return err
		}
	}
	return errBroken
}

// stubborn is a client and a worker that try again until they have an answer, and a server that is
// restarted when its store is in doubt.
type stubborn struct {
	*World
	m     *store.Memory
	left  int
	at    bool
	fired bool
}

func (s *stubborn) boot() {
	st, err := store.Open(store.Options{Memory: s.m, Hooks: store.Hooks{Wrap: func(x store.Session) store.Session { return nth{x, &s.left, s.at} }}})
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

func (s *stubborn) insist(op engine.Op) {
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
func (s *stubborn) lease(kind string) engine.Grant {
	s.t.Helper()
	for range 20 {
		op := &engine.Claim{Tenant: tenant, Worker: "w", Kinds: []string{kind}, Slots: 1, Start: true}
		s.insist(op)
		if len(op.Grants) == 1 {
			return op.Grants[0]
		}
		s.Now = s.Now.Add(3 * time.Second)
		pass := s.W.Pass()
		s.insist(pass)
	}
	s.t.Fatalf("no %s to claim", kind)
	return engine.Grant{}
}

func (s *stubborn) finish(g engine.Grant, id string, c perdure.Commit) engine.CommitAnswer {
	s.t.Helper()
	c.ID, c.RunID, c.Epoch = id, g.Run.ID, g.Run.Epoch
	op := &engine.Commit{Tenant: tenant, Worker: "w", Commit: c}
	s.insist(op)
	if op.Refused != nil {
		s.t.Fatalf("%s: %v", id, op.Refused)
	}
	return op.Answer
}

// story is a history that touches most tables: a thread, children, a join, a signal, a chord, its
// continuation, a retry and a cancel.
func (s *stubborn) story() string {
	th := &engine.CreateThread{Tenant: tenant}
	s.insist(th)
	sub := &engine.Submit{Tenant: tenant, Key: "boss", Submission: perdure.Submission{Kind: "boss", ThreadID: th.Thread.ID, Messages: user("hi")}}
	s.insist(sub)
	g := s.lease("boss")
	spawns, keys := kids(2)
	s.finish(g, "b1", perdure.Commit{Children: spawns, Journal: []perdure.JournalEntry{{Key: "s", Value: json.RawMessage(`1`)}},
		Waits: []perdure.WaitSpec{{ID: "j", Type: perdure.WaitChildren, Keys: keys}, {ID: "go", Type: perdure.WaitSignal, Name: "go"}}, Outcome: suspend})
	s.insist(&engine.Signal{Tenant: tenant, RunID: sub.Run.ID, Name: "go", Key: "go"})
	k := s.lease("kid")
	s.finish(k, "k1", perdure.Commit{Outcome: done(`1`)})
	g = s.lease("boss")
	o := done(`"on it"`)
	o.ContinueOn = keys
	s.finish(g, "b2", perdure.Commit{Messages: []perdure.Message{{Role: "assistant", Content: json.RawMessage(`"soon"`)}}, Outcome: o})
	k = s.lease("kid")
	s.finish(k, "k2", perdure.Commit{Outcome: failed("flaky")})
	k = s.lease("kid")
	s.finish(k, "k3", perdure.Commit{Outcome: done(`2`)})
	g = s.lease("boss")
	s.finish(g, "c1", perdure.Commit{Outcome: done(`"the answer"`)})
	other := &engine.Submit{Tenant: tenant, Key: "other", Submission: perdure.Submission{Kind: "other"}}
	s.insist(other)
	s.insist(&engine.Cancel{Tenant: tenant, RunID: other.Run.ID})

	s.fired = s.left <= 0
	s.left = -1 // from here on nothing fails
	var out []string
	runs, err := s.E.List(s.ctx(), tenant, store.RunFilter{Limit: 100})
	if err != nil {
		s.t.Fatal(err)
	}
	for i := range runs {
		out = append(out, fmt.Sprintf("%s %s %s %d children %d journal", runs[i].Kind, runs[i].State, runs[i].Result, runs[i].Children, runs[i].JournalSeq))
	}
	slices.Sort(out)
	return fmt.Sprint(out, " ", len(s.messages(th.Thread.ID)), " messages")
}

func TestEveryStatementFailsOnce(t *testing.T) {
	tell := func(n int, after bool) (story string, fired bool) {
		m, err := store.NewMemory()
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		s := &stubborn{World: &World{t: t}, m: m, left: n, at: after}
		s.boot()
		s.Now = s.S.Now()
		story = s.story()
		s.fsck()
		return story, s.fired
	}
	want, _ := tell(-1, false)
	for _, after := range []bool{false, true} {
		n, fired := 0, true
		for ; fired; n++ {
			var got string
			if got, fired = tell(n+1, after); got != want {
				t.Fatalf("call %d (after executing: %v):\n%s\nwithout a fault:\n%s", n+1, after, got, want)
			}
		}
		if n < 100 {
			t.Fatalf("only %d calls were made to fail", n)
		}
		t.Logf("each of %d calls failed once (after executing: %v)", n-1, after)
	}
}
