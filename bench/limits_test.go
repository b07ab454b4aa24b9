package bench

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/dispatch"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/life"
)

// BenchmarkLimit compares lives of runs under no limit with lives under one that never binds, in batches as a
// drain makes them.
func BenchmarkLimit(b *testing.B) {
	for _, under := range []bool{false, true} {
		b.Run(map[bool]string{false: "none", true: "roomy"}[under], func(b *testing.B) {
			e := open(b)
			sub := perdure.Submission{Kind: "job", Input: input}
			if under {
				sub.Limits = []string{"l"}
			}
			step := func(ops ...kernel.Op) {
				for _, err := range e.Step(e.Store().Now(), ops...) {
					if err != nil {
						b.Fatal(err)
					}
				}
			}
			step(&life.PutLimit{Tenant: tenant, Name: "l", Values: perdure.LimitValues{Concurrency: 1_000_000}})
			const batch = 64
			begin := used(b)
			for b.Loop() {
				ops := make([]kernel.Op, batch)
				for i := range ops {
					ops[i] = &life.Submit{Tenant: tenant, Submission: sub}
				}
				step(ops...)
				poll := &dispatch.Claim{Tenant: tenant, Worker: "w", Kinds: []string{"job"}, Slots: batch, Start: true}
				step(poll)
				if len(poll.Grants) != batch {
					b.Fatalf("%d grants, want %d", len(poll.Grants), batch)
				}
				for i := range ops {
					g := poll.Grants[i].Run
					ops[i] = &life.Commit{Tenant: tenant, Worker: "w",
						Commit: perdure.Commit{ID: "c", RunID: g.ID, Epoch: g.Epoch, Outcome: &perdure.Outcome{
							Type: perdure.OutcomeComplete, Result: json.RawMessage(`{"ok":true}`)}}}
				}
				step(ops...)
			}
			b.ReportMetric(float64(used(b)-begin)/float64(time.Microsecond)/float64(b.N*batch), "cpu-µs/run")
		})
	}
}
