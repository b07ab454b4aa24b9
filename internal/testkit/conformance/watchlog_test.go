package conformance

import (
	"fmt"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/store"
	"github.com/perdure/perdure/internal/server/watchdog"
	"github.com/perdure/perdure/internal/testkit/storetest"
)

// watched gives the watchdog's log, newest first.
func (w *World) watched(f store.WatchFilter) (out []perdure.WatchdogAction) {
	w.t.Helper()
	if f.Limit == 0 {
		f.Limit = 1_000_000
	}
	w.view(func(v *store.View) (err error) { out, err = v.WatchLog.Page(f); return err })
	return out
}

// listed is something that a rule acts on, alone, two and a half minutes after dawn.
var listed = []struct {
	rule string
	set  func(w *World)
}{
	{"deadline", func(w *World) {
		w.submit(perdure.Submission{Kind: "x", Timeout: perdure.Duration(150 * time.Second)})
	}},
	{"group-deadline", func(w *World) {
		r := w.submit(perdure.Submission{Kind: "x", Timeout: perdure.Duration(time.Hour)})
		w.do(&life.CreateGroup{Tenant: tenant, Mode: perdure.ModeAll, RunIDs: []perdure.RunID{r.ID},
			Timeout: perdure.Duration(150 * time.Second)})
	}},
	{"ttl", func(w *World) {
		w.do(corrupt{"INSERT INTO idempotency (tenant,key,digest,ref,expires_at) VALUES (?,'k','','',?)",
			[]any{string(tenant), int64(dawn) + 150e6}})
	}},
	{"workers", func(w *World) {
		w.Now = dawn.Add(150*time.Second - w.E.Policy().WorkerOffline)
		w.poll("w1", 1)
	}},
	{"waiters", func(w *World) {
		r := w.submit(perdure.Submission{Kind: "x", Foreground: true, Timeout: perdure.Duration(time.Hour)})
		w.Now = dawn.Add(150*time.Second - w.E.Policy().WaiterTTL)
		w.do(&life.Attach{Tenant: tenant, Node: "gone", RunIDs: []perdure.RunID{r.ID}})
	}},
	{"log", func(w *World) { // whose time comes now, and a sweep looks at it at its first
		w.do(addWatched{[]perdure.WatchdogAction{{ID: fmt.Sprintf("%014x-00000000-00000000",
			int64(dawn.Add(150*time.Second-watchdog.LogAge)-1)), Rule: "W6", Name: "old"}}})
	}},
}

func TestTwoNodesThatSweepListAnActionOnce(t *testing.T) {
	for _, x := range listed {
		t.Run(x.rule, func(t *testing.T) {
			storetest.OnBoth(t, func(t *testing.T, at store.Options) {
				a, b, between := pair(t, at)
				x.set(b)
				due := dawn.Add(150 * time.Second)
				a.Now, b.Now = due, due
				between.f = func() { b.sweep() }
				a.sweep()
				if got := a.watched(store.WatchFilter{Rule: x.rule}); len(got) != 1 || len(a.Acted)+len(b.Acted) != 1 {
					t.Errorf("listed is %v, done by one %v, by the other %v", got, a.Acted, b.Acted)
				}
				if got := a.watched(store.WatchFilter{Rule: "old"}); len(got) != 0 {
					t.Errorf("%v", got)
				}
			})
		})
	}
}

func TestAWorkerThatSpeaksUpWhileItIsJudgedIsNotOffline(t *testing.T) {
	storetest.OnBoth(t, func(t *testing.T, at store.Options) {
		a, b, between := pair(t, at)
		b.poll("w1", 1)
		due := dawn.Add(b.E.Policy().WorkerOffline)
		a.Now, b.Now = due, due
		between.f = func() { b.poll("w1", 1) }
		a.sweep()
		if list := a.watched(store.WatchFilter{}); len(list) != 0 {
			t.Errorf("%v", list)
		}
		a.view(func(v *store.View) error {
			list, err := v.Workers.List(tenant)
			if len(list) != 1 || list[0].Offline || list[0].SeenAt != due {
				t.Errorf("%+v", list)
			}
			return err
		})
	})
}

func TestTheWatchdogsLogIsBounded(t *testing.T) {
	storetest.OnBoth(t, func(t *testing.T, at store.Options) {
		w := node(t, at)
		fill := func(n int, from perdure.Instant) {
			list := make([]perdure.WatchdogAction, n)
			for i := range list {
				when := from.Add(time.Duration(i) * time.Millisecond)
				list[i] = perdure.WatchdogAction{ID: fmt.Sprintf("%014x-%08x-00000000", int64(when), i), At: when,
					Rule: "W6", Name: "lost-worker"}
			}
			w.do(addWatched{list})
		}
		fill(1500, w.Now.Add(-watchdog.LogAge-time.Hour))
		w.sweep() // at the first sweep
		if list := w.watched(store.WatchFilter{Rule: "W6"}); len(list) != 0 {
			t.Errorf("%d entries are older than they are kept", len(list))
		}
		fill(watchdog.LogEntries+700, w.Now.Add(-time.Hour))
		w.Now = w.Now.Add(time.Hour)
		w.sweep()
		list := w.watched(store.WatchFilter{})
		if n := len(list); n > watchdog.LogEntries+10 || n < watchdog.LogEntries {
			t.Errorf("%d entries are kept", n)
		}
		if last := list[len(list)-1]; last.ID < fmt.Sprintf("%014x", int64(dawn.Add(-time.Hour))) {
			t.Errorf("the oldest were not removed first: %v", last)
		}
		removed := 0
		for _, a := range w.Acted {
			if a.Name == "log" {
				removed++
			}
		}
		if removed < 3 {
			t.Errorf("%d batches were removed: in one go?", removed)
		}
	})
}

type addWatched struct{ list []perdure.WatchdogAction }

func (addWatched) Needs() []store.Ref { return nil }

func (x addWatched) Do(tx *kernel.Tx) error {
	tx.DB.WatchLog.Add(x.list...)
	return nil
}
