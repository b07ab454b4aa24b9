// Package killtest kills workers with -9, starts others, and checks that the runs go on from there. Its server has a
// clock that is moved past the leases of the dead workers, so no test waits for their end.
//
// AtEveryCommit is for the SDKs: a worker is killed at each commit of an agent.
//
// Run is for the examples that have an agent with a model and tools. It kills the worker of an example while the model
// answers.
//
// The model is a scripted one (see mockmodel). It asks for the tool disk_space twice, for alpha and for beta. The
// worker is killed while it waits for the second answer. The tool writes its calls to the file TOOL_LOG.
package killtest

import (
	"bytes"
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/embedded"
	"github.com/perdure/perdure/internal/testkit/eventually"
	"github.com/perdure/perdure/internal/testkit/mockmodel"
	"github.com/perdure/perdure/internal/testkit/servertest"
)

const script = `{"rule": [
	{"match": {"last": "Thanks", "turn": 3}, "answer": {"text": "You are welcome."}},
	{"match": {"role": "user", "turn": 1}, "answer": {"tool_calls": [
		{"name": "disk_space", "arguments": {"host": "alpha"}},
		{"name": "disk_space", "arguments": {"host": "beta"}}]}},
	{"match": {"tool": "disk_space", "turn": 2}, "answer": {"text": "Both are fine: {{last}}"}}]}`

// Question is what the model is asked, and Answer its last word.
const (
	Question = "How much disk space have they?"
	Answer   = "Both are fine: beta has 7 GB left"
)

// An Example is a folder's program, which executes agents of the kind "assistant".
type Example struct {
	// Command starts the worker, and Env is added to its environment.
	Command []string
	Env     []string
	// Start starts a run. Without it the run has the question as its input.
	Start func(*servertest.Server) perdure.RunID
	// After is called when the run has ended, while the second worker lives.
	After func(*servertest.Server, perdure.RunID)
}

// Listen opens a server. The returned function ends the leases of all workers that live at that moment, too.
func Listen(t *testing.T) (w *servertest.Server, endLeases func()) {
	t.Helper()
	p := perdure.DefaultPolicy()
	p.GapAfter, p.BackoffBase, p.WatchdogInterval = 2*p.Lease, time.Millisecond, 20*time.Millisecond
	began, ahead := time.Now(), new(atomic.Int64)
	clock := func() time.Time { return began.Add(time.Since(began) + time.Duration(ahead.Load())) }
	w = servertest.Listen(t, embedded.Options{Policy: &p, Clock: clock})
	w.Patience = eventually.Left(t)
	ctx, cancel := context.WithTimeout(t.Context(), w.Patience)
	t.Cleanup(cancel)
	w.Ctx = ctx
	return w, func() { ahead.Add(int64(p.Lease)) }
}

// Run kills the worker while the model answers for the second time. The answer and the tools before it are in the
// journal: the second worker calls the tools no more, and asks the model for its second answer alone.
func Run(t *testing.T, e Example) {
	t.Helper()
	parsed, err := mockmodel.ParseJSON([]byte(script))
	if err != nil {
		t.Fatal(err)
	}
	model, err := mockmodel.New(parsed)
	if err != nil {
		t.Fatal(err)
	}
	second, goesOn := make(chan struct{}, 10), make(chan struct{})
	var asked atomic.Int64
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if asked.Add(1) == 2 { // this answer does not arrive: the worker is killed
			second <- struct{}{}
			<-goesOn
			return
		}
		model.ServeHTTP(w, r)
	}))
	defer srv.Close()
	defer close(goesOn)
	w, endLeases := Listen(t)
	log := filepath.Join(t.TempDir(), "tools")
	var out bytes.Buffer // one worker lives at a time
	start := func() (kill func()) {
		cmd := exec.Command(e.Command[0], e.Command[1:]...)
		cmd.Env = append(os.Environ(), "PERDURE_URL="+w.URL, "PERDURE_KEY="+w.Key(), "MODEL_URL="+srv.URL+"/v1",
			"TOOL_LOG="+log, "NO_PROXY=*")
		cmd.Env = append(cmd.Env, e.Env...)
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		kill = func() {
			if cmd.ProcessState == nil {
				cmd.Process.Kill()
				cmd.Wait()
			}
		}
		t.Cleanup(kill)
		return kill
	}
	kill := start()
	if e.Start == nil {
		e.Start = func(w *servertest.Server) perdure.RunID {
			return w.Start(perdure.Submission{Kind: "assistant", Class: perdure.Agent, Input: client.JSON(Question)})
		}
	}
	id := e.Start(w)
	select {
	case <-second:
	case <-w.Ctx.Done():
		kill()
		t.Fatalf("the model was asked %d times, want 2; the worker said:\n%s", asked.Load(), &out)
	}
	kill()
	endLeases()
	kill = start()
	run := w.End(id)
	calls := asked.Load()
	if e.After != nil {
		e.After(w, id)
	}
	kill()
	if want := string(client.JSON(Answer)); run.State != perdure.Completed || string(run.Result) != want {
		t.Errorf("run %s is %s with %s (error %+v), want %s; the worker said:\n%s", id, run.State, run.Result,
			run.Error, want, &out)
	}
	if tools, err := os.ReadFile(log); err != nil || strings.Join(strings.Fields(string(tools)), " ") != "alpha beta" {
		t.Errorf("the tools were called for %q (%v), want alpha and beta once", tools, err)
	}
	if calls != 3 {
		t.Errorf("the model was asked %d times, want 3: the first answer is not asked for again", calls)
	}
}
