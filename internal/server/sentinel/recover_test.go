package sentinel

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/process/jobdir"
	"github.com/perdure/perdure/internal/server/engine/dispatch"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/store"
	"github.com/perdure/perdure/internal/testkit/eventually"
	"github.com/perdure/perdure/internal/testkit/storetest"
)

// recover starts another server and has it recover.
func (w *world) recover() {
	w.t.Helper()
	w.restart(Options{})
	w.m.Recover(w.t.Context())
}

// said tells whether the startup log has a line about a job.
func (w *world) said(id, text string) bool {
	lines, _, _ := w.m.Startup(0, 1000)
	for _, l := range lines {
		if l.JobID == id && strings.Contains(l.Message, text) {
			return true
		}
	}
	return false
}

func TestStartAdoptsWatchesAndGivesUp(t *testing.T) {
	storetest.OnBoth(t, func(t *testing.T, at store.Options) {
		w := newWorld(t, at)
		alive, done, gone := w.start(), w.start(), w.start()
		done.finish("bye", "")
		done.die()
		gone.die()
		w.recover()
		done.wants(perdure.Completed)
		gone.wants(perdure.Failed)
		if r := alive.wants(perdure.Running); r.WatchUntil == 0 {
			t.Error("a process whose lock is held is not watched")
		}
		if s := w.m.Status(); s.State != RecoveryWatching || s.Watched != 1 || s.Adopted != 1 || s.Dead != 1 {
			t.Errorf("recovery = %+v, want one each, and watching", s)
		}
		alive.write()
		w.scan()
		w.scan() // the one after the sign of life was written
		if r := alive.wants(perdure.Running); r.WatchUntil != 0 {
			t.Error("a process that was heard from is still watched")
		}
		if n := alive.count(perdure.LineProcessReattached); n != 1 {
			t.Errorf("%d lines of a re-attached process, want one", n)
		}
		if s := w.m.Status(); s.State != RecoveryFinished || s.Reattached != 1 || s.FinishedAt == 0 {
			t.Errorf("recovery = %+v, want it finished with one re-attached", s)
		}
		for id, text := range map[string]string{alive.dir.ID: "re-attached", done.dir.ID: "adopted",
			gone.dir.ID: "dead"} {
			if !w.said(id, text) {
				lines, _, _ := w.m.Startup(0, 100)
				t.Errorf("startup log lacks %q for %s: %+v", text, id, lines)
			}
		}
		for _, p := range []*proc{done, gone} {
			if n := p.count(perdure.LineProcessReattached); n != 0 {
				t.Errorf("run %s, which had ended: %d lines of a re-attached process", p.run.ID, n)
			}
		}
	})
}

// TestTwoHoursAway has no server for two hours while the processes go on, and are slow to be heard.
func TestProcessOutlivesAServerThatWasAwayForTwoHours(t *testing.T) {
	w := newWorld(t, store.Options{Memory: storetest.Memory(t)})
	heard, silent, hung := w.start(), w.start(), w.start()
	w.sweep()
	w.skipped.Add(int64(2 * time.Hour))
	heard.write()
	w.recover()
	for i := range 22 {
		w.pass(15 * time.Second)
		if i == 5 {
			silent.beat() // over HTTP: it writes no file
		}
		if i%2 == 0 {
			heard.write()
		}
		w.scan()
		if i < 18 {
			hung.wants(perdure.Running)
		}
	}
	heard.wants(perdure.Running)
	silent.wants(perdure.Running)
	if r := hung.wants(perdure.Failed); r.Failure.Code != perdure.CodeHeartbeatLost {
		t.Errorf("failure = %+v, want heartbeat_lost once it was watched for five minutes", r.Failure)
	}
	for _, p := range []*proc{heard, silent} {
		if n := p.count(perdure.LineProcessReattached); n != 1 {
			t.Errorf("run %s: %d lines of a re-attached process, want one", p.run.ID, n)
		}
	}
	w.scan()
	if s := w.m.Status(); s.Reattached != 2 || s.Dead != 1 || s.State != RecoveryFinished {
		t.Errorf("recovery = %+v, want two re-attached and one dead", s)
	}
}

// TestOldHeartbeatWithAReplacedLockIsNotWatched: the lock tells nothing, and the heartbeat is old.
func TestOldHeartbeatWithAReplacedLockIsNotWatched(t *testing.T) {
	w := newWorld(t, store.Options{Memory: storetest.Memory(t)})
	old, young := w.start(), w.start()
	w.skipped.Add(int64(31 * time.Minute))
	young.write()
	for _, p := range []*proc{old, young} {
		p.die()
		w.ok(os.Remove(filepath.Join(p.dir.Path, jobdir.LockFile)))
	}
	w.recover()
	if r := old.wants(perdure.Running); r.WatchUntil != 0 {
		t.Error("a process with a heartbeat of 31 minutes ago is watched")
	}
	if r := young.wants(perdure.Running); r.WatchUntil == 0 {
		t.Error("a process with a young heartbeat is not watched")
	}
}

// TestOlderEpochChangesNothing has two runners for one run.
func TestOlderEpochChangesNothing(t *testing.T) {
	w := newWorld(t, store.Options{Memory: storetest.Memory(t)})
	p := w.startFor("acme", 3)
	p.finish("of the first", "")
	w.ok(w.e.Do(t.Context(), &life.LoseProcess{Tenant: "acme", RunID: p.run.ID, Epoch: p.run.Epoch,
		Since: w.e.Now()}))
	p.wants(perdure.Queued)
	w.pass(10 * time.Minute)
	claim := &dispatch.Claim{Tenant: "acme", Worker: "second", Runs: []perdure.RunID{p.run.ID}, Slots: 1, Start: true}
	w.ok(w.e.Do(t.Context(), claim))
	if len(claim.Grants) != 1 {
		t.Fatalf("%d grants, want the second attempt", len(claim.Grants))
	}
	p.write()
	p.die()
	for range 3 {
		w.scan()
	}
	r := p.wants(perdure.Running)
	if r.Counter != 0 || r.Epoch != claim.Grants[0].Run.Epoch {
		t.Errorf("run = epoch %d with count %d, want the second attempt untouched", r.Epoch, r.Counter)
	}
	if got := p.output(jobdir.Stdout); got != "" {
		t.Errorf("output of the first attempt is in the log: %q", got)
	}
}

// TestWatchedProcessThatDiesIsNotReattached copies its output, which is no sign of its life.
func TestWatchedProcessThatDiesIsNotReattached(t *testing.T) {
	w := newWorld(t, store.Options{Memory: storetest.Memory(t)})
	p := w.start()
	f, err := p.dir.OpenOutput(jobdir.Stdout)
	w.ok(err)
	_, err = f.WriteString("last words")
	w.ok(err)
	f.Close()
	w.recover()
	p.die()
	w.scan()
	w.scan()
	p.wants(perdure.Failed)
	if n := p.count(perdure.LineProcessReattached); n != 0 {
		t.Errorf("%d lines of a re-attached process, want none", n)
	}
	w.scan()
	if s := w.m.Status(); s.Dead != 1 || s.Reattached != 0 || s.State != RecoveryFinished {
		t.Errorf("recovery = %+v, want one dead", s)
	}
}

// TestSecondServerLeavesAWorkspaceAlone starts two servers on one workspace, by mistake.
func TestSecondServerLeavesAWorkspaceAlone(t *testing.T) {
	w := newWorld(t, store.Options{Memory: storetest.Memory(t)})
	p := w.start()
	p.finish("done", "")
	p.die()
	first, err := jobdir.Own(w.workspace)
	w.ok(err)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	w.m.opt.Scan = 10 * time.Millisecond
	ended := make(chan error, 1)
	go func() { ended <- w.m.Run(ctx) }()
	<-w.m.Recovered()
	if s := w.m.Status().State; s != RecoveryElsewhere {
		t.Errorf("state of the recovery = %s, want %s", s, RecoveryElsewhere)
	}
	p.wants(perdure.Running)
	w.ok(first.Close())
	eventually.True(t, "the second server has adopted the result", func() bool {
		return p.now().State == perdure.Completed
	})
	stop()
	w.ok(<-ended)
}
