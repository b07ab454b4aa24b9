package bench

import (
	"context"
	"fmt"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine"
	"github.com/perdure/perdure/internal/server/engine/dispatch"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/engine/rules"
)

// BenchmarkPollBesidePauses measures a poll that finds nothing, with and without paused queues. Such
// polls are the ones that pauses could make dearer: a grant costs a write. The last case has a thousand
// runs in the queue, which a poll must not visit.
func BenchmarkPollBesidePauses(b *testing.B) {
	ctx := context.Background()
	pause := func(b *testing.B, e *engine.Engine, t perdure.TenantID, queue string) {
		b.Helper()
		if err := e.Do(ctx, &rules.PauseQueue{Tenant: t, Queue: queue}); err != nil {
			b.Fatal(err)
		}
	}
	for _, c := range []struct {
		name string
		make func(*testing.B, *engine.Engine)
	}{
		{"never paused", func(*testing.B, *engine.Engine) {}},
		{"resumed", func(b *testing.B, e *engine.Engine) {
			pause(b, e, tenant, "other")
			if err := e.Do(ctx, &rules.ResumeQueue{Tenant: tenant, Queue: "other"}); err != nil {
				b.Fatal(err)
			}
		}},
		{"100 other queues paused", func(b *testing.B, e *engine.Engine) {
			for i := range perdure.MaxPauses {
				pause(b, e, tenant, fmt.Sprint("other", i))
			}
		}},
		{"paused with 1000 runs", func(b *testing.B, e *engine.Engine) {
			pause(b, e, tenant, perdure.DefaultQueue)
			ops := make([]kernel.Op, 1000)
			for i := range ops {
				ops[i] = &life.Submit{Tenant: tenant, Submission: perdure.Submission{Kind: "job", Input: input}}
			}
			for _, err := range e.Step(e.Store().Now(), ops...) {
				if err != nil {
					b.Fatal(err)
				}
			}
		}},
	} {
		b.Run(c.name, func(b *testing.B) {
			e := open(b)
			c.make(b, e)
			b.ReportAllocs()
			for b.Loop() {
				poll := &dispatch.Claim{Tenant: tenant, Worker: "w", Slots: 1}
				if err := e.Do(ctx, poll); err != nil || len(poll.Grants) > 0 {
					b.Fatalf("%d grants, error %v, want none", len(poll.Grants), err)
				}
			}
		})
	}
}
