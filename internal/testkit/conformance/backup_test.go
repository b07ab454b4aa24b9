package conformance

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/dispatch"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/engine/upkeep"
	"github.com/perdure/perdure/internal/server/store"
	"github.com/perdure/perdure/internal/testkit/storetest"
)

// kinds are the stores that a backup is made of and restored into.
var kinds = map[string]func(t *testing.T) store.Options{
	"SQLite": func(t *testing.T) store.Options {
		return store.Options{Path: filepath.Join(t.TempDir(), "perdure.db")}
	},
	"PostgreSQL": func(t *testing.T) store.Options { return store.Options{URL: storetest.Postgres(t)} },
}

// eachWay has a test go from every kind of store to every kind.
func eachWay(t *testing.T, test func(t *testing.T, from, to store.Options)) {
	for from, a := range kinds {
		for to, b := range kinds {
			t.Run(from+" to "+to, func(t *testing.T) { test(t, a(t), b(t)) })
		}
	}
}

func backup(t *testing.T, s *store.Store) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "backup")
	if _, err := s.Backup(context.Background(), path, nil); err != nil {
		t.Fatal(err)
	}
	return path
}

// restored is a world over what a backup was restored into.
func restored(t *testing.T, path string, to store.Options) *World {
	t.Helper()
	s := storetest.Open(t, to)
	policy := perdure.DefaultPolicy()
	if err := (&upkeep.Restoring{Store: s, Policy: &policy}).Do(context.Background(), path); err != nil {
		t.Fatal(err)
	}
	storetest.Check(t, s)
	w := NewWorld(t, s)
	w.n = 1000 // what it says is not what was said before
	return w
}

func (w *World) dump(t *testing.T, without ...string) (out []string) {
	w.view(func(v *store.View) (err error) { out, err = storetest.Dump(v, "", without...); return err })
	return out
}

// A restore ends the leases of the backup, and those that the lost store has granted since. No run loses an attempt.
func TestLeasesOfALostStoreAreRefused(t *testing.T) {
	eachWay(t, func(t *testing.T, from, to store.Options) {
		w := NewWorld(t, storetest.Open(t, from))
		running, waiting := w.task(), perdure.Run{}
		g := w.take("before")
		w.commit(g, perdure.Commit{Journal: []perdure.JournalEntry{{Key: "step", Value: json.RawMessage(`"kept"`)}}})
		asleep := w.submit(perdure.Submission{Kind: "asleep"})
		s := w.takeKind("asleep")
		w.commit(s, perdure.Commit{Waits: []perdure.WaitSpec{{ID: "go", Type: perdure.WaitSignal, Name: "go",
			Timeout: perdure.Never}}, Outcome: suspend})
		w.do(&life.Submit{Tenant: tenant, Key: "once", Submission: perdure.Submission{Kind: "later", Queue: "aside"}})
		waiting = w.task()
		stopping := w.submit(perdure.Submission{Kind: "stopping"})
		stop := w.takeKind("stopping")
		w.do(&life.Cancel{Tenant: tenant, RunID: stopping.ID})
		told := w.submit(perdure.Submission{Kind: "told"})
		w.commit(w.takeKind("told"), perdure.Commit{Waits: []perdure.WaitSpec{{ID: "go", Type: perdure.WaitSignal,
			Name: "go", Timeout: perdure.Never}}, Outcome: suspend})
		w.do(&life.Signal{Tenant: tenant, RunID: told.ID, Name: "go"})
		w.check(len(w.takeKind("told").Inbox) == 1, "the signal is handed over")
		path := backup(t, w.S)

		lost := w.take("after") // what happens from here on is lost
		w.check(lost.Run.ID == waiting.ID, "%s", lost.Run.ID)
		w.commit(g, perdure.Commit{Events: []perdure.Emitted{{Type: "x:lost", Data: json.RawMessage(`1`)}}})

		v := restored(t, path, to)
		v.Now = max(v.Now, w.Now)
		for _, old := range []dispatch.Grant{g, lost, s, stop} {
			v.refuseLease(perdure.CodeStaleEpoch, old)
		}
		op := v.commitOf(lost, perdure.Commit{Outcome: done(`"late"`)})
		v.do(op)
		v.check(op.Refused != nil && op.Refused.Code == perdure.CodeStaleEpoch, "%+v", op.Refused)
		v.check(len(v.lates(waiting.ID)) == 1, "the result is kept beside the run")

		v.state(running.ID, perdure.Queued)
		v.state(waiting.ID, perdure.Queued)
		v.state(asleep.ID, perdure.Suspended)
		again := &life.Submit{Tenant: tenant, Key: "once", Submission: perdure.Submission{Kind: "later",
			Queue: "aside"}}
		v.do(again)
		v.check(!again.Created, "a key is known as before")
		v.do(&life.Signal{Tenant: tenant, RunID: asleep.ID, Name: "go"})
		v.state(asleep.ID, perdure.Queued)
		for _, r := range []perdure.Run{running, waiting} {
			n := v.takeKind("job")
			v.check(n.Run.ID == r.ID && n.Run.Attempt == 1 && n.Run.Epoch>>41 == 1 && n.Run.Epoch < 1<<53, "%s %d %d",
				n.Run.ID, n.Run.Attempt, n.Run.Epoch)
			if r.ID == running.ID {
				v.check(len(n.Journal) == 1 && n.Journal[0].Key == "step", "what it did is kept: %v", n.Journal)
			}
			v.commit(n, perdure.Commit{Outcome: done(`1`)})
		}
		v.check(len(v.takeKind("told").Inbox) == 1, "what was handed over is handed over again")
		v.pass(2 * time.Minute)
		v.ended(stopping.ID, perdure.Cancelled, perdure.CodeCancelled)
		v.fsck()
		v.view(func(x *store.View) error {
			n, err := x.Generation()
			v.check(n == 1, "generation %d", n)
			return err
		})
	})
}

// A single attempt that was leased when the backup was made may have been executed since. It is not granted
// again, and ends. One that was queued is granted.
func TestSingleAttemptsOfALostStoreAreNotRepeated(t *testing.T) {
	eachWay(t, func(t *testing.T, from, to store.Options) {
		w := NewWorld(t, storetest.Open(t, from))
		var leased []perdure.Run
		for _, heard := range []bool{true, false} {
			for _, promise := range []bool{true, false} {
				leased = append(leased, w.single(perdure.Task))
				if g := w.ask("before", false, promise)[0]; heard {
					w.beat(g)
				}
			}
		}
		queued := w.single(perdure.Agent)
		v := restored(t, backup(t, w.S), to)
		v.Now = max(v.Now, w.Now)
		g := v.ask("after", true, true)
		v.check(len(g) == 1 && g[0].Run.ID == queued.ID, "%+v", g)
		v.complete(g[0], `1`)
		v.nobodyGets(2 * v.E.Policy().Lease)
		for _, r := range leased {
			v.ended(r.ID, perdure.Failed, perdure.CodeOutcomeUnknown)
		}
		v.fsck()
	})
}

// The leases of a backup end with its restore, and their slots with them. Nothing is counted twice.
func TestRestoredLimitCountsItsLeases(t *testing.T) {
	eachWay(t, func(t *testing.T, from, to store.Options) {
		w := NewWorld(t, storetest.Open(t, from))
		w.limit("l", slots(2), false)
		for range 5 {
			w.under("", "l")
		}
		w.check(len(w.poll("w1", 5)) == 2, "two runs are leased")

		v := restored(t, backup(t, w.S), to)
		v.Now = max(v.Now, w.Now)
		v.sweep()
		for left := int64(5); left > 0; left -= 2 {
			grants := v.poll("w2", 5)
			v.check(int64(len(grants)) == min(2, left), "%d of %d runs are leased", len(grants), left)
			v.leases("l", "", min(2, left), max(0, left-2))
			for _, g := range grants {
				v.complete(g, `1`)
			}
		}
		v.leases("l", "", 0, 0)
	})
}

// The same backup, restored twice: what was granted in between is refused too. A backup of what was restored is of the
// next generation.
// Instants between the backup and the restore may have fired in the store that was lost.
func TestRestoredScheduleFiresNoInstantTwice(t *testing.T) {
	eachWay(t, func(t *testing.T, from, to store.Options) {
		from.Hooks.Clock = func() perdure.Instant { return dawn }
		to.Hooks.Clock = func() perdure.Instant { return dawn.Add(4*time.Minute + 30*time.Second) }
		w := NewWorld(t, storetest.Open(t, from))
		w.plan("tick", every(time.Minute))
		w.pass(time.Minute)
		path := backup(t, w.S)
		w.pass(3 * time.Minute)

		after := restored(t, path, to)
		after.pass(2 * time.Minute)
		var got []int
		for _, r := range after.runsOf("tick") {
			got = append(got, int(r.Options.Firing.For.Sub(dawn)/time.Minute))
		}
		row := after.schedule("tick")
		if want := []int{6, 5, 1}; !slices.Equal(got, want) || row.Missed != 3 || row.FloorAt != 0 {
			t.Errorf("minutes with a run after the restore = %v, %d missed, want %v and 3 missed", got, row.Missed,
				want)
		}
	})
}

func TestEveryRestoreIsATimeLineOfItsOwn(t *testing.T) {
	for name, at := range kinds {
		t.Run(name, func(t *testing.T) {
			w := NewWorld(t, storetest.Open(t, at(t)))
			w.task()
			first := backup(t, w.S)
			a := restored(t, first, at(t))
			g := a.take("a")
			b := restored(t, first, at(t))
			b.Now = max(a.Now, b.Now)
			h := b.take("b")
			b.check(g.Run.Epoch != h.Run.Epoch, "both are %d", g.Run.Epoch)
			b.refuseLease(perdure.CodeStaleEpoch, g)
			c := restored(t, backup(t, b.S), at(t))
			c.Now = max(b.Now, c.Now)
			c.refuseLease(perdure.CodeStaleEpoch, h)
			n := c.take("c")
			c.check(n.Run.Epoch>>41 == 2 && n.Run.Attempt == 1, "%d", n.Run.Epoch)
		})
	}
}

// The later of two restores of one backup has the greater epochs, however much later it is, so that no
// worker gets an epoch that it had before.
func TestEpochsRiseWithEveryRestore(t *testing.T) {
	w := NewWorld(t, storetest.Open(t, store.Options{}))
	r := w.task()
	path, start, last := backup(t, w.S), perdure.At(time.Now()), int64(0)
	for i, after := range []time.Duration{0, 18 * time.Minute, 36 * time.Minute, 54 * time.Minute, 300 * 24 * time.Hour,
		50 * 365 * 24 * time.Hour} {
		to := kinds[[]string{"SQLite", "PostgreSQL"}[i%2]](t)
		to.Hooks.Clock = func() perdure.Instant { return start.Add(after) }
		epoch := restored(t, path, to).get(r.ID).Epoch
		if epoch < last+1000 || epoch >= 1<<53 {
			t.Errorf("%d after %s, and %d before", epoch, after, last)
		}
		last = epoch
	}
}

// The worker of a restore that is lost too may have a greater epoch than any of this store: its work is kept all the
// same.
func TestWorkUnderAnUnknownEpochIsKept(t *testing.T) {
	for name, at := range kinds {
		t.Run(name, func(t *testing.T) {
			before := NewWorld(t, storetest.Open(t, at(t)))
			r := before.task()
			w := restored(t, backup(t, before.S), at(t))
			w.Now = max(w.Now, before.Now)
			g := w.take("a")
			g.Run.Epoch += 1000
			op := w.commitOf(g, perdure.Commit{Outcome: done(`"late"`)})
			w.do(op)
			w.check(op.Refused != nil && op.Refused.Code == perdure.CodeStaleEpoch, "%+v", op.Refused)
			kept := w.lates(r.ID)
			w.check(len(kept) == 1 && kept[0].Attempt == 0, "%+v", kept)
			w.fsck()
		})
	}
}

// A backup restores the rows of each scenario as they were, on either store, but for leases. The slots of limits
// are counted again, because a restore ends the leases that had them.
func TestABackupIsWholeAfterEveryScenario(t *testing.T) {
	for i, s := range Scenarios() {
		if i%24 != 0 && !strings.Contains(s.Name, "artifact") { // the restores of all of them take long
			continue
		}
		t.Run(s.Name, func(t *testing.T) {
			w := NewWorld(t, storetest.Open(t, store.Options{}))
			s.Run(w)
			before := w.dump(t, "runs", "events", "inbox", "limit_keys")
			v := restored(t, backup(t, w.S), kinds[[]string{"SQLite", "PostgreSQL"}[i/24%2]](t))
			v.fsck()
			// The restore itself is in the audit log.
			after := slices.DeleteFunc(v.dump(t, "runs", "events", "inbox", "limit_keys"), func(row string) bool {
				return strings.HasPrefix(row, "audit ") && strings.Contains(row, `action="restore"`)
			})
			for i := range max(len(before), len(after)) {
				if i >= len(before) || i >= len(after) || before[i] != after[i] {
					t.Fatalf("they part at line %d:\n%v\n%v", i+1, before[min(i, len(before)):min(i+2, len(before))],
						after[min(i, len(after)):min(i+2, len(after))])
				}
			}
		})
	}
}

func TestABackupGoesIntoAnEmptyStoreOnly(t *testing.T) {
	policy := perdure.DefaultPolicy()
	for name, at := range kinds {
		t.Run(name, func(t *testing.T) {
			w := NewWorld(t, storetest.Open(t, at(t)))
			w.task()
			path := backup(t, w.S)
			before := w.fingerprint()
			err := (&upkeep.Restoring{Store: w.S, Policy: &policy}).Do(context.Background(), path)
			if err == nil || !strings.Contains(err.Error(), "not empty") {
				t.Errorf("%v", err)
			}
			w.check(w.fingerprint() == before, "it has changed")

			ctx, cancel := context.WithCancel(context.Background())
			empty := storetest.Open(t, at(t))
			err = (&upkeep.Restoring{Store: empty, Policy: &policy,
				Told: func(store.Copied) { cancel() }}).Do(ctx, path)
			if !errors.Is(err, context.Canceled) {
				t.Errorf("%v", err)
			}
			// Half a restore is none: it can be tried again.
			if err := (&upkeep.Restoring{Store: empty, Policy: &policy}).Do(context.Background(), path); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestWhatIsNoBackupIsRefused(t *testing.T) {
	policy := perdure.DefaultPolicy()
	w := NewWorld(t, storetest.Open(t, kinds["SQLite"](t)))
	for range 50 {
		w.task()
	}
	w.submit(perdure.Submission{Kind: "job", Input: json.RawMessage(`"precious"`)})
	good := backup(t, w.S)
	if info, err := os.Stat(good); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info.Mode(), err)
	}
	if _, err := w.S.Backup(context.Background(), good, nil); !errors.Is(err, os.ErrExist) {
		t.Errorf("a file that is there already: %v", err)
	}
	text, err := os.ReadFile(good)
	if err != nil {
		t.Fatal(err)
	}
	damaged := slices.Clone(text)
	for i := len(damaged) / 2; i < len(damaged)/2+4096; i++ {
		damaged[i] ^= 0x5a
	}
	store0 := kinds["SQLite"](t)
	storetest.Open(t, store0).Close()
	plain, err := os.ReadFile(store0.Path)
	if err != nil {
		t.Fatal(err)
	}
	// These changes keep the file readable for SQLite.
	input, clock := bytes.Replace(text, []byte("precious"), []byte("precioux"), 1),
		bytes.Replace(text, []byte(`clock1`), []byte(`clock2`), 1)
	if bytes.Equal(input, text) || bytes.Equal(clock, text) {
		t.Fatal("the backup does not look as it did")
	}
	for name, content := range map[string][]byte{"nothing": nil, "a text": []byte("hello"),
		"half of one": text[:len(text)/2/4096*4096], "a damaged one": damaged, "a store": plain,
		"one with another input": input, "one with another clock": clock,
		"one without its last byte": text[:len(text)-1], "one with a byte more": append(slices.Clone(text), 0),
		"one without its seal": text[:len(text)/4096*4096]} {
		for store, at := range kinds {
			t.Run(name+" to "+store, func(t *testing.T) {
				path := filepath.Join(t.TempDir(), "file")
				if err := os.WriteFile(path, content, 0o600); err != nil {
					t.Fatal(err)
				}
				to := at(t)
				s := storetest.Open(t, to)
				if err := (&upkeep.Restoring{Store: s, Policy: &policy}).Do(context.Background(), path); err == nil ||
					!strings.Contains(err.Error(), "backup") {
					t.Errorf("it is restored: %v", err)
				}
				if to.Path == "" {
					return
				}
				left, _ := filepath.Glob(filepath.Join(filepath.Dir(to.Path), ".perdure-restore*"))
				if len(left) > 0 {
					t.Errorf("it leaves %v", left)
				}
			})
		}
	}
	_, err = store.Open(store.Options{Path: good})
	if err == nil || !strings.Contains(err.Error(), "perdure restore") {
		t.Errorf("a backup is served: %v", err)
	}
}

// A process that was queued when the backup was made, and granted afterwards, is found by its files.
// Its log has a grant before the start, as that of every run.
func TestProcessGrantedAfterTheBackupIsFound(t *testing.T) {
	storetest.OnBoth(t, func(t *testing.T, at store.Options) {
		w := node(t, at)
		w.submit(perdure.Submission{Kind: "exec", Queue: "pool", Class: perdure.Process, MaxAttempts: 1})
		path := backup(t, w.S)
		claim := &dispatch.Claim{Tenant: tenant, Worker: "w", Queues: []string{"pool"}, Slots: 1, Start: true}
		w.do(claim)
		former := claim.Grants[0].Run
		to := store.Options{Memory: storetest.Memory(t)}
		if at.URL != "" {
			to = store.Options{URL: storetest.Postgres(t)}
		}
		to.Hooks.Clock = func() perdure.Instant { return dawn }
		v := restored(t, path, to)
		v.Now = max(v.Now, w.Now)
		found := &life.ReadoptProcess{Tenant: tenant, RunID: former.ID, Former: former.Epoch, For: time.Minute}
		v.do(found)
		log := v.lines(former.ID)
		if state, ok := perdure.Fold(log); !ok || state != perdure.Running || found.Run.State != state {
			t.Errorf("run %s is %s, and its log %v says %s (allowed %t); want running", former.ID, found.Run.State,
				v.types(former.ID), state, ok)
		}
		v.commit(dispatch.Grant{Run: found.Run}, perdure.Commit{Outcome: done(`1`)})
		v.state(former.ID, perdure.Completed)
		v.fsck()
	})
}
