package sentinel

import (
	"fmt"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/process/jobdir"
	"github.com/perdure/perdure/internal/server/engine/dispatch"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/testkit/storetest"
)

// benchWorld has n live processes and ended folders beside them.
func benchWorld(b *testing.B, n, ended int) (*world, []*proc) {
	b.Helper()
	w := newWorld(b, storetest.OnDisk(b))
	var procs []*proc
	for range n {
		procs = append(procs, w.start())
	}
	for i := range ended {
		d, err := jobdir.Of(w.workspace, fmt.Sprintf("00000000-0000-7000-8000-%012x", i))
		w.ok(err)
		w.ok(d.Create())
		// Played: a run of this id would take a minute to make for all of them.
		w.m.jobs[d.ID] = &job{known: true, wasKnown: true, state: perdure.Completed, finished: w.e.Now(),
			checked: 1 << 30}
	}
	for _, p := range procs {
		if p.lock == nil {
			b.Fatal("no lock")
		}
	}
	w.scan()
	return w, procs
}

// BenchmarkScan2000Live looks at 2 000 processes, half of which have beaten since the last scan, beside
// 100 000 folders of ended runs.
func BenchmarkScan2000Live(b *testing.B) {
	for _, ended := range []int{0, 100_000} {
		b.Run(fmt.Sprintf("ended=%d", ended), func(b *testing.B) {
			w, procs := benchWorld(b, 2000, ended)
			b.ResetTimer()
			var look time.Duration
			for i := range b.N {
				b.StopTimer()
				for k := i % 2; k < len(procs); k += 2 {
					procs[k].write()
				}
				b.StartTimer()
				look += w.m.Scan(b.Context())
			}
			b.ReportMetric(float64(look.Milliseconds())/float64(b.N), "ms/scan")
		})
	}
}

// BenchmarkSweep100000Jobs reads the tiers of 100 000 live processes, and sweeps with nothing due.
func BenchmarkSweep100000Jobs(b *testing.B) {
	w := newWorld(b, storetest.OnDisk(b))
	const n = 100_000
	for from := 0; from < n; from += 1000 {
		ops := make([]kernel.Op, 1000)
		for i := range ops {
			ops[i] = &life.Submit{Tenant: "acme", Submission: perdure.Submission{Kind: "exec",
				Class: perdure.Process}}
		}
		for _, err := range w.e.DoAll(b.Context(), ops...) {
			w.ok(err)
		}
		claim := &dispatch.Claim{Tenant: "acme", Worker: "runner", Queues: []string{"default"}, Slots: 1000,
			Start: true}
		w.ok(w.e.Do(b.Context(), claim))
		beat := &life.Heartbeat{Tenant: "acme", Worker: "runner"}
		for _, g := range claim.Grants {
			beat.Beats = append(beat.Beats, life.BeatOf{Lease: life.Lease{RunID: g.Run.ID, Epoch: g.Run.Epoch}})
		}
		w.ok(w.e.Do(b.Context(), beat))
	}
	b.Run("sweep", func(b *testing.B) {
		for range b.N {
			w.ok(w.e.Do(b.Context(), w.dog.Pass()))
		}
	})
	b.Run("tiers", func(b *testing.B) {
		for range b.N {
			list, err := w.e.Processes.Ages(b.Context())
			if w.ok(err); len(list) == 0 {
				b.Fatal("no processes")
			}
		}
	})
}

// BenchmarkWriteSentinel writes a heartbeat.
func BenchmarkWriteSentinel(b *testing.B) {
	w := newWorld(b, storetest.Options(b))
	p := w.start()
	b.ResetTimer()
	for range b.N {
		p.write()
	}
}
