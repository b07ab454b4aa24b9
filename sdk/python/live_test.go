package python

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
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

// A world is a server behind a listener, and a file in which workers note what they execute.
type world struct {
	*servertest.Server
	log string
}

func open(t *testing.T) world {
	t.Helper()
	p := perdure.DefaultPolicy()
	p.Lease, p.GapAfter = 2*time.Second, time.Second // a machine that stalls is a gap, in which no lease is lost
	p.BackoffBase = 10 * time.Millisecond
	p.DispatchedRetry = time.Second
	srv := servertest.Listen(t, embedded.Options{Policy: &p, Dir: t.TempDir()})
	return world{srv, filepath.Join(t.TempDir(), "log")}
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

// worker starts the worker of the tests with live runs.
func (w world) worker(env ...string) *exec.Cmd { return w.start("tests.live_worker", env...) }

// start starts a worker in Python.
func (w world) start(module string, env ...string) *exec.Cmd {
	w.T.Helper()
	python, err := exec.LookPath("python3")
	if err != nil {
		w.T.Fatal("this test needs python3: ", err)
	}
	out := &output{}
	cmd := exec.Command(python, "-u", "-m", module)
	cmd.Env = append(os.Environ(), "PERDURE_URL="+w.URL, "PERDURE_KEY="+w.Key(), "NO_PROXY=*",
		"PYTHONDONTWRITEBYTECODE=1", "LOG="+w.log)
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
	want := `{"found":"found in lamp","paid":7,"both":{"a":"left","b":"right"},"many":["found in a","found in b"]}`
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
	w := open(t)
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
	w := open(t)
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
	w := open(t)
	first := w.worker("GRACE=0.1", "HOLD_book="+filepath.Join(t.TempDir(), "never"))
	id := w.order()
	w.noted("book=book#1")
	first.Process.Signal(syscall.SIGTERM)
	first.Wait()
	w.worker()
	w.paid(id)
	w.completes(id)
}

// A step closes its limit. The next one suspends the run until the limit is open, and gives its slot back.
func TestStepsUnderALimit(t *testing.T) {
	w := open(t)
	rate := perdure.LimitRate{Count: 100, Per: perdure.Duration(time.Minute)}
	if _, err := w.C.PutLimit(w.Ctx, "model", api.PutLimit{Concurrency: new(1), Rate: &rate}); err != nil {
		t.Fatal(err)
	}
	w.worker()
	id := w.Start(perdure.Submission{Kind: "quota", Class: perdure.Agent})
	eventually.True(t, "the run waits for the limit", func() bool {
		run, err := w.C.Get(w.Ctx, id)
		return err == nil && run.State == perdure.Suspended
	})
	l, err := w.C.Limit(w.Ctx, "model")
	if err != nil || l.Leased != 0 || l.Waiting != 1 || l.CloseReason != "429" {
		t.Errorf("limit while run %s waits: %+v, %v, want it closed for 429, with no holder and one waiter", id, l, err)
	}
	if _, err := w.C.OpenLimit(w.Ctx, "model", api.OpenLimit{}); err != nil {
		t.Fatal(err)
	}
	if run := w.End(id); string(run.Result) != `"said"` || run.Attempt != 1 {
		t.Errorf("run %s is %s in attempt %d with %s (error %+v), want said", id, run.State, run.Attempt, run.Result,
			run.Error)
	}
	if got := strings.Join(w.lines(), " "); got != "first second" {
		t.Errorf("run %s has executed %q, want each step once", id, got)
	}
	if l, err = w.C.Limit(w.Ctx, "model"); err != nil || l.Leased+l.Waiting+l.Offered != 0 {
		t.Errorf("limit after the end of run %s: %+v, %v, want it free", id, l, err)
	}
}

func TestCancelAndOneAttempt(t *testing.T) {
	w := open(t)
	w.worker()
	once := w.Start(perdure.Submission{Kind: "count", Input: client.JSON(3), MaxAttempts: 1})
	if run := w.End(once); string(run.Result) != "3" {
		t.Errorf("run with one attempt: %s with %s (error %+v), want 3", run.State, run.Result, run.Error)
	}
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
