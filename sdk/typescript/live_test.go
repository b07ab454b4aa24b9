package typescript

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/embedded"
	"github.com/perdure/perdure/internal/testkit/eventually"
	"github.com/perdure/perdure/internal/testkit/servertest"
)

// shortLease is for tests that lose one.
const shortLease = 2 * time.Second

// A world is a server behind a listener, and a file in which workers note what they execute.
type world struct {
	*servertest.Server
	log string
	// gate holds up heartbeats until it is closed.
	gate *atomic.Pointer[chan struct{}]
}

// open opens a server. Where no worker is lost, leases are as long as in production: a busy machine ends none.
func open(t *testing.T, lease time.Duration) world {
	t.Helper()
	p := perdure.DefaultPolicy()
	p.Lease, p.GapAfter = lease, time.Second
	p.BackoffBase = 10 * time.Millisecond
	p.DispatchedRetry = time.Second
	srv := servertest.Open(t, embedded.Options{Policy: &p, Dir: t.TempDir()})
	w := world{Server: srv, log: filepath.Join(t.TempDir(), "log"), gate: new(atomic.Pointer[chan struct{}])}
	srv.Serve(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if gate := w.gate.Load(); gate != nil && strings.HasSuffix(r.URL.Path, "/heartbeat") {
			<-*gate
		}
		srv.ServeHTTP(rw, r)
	}))
	return w
}

// output collects the output of a process.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(b)
}

// worker starts a worker in TypeScript.
func (w world) worker(env ...string) *exec.Cmd {
	w.T.Helper()
	return w.program("dist/test/live-worker.js", env...)
}

// program starts a program of the tests.
func (w world) program(file string, env ...string) *exec.Cmd {
	w.T.Helper()
	out := &output{}
	cmd := exec.Command(node(w.T, runtimes[0]), file)
	cmd.Env = append(os.Environ(), "PERDURE_URL="+w.URL, "PERDURE_KEY="+w.Key(), "LOG="+w.log)
	cmd.Env = append(cmd.Env, env...)
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		w.T.Fatal(err)
	}
	w.T.Cleanup(func() {
		if cmd.ProcessState == nil {
			cmd.Process.Kill()
			cmd.Wait()
		}
		if w.T.Failed() {
			w.T.Logf("the worker said:\n%s", &out.b)
		}
	})
	return cmd
}

func (w world) order() perdure.RunID {
	return w.Start(perdure.Submission{Kind: "order", Class: perdure.Agent, Input: client.JSON("lamp")})
}

func (w world) lines() []string {
	b, _ := os.ReadFile(w.log)
	return strings.Fields(strings.ReplaceAll(strings.TrimSpace(string(b)), " ", "="))
}

// noted waits until a worker has begun to execute a step.
func (w world) noted(step string) {
	w.T.Helper()
	eventually.True(w.T, "a worker begins "+step, func() bool { return slices.Contains(w.lines(), step) })
}

func (w world) completes(id perdure.RunID) {
	w.T.Helper()
	run := w.End(id)
	want := `{"both":{"a":"left","b":"right"},"found":"found in lamp","many":["found in a","found in b"],"paid":7}`
	if got := string(run.Result); run.State != perdure.Completed || got != want || run.Attempt != 1 {
		w.T.Errorf("run %s is %s in attempt %d with %s (error %+v), want %s", id, run.State, run.Attempt, got,
			run.Error, want)
	}
}

func (w world) paid(id perdure.RunID) {
	w.T.Helper()
	if _, err := w.C.Signal(w.Ctx, id, "paid", client.JSON(7)); err != nil {
		w.T.Fatal(err)
	}
}

// A worker that is killed in a step loses nothing but that step, which is executed again under the same key.
func TestWorkerIsKilled(t *testing.T) {
	t.Parallel()
	w := open(t, shortLease)
	hold := filepath.Join(t.TempDir(), "go")
	first := w.worker("HOLD_book=" + hold)
	id := w.order()
	w.noted("book=book#1")
	first.Process.Signal(syscall.SIGKILL)
	first.Wait()
	w.worker()
	w.paid(id)
	run := w.End(id)
	if run.State != perdure.Completed {
		t.Errorf("run %s is %s (error %+v), want completed", id, run.State, run.Error)
	}
	lines := w.lines()
	slices.Sort(lines)
	want := []string{"book=book#1", "book=book#1", "left=a#1//x#1", "price=price#1", "right=b#1//x#1"}
	if !slices.Equal(lines, want) {
		t.Errorf("executed steps are %q, want %q", lines, want)
	}
}

// A server that goes away while a step is executed gets its result when it is back.
func TestServerIsAway(t *testing.T) {
	t.Parallel()
	w := open(t, time.Minute)
	hold := filepath.Join(t.TempDir(), "go")
	w.worker("HOLD_book=" + hold)
	id := w.order()
	w.noted("book=book#1")
	w.Down()
	if err := os.WriteFile(hold, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	w.Reopen()
	w.paid(id)
	w.completes(id)
	if n := strings.Count(strings.Join(w.lines(), " "), "book="); n != 1 {
		t.Errorf("the step book was executed %d times, want once: its commit is kept", n)
	}
}

// SIGTERM lets tasks end within the grace, and hands the others back without an attempt.
func TestWorkerIsTold(t *testing.T) {
	t.Parallel()
	w := open(t, time.Minute)
	first := w.worker("GRACE=0.1", "HOLD_book="+filepath.Join(t.TempDir(), "never"))
	id := w.order()
	w.noted("book=book#1")
	first.Process.Signal(syscall.SIGTERM)
	first.Wait()
	w.worker()
	w.paid(id)
	w.completes(id)
}

func TestCancelOfTask(t *testing.T) {
	t.Parallel()
	w := open(t, time.Minute)
	w.worker()
	id := w.Start(perdure.Submission{Kind: "count", Input: client.JSON(100000)})
	for e, err := range w.C.Events(w.Ctx, id, 0) {
		if err != nil {
			t.Fatal(err)
		}
		if e.Type == "run:started" || e.Type == "run:heartbeat" {
			break
		}
	}
	run, err := w.C.Cancel(w.Ctx, id, "enough", time.Minute)
	if err != nil || run.State != perdure.Cancelled {
		t.Errorf("cancelled run: %+v, %v, want cancelled", run, err)
	}
	kind, err := w.C.Kind(w.Ctx, "order")
	if err != nil || !strings.Contains(string(kind.InputSchema), "string") {
		t.Errorf("kind order is announced with %s, %v, want the schema of a text", kind.InputSchema, err)
	}
}

// until looks at a run until it is as it should be.
func (w world) until(id perdure.RunID, what string, ok func(*api.Run) bool) *api.Run {
	w.T.Helper()
	var run *api.Run
	eventually.True(w.T, fmt.Sprintf("run %s: %s", id, what), func() bool {
		var err error
		if run, err = w.C.Get(w.Ctx, id); err != nil {
			w.T.Fatalf("run %s, until %s: %v", id, what, err)
		}
		return ok(run)
	})
	return run
}

func touch(t *testing.T, file string) {
	t.Helper()
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
}

// A handler that blocks its thread keeps its lease: heartbeats come from another one.
func TestBlockedHandlerKeepsItsLease(t *testing.T) {
	t.Parallel()
	w := open(t, 8*time.Second)
	hold := filepath.Join(t.TempDir(), "go")
	w.worker("HOLD_blocked=" + hold)
	id := w.Start(perdure.Submission{Kind: "blocked"})
	w.noted("blocked")
	first := w.until(id, "it is heard from", func(r *api.Run) bool { return r.SeenAt != nil && *r.SeenAt != 0 })
	w.until(id, "it is heard from twice more", func(r *api.Run) bool {
		return r.SeenAt.Time().Sub(first.SeenAt.Time()) > 3*time.Second
	})
	touch(t, hold)
	if run := w.End(id); run.State != perdure.Completed || run.Epoch != first.Epoch {
		t.Errorf("run %s is %s in epoch %d, want completed in epoch %d", id, run.State, run.Epoch, first.Epoch)
	}
}

// A run with one attempt is executed once, though its heartbeats come after it was granted again.
func TestRunWithOneAttemptIsExecutedOnce(t *testing.T) {
	t.Parallel()
	w := open(t, time.Minute)
	gate := make(chan struct{})
	w.gate.Store(&gate)
	w.worker()
	id := w.Start(perdure.Submission{Kind: "once", Input: client.JSON("a"), MaxAttempts: 1})
	w.until(id, "it is granted again", func(r *api.Run) bool { return r.Epoch >= 2 })
	if lines := w.lines(); len(lines) > 0 {
		t.Errorf("before a heartbeat was answered, executed was %q, want nothing", lines)
	}
	w.gate.Store(nil)
	close(gate)
	run := w.End(id)
	if got := w.lines(); run.State != perdure.Completed || !slices.Equal(got, []string{"once=a=1"}) {
		t.Errorf("run %s is %s, executed was %q, want completed and once", id, run.State, got)
	}
}

// A worker that is stopped for longer than its lease loses the run. Its result is kept as a late one.
func TestLateResultIsKept(t *testing.T) {
	t.Parallel()
	w := open(t, shortLease)
	folder := t.TempDir()
	first := w.worker("SLOTS=1", "HOLD_slow="+filepath.Join(folder, "a"))
	id := w.Start(perdure.Submission{Kind: "slow", MaxAttempts: 100})
	w.noted("slow")
	w.until(id, "it is heard from", func(r *api.Run) bool { return r.Activity == "slow" })
	first.Process.Signal(syscall.SIGSTOP)
	before := w.until(id, "its lease is lost", func(r *api.Run) bool { return r.State == perdure.Queued })
	w.worker("HOLD_slow=" + filepath.Join(folder, "b"))
	w.until(id, "another worker has it", func(r *api.Run) bool { return r.Epoch > before.Epoch })
	first.Process.Signal(syscall.SIGCONT)
	w.noted("slow_lost")
	touch(t, filepath.Join(folder, "a"))
	eventually.True(t, "the first worker's result is kept as a late one", func() bool {
		late, err := w.C.LateResults(w.Ctx, id)
		if err != nil {
			t.Fatal(err)
		}
		return len(late) > 0
	})
	touch(t, filepath.Join(folder, "b"))
	if run := w.End(id); run.State != perdure.Completed || !strings.HasSuffix(string(run.Result), `b"`) {
		t.Errorf("run %s is %s with %s, want the result of the second worker", id, run.State, run.Result)
	}
}

// An agent spawns more children than one commit takes.
func TestAgentWithVeryManyChildren(t *testing.T) {
	t.Parallel()
	w := open(t, time.Minute)
	w.worker()
	id := w.Start(perdure.Submission{Kind: "wide", Class: perdure.Agent})
	run := w.until(id, "it waits for its children, or ends", func(r *api.Run) bool {
		return r.State == perdure.Suspended || r.State.Terminal()
	})
	if run.State != perdure.Suspended || run.Attempt != 1 {
		t.Fatalf("run %s is %s in attempt %d (error %+v), want suspended", id, run.State, run.Attempt, run.Error)
	}
	children := 0
	for of := (client.Filter{ParentRunID: id, Limit: 200}); ; {
		page, err := w.C.List(w.Ctx, of)
		if err != nil {
			t.Fatal(err)
		}
		children += len(page.Runs)
		if of.Cursor = page.NextCursor; of.Cursor == "" {
			break
		}
	}
	if children != 2100 {
		t.Errorf("the run has %d children, want 2100", children)
	}
	if _, err := w.C.Cancel(w.Ctx, id, "enough", time.Minute); err != nil {
		t.Error(err)
	}
}

// A step sees that the user has said something since.
func TestStepSeesUnreadMessages(t *testing.T) {
	t.Parallel()
	w := open(t, time.Minute)
	w.worker()
	th, err := w.C.CreateThread(w.Ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	say := func(text string) {
		t.Helper()
		if _, err := w.C.AppendMessage(w.Ctx, th.ThreadID, perdure.Message{Role: perdure.RoleUser,
			Content: client.JSON(text)}); err != nil {
			t.Fatal(err)
		}
	}
	say("one")
	id := w.Start(perdure.Submission{Kind: "talks", Class: perdure.Agent, ThreadID: th.ThreadID})
	w.noted("talks")
	say("two")
	if run := w.End(id); run.State != perdure.Completed || string(run.Result) != "false" {
		t.Errorf("run %s is %s with %s (error %+v), want completed with false", id, run.State, run.Result, run.Error)
	}
}

// A step whose limit has no room for long suspends its run, which frees the worker, and goes on when there is room.
func TestStepWaitsForItsLimit(t *testing.T) {
	t.Parallel()
	w := open(t, time.Minute)
	one := 1
	if _, err := w.C.PutLimit(w.Ctx, "model", api.PutLimit{Concurrency: &one}); err != nil {
		t.Fatal(err)
	}
	hold := filepath.Join(t.TempDir(), "go")
	w.worker("HOLD_call=" + hold)
	limited := perdure.Submission{Kind: "limited", Class: perdure.Agent}
	first := w.Start(limited)
	w.noted("call=call#1")
	second := w.Start(limited)
	w.until(second, "it waits for room", func(r *api.Run) bool { return r.State == perdure.Suspended })
	if got := w.lines(); len(got) != 1 {
		t.Errorf("while the limit has no room, executed was %q, want one step", got)
	}
	touch(t, hold)
	for _, id := range []perdure.RunID{first, second} {
		if run := w.End(id); run.State != perdure.Completed || run.Attempt != 1 {
			t.Errorf("run %s is %s in attempt %d (error %+v), want completed", id, run.State, run.Attempt, run.Error)
		}
	}
	l, err := w.C.Limit(w.Ctx, "model")
	if err != nil || l.Leased+l.Waiting+l.Offered != 0 || len(w.lines()) != 2 {
		t.Errorf("in the end the limit is %+v (%v), executed was %q, want it free and two steps", l, err, w.lines())
	}
}

func TestCancelledAgentCleansUp(t *testing.T) {
	t.Parallel()
	w := open(t, time.Minute)
	hold := filepath.Join(t.TempDir(), "go")
	w.worker("HOLD_room=" + hold)
	cancel := func(id perdure.RunID) {
		t.Helper()
		if _, err := w.C.Cancel(w.Ctx, id, "enough", 0); err != nil {
			t.Fatal(err)
		}
	}
	inStep := w.Start(perdure.Submission{Kind: "trip", Class: perdure.Agent})
	w.noted("room=room#1")
	cancel(inStep)
	touch(t, hold)
	asleep := w.Start(perdure.Submission{Kind: "trip", Class: perdure.Agent})
	w.until(asleep, "it sleeps", func(r *api.Run) bool { return r.State == perdure.Suspended })
	cancel(asleep)
	for _, id := range []perdure.RunID{inStep, asleep} {
		if run := w.End(id); run.State != perdure.Cancelled || run.Attempt != 1 {
			t.Errorf("run %s is %s in attempt %d, want cancelled in attempt 1", id, run.State, run.Attempt)
		}
	}
	if got := strings.Count(strings.Join(w.lines(), " "), "given_back"); got != 2 {
		t.Errorf("rooms were given back %d times, want 2 (%q)", got, w.lines())
	}
}

// A task that could do nothing hands its run back without an attempt, and one that fails leaves what it has made.
func TestLaterAndFailure(t *testing.T) {
	t.Parallel()
	w := open(t, time.Minute)
	hold := filepath.Join(t.TempDir(), "go")
	w.worker("HOLD_again=" + hold)
	id := w.Start(perdure.Submission{Kind: "again", MaxAttempts: 2})
	w.until(id, "it was handed back twice", func(r *api.Run) bool { return r.Epoch > 2 })
	touch(t, hold)
	if run := w.End(id); run.State != perdure.Completed || string(run.Result) != "1" {
		t.Errorf("run %s is %s with %s, want completed in attempt 1", id, run.State, run.Result)
	}
	id = w.Start(perdure.Submission{Kind: "talk"})
	if run := w.End(id); run.State != perdure.Failed || run.Error.Code != "out_of_stock" {
		t.Errorf("run %s is %s with %+v, want failed with out_of_stock", id, run.State, run.Error)
	}
	var text client.Text
	for e, err := range w.C.Events(w.Ctx, id, 0) {
		if err != nil {
			t.Fatal(err)
		}
		text.Add(&e)
	}
	files, err := w.C.Artifacts(w.Ctx, id)
	if err != nil || text.String() != "word 0 word 1 word 2 " || len(files) != 1 || files[0].Size != 9 {
		t.Errorf("run %s has told %q and left %+v (%v), want three words and report.txt", id, &text, files, err)
	}
}
