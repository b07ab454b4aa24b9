package conformance

import (
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/engine"
	"github.com/perdure/perdure/internal/store"
)

// Two engines on one database, with one of them between the other's deciding and its writing.

const dawn perdure.Instant = 1e15

func memory(t *testing.T) *store.Memory {
	t.Helper()
	m, err := store.NewMemory()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

func nodeOn(t *testing.T, m *store.Memory, between func()) *engine.Engine {
	t.Helper()
	s, err := store.Open(store.Options{Memory: m, Hooks: store.Hooks{Clock: func() perdure.Instant { return dawn }, BeforeWrite: between}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	e, err := engine.New(s, engine.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// once calls what it is set to, one time.
type once struct{ f func() }

func (o *once) call() {
	if f := o.f; f != nil {
		o.f = nil
		f()
	}
}

func TestTwoNodesThatBootAtOnceShareTheirSecret(t *testing.T) {
	m := memory(t)
	var b *engine.Engine
	hook := &once{}
	hook.f = func() { b = nodeOn(t, m, nil) }
	a := nodeOn(t, m, hook.call)
	w := &World{t: t, S: b.Store(), E: b, Now: dawn}
	w.submit(perdure.Submission{Kind: "a", Class: perdure.Agent})
	ans := w.commit(w.take("w1"), perdure.Commit{Waits: wait(perdure.WaitSpec{ID: "cb", Type: perdure.WaitCallback})})
	if err := a.Step(dawn, &engine.Callback{Token: ans.Callbacks[0].Token})[0]; err != nil {
		t.Errorf("one node does not know the other's token: %v", err)
	}
}

func TestOneKeyOnTwoNodesIsOneRun(t *testing.T) {
	m := memory(t)
	hook := &once{}
	a, b := nodeOn(t, m, hook.call), nodeOn(t, m, nil)
	here := &engine.Submit{Tenant: tenant, Submission: perdure.Submission{Kind: "x"}, Key: "k"}
	there := &engine.Submit{Tenant: tenant, Submission: perdure.Submission{Kind: "x"}, Key: "k"}
	hook.f = func() {
		if err := b.Step(dawn, there)[0]; err != nil {
			t.Error(err)
		}
	}
	if err := a.Step(dawn, here)[0]; err != nil {
		t.Fatal(err)
	}
	if here.Run.ID != there.Run.ID || here.Created == there.Created {
		t.Errorf("%s and %s", here.Run.ID, there.Run.ID)
	}
}

func TestSomebodyAttachesOnOneNodeWhileTheLastWaiterLeavesOnAnother(t *testing.T) {
	m := memory(t)
	hook := &once{}
	a, b := nodeOn(t, m, hook.call), nodeOn(t, m, nil)
	w := &World{t: t, S: b.Store(), E: b, Now: dawn}
	r := w.submit(perdure.Submission{Kind: "x", Foreground: true})
	w.do(&engine.Attach{Tenant: tenant, Node: "a", RunIDs: []perdure.RunID{r.ID}})
	hook.f = func() { w.do(&engine.Attach{Tenant: tenant, Node: "b", RunIDs: []perdure.RunID{r.ID}}) }
	if err := a.Step(dawn, &engine.Defer{Tenant: tenant, RunID: r.ID, Node: "a", Reason: "timeout"})[0]; err != nil {
		t.Fatal(err)
	}
	if w.get(r.ID).DeferredAt != 0 {
		t.Error("deferred although somebody waits for it")
	}
}

func TestTheLastTwoChildrenEndOnTwoNodesAtOnce(t *testing.T) {
	m := memory(t)
	hook := &once{}
	a, b := nodeOn(t, m, hook.call), nodeOn(t, m, nil)
	w := &World{t: t, S: b.Store(), E: b, Now: dawn}
	join, _ := w.family(2, perdure.ModeAll)
	x, y := w.takeKind("kid"), w.takeKind("kid")
	hook.f = func() { w.complete(y, `2`) }
	if err := a.Step(dawn, w.say(x, perdure.Commit{Outcome: done(`1`)}))[0]; err != nil {
		t.Fatal(err)
	}
	w.state(join.ID, perdure.Queued)

	chord, _ := w.chord(w.thread(), 2)
	x, y = w.takeKind("kid"), w.takeKind("kid")
	hook.f = func() { w.complete(y, `2`) }
	if err := a.Step(dawn, w.say(x, perdure.Commit{Outcome: done(`1`)}))[0]; err != nil {
		t.Fatal(err)
	}
	if w.count(chord.ID, "run:continued") != 1 {
		t.Errorf("%v", w.types(chord.ID))
	}
	w.fsck()
}

// W3 looks at all waits of a sleeper, not at the open ones alone. A store that is broken like this can't come
// about by any use case; the row is changed behind the engine's back.
func TestW3AWaitThatIsOverBesideOneThatIsOpen(t *testing.T) {
	s, err := store.Open(store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	w := NewWorld(t, s)
	r := w.submit(perdure.Submission{Kind: "a", Class: perdure.Agent})
	w.commit(w.take("w1"), perdure.Commit{Waits: []perdure.WaitSpec{{ID: "a", Type: perdure.WaitSignal, Name: "a", Timeout: perdure.Never},
		{ID: "b", Type: perdure.WaitSignal, Name: "b", Timeout: perdure.Never}}, Outcome: suspend})
	w.do(breakIt{"UPDATE waits SET state='satisfied' WHERE id='a'", nil})
	w.pass(12 * time.Second)
	w.state(r.ID, perdure.Queued)
}
