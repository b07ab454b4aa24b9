package sentinel

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/process/jobdir"
	"github.com/perdure/perdure/internal/server/engine"
	"github.com/perdure/perdure/internal/server/engine/dispatch"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/store"
	"github.com/perdure/perdure/internal/server/watchdog"
	"github.com/perdure/perdure/internal/testkit/storetest"
)

// A world is an engine with a workspace. Its clock is moved by hand where the store takes one.
type world struct {
	t         testing.TB
	e         *engine.Engine
	m         *Monitor
	dog       *watchdog.Watchdog
	at        store.Options
	workspace string
	// skipped is what the clock is ahead of the machine's.
	skipped atomic.Int64
}

// newWorld opens a world on a store.
func newWorld(t testing.TB, at store.Options) *world {
	t.Helper()
	w := &world{t: t, workspace: t.TempDir()}
	if at.URL == "" {
		at.Hooks.Clock = func() perdure.Instant { return perdure.At(time.Now()).Add(time.Duration(w.skipped.Load())) }
	}
	w.at = at
	w.open(Options{})
	return w
}

// open opens the store, and a server over it: what a start does.
func (w *world) open(opt Options) {
	w.t.Helper()
	s := storetest.Open(w.t, w.at)
	var err error
	policy := perdure.DefaultPolicy()
	policy.GapAfter = 2 * time.Minute // a test that skips a minute is not an absence
	if w.e, err = engine.New(s, engine.Options{Policy: &policy}); err != nil {
		w.t.Fatal(err)
	}
	opt.Workspace = w.workspace
	w.m = New(w.e, opt)
	w.dog = watchdog.New(w.e, nil)
}

// restart has another server take over.
func (w *world) restart(opt Options) { w.open(opt) }

// pass lets time pass, and the watchdog sweep.
func (w *world) pass(d time.Duration) {
	w.t.Helper()
	w.skipped.Add(int64(d))
	w.sweep()
}

func (w *world) sweep() {
	w.t.Helper()
	for range 3 {
		w.ok(w.e.Do(w.t.Context(), w.dog.Pass()))
	}
}

func (w *world) ok(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// A proc is a process that a test plays.
type proc struct {
	w     *world
	dir   jobdir.Dir
	run   perdure.Run
	token string
	lock  *os.File
	s     jobdir.Sentinel
}

// start submits a process, leases it, and writes its first sentinel.
func (w *world) start() *proc { return w.startFor("acme", 1) }

func (w *world) startFor(tenant perdure.TenantID, attempts int) *proc {
	w.t.Helper()
	submit := &life.Submit{Tenant: tenant, Submission: perdure.Submission{Kind: "exec", Class: perdure.Process,
		MaxAttempts: attempts, Timeout: perdure.Duration(24 * time.Hour)}}
	w.ok(w.e.Do(w.t.Context(), submit))
	return w.lease(submit.Run)
}

// lease plays the runner of a run.
func (w *world) lease(r perdure.Run) *proc {
	w.t.Helper()
	claim := &dispatch.Claim{Tenant: r.Tenant, Worker: "runner", Runs: []perdure.RunID{r.ID}, Slots: 1, Start: true}
	w.ok(w.e.Do(w.t.Context(), claim))
	if len(claim.Grants) != 1 {
		w.t.Fatalf("run %s: %d grants, want 1", r.ID, len(claim.Grants))
	}
	p := &proc{w: w, run: claim.Grants[0].Run}
	p.beat()
	p.token = w.e.ProcessTokens(p.run.Tenant, p.run.ID, p.run.Epoch)[0]
	var err error
	p.dir, err = jobdir.Of(w.workspace, string(r.ID))
	w.ok(err)
	w.ok(p.dir.Create())
	p.lock, err = p.dir.Lock()
	w.ok(err)
	w.t.Cleanup(func() { p.lock.Close() })
	id, err := jobdir.LockID(p.lock)
	w.ok(err)
	p.s = jobdir.Sentinel{JobID: p.dir.ID, Status: jobdir.StatusRunning, WorkspacePath: p.dir.Path,
		AgentEngine: "generic",
		StartedAt:   jobdir.Time(time.Now()), Epoch: p.run.Epoch, Tenant: p.run.Tenant, Lock: id}
	p.write()
	return p
}

// write writes the next sentinel.
func (p *proc) write() {
	p.w.t.Helper()
	p.s.Counter++
	p.s.LastHeartbeat = jobdir.Time(p.w.e.Now().Time())
	p.w.ok(p.dir.WriteSentinel(p.s, p.token))
}

// beat sends a heartbeat over HTTP, as it were.
func (p *proc) beat() {
	p.w.t.Helper()
	op := &life.Heartbeat{Tenant: p.run.Tenant, Worker: "runner",
		Beats: []life.BeatOf{{Lease: life.Lease{RunID: p.run.ID, Epoch: p.run.Epoch}}}}
	p.w.ok(p.w.e.Do(p.w.t.Context(), op))
	if len(op.Lost) > 0 {
		p.w.t.Fatalf("run %s is lost: %v", p.run.ID, op.Lost[0].Error)
	}
}

// die ends runner and command.
func (p *proc) die() { p.lock.Close() }

// finish leaves output and a result.
func (p *proc) finish(stdout, stderr string) {
	p.w.t.Helper()
	for stream, text := range map[string]string{jobdir.Stdout: stdout, jobdir.Stderr: stderr} {
		f, err := p.dir.OpenOutput(stream)
		p.w.ok(err)
		_, err = f.WriteString(text)
		p.w.ok(err)
		f.Close()
	}
	p.w.ok(p.dir.WriteResult(jobdir.Result{JobID: p.dir.ID, Tenant: p.run.Tenant, FinishedAt: jobdir.Time(time.Now()),
		Output: jobdir.Offsets{Stdout: int64(len(stdout)), Stderr: int64(len(stderr))},
		Commit: perdure.Commit{ID: fmt.Sprintf("end-%d", p.run.Epoch), RunID: p.run.ID, Epoch: p.run.Epoch,
			Events:  []perdure.Emitted{{Type: jobdir.EventExit, Data: []byte(`{"exit_code":0}`)}},
			Outcome: &perdure.Outcome{Type: perdure.OutcomeComplete, Result: []byte(`{"exit_code":0}`)}}}, p.token))
}

// now reads the run.
func (p *proc) now() perdure.Run {
	p.w.t.Helper()
	r, err := p.w.e.Processes.Get(p.w.t.Context(), p.run.ID)
	p.w.ok(err)
	return r
}

// wants fails unless the run is in a state.
func (p *proc) wants(s perdure.State) perdure.Run {
	p.w.t.Helper()
	r := p.now()
	if r.State != s {
		p.w.t.Fatalf("run %s is %s (%+v), want %s", r.ID, r.State, r.Failure, s)
	}
	return r
}

// lines reads the log.
func (p *proc) lines() (list []perdure.Line) {
	p.w.t.Helper()
	p.w.ok(p.w.e.Store().View(p.w.t.Context(), func(v *store.View) (err error) {
		list, err = v.Events.After(p.run.Tenant, p.run.ID, 0, 1000)
		return err
	}))
	return list
}

// output puts together what the log has of a stream, and fails if a byte is missing or twice.
func (p *proc) output(stream string) string {
	p.w.t.Helper()
	var text strings.Builder
	for _, l := range p.lines() {
		if l.Type != jobdir.EventOutput {
			continue
		}
		var o jobdir.Output
		p.w.ok(json.Unmarshal([]byte(l.Data), &o))
		if o.Stream != stream {
			continue
		}
		if o.Offset != int64(text.Len()) {
			p.w.t.Fatalf("run %s: output of %s at %d, want %d", p.run.ID, stream, o.Offset, text.Len())
		}
		text.Write(o.Bytes())
	}
	return text.String()
}

func (p *proc) count(typ perdure.LineType) (n int) {
	for _, l := range p.lines() {
		if l.Type == typ {
			n++
		}
	}
	return n
}

func (w *world) scan() { w.m.Scan(w.t.Context()) }

func TestMovedSentinelIsASignOfLife(t *testing.T) {
	w := newWorld(t, store.Options{Memory: storetest.Memory(t)})
	p := w.start()
	w.scan()
	for range 20 {
		w.pass(time.Minute)
		p.write()
		w.scan()
		w.sweep()
		if tier := w.e.Policy().Tier(new(p.wants(perdure.Running)), w.e.Now()); tier != perdure.TierFresh {
			t.Fatalf("tier = %s, want fresh: its sentinel moves", tier)
		}
	}
	if n := p.count(perdure.LineStale); n != 0 {
		t.Errorf("%d times stale, want never", n)
	}
	for range 4 {
		w.pass(40 * time.Second)
		w.scan()
	}
	if n := p.count(perdure.LineStale); n != 1 {
		t.Errorf("%d times stale, want once: lock held, and the sentinel stands still", n)
	}
	for range 20 {
		w.pass(30 * time.Second)
		w.scan()
	}
	if r := p.wants(perdure.Failed); r.Failure.Code != perdure.CodeHeartbeatLost {
		t.Errorf("failure = %+v, want heartbeat_lost", r.Failure)
	}
}

func TestResultOfADeadRunnerIsAdoptedWithItsOutput(t *testing.T) {
	storetest.OnBoth(t, func(t *testing.T, at store.Options) {
		w := newWorld(t, at)
		p := w.start()
		stdout, stderr := strings.Repeat("héllo\n", 20000)+"\xff\x00end", "warning\n"
		p.finish(stdout, stderr)
		w.scan()
		p.wants(perdure.Running) // the runner sends it itself
		p.die()
		w.scan()
		p.wants(perdure.Completed)
		w.scan()
		if got := p.output(jobdir.Stdout); got != stdout {
			t.Errorf("log has %d bytes of stdout, want %d", len(got), len(stdout))
		}
		if got := p.output(jobdir.Stderr); got != stderr {
			t.Errorf("log has %q of stderr, want %q", got, stderr)
		}
		if n := p.count(jobdir.EventExit); n != 1 {
			t.Errorf("%d exits in the log, want one", n)
		}
		if c, _, _ := w.m.Counted(); c.Adopted != 1 || c.Dead != 0 {
			t.Errorf("counts = %+v, want one adoption", c)
		}
		storetest.Check(t, w.e.Store())
	})
}

func TestResultIsAdoptedAlthoughAChildHoldsTheLock(t *testing.T) {
	w := newWorld(t, storetest.Options(t))
	p := w.start()
	p.finish("x", "")
	w.scan()
	w.scan()
	p.wants(perdure.Completed)
}

// TestHalfForwardedOutputGoesOn adopts after the runner has sent a part of the output itself.
func TestHalfForwardedOutputGoesOn(t *testing.T) {
	w := newWorld(t, storetest.Options(t))
	p := w.start()
	p.finish("hello world", "")
	step, more, err := p.dir.NextOutput(p.run.Epoch, jobdir.Offsets{}, jobdir.Offsets{Stdout: 5}, false)
	if err != nil || !more {
		t.Fatalf("NextOutput = %v, %v", more, err)
	}
	w.ok(w.e.Do(t.Context(), &life.Commit{Tenant: "acme", Worker: "runner", Commit: step.Commit}))
	p.die()
	w.scan()
	p.wants(perdure.Completed)
	if got := p.output(jobdir.Stdout); got != "hello world" {
		t.Errorf("output = %q, want all of it once", got)
	}
}

// TestOutputThatIsGoneIsReported truncates the file after the runner has signed for it.
func TestOutputThatIsGoneIsReported(t *testing.T) {
	w := newWorld(t, storetest.Options(t))
	p := w.start()
	p.finish("hello world", "")
	w.ok(os.Truncate(filepath.Join(p.dir.Path, "stdout.log"), 5))
	p.die()
	w.scan()
	p.wants(perdure.Completed)
	if got := p.output(jobdir.Stdout); got != "hello" {
		t.Errorf("output = %q, want what is left", got)
	}
	if n := p.count(jobdir.EventDropped); n != 1 {
		t.Errorf("%d events of dropped output, want one", n)
	}
}

// TestLargeOutputGoesToArtifacts adopts more than the log takes.
func TestLargeOutputGoesToArtifacts(t *testing.T) {
	w := newWorld(t, storetest.Options(t))
	p := w.start()
	p.finish(strings.Repeat("0123456789abcdef", 6<<16), "")
	p.die()
	w.scan()
	p.wants(perdure.Completed)
	list, err := w.e.Runs.Artifacts(t.Context(), "acme", p.run.ID)
	w.ok(err)
	if len(list) != 1 || list[0].Size != 2<<20 {
		t.Errorf("artifacts = %+v, want one with the 2 MiB beyond the first 4", list)
	}
}

func TestProcessWithoutResultIsLostAtOnce(t *testing.T) {
	storetest.OnBoth(t, func(t *testing.T, at store.Options) {
		w := newWorld(t, at)
		p, again := w.start(), w.startFor("other", 2)
		for _, x := range []*proc{p, again} {
			f, err := x.dir.OpenOutput(jobdir.Stdout)
			w.ok(err)
			fmt.Fprint(f, "last words")
			f.Close()
			x.die()
		}
		w.scan()
		p.wants(perdure.Running)
		w.scan()
		if r := p.wants(perdure.Failed); r.Failure.Code != perdure.CodeHeartbeatLost {
			t.Errorf("failure = %+v, want heartbeat_lost", r.Failure)
		}
		if got := p.output(jobdir.Stdout); got != "last words" {
			t.Errorf("output = %q, want what the process wrote", got)
		}
		if r := again.wants(perdure.Queued); r.Attempt != 2 {
			t.Errorf("attempt = %d, want the second", r.Attempt)
		}
		w.scan()
		w.scan()
		if r := again.wants(perdure.Queued); r.Attempt != 2 {
			t.Errorf("attempt = %d after the files of the first were seen again, want the second", r.Attempt)
		}
	})
}

// TestFreeLockOfALivingRunnerEndsNothing plays a command that unlocks the lock, whose descriptor it has.
func TestFreeLockOfALivingRunnerEndsNothing(t *testing.T) {
	w := newWorld(t, store.Options{Memory: storetest.Memory(t)})
	p := w.start()
	w.ok(unix.Flock(int(p.lock.Fd()), unix.LOCK_UN))
	for range 5 {
		w.scan()
		w.pass(15 * time.Second)
		p.beat()
	}
	w.scan()
	p.wants(perdure.Running)
	if len(w.m.SetAside(10)) != 1 {
		t.Errorf("reports = %+v, want the lock", w.m.SetAside(10))
	}
}

func TestReplacedLockOfALivingProcessEndsNothing(t *testing.T) {
	w := newWorld(t, storetest.Options(t))
	p := w.start()
	w.ok(os.Remove(filepath.Join(p.dir.Path, jobdir.LockFile)))
	w.ok(os.WriteFile(filepath.Join(p.dir.Path, jobdir.LockFile), nil, 0o600))
	for range 3 {
		w.scan()
	}
	p.wants(perdure.Running)
	if list := w.m.SetAside(10); len(list) != 1 || !strings.HasSuffix(list[0].Path, jobdir.LockFile) {
		t.Errorf("reports = %+v, want the lock", list)
	}
}

// TestForeignFilesAreSetAsideAndNeverFatal spoils sentinel and result in every way.
func TestForeignFilesAreSetAsideAndNeverFatal(t *testing.T) {
	spoil := map[string]func(w *world, path string){
		"empty":   func(w *world, path string) { w.ok(os.WriteFile(path, nil, 0o600)) },
		"torn":    func(w *world, path string) { w.ok(os.WriteFile(path, []byte(`{"jobId":"x`), 0o600)) },
		"huge":    func(w *world, path string) { w.ok(os.Truncate(path, 1<<40)) },
		"fifo":    func(w *world, path string) { w.ok(os.Remove(path)); w.ok(unix.Mkfifo(path, 0o600)) },
		"link":    func(w *world, path string) { w.ok(os.Remove(path)); w.ok(os.Symlink("/etc/passwd", path)) },
		"folder":  func(w *world, path string) { w.ok(os.Remove(path)); w.ok(os.Mkdir(path, 0o700)) },
		"changed": func(w *world, path string) { change(w, path) },
	}
	for _, file := range []string{jobdir.SentinelFile, jobdir.ResultFile} {
		for name, f := range spoil {
			t.Run(file+"/"+name, func(t *testing.T) {
				w := newWorld(t, storetest.Options(t))
				p, good := w.start(), w.start()
				p.finish("x", "")
				path := filepath.Join(p.dir.Path, file)
				f(w, path)
				good.die()
				for range 3 {
					w.scan()
				}
				p.wants(perdure.Running)
				good.wants(perdure.Failed) // the others are seen to
				list := w.m.SetAside(10)
				if len(list) != 1 || list[0].Path != path || list[0].To == "" {
					t.Fatalf("reports = %+v, want %s set aside", list, path)
				}
				if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
					t.Errorf("the bad file is still there: %v", err)
				}
				p.write()
				p.die()
				for range 3 {
					w.scan()
				}
				if file == jobdir.SentinelFile {
					p.wants(perdure.Completed)
				} else {
					p.wants(perdure.Failed)
				}
			})
		}
	}
}

// change alters one digit of a signed file.
func change(w *world, path string) {
	w.t.Helper()
	b, err := os.ReadFile(path)
	w.ok(err)
	w.ok(os.WriteFile(path, []byte(strings.Replace(string(b), `"epoch":1`, `"epoch":2`, 1)), 0o600))
}

func TestOtherEntriesOfTheFolderAreSetAside(t *testing.T) {
	w := newWorld(t, storetest.Options(t))
	p := w.start()
	jobs := filepath.Dir(p.dir.Path)
	w.ok(os.WriteFile(filepath.Join(jobs, "file"), nil, 0o600))
	w.ok(os.Symlink(p.dir.Path, filepath.Join(jobs, "link")))
	w.ok(os.Mkdir(filepath.Join(jobs, "..x"), 0o700))
	w.scan()
	left, err := os.ReadDir(jobs)
	w.ok(err)
	if len(left) != 1 || left[0].Name() != p.dir.ID {
		t.Errorf("%d entries are left, want the one job", len(left))
	}
}

// TestOldSentinelPutBackIsNoSignOfLife replays signed files.
func TestOldSentinelPutBackIsNoSignOfLife(t *testing.T) {
	w := newWorld(t, store.Options{Memory: storetest.Memory(t)})
	p := w.start()
	old := p.s
	w.scan()
	for range 3 {
		w.pass(40 * time.Second)
		p.write()
		w.scan()
	}
	newest := p.s
	for i := range 25 {
		w.pass(30 * time.Second)
		w.ok(p.dir.WriteSentinel([]jobdir.Sentinel{old, newest}[i%2], p.token))
		if i == 10 {
			w.restart(Options{})
		}
		w.scan()
	}
	p.wants(perdure.Failed)
}

// TestSentinelOfAnotherTenantCountsForNothing copies a signed sentinel of another run.
func TestSentinelOfAnotherJobCountsForNothing(t *testing.T) {
	w := newWorld(t, storetest.Options(t))
	p, q := w.start(), w.startFor("mallory", 1)
	forged := p.s
	forged.Counter += 100
	w.ok(p.dir.WriteSentinel(forged, q.token))
	w.scan()
	if r := p.now(); r.Counter != 0 {
		t.Errorf("the run's count is %d", r.Counter)
	}
	if list := w.m.SetAside(10); len(list) != 1 || !strings.Contains(list[0].Reason, "signed") {
		t.Errorf("reports = %+v, want the forged file", list)
	}
}

// TestOutputOfAHungRunnerIsKept plays a runner that hangs while its command goes on: it holds the lock,
// and copies nothing.
func TestOutputOfAHungRunnerIsKept(t *testing.T) {
	w := newWorld(t, store.Options{Memory: storetest.Memory(t)})
	p := w.start()
	f, err := p.dir.OpenOutput(jobdir.Stdout)
	w.ok(err)
	defer f.Close()
	want := ""
	for n := range 14 {
		if n < 9 {
			want += fmt.Sprintf("line %d\n", n)
			fmt.Fprintf(f, "line %d\n", n)
		}
		for range 4 {
			w.scan()
		}
		w.pass(time.Minute)
	}
	if r := p.wants(perdure.Failed); r.Failure.Code != perdure.CodeHeartbeatLost {
		t.Errorf("failure = %+v, want heartbeat_lost", r.Failure)
	}
	if got := p.output(jobdir.Stdout); got != want {
		t.Errorf("output = %q, want all lines: %q", got, want)
	}
}

// TestOutputOfAHungRunnerIsCopiedUpToTheEnd has the command write after the last scan before the end of its
// run. The next scan copies it, once, although the lock is held.
func TestOutputOfAHungRunnerIsCopiedUpToTheEnd(t *testing.T) {
	storetest.OnBoth(t, func(t *testing.T, at store.Options) {
		w := newWorld(t, at)
		p := w.start()
		f, err := p.dir.OpenOutput(jobdir.Stdout)
		w.ok(err)
		defer f.Close()
		fmt.Fprintln(f, "copied by a scan")
		w.scan()
		fmt.Fprintln(f, "written before the end")
		cancel := &life.Cancel{Tenant: "acme", RunID: p.run.ID, Reason: "enough"}
		w.ok(w.e.Do(t.Context(), cancel))
		w.ok(w.e.Do(t.Context(), enforced{"acme", p.run.ID}))
		p.wants(perdure.Cancelled)
		for range 6 {
			w.scan()
		}
		want := "copied by a scan\nwritten before the end\n"
		if got := p.output(jobdir.Stdout); got != want {
			t.Errorf("output = %q, want all that was in the file at the end: %q", got, want)
		}
		storetest.Check(t, w.e.Store())
		fmt.Fprintln(f, "written after the end")
		w.restart(Options{})
		w.m.Recover(t.Context())
		w.scan()
		if got := p.output(jobdir.Stdout); got != want+"written after the end\n" {
			t.Errorf("output after a restart = %q, want what was written meanwhile once", got)
		}
	})
}

// enforced ends a cancelled run as the watchdog does.
type enforced struct {
	tenant perdure.TenantID
	run    perdure.RunID
}

func (x enforced) Needs() []store.Ref { return []store.Ref{{Tenant: x.tenant, Run: x.run}} }

func (x enforced) Do(tx *kernel.Tx) error {
	r, _, err := tx.DB.Runs.Get(x.tenant, x.run)
	if err != nil {
		return err
	}
	return life.Finish(tx, &r, perdure.CancelEnforced{Why: "the worker did not stop in time"})
}
