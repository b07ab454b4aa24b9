// Package typescript contains a worker in TypeScript, and tests that run it.
package typescript

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/client/admin"
	"github.com/perdure/perdure/embedded"
	"github.com/perdure/perdure/internal/testkit/servertest"
)

// A world is a server behind a listener.
type world struct{ *servertest.Server }

func open(t *testing.T) world {
	t.Helper()
	p := perdure.DefaultPolicy()
	p.Lease, p.GapAfter = 2*time.Second, time.Second // a machine that stalls is a gap, in which no lease is lost
	p.BackoffBase = 10 * time.Millisecond
	p.DispatchedRetry = time.Second
	return world{servertest.Listen(t, embedded.Options{Policy: &p})}
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

// node starts the worker, which "make typescript" has compiled, with the Node.js that the SDK is tested with.
func (w world) node(key string) (*exec.Cmd, *output) {
	w.T.Helper()
	node, err := filepath.Abs("../../sdk/typescript/runtime/node_modules/node-22/bin/node")
	if err != nil {
		w.T.Fatal(err)
	}
	for _, file := range []string{node, "dist/worker.js"} {
		if _, err := os.Stat(file); err != nil {
			w.T.Fatalf("this test needs what \"make typescript\" makes: %v", err)
		}
	}
	out := &output{}
	cmd := exec.Command(node, "dist/worker.js")
	cmd.Env = append(os.Environ(), "PERDURE_URL="+w.URL, "PERDURE_KEY="+key)
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
			w.T.Logf("the worker said:\n%s", out)
		}
	})
	return cmd, out
}

func (w world) start(kind string, input any) perdure.RunID {
	w.T.Helper()
	return w.Start(perdure.Submission{Kind: kind, Input: client.JSON(input)})
}

// counting returns a run that counts, after the first sign of life of its worker. On a slow machine
// a run may have ended before, and then it starts another one.
func (w world) counting(to int) perdure.RunID {
	w.T.Helper()
	for {
		id := w.start("count", to)
		for e, err := range w.C.Events(w.Ctx, id, 0) {
			if err != nil {
				w.T.Fatal(err)
			}
			if e.Type == "run:heartbeat" {
				return id
			}
		}
	}
}

func TestWorkerOutcomes(t *testing.T) {
	w := open(t)
	cmd, _ := w.node(w.Key())

	run := w.End(w.start("greet", "wörld"))
	if got, err := client.Result[string](run); got != "Hello, wörld" || err != nil || run.Attempt != 1 {
		t.Errorf("greet: %s with %s (error %+v), want a greeting in attempt 1", run.State, run.Result, run.Error)
	}
	run = w.End(w.start("divide", []int{1, 0}))
	if run.State != perdure.Failed || run.Attempt != 3 || run.Error.Code != "RangeError" ||
		!strings.Contains(run.Error.Message, "Division by zero") {
		t.Errorf("%s after %d attempts: %+v", run.State, run.Attempt, run.Error)
	}
	if run := w.End(w.start("greet", strings.Repeat("x", perdure.MaxValue-2))); run.State != perdure.Failed ||
		run.Error.Code != "result_refused" {
		t.Errorf("run with a result that is too large: %s (error %+v), want failed with result_refused", run.State,
			run.Error)
	}

	long := w.counting(600)
	run, err := w.C.Cancel(w.Ctx, long, "enough", time.Minute)
	if err != nil || run.State != perdure.Cancelled || run.Cancel.AckedAt == 0 || run.Attempt != 1 {
		t.Errorf("cancelled run = %+v (error %v), want an acknowledged cancel in attempt 1", run, err)
	}

	// A count of 3 s takes longer than the lease. The worker is asked to end meanwhile, and
	// finishes it first.
	last := w.counting(3)
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if run := w.End(last); run.State != perdure.Completed || run.Attempt != 1 || string(run.Result) != "3" {
		t.Errorf("count: %s with %s (error %+v), want 3 in attempt 1", run.State, run.Result, run.Error)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("exit of the worker = %v, want success", err)
	}
	if inv, err := admin.New(w.C).Invariants(w.Ctx); err != nil || len(inv.Violations) > 0 {
		t.Errorf("invariants = %+v (error %v), want no violations", inv, err)
	}
}

func TestRunContinuesAfterWorkerKill(t *testing.T) {
	w := open(t)
	first, _ := w.node(w.Key())
	id := w.counting(2)
	if err := first.Process.Kill(); err != nil { // SIGKILL
		t.Fatal(err)
	}
	first.Wait()
	w.node(w.Key())
	run := w.End(id)
	if run.State != perdure.Completed || run.Attempt != 2 || string(run.Result) != "2" {
		t.Errorf("%s, attempt %d, %s, %+v", run.State, run.Attempt, run.Result, run.Error)
	}
}

func TestWorkerWithWrongKeyExits(t *testing.T) {
	w := open(t)
	cmd, out := w.node("prd_wrong")
	if err := cmd.Wait(); err == nil || !strings.Contains(out.String(), "refuses this worker") {
		t.Errorf("worker with a wrong key: %v, want an error that the server refuses it\n%s", err, out)
	}
}
