package sentinel

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/process/jobdir"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/store"
	"github.com/perdure/perdure/internal/testkit/storetest"
)

// The store fails in the scan that copies the rest of an ended run's output. A later scan copies it.
func TestRestOfTheOutputOutlastsAStoreThatFails(t *testing.T) {
	w := newWorld(t, store.Options{Memory: storetest.Memory(t)})
	p := w.start()
	f, err := p.dir.OpenOutput(jobdir.Stdout)
	w.ok(err)
	defer f.Close()
	w.scan()
	fmt.Fprintln(f, "written before the end")
	w.ok(w.e.Do(t.Context(), &life.Cancel{Tenant: "acme", RunID: p.run.ID, Reason: "enough"}))
	w.ok(w.e.Do(t.Context(), enforced{"acme", p.run.ID}))
	run := p.wants(perdure.Cancelled)
	run.Epoch--
	failing, cancel := context.WithCancel(t.Context())
	cancel()
	w.m.copyHung(failing, &task{dir: p.dir, run: run, ended: true}, time.Now().Add(time.Minute))
	for range checkEvery {
		w.scan()
	}
	if got := p.output(jobdir.Stdout); got != "written before the end\n" {
		t.Errorf("output = %q, want the rest, which the second try has copied", got)
	}
}

func TestErrorsAfterWhichTheRestIsCopiedLater(t *testing.T) {
	for _, x := range []struct {
		err  error
		want bool
	}{
		{nil, false}, {errLater, true}, {fmt.Errorf("job 1: %w", errStuck), false}, {context.Canceled, true},
		{perdure.Errorf(perdure.CodeUnavailable, "busy"), true},
		{perdure.Errorf(perdure.CodeStorageFull, "full"), true},
		{perdure.Errorf(perdure.CodeNotFound, "gone"), false}, {perdure.Errorf(perdure.CodeStaleEpoch, "late"), false},
	} {
		if got := temporary(x.err); got != x.want {
			t.Errorf("temporary(%v) = %v, want %v", x.err, got, x.want)
		}
	}
}

// A command truncates its output, and its runner is killed before it has seen that.
func TestTruncationThatTheRunnerHasNotSeenIsTold(t *testing.T) {
	storetest.OnBoth(t, func(t *testing.T, at store.Options) {
		w := newWorld(t, at)
		p, ended, whole := w.start(), w.start(), w.start()
		for _, x := range []*proc{p, ended, whole} {
			f, err := x.dir.OpenOutput(jobdir.Stdout)
			w.ok(err)
			defer f.Close()
			fmt.Fprint(f, "hello world")
			step, more, err := x.dir.NextOutput(x.run.Epoch, jobdir.Offsets{}, jobdir.Offsets{Stdout: 11}, false)
			if err != nil || !more {
				t.Fatalf("NextOutput = %v, %v", more, err)
			}
			w.ok(w.e.Do(t.Context(), &life.Commit{Tenant: "acme", Worker: "runner", Commit: step.Commit}))
			if x != whole {
				w.ok(f.Truncate(0))
				fmt.Fprint(f, "new")
			}
		}
		w.scan()
		w.ok(w.e.Do(t.Context(), &life.Cancel{Tenant: "acme", RunID: ended.run.ID, Reason: "enough"}))
		w.ok(w.e.Do(t.Context(), enforced{"acme", ended.run.ID}))
		p.die()
		whole.die()
		for range 6 {
			w.scan()
		}
		p.wants(perdure.Failed)
		ended.wants(perdure.Cancelled)
		for _, x := range []struct {
			p    *proc
			want int
		}{{p, 1}, {ended, 1}, {whole, 0}} {
			if n := x.p.count(jobdir.EventTruncated); n != x.want {
				t.Errorf("run %s: %d events of truncated output, want %d", x.p.run.ID, n, x.want)
			}
		}
		storetest.Check(t, w.e.Store())
	})
}
