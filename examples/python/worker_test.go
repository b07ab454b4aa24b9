// Package python contains a worker in Python, and tests that run it.
package python

import (
	"bytes"
	"context"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/client/admin"
	"github.com/perdure/perdure/embedded"
	"github.com/perdure/perdure/internal/testkit/eventually"
)

// A world is a server behind a listener.
type world struct {
	t   *testing.T
	ctx context.Context
	c   *client.Client
	url string
	key string
}

func open(t *testing.T) *world {
	t.Helper()
	p := perdure.DefaultPolicy()
	p.Lease, p.GapAfter = 2*time.Second, time.Second // a machine that stalls is a gap, in which no lease is lost
	p.BackoffBase = 10 * time.Millisecond
	p.DispatchedRetry = time.Second
	srv, err := embedded.Open(embedded.Options{Policy: &p})
	if err != nil {
		t.Fatal(err)
	}
	l := httptest.NewServer(srv.Handler())
	ctx, cancel := context.WithTimeout(t.Context(), eventually.Left(t))
	w := &world{t: t, ctx: ctx, c: client.New(l.URL, srv.Key(), client.Options{}), url: l.URL, key: srv.Key()}
	t.Cleanup(func() {
		cancel()
		w.c.Close()
		srv.Drain()
		l.Close()
		srv.Close()
	})
	return w
}

// output collects the output of the process.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(b)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// python starts the worker. Without Python the test fails, because a skipped test would look green.
func (w *world) python(key string) (*exec.Cmd, *output) {
	w.t.Helper()
	python, err := exec.LookPath("python3")
	if err != nil {
		w.t.Fatal("this test needs python3: ", err)
	}
	out := &output{}
	cmd := exec.Command(python, "-u", "worker.py")
	cmd.Env = append(os.Environ(), "PERDURE_URL="+w.url, "PERDURE_KEY="+key, "NO_PROXY=*", "PYTHONDONTWRITEBYTECODE=1")
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		if cmd.ProcessState == nil {
			cmd.Process.Kill()
			cmd.Wait()
		}
		if w.t.Failed() {
			w.t.Logf("the worker said:\n%s", out)
		}
	})
	return cmd, out
}

func (w *world) start(kind string, input any) perdure.RunID {
	w.t.Helper()
	run, err := w.c.Start(w.ctx, perdure.Submission{Kind: kind, Input: client.JSON(input)})
	if err != nil {
		w.t.Fatal(err)
	}
	return run.RunID
}

func (w *world) end(id perdure.RunID) *api.Run {
	w.t.Helper()
	run, deferred, err := w.c.Join(w.ctx, id, time.Minute)
	if err != nil || deferred {
		w.t.Fatalf("%s: deferred %v, error %v", id, deferred, err)
	}
	return run
}

// counting returns a run that counts, after the first sign of life of its worker. On a slow machine
// a run may have ended before, and then it starts another one.
func (w *world) counting(to int) perdure.RunID {
	w.t.Helper()
	for {
		id := w.start("count", to)
		for e, err := range w.c.Events(w.ctx, id, 0) {
			if err != nil {
				w.t.Fatal(err)
			}
			if e.Type == "run:heartbeat" {
				return id
			}
		}
	}
}

func TestWorkerOutcomes(t *testing.T) {
	w := open(t)
	cmd, _ := w.python(w.key)

	run := w.end(w.start("greet", "wörld"))
	if got, err := client.Result[string](run); got != "Hello, wörld" || err != nil || run.Attempt != 1 {
		t.Errorf("greet: %s with %s (error %+v), want a greeting in attempt 1", run.State, run.Result, run.Error)
	}
	run = w.end(w.start("divide", []int{1, 0}))
	if run.State != perdure.Failed || run.Attempt != 3 || run.Error.Code != "ZeroDivisionError" ||
		!strings.Contains(run.Error.Message, "division by zero") {
		t.Errorf("%s after %d attempts: %+v", run.State, run.Attempt, run.Error)
	}
	if run := w.end(w.start("greet", strings.Repeat("x", perdure.MaxValue-2))); run.State != perdure.Failed ||
		run.Error.Code != "result_refused" {
		t.Errorf("run with a result that is too large: %s (error %+v), want failed with result_refused", run.State,
			run.Error)
	}

	long := w.counting(600)
	run, err := w.c.Cancel(w.ctx, long, "enough", time.Minute)
	if err != nil || run.State != perdure.Cancelled || run.Cancel.AckedAt == 0 || run.Attempt != 1 {
		t.Errorf("cancelled run = %+v (error %v), want an acknowledged cancel in attempt 1", run, err)
	}

	// A count of 3 s takes longer than the lease. The worker is asked to end meanwhile, and
	// finishes it first.
	last := w.counting(3)
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if run := w.end(last); run.State != perdure.Completed || run.Attempt != 1 || string(run.Result) != "3" {
		t.Errorf("count: %s with %s (error %+v), want 3 in attempt 1", run.State, run.Result, run.Error)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("exit of the worker = %v, want success", err)
	}
	if inv, err := admin.New(w.c).Invariants(w.ctx); err != nil || len(inv.Violations) > 0 {
		t.Errorf("invariants = %+v (error %v), want no violations", inv, err)
	}
}

func TestRunContinuesAfterWorkerKill(t *testing.T) {
	w := open(t)
	first, _ := w.python(w.key)
	id := w.counting(2)
	if err := first.Process.Kill(); err != nil { // SIGKILL
		t.Fatal(err)
	}
	first.Wait()
	w.python(w.key)
	run := w.end(id)
	if run.State != perdure.Completed || run.Attempt != 2 || string(run.Result) != "2" {
		t.Errorf("%s, attempt %d, %s, %+v", run.State, run.Attempt, run.Result, run.Error)
	}
}

func TestWorkerWithWrongKeyExits(t *testing.T) {
	w := open(t)
	cmd, out := w.python("prd_wrong")
	if err := cmd.Wait(); err == nil || !strings.Contains(out.String(), "refuses this worker") {
		t.Errorf("worker with a wrong key: %v, want an error that the server refuses it\n%s", err, out)
	}
}
