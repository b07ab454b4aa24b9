// Package bench measures the core on a real file, with every write durable before it is
// acknowledged (synchronous=FULL). It has no targets: figures depend on the disk, so compare runs
// on one machine. Run it with "make microbench".
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
	"github.com/perdure/perdure/internal/server/engine"
	"github.com/perdure/perdure/internal/server/engine/dispatch"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/store"
	"github.com/perdure/perdure/internal/server/watchdog"
)

const (
	tenant  = "bench"
	callers = 64 // concurrent callers
)

var input = json.RawMessage(`{"alert":"the disk is full","host":"cube"}`)

// open returns an engine on a new file.
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

// parallel calls f from many goroutines, b.N times in all, and reports the calls per second.
func parallel(b *testing.B, unit string, f func(caller int) error) {
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

// BenchmarkSubmit measures a submit.
func BenchmarkSubmit(b *testing.B) {
	e := open(b)
	parallel(b, "runs", func(int) error {
		return e.Do(context.Background(),
			&life.Submit{Tenant: tenant, Submission: perdure.Submission{Kind: "job", Input: input}})
	})
}

// BenchmarkWholeLife measures a run that is submitted, granted and started in one poll, and
// completed: three durable writes and four lines of log.
func BenchmarkWholeLife(b *testing.B) {
	e := open(b)
	ctx := context.Background()
	parallel(b, "lives", func(caller int) error {
		if err := e.Do(ctx, &life.Submit{Tenant: tenant,
			Submission: perdure.Submission{Kind: "job", Input: input}}); err != nil {
			return err
		}
		worker := fmt.Sprintf("w%d", caller)
		poll := &dispatch.Claim{Tenant: tenant, Worker: worker, Kinds: []string{"job"}, Slots: 1, Start: true}
		if err := e.Do(ctx, poll); err != nil {
			return err
		}
		// Each caller submits one run and takes one, perhaps another one, so a poll always finds a
		// run.
		if len(poll.Grants) != 1 {
			return fmt.Errorf("%d grants, want 1", len(poll.Grants))
		}
		g := poll.Grants[0].Run
		return e.Do(ctx, &life.Commit{Tenant: tenant, Worker: worker,
			Commit: perdure.Commit{ID: "c", RunID: g.ID, Epoch: g.Epoch,
				Outcome: &perdure.Outcome{Type: perdure.OutcomeComplete, Result: json.RawMessage(`{"ok":true}`)}}})
	})
}

// BenchmarkIdleSweep measures a sweep with many live runs and nothing due.
func BenchmarkIdleSweep(b *testing.B) {
	const live = 10_000
	e := open(b)
	for done := 0; done < live; {
		ops := make([]kernel.Op, 0, 250)
		for range 250 {
			ops = append(ops, &life.Submit{Tenant: tenant,
				Submission: perdure.Submission{Kind: "job", Class: perdure.Agent, Input: input,
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
			b.Fatalf("idle sweep did %+v, want no action", sweep.Actions[0])
		}
	}
}
