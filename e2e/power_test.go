package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine"
	"github.com/perdure/perdure/internal/server/engine/dispatch"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/store"
	"github.com/perdure/perdure/internal/server/watchdog"
	"github.com/perdure/perdure/internal/testkit/lossfs"
)

// number returns a count from the environment. A campaign sets more.
func number(name string, otherwise uint64) uint64 {
	if s := os.Getenv(name); s != "" {
		fmt.Sscan(s, &otherwise)
	}
	return otherwise
}

// forgetful mounts a file system that loses unsynced data.
func forgetful(t *testing.T) *lossfs.FS {
	t.Helper()
	fs, err := lossfs.Mount(t.TempDir(), lossfs.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := fs.Unmount(); err != nil {
			t.Error(err)
		}
	})
	return fs
}

// small opens a store with a small reserve and frequent checkpoints.
func small(dir string, pages int) (*store.Store, error) {
	return store.Open(store.Options{Path: filepath.Join(dir, "perdure.db"), Reserve: 64 << 10,
		Hooks: store.Hooks{WALPages: pages}})
}

// A book records what was requested from a store, and what it acknowledged.
type book struct {
	mu                   sync.Mutex
	tried                map[string]string // by key
	submitted, signalled map[string]string // runs by key
	completed            map[string]string // results by run
	left                 int               // records until then is called
	then                 func()
}

func newBook() *book {
	return &book{tried: map[string]string{}, submitted: map[string]string{}, signalled: map[string]string{},
		completed: map[string]string{}}
}

// check compares a store with the book: everything acknowledged is stored once, and nothing else
// that was not requested.
func (b *book) check(v *store.View) (wrong []string, err error) {
	say := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	type row struct{ key, state, result string }
	runs := map[string]row{}
	count := map[string]int{}
	err = v.Rows("SELECT id, input, state, result FROM runs", nil, func(scan func(...any) error) error {
		var id string
		var r row
		if err := scan(&id, &r.key, &r.state, &r.result); err != nil {
			return err
		}
		r.key = strings.Trim(r.key, `"`)
		runs[id] = r
		count[r.key]++
		if _, asked := b.tried[r.key]; !asked || count[r.key] > 1 {
			say("%s is there %d times (asked for: %v)", r.key, count[r.key], asked)
		}
		if r.state == string(perdure.Completed) && !strings.HasPrefix(r.result, `"`+id+" of ") {
			say("%s ended with somebody else's result: %.60s", id, r.result)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	items := map[string]int{}
	err = v.Rows("SELECT run_id, count(*) FROM inbox GROUP BY run_id", nil, func(scan func(...any) error) error {
		var id string
		var n int
		err := scan(&id, &n)
		items[id] = n
		return err
	})
	if err != nil {
		return nil, err
	}
	for key, id := range b.submitted {
		if runs[id].key != key {
			say("the submit of %s was acknowledged as %s, and that is not there", key, id)
		}
	}
	for key, id := range b.signalled {
		if items[id] != 1 {
			say("the signal of %s was acknowledged, and %s has %d", key, id, items[id])
		}
	}
	for id, result := range b.completed {
		if r := runs[id]; r.state != string(perdure.Completed) || r.result != result {
			say("the result %.60s… of %s was acknowledged, and it is %s %.60s", result, id, r.state, r.result)
		}
	}
	found, err := v.Check(nil)
	for _, x := range found {
		say("%s, %s: %s", x.ID, x.Statement, x.Row)
	}
	if err != nil {
		return nil, err
	}
	return wrong, v.Rows("PRAGMA integrity_check(3)", nil, func(scan func(...any) error) error {
		var text string
		if err := scan(&text); err == nil && text != "ok" {
			say("the file is damaged: %s", text)
		}
		return nil
	})
}

// life submits a run, signals it, leases and finishes any run, and records what was acknowledged.
// Signals and results have many sizes, which fills the log, so that it is checkpointed and
// restarted.
func (b *book) life(ctx context.Context, e *engine.Engine, key string) error {
	b.note(b.tried, key, "")
	sub := &life.Submit{Tenant: tenant, Key: key,
		Submission: perdure.Submission{Kind: "job", Input: json.RawMessage(`"` + key + `"`)}}
	if err := e.Do(ctx, sub); err != nil {
		return err
	}
	b.note(b.submitted, key, string(sub.Run.ID))
	data := json.RawMessage(`"` + strings.Repeat("s", rand.IntN(20_000)) + `"`)
	// Another goroutine may have taken and ended the run already.
	if err := e.Do(ctx, &life.Signal{Tenant: tenant, RunID: sub.Run.ID, Name: "hello", Key: key,
		Data: data}); err == nil {
		b.note(b.signalled, key, string(sub.Run.ID))
	} else if perdure.CodeOf(err) != perdure.CodeRunEnded {
		return err
	}
	poll := &dispatch.Claim{Tenant: tenant, Worker: "w", Slots: 1, Start: true}
	if err := e.Do(ctx, poll); err != nil {
		return err
	}
	for _, g := range poll.Grants {
		result := fmt.Sprintf(`"%s of %d %s"`, g.Run.ID, g.Run.Epoch, strings.Repeat("r", rand.IntN(7_000)))
		done := &life.Commit{Tenant: tenant, Worker: "w",
			Commit: perdure.Commit{ID: "end", RunID: g.Run.ID, Epoch: g.Run.Epoch,
				Outcome: &perdure.Outcome{Type: perdure.OutcomeComplete, Result: json.RawMessage(result)}}}
		if err := e.Do(ctx, done); err != nil {
			return err
		}
		if done.Refused == nil {
			b.note(b.completed, string(g.Run.ID), result)
		}
	}
	return nil
}

func (b *book) note(page map[string]string, key, value string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	page[key] = value
	if b.left--; b.left == 0 {
		b.then()
	}
}

// after calls a function after a number of further records. The amount of work before it does not
// depend on the machine.
func (b *book) after(notes int, then func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.left, b.then = notes, then
}

// worked runs clients and the watchdog on a store until it fails.
func worked(s *store.Store, b *book, name string) error {
	fair := func(err error) bool { // errors that a store may return when its disk fails
		return perdure.CodeOf(err) == perdure.CodeUnknown || perdure.CodeOf(err) == perdure.CodeUnavailable
	}
	e, err := engine.New(s, engine.Options{})
	if err != nil && fair(err) {
		return nil
	}
	if err != nil {
		return err
	}
	ctx, stop := context.WithTimeout(context.Background(), 30*time.Second)
	var wg sync.WaitGroup
	wg.Go(func() { watchdog.New(e, nil).Run(ctx) })
	var clients sync.WaitGroup
	errs := make(chan error, 16)
	for i := range cap(errs) {
		clients.Go(func() {
			for n := 0; ; n++ {
				if err := b.life(ctx, e, fmt.Sprintf("%s-%d-%d", name, i, n)); err != nil {
					errs <- err
					return
				}
			}
		})
	}
	clients.Wait()
	late := ctx.Err()
	stop()
	wg.Wait()
	if late != nil {
		return errors.New("the store works on as if nothing had happened")
	}
	for range cap(errs) {
		if err := <-errs; !fair(err) {
			return err
		}
	}
	return nil
}

func TestPowerLossLosesNothingAcknowledged(t *testing.T) {
	losses := int(number("PERDURE_POWER_LOSSES", 15)) // "make test-long" has 200, a campaign 5000
	base := number("PERDURE_POWER_SEED", uint64(time.Now().UnixNano()))
	fs := forgetful(t)
	var submits, results, cut int
	for first := 0; first < losses; first += 25 { // a new database
		dir, b := filepath.Join(fs.Dir, fmt.Sprint("data", first)), newBook()
		when := func(n int) string {
			return fmt.Sprintf("after %d power losses (PERDURE_POWER_SEED=%d repeats them, though not the very "+
				"moments)",
				n, base)
		}
		for cycle := first; cycle < min(losses, first+25); cycle++ {
			if b.survives(t, fs, dir, when(cycle), base+uint64(cycle)) {
				cut++
			}
		}
		b.held(t, dir, when(first+25)).Close()
		submits, results = submits+len(b.submitted), results+len(b.completed)
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d power losses, %d of them before the store was open; acknowledged: %d submits, %d results", losses,
		cut, submits, results)
	if submits < 3*losses || results < losses/2 {
		t.Error("too few operations were acknowledged for the test to mean anything")
	}
}

// survives checks what the last power loss has left, and cuts the power again. That is mostly while
// the store works, and sometimes while it is opened, which recovers the log, or closed, which
// checkpoints it. It returns true if the store could not be opened.
func (b *book) survives(t *testing.T, fs *lossfs.FS, dir, when string, seed uint64) (cut bool) {
	t.Helper()
	rng := rand.New(rand.NewPCG(seed, 1))
	lost := make(chan error, 1)
	arm := func(within time.Duration) {
		time.AfterFunc(time.Duration(rng.Int64N(int64(within))), func() { lost <- fs.PowerLoss(seed) })
	}
	var s *store.Store
	name := fmt.Sprint(seed)
	switch rng.IntN(6) {
	case 0: // while it is opened
		arm(30 * time.Millisecond)
		var err error
		if s, err = small(dir, 100); err != nil {
			cut = true
		} else {
			worked(s, b, name)
		}
	case 1: // while it is closed
		s = b.held(t, dir, when)
		arm(50 * time.Millisecond)
	default:
		s = b.held(t, dir, when)
		b.after(1+rng.IntN(120), func() { arm(3 * time.Millisecond) })
		if err := worked(s, b, name); err != nil {
			t.Fatalf("%s: work on the store: %v", when, err)
		}
	}
	if s != nil {
		s.Close() // may fail, because the disk is gone
	}
	if err := <-lost; err != nil {
		t.Fatal(err)
	}
	return cut
}

// held opens a store after a power loss and compares it with the book.
func (b *book) held(t *testing.T, dir, when string) *store.Store {
	t.Helper()
	var wrong []string
	s, err := small(dir, 100)
	if err == nil {
		err = s.View(t.Context(), func(v *store.View) (err error) { wrong, err = b.check(v); return err })
	}
	if err == nil && len(wrong) == 0 {
		return s
	}
	kept, _ := os.MkdirTemp("", "perdure-power-")
	os.CopyFS(kept, os.DirFS(dir))
	t.Fatalf("%s: %v; %d things are wrong:\n%s\nwhat was left is in %s", when, err, len(wrong),
		strings.Join(wrong[:min(10, len(wrong))], "\n"), kept)
	return nil
}

// lives runs one client for a while.
func (b *book) lives(t *testing.T, s *store.Store, name string, n int) {
	t.Helper()
	e, err := engine.New(s, engine.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		if err := b.life(t.Context(), e, fmt.Sprint(name, "-", i)); err != nil {
			t.Fatal(err)
		}
	}
}

func TestNewFolderSurvivesPowerLoss(t *testing.T) {
	fs := forgetful(t)
	for seed := range uint64(20) {
		dir, b := filepath.Join(fs.Dir, fmt.Sprint("above", seed), "data"), newBook()
		s := b.held(t, dir, "at first")
		b.lives(t, s, "one", 1)
		if err := fs.PowerLoss(seed); err != nil {
			t.Fatal(err)
		}
		s.Close()
		b.held(t, dir, "after the power loss").Close()
	}
}

// After a failed sync the disk and the page cache differ, and the next process does not learn of
// it. So it is not enough to give no acknowledgement at that moment: what the next process
// acknowledges has to survive as well.
func TestFsyncErrorIsNeverAcknowledged(t *testing.T) {
	fs := forgetful(t)
	// The database itself is synced by checkpoints, everything else by commits too.
	type failure struct {
		nth  int
		file string
	}
	failures := []failure{{1, "perdure.db"}, {2, "perdure.db"}, {3, "perdure.db"}, {4, "perdure.db"}}
	for _, nth := range []int{1, 2, 3, 4, 5, 6, 8, 11, 15, 20, 30, 50} {
		failures = append(failures, failure{nth, ""})
	}
	for i, f := range failures {
		dir, b := filepath.Join(fs.Dir, fmt.Sprint("data", i)), newBook()
		s := b.held(t, dir, "at first")
		b.lives(t, s, "before", 3)
		if err := fs.FailFsync(f.nth, f.file); err != nil {
			t.Fatal(err)
		}
		if err := worked(s, b, "during"); err != nil {
			t.Fatal(err)
		}
		if s.Err() == nil {
			t.Fatal("the store reports no error after a failed sync, want one")
		}
		e, err := engine.New(s, engine.Options{})
		if err == nil {
			err = b.life(t.Context(), e, "afterwards")
		}
		if perdure.CodeOf(err) != perdure.CodeUnavailable {
			t.Fatalf("operation after a failed sync: %v, want unavailable", err)
		}
		s.Close()
		s = b.held(t, dir, fmt.Sprintf("after sync %d of %q had failed", f.nth, f.file))
		b.lives(t, s, "again", 3)
		if err := fs.PowerLoss(uint64(i)); err != nil {
			t.Fatal(err)
		}
		s.Close()
		when := fmt.Sprintf("after sync %d of %q had failed, a restart and a power loss", f.nth, f.file)
		b.held(t, dir, when).Close()
	}
}

func TestFsyncErrorDuringCheckpointIsReported(t *testing.T) {
	fs := forgetful(t)
	for i := range 5 {
		dir, b := filepath.Join(fs.Dir, fmt.Sprint("data", i)), newBook()
		s, err := small(dir, 1)
		if err != nil {
			t.Fatal(err)
		}
		if err := fs.FailFsync(1, "perdure.db"); err != nil { // commits sync only the log
			t.Fatal(err)
		}
		if err := worked(s, b, "during"); err != nil {
			t.Fatal(err)
		}
		if s.Err() == nil {
			t.Fatal("the store reports no error after a failed sync, want one")
		}
		if err := fs.PowerLoss(uint64(i)); err != nil {
			t.Fatal(err)
		}
		s.Close()
		b.held(t, dir, "after a sync had failed and a power loss").Close()
	}
}

// SQLite ignores errors of the sync of a folder.
func TestFsyncErrorOfFolderIsReported(t *testing.T) {
	fs := forgetful(t)
	refused := 0
	for i := range 12 {
		name := fmt.Sprint("data", i)
		dir, b := filepath.Join(fs.Dir, name), newBook()
		if err := fs.FailFsync(1+i%3, name); err != nil {
			t.Fatal(err)
		}
		s, err := small(dir, 100)
		if err != nil {
			refused++
			continue
		}
		b.lives(t, s, "one", 2)
		if err := fs.PowerLoss(uint64(i)); err != nil {
			t.Fatal(err)
		}
		s.Close()
		b.held(t, dir, "after the power loss").Close()
	}
	if refused == 0 {
		t.Error("no store failed to open although syncs of its folder failed, want some")
	}
}

// submitUntilRefused submits until an answer is not a success, and returns what was acknowledged.
func (n *node) submitUntilRefused(name string, most int) (acknowledged map[string]string, refused bool) {
	acknowledged = map[string]string{}
	for i := range most {
		key := fmt.Sprint(name, "-", i)
		var r runView
		status, err := n.call("POST", "/api/v1/runs", key, obj{"kind": "job", "input": key}, &r)
		if err != nil || status != 201 {
			return acknowledged, true
		}
		acknowledged[key] = r.RunID
	}
	return acknowledged, false
}

func TestServerExitsAfterFsyncError(t *testing.T) {
	fs := forgetful(t)
	n := nodeAt(t, filepath.Join(fs.Dir, "data"))
	n.start()
	acknowledged := map[string]string{}
	for round := range 6 {
		done, refused := n.submitUntilRefused(fmt.Sprint("before-", round), 10)
		maps.Copy(acknowledged, done)
		if refused {
			t.Fatalf("round %d: refused, and nothing is wrong", round)
		}
		if err := fs.FailFsync(1+round%3, ""); err != nil {
			t.Fatal(err)
		}
		done, refused = n.submitUntilRefused(fmt.Sprint("during-", round), 10)
		maps.Copy(acknowledged, done)
		if !refused {
			t.Fatalf("round %d: everything is acknowledged while a sync fails", round)
		}
		if round%2 == 0 { // the server exits by itself
			err := n.cmd.Wait()
			if code := n.cmd.ProcessState.ExitCode(); code != 74 {
				t.Fatalf("round %d: the server ended with %d (%v)", round, code, err)
			}
			n.cmd = nil
		} else { // the server is killed before
			n.kill(syscall.SIGKILL)
		}
		n.start()
		done, _ = n.submitUntilRefused(fmt.Sprint("after-", round), 10)
		maps.Copy(acknowledged, done)
		if err := fs.PowerLoss(uint64(round)); err != nil {
			t.Fatal(err)
		}
		n.kill(syscall.SIGKILL)
		n.start()
		for key, id := range acknowledged {
			var r runView
			if status := n.insist("GET", "/api/v1/runs/"+id, "", nil, &r); status != 200 {
				t.Fatalf("round %d: the submit of %s was acknowledged as %s, and that is not there: %d", round, key, id,
					status)
			}
		}
	}
}
