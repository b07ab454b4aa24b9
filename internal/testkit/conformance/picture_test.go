package conformance

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
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

// The sequence picture of docs/architecture.md names the lines of the log that its run leaves, in their order, and the
// epochs of its two grants. This test plays the same life and compares.
func TestPictureOfLostWorkerIsTrue(t *testing.T) {
	drawn := sequencePicture(t)
	w := NewWorld(t, storetest.Open(t, store.Options{}))
	r := w.submit(perdure.Submission{Kind: "report", Foreground: true})
	lost := claimOne(w, "A")
	w.commit(lost, perdure.Commit{Journal: []perdure.JournalEntry{{Key: "outline#1", Value: json.RawMessage(`1`)}}})
	w.pass(10 * time.Second)
	w.do(&life.Defer{Tenant: tenant, RunID: r.ID, Reason: "timeout"})
	w.pass(52 * time.Second) // the lease, and the backoff
	g := claimOne(w, "B")
	if len(g.Journal) != 1 {
		t.Errorf("run %s: the second grant has %d journal entries, want the step of the first attempt", r.ID,
			len(g.Journal))
	}
	w.do(&life.Attach{Tenant: tenant, Node: "n", RunIDs: []perdure.RunID{r.ID}})
	w.complete(g, `"ok"`)
	w.do(w.commitOf(lost, perdure.Commit{Outcome: done(`"old"`)}))

	if want := regexp.MustCompile(`run:\w+`).FindAllString(drawn, -1); !slices.Equal(w.types(r.ID), want) {
		t.Errorf("run %s leaves the lines\n%q, the picture has\n%q", r.ID, w.types(r.ID), want)
	}
	for worker, epoch := range map[string]int64{"A": lost.Run.Epoch, "B": g.Run.Epoch} {
		if want := fmt.Sprintf("%s->>S: commit epoch %d:", worker, epoch); !strings.Contains(drawn, want) {
			t.Errorf("worker %s has epoch %d: the picture lacks %q", worker, epoch, want)
		}
	}
}

// claimOne grants one run to a worker, which starts it and sends no heartbeat of its own.
func claimOne(w *World, worker string) dispatch.Grant {
	w.t.Helper()
	op := &dispatch.Claim{Tenant: tenant, Worker: worker, Slots: 1, Start: true}
	w.do(op)
	if len(op.Grants) != 1 {
		w.t.Fatalf("worker %s is granted %d runs, want 1", worker, len(op.Grants))
	}
	return op.Grants[0]
}

// sequencePicture is the text of the sequence diagram.
func sequencePicture(t *testing.T) string {
	t.Helper()
	page, err := os.ReadFile("../../../docs/architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(page), "```mermaid\nsequenceDiagram\n")
	drawn, _, closed := strings.Cut(rest, "```\n")
	if !ok || !closed {
		t.Fatal("docs/architecture.md has no sequence diagram")
	}
	return drawn
}
