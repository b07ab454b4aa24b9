package store

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/perdure/perdure"
)

// The recorded names of a run that this process has created are known without a query, and repeated
// names are still found.
func TestRecordedNamesAreCached(t *testing.T) {
	both(t, func(t *testing.T, at Options) {
		asked := make(map[string]int)
		at.Hooks.Wrap = func(s Conn) Conn { return &queryCounter{s, asked} }
		s := open(t, at)
		must(t, s, insert("x"))
		say := func(i int) {
			t.Helper()
			commit, key := fmt.Sprint("c", i), fmt.Sprint("s", i)
			must(t, s, lookupOp{look("x", commit, key), func(tx *Tx) error {
				if got, err := found(tx, "x", commit, key); err != nil || got != "/" {
					return fmt.Errorf("commit %s before it is recorded: found %q, want none: %w", commit, got, err)
				}
				return record(tx, "x", commit, key, "digest of "+key)
			}})
		}
		again := func(i int) {
			t.Helper()
			must(t, s, opFunc(func(tx *Tx) error {
				got, err := found(tx, "x", fmt.Sprint("c", i), fmt.Sprint("s", i))
				if want := fmt.Sprintf("c%d of x/digest of s%d", i, i); got != want {
					return fmt.Errorf("%q, want %q, %w", got, want, err)
				}
				return err
			}))
		}
		for i := range maxRecorded / 2 {
			say(i)
		}
		if asked["commits"]+asked["journal"] != 0 {
			t.Errorf("queries per table = %v, want none while the names are cached", asked)
		}
		for i := range maxRecorded / 2 {
			again(i)
		}
		// Above maxRecorded the names are not cached, and are queried.
		clear(asked)
		for i := range 8 {
			say(maxRecorded/2 + i)
		}
		if asked["commits"] == 0 || asked["journal"] == 0 {
			t.Errorf("queries per table = %v, want some of commits and journal above maxRecorded", asked)
		}
		for i := range maxRecorded/2 + 8 {
			again(i)
		}
		// Names of a refused operation are not recorded.
		must(t, s, insert("y"))
		refused := lookupOp{look("y", "c", "s"), func(tx *Tx) error {
			if err := record(tx, "y", "c", "s", "d"); err != nil {
				return err
			}
			return perdure.Errorf(perdure.CodeInvalid, "refused")
		}}
		if err := s.Batch(s.Now(), refused)[0]; err == nil {
			t.Fatal("the operation was accepted, want refused")
		}
		must(t, s, opFunc(func(tx *Tx) error { return record(tx, "y", "other", "other", "d") }))
		must(t, s, opFunc(func(tx *Tx) error {
			if got, err := found(tx, "y", "c", "s"); err != nil || got != "/" {
				return fmt.Errorf("names of a refused operation: found %q, want none: %w", got, err)
			}
			return nil
		}))
	})
}

func TestEndedRunIsCached(t *testing.T) {
	s := open(t, Options{Path: filepath.Join(t.TempDir(), "p.db")})
	must(t, s, insert("x"))
	if _, ok := s.Ended(tenant, ref("x")); ok || !s.Live(tenant, ref("x")) {
		t.Error("run x before its end: Ended or not Live, want live")
	}
	end := func(result perdure.Value) opFunc {
		return func(tx *Tx) error {
			r, _, err := tx.Runs.Get(tenant, ref("x"))
			r.Version++
			r.State, r.Ready, r.AlarmAt, r.Result = perdure.Completed, false, 0, result
			tx.Runs.Put(r, nil)
			return err
		}
	}
	for _, result := range []perdure.Value{`"first"`, `"adopted"`} {
		must(t, s, end(result))
		if r, ok := s.Ended(tenant, ref("x")); !ok || r.Result != result || s.Live(tenant, ref("x")) {
			t.Errorf("run x after its end: cached %t, result = %s, want %s and not live", ok, r.Result, result)
		}
	}
	if _, ok := s.Ended("other", ref("x")); ok {
		t.Error("Ended gives run x to another tenant")
	}
	large := perdure.Value(`"` + string(make([]byte, maxRemembered)) + `"`)
	must(t, s, end(large))
	if r, ok := s.Ended(tenant, ref("x")); ok || s.Live(tenant, ref("x")) {
		t.Errorf("run x with a large result: %d bytes are cached, want none", len(r.Result))
	}
}

// An operation that finds its lane idle is decided in the caller's goroutine. Close waits for it,
// and a panic in it does not block the lane for ever.
func TestDirectBatchBlocksCloseAndStopsWritesOnPanic(t *testing.T) {
	var before func()
	opt := Options{Path: filepath.Join(t.TempDir(), "p.db")}
	opt.Hooks.BeforeWrite = func() {
		if before != nil {
			before()
		}
	}
	s := open(t, opt)
	begun, goOn, done := make(chan struct{}), make(chan struct{}), make(chan error)
	before = func() { close(begun); <-goOn }
	go func() { done <- s.Do(context.Background(), insert("x")) }()
	<-begun
	closed := make(chan error)
	go func() { closed <- s.Close() }()
	<-s.done
	select {
	case err := <-closed:
		t.Fatalf("Close = %v during a batch, want it to wait", err)
	default:
	}
	close(goOn)
	if err := <-done; err != nil {
		t.Errorf("operation that had begun before Close: %v", err)
	}
	if err := <-closed; err != nil {
		t.Errorf("Close: %v", err)
	}

	before = nil
	s = open(t, opt)
	if n := count(t, s, "SELECT count(*) FROM runs"); n != 1 {
		t.Errorf("runs after reopening = %d, want 1", n)
	}
	before = func() { panic("a defect") }
	func() {
		defer func() {
			if recover() == nil {
				t.Error("Do did not pass on the panic")
			}
		}()
		s.Do(context.Background(), insert("y"))
	}()
	before = nil
	if err := s.Do(context.Background(), insert("z")); perdure.CodeOf(err) != perdure.CodeUnavailable ||
		s.Err() == nil {
		t.Errorf("after a panic in a batch: Do = %v, Err = %v, want unavailable and an error", err, s.Err())
	}
}

// A batch that bypasses the cache is not decided again because other lanes change the runs that it
// reads.
func TestBypassCacheAvoidsConflicts(t *testing.T) {
	for _, bypass := range []bool{false, true} {
		path := filepath.Join(t.TempDir(), "p.db")
		opt, looked := Options{Path: path}, 0
		s := open(t, opt)
		must(t, s, insert("busy"), insert("mended"))
		look := opFunc(func(tx *Tx) error {
			if bypass {
				tx.BypassCache()
			}
			if _, _, err := tx.Runs.Get(tenant, ref("busy")); err != nil {
				return err
			}
			if looked++; looked == 1 {
				must(t, s, bump("busy")) // in another lane
			}
			return bump("mended").Do(tx)
		})
		if err := s.lanes[LaneSweep].batchIn(s.Now(), []Op{look})[0]; err != nil {
			t.Fatal(err)
		}
		if want := map[bool]int{false: 2, true: 1}[bypass]; looked != want {
			t.Errorf("BypassCache %t: decided %d times, want %d", bypass, looked, want)
		}
	}
}
