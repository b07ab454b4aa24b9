package conformance

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/dispatch"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/store"
	"github.com/perdure/perdure/internal/testkit/storetest"
)

func promise(s Scenario) func(w *World) []string {
	return func(w *World) []string { s.Run(w); w.fsck(); return nil }
}

// On SQLite the watchdog sweeps as often as in a server.
func TestSQLite(t *testing.T) {
	for _, s := range Scenarios() {
		t.Run(s.Name, func(t *testing.T) { leaves(t, store.Options{}, promise(s)) })
	}
}

// PostgreSQL keeps every promise, and in the end it holds what SQLite does, in every column of every row. On both, time
// passes quietly here: a sweep that finds nothing to do takes twenty times as long on PostgreSQL as on SQLite.
func TestPostgreSQL(t *testing.T) {
	for _, s := range Scenarios() {
		t.Run(s.Name, func(t *testing.T) {
			t.Parallel()
			alike(t, func(w *World) []string { w.quiet = true; return promise(s)(w) })
		})
	}
}

// leaves gives all rows that a scenario leaves, and what it reads in the end.
func leaves(t *testing.T, at store.Options, scenario func(w *World) []string) (out []string) {
	t.Helper()
	// the ids are the same too: they come from the world's own dice
	at.Hooks.Clock = func() perdure.Instant { return dawn }
	w := NewWorld(t, storetest.Open(t, at))
	read := scenario(w)
	w.view(func(v *store.View) (err error) { out, err = storetest.Dump(v, ""); return err })
	return append(read, out...)
}

// alike has a scenario come to the same on both stores.
func alike(t *testing.T, scenario func(w *World) []string) {
	t.Helper()
	same(t, leaves(t, store.Options{}, scenario), leaves(t, store.Options{URL: storetest.Postgres(t)}, scenario))
}

// same fails where two stores part.
func same(t *testing.T, x, y []string) {
	t.Helper()
	for i := range max(len(x), len(y)) {
		if i >= len(x) || i >= len(y) || x[i] != y[i] {
			t.Fatalf("they part at line %d: on SQLite\n%s\non PostgreSQL\n%s", i+1,
				strings.Join(x[min(i, len(x)):min(i+3, len(x))], "\n"),
				strings.Join(y[min(i, len(y)):min(i+3, len(y))], "\n"))
		}
	}
}

// odd are names that languages put into another order than their bytes have, or take for the same.
var odd = []string{"a", "B", "b", "A", "é", "z", "Z", "_", "a-b", "a b", "ab", "a_b", "10", "9", "ß", "ss", "ı", "i",
	"I", "日本", "a.", "ﬀ"}

// Names are in the order of their bytes, and two names are the same if their bytes are.
func TestNamesAreBytes(t *testing.T) {
	alike(t, func(w *World) (read []string) {
		note := func(what string, v any, err error) {
			if err != nil {
				w.t.Fatalf("%s: %v", what, err)
			}
			read = append(read, fmt.Sprintf("%s %+v", what, v))
		}
		var waits []perdure.WaitSpec
		var journal []perdure.JournalEntry
		for _, name := range odd {
			w.do(&life.Submit{Tenant: tenant, Key: name, Submission: perdure.Submission{Kind: name, Queue: name}})
			w.do(&life.Submit{Tenant: tenant, Submission: perdure.Submission{Kind: name}})
			waits = append(waits, perdure.WaitSpec{ID: name, Type: perdure.WaitSignal, Name: name,
				Timeout: perdure.Never})
			journal = append(journal, perdure.JournalEntry{Key: name, Value: []byte(`1`)})
		}
		for _, name := range odd { // each by its own name, and none of them twice
			again := &life.Submit{Tenant: tenant, Key: name, Submission: perdure.Submission{Kind: name, Queue: name}}
			w.do(again)
			w.check(!again.Created, "%q is not the key it was", name)
			op := &dispatch.Claim{Tenant: tenant, Worker: name, Queues: []string{name}, Kinds: []string{name},
				Slots: 10}
			w.do(op)
			w.check(len(op.Grants) == 1 && op.Grants[0].Run.Queue == name, "%q: %d grants", name, len(op.Grants))
		}
		w.view(func(v *store.View) error {
			ready, err := v.Claims.Ready(new(store.ReadyRound))
			note("ready", ready, err)
			queues, err := v.Queues.List(tenant)
			note("queues", queues, err)
			workers, err := v.Workers.List(tenant)
			note("workers", workers, err)
			names := make([]string, len(queues))
			for i, q := range queues {
				names[i] = q.Name
			}
			w.check(slices.IsSorted(names) && len(names) == len(odd)+1, "%q", names)
			return nil
		})
		g := w.poll("any", 1)[0]
		w.commit(g, perdure.Commit{Journal: journal, Waits: waits, Outcome: suspend})
		w.do(&life.Signal{Tenant: tenant, RunID: g.Run.ID, Name: "é", Key: "é"})
		w.pass(3 * time.Second)
		for range odd {
			op := &dispatch.Claim{Tenant: tenant, Worker: "any", Slots: 1}
			w.do(op)
			for _, g := range op.Grants {
				note("granted", g.Run.Kind, nil)
			}
		}
		w.view(func(v *store.View) error {
			left, err := v.Waits.List(tenant, g.Run.ID)
			note("waits", left, err)
			kept, err := v.Journal.After(tenant, g.Run.ID, 0, 1000)
			note("journal", kept, err)
			return nil
		})
		return read
	})
}
