package bench

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine"
	"github.com/perdure/perdure/internal/server/engine/dispatch"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/life"
)

// BenchmarkSteps measures 64 agents that record a step each, in one batch. They have recorded steps
// before.
func BenchmarkSteps(b *testing.B) { steps(b, open(b)) }

func steps(b *testing.B, e *engine.Engine) {
	const agents = 64
	step := func(ops []kernel.Op) {
		for _, err := range e.Step(e.Store().Now(), ops...) {
			if err != nil {
				b.Fatal(err)
			}
		}
	}
	ops := make([]kernel.Op, agents)
	for i := range ops {
		ops[i] = &life.Submit{Tenant: tenant,
			Submission: perdure.Submission{Kind: "job", Class: perdure.Agent, Input: input}}
	}
	step(ops)
	poll := &dispatch.Claim{Tenant: tenant, Worker: "w", Kinds: []string{"job"}, Slots: agents, Start: true}
	step([]kernel.Op{poll})
	n := 0
	record := func() {
		n++
		for i, g := range poll.Grants {
			ops[i] = &life.Commit{Tenant: tenant, Worker: "w",
				Commit: perdure.Commit{ID: fmt.Sprintf("c%d", n), RunID: g.Run.ID, Epoch: g.Run.Epoch,
					Journal: []perdure.JournalEntry{{Key: fmt.Sprintf("step#%d", n),
						Value: json.RawMessage(`{"ok":true}`)}}}}
		}
		step(ops)
	}
	record()
	record()
	b.ReportAllocs()
	for b.Loop() {
		record()
	}
	b.ReportMetric(float64(b.N*agents)/b.Elapsed().Seconds(), "steps/s")
}
