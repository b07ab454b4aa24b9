package conformance

import (
	"strings"
	"sync/atomic"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/engine/rules"
	"github.com/perdure/perdure/internal/server/store"
	"github.com/perdure/perdure/internal/testkit/storetest"
)

// A kindReads counts the queries about kinds of a session.
type kindReads struct {
	store.Conn
	n *atomic.Int64
}

func (s kindReads) Query(query string, args []any, row func(scan func(...any) error) error) error {
	if strings.Contains(query, "FROM kinds") {
		s.n.Add(1)
	}
	return s.Conn.Query(query, args, row)
}

func TestSubmissionOfKnownKindReadsNoKind(t *testing.T) {
	for name, at := range map[string]store.Options{"SQLite": {}, "PostgreSQL": {}} {
		t.Run(name, func(t *testing.T) {
			if name == "PostgreSQL" {
				at.URL = storetest.Postgres(t)
			}
			var reads atomic.Int64
			at.Hooks.Wrap = func(s store.Conn) store.Conn { return kindReads{s, &reads} }
			w := NewWorld(t, storetest.Open(t, at))
			w.announce("research", "1", researcher)
			submit := func(kind string) int64 {
				before := reads.Load()
				var ops []kernel.Op
				for range 50 {
					ops = append(ops, &life.Submit{Tenant: tenant, Submission: perdure.Submission{Kind: kind}})
				}
				for _, err := range w.E.Step(w.Now, ops...) {
					if err != nil {
						t.Fatal(err)
					}
				}
				return reads.Load() - before
			}
			for _, kind := range []string{"research", "unknown"} {
				if n := submit(kind); n != 1 {
					t.Errorf("first submissions of kind %s: %d queries about kinds, want 1", kind, n)
				}
				if n := submit(kind); n != 0 {
					t.Errorf("further submissions of kind %s: %d queries about kinds, want none", kind, n)
				}
			}
			// A change is seen at once on the node that makes it.
			w.do(&rules.PatchKind{Tenant: tenant, Kind: "research", Def: perdure.KindDef{Class: perdure.Task}})
			if r := w.submit(perdure.Submission{Kind: "research"}); r.Class != perdure.Task {
				t.Errorf("class after the change = %s, want task", r.Class)
			}
			// Another node's change is seen after a second.
			if !w.S.Shared() {
				return
			}
			other, err := engine.New(w.S, engine.Options{})
			if err != nil {
				t.Fatal(err)
			}
			change := &rules.PatchKind{Tenant: tenant, Kind: "research", Def: perdure.KindDef{Class: perdure.Process}}
			if err := other.Step(w.Now, change)[0]; err != nil {
				t.Fatal(err)
			}
			w.Now = w.Now.Add(rules.KindTTL)
			if r := w.submit(perdure.Submission{Kind: "research"}); r.Class != perdure.Process {
				t.Errorf("class after another node's change = %s, want process", r.Class)
			}
		})
	}
}
