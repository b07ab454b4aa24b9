// Package bench measures the core on a real file, with every write durable before it is acknowledged
// (synchronous=FULL). It has no targets: figures depend on the disk, so compare runs on one machine.
// Run it with "make bench".
package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/engine"
	"github.com/perdure/perdure/internal/store"
	"github.com/perdure/perdure/internal/watchdog"
)

const (
	tenant  = "bench"
	callers = 64 // who call at once
)

var input = json.RawMessage(`{"alert":"the disk is full","host":"cube"}`)

// open makes an engine over a new file.
func open(b *testing.B) *engine.Engine {
	b.Helper()
	s, err := store.Open(store.Options{Path: filepath.Join(b.TempDir(), "perdure.db")})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { s.Close() })
	e, err := engine.New(s, engine.Options{})
	if err != nil {
		b.Fatal(err)
	}
	return e
}

// together calls f from many goroutines at once, b.N times in all, and reports how many calls a second.
func together(b *testing.B, unit string, f func(caller int) error) {
	b.Helper()
	b.SetParallelism(max(1, callers/runtime.GOMAXPROCS(0)))
	var next atomic.Int64
	b.ReportAllocs()
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		caller := int(next.Add(1))
		for pb.Next() {
			if err := f(caller); err != nil {
				b.Error(err)
				return
			}
		}
	})
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), unit+"/s")
}

// BenchmarkSubmit: a run is accepted.
func BenchmarkSubmit(b *testing.B) {
	e := open(b)
	together(b, "runs", func(int) error {
		return e.Do(context.Background(), &engine.Submit{Tenant: tenant, Submission: perdure.Submission{Kind: "job", Input: input}})
	})
}

// BenchmarkWholeLife: a run is accepted, granted and started in one poll, and completed. Three durable
// writes, four lines of log.
func BenchmarkWholeLife(b *testing.B) {
	e := open(b)
	ctx := context.Background()
	together(b, "lives", func(caller int) error {
		if err := e.Do(ctx, &engine.Submit{Tenant: tenant, Submission: perdure.Submission{Kind: "job", Input: input}}); err != nil {
			return err
		}
		worker := fmt.Sprintf("w%d", caller)
		poll := &engine.Claim{Tenant: tenant, Worker: worker, Kinds: []string{"job"}, Slots: 1, Start: true}
		if err := e.Do(ctx, poll); err != nil {
			return err
		}
		// Each caller submits one and takes one, so there is always one left to take: perhaps somebody else's.
		if len(poll.Grants) != 1 {
			return fmt.Errorf("%d grants, want 1", len(poll.Grants))
		}
		g := poll.Grants[0].Run
		return e.Do(ctx, &engine.Commit{Tenant: tenant, Worker: worker, Commit: perdure.Commit{ID: "c", RunID: g.ID, Epoch: g.Epoch,
			Outcome: &perdure.Outcome{Type: perdure.OutcomeComplete, Result: json.RawMessage(`{"ok":true}`)}}})
	})
}

// BenchmarkIdleSweep: the watchdog looks over many live runs of which none needs anything.
func BenchmarkIdleSweep(b *testing.B) {
	const live = 10_000
	e := open(b)
	for done := 0; done < live; {
		ops := make([]engine.Op, 0, 250)
		for range 250 {
			ops = append(ops, &engine.Submit{Tenant: tenant, Submission: perdure.Submission{Kind: "job", Class: perdure.Agent, Input: input,
				Delay: perdure.Duration(time.Hour)}})
		}
		for _, err := range e.Step(e.Store().Now(), ops...) {
			if err != nil {
				b.Fatal(err)
			}
		}
		done += len(ops)
	}
	w := watchdog.New(e, nil)
	b.ReportAllocs()
	for b.Loop() {
		sweep := w.Pass()
		if err := e.Step(e.Store().Now(), sweep)[0]; err != nil {
			b.Fatal(err)
		}
		if len(sweep.Actions) > 0 {
			b.Fatalf("the sweep did something: %+v", sweep.Actions[0])
		}
	}
}
