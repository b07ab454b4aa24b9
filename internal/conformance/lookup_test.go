package conformance

import (
	"fmt"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/engine"
	"github.com/perdure/perdure/internal/store"
	"github.com/perdure/perdure/internal/storetest"
)

// asking counts the questions about commits and steps.
type asking struct {
	store.Session
	commits, steps *int
}

func (a *asking) Query(query string, args []any, row func(scan func(...any) error) error) error {
	switch {
	case strings.Contains(query, " FROM commits "):
		*a.commits++
	case strings.Contains(query, " FROM journal "):
		*a.steps++
	}
	return a.Session.Query(query, args, row)
}

// However many agents record a step at once, what they recorded before is asked for once at most. One that records what no
// database can hold is refused, and the others don't notice.
func TestABatchOfCommitsAsksOnce(t *testing.T) {
	const agents = 64
	storetest.OnBoth(t, func(t *testing.T, at store.Options) {
		var commits, steps, written int
		at.Hooks = store.Hooks{Clock: func() perdure.Instant { return dawn },
			Wrap:        func(s store.Session) store.Session { return &asking{s, &commits, &steps} },
			BeforeWrite: func() { written++ }}
		w := NewWorld(t, storetest.Open(t, at))
		for range agents + 1 {
			w.do(&engine.Submit{Tenant: tenant, Submission: perdure.Submission{Kind: "job"}})
		}
		grants := w.poll("w", agents+1)
		record := func(commit, key string) (ops []engine.Op) {
			for _, g := range grants {
				ops = append(ops, &engine.Commit{Tenant: tenant, Worker: "w", Commit: perdure.Commit{ID: commit, RunID: g.Run.ID, Epoch: g.Run.Epoch,
					Journal: []perdure.JournalEntry{{Key: key, Value: []byte(`1`)}}}})
			}
			return ops
		}
		for i := range 3 {
			for _, op := range record(fmt.Sprint("c", i), fmt.Sprint("step", i)) {
				w.do(op)
			}
		}
		step := func(w *World, commit, key string, asked int) {
			t.Helper()
			commits, steps, written = 0, 0, 0
			ops := record(commit, key)
			ops[agents].(*engine.Commit).Commit.Journal[0].Key = "a\x00b"
			for i, err := range w.E.Step(w.Now, ops...) {
				if i < agents && err != nil || i == agents && perdure.CodeOf(err) != perdure.CodeInvalid {
					t.Errorf("commit %d: %v", i, err)
				}
			}
			if commits != asked || steps != asked || written != 1 {
				t.Errorf("asked %d times for commits and %d times for steps, in %d batches", commits, steps, written)
			}
		}
		step(w, "c3", "step3", 0)                                  // who has been there from the beginning knows
		step(NewWorld(t, storetest.Open(t, at)), "c4", "step4", 1) // and another node asks
		for _, op := range record("c1", "step1") {                 // each is answered as the first time
			w.do(op)
			w.check(op.(*engine.Commit).Answer.OK, "%+v", op.(*engine.Commit).Answer)
		}
	})
}
