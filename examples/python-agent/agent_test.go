// Package agent contains an agent in Python, and a test that kills it.
package agent

import (
	"bytes"
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
	"github.com/perdure/perdure/internal/testkit/mockmodel"
	"github.com/perdure/perdure/internal/testkit/servertest"
)

const script = `{"rule": [
	{"match": {"role": "user"}, "answer": {"tool_calls": [
		{"name": "disk_space", "arguments": {"host": "alpha"}},
		{"name": "disk_space", "arguments": {"host": "beta"}}]}},
	{"match": {"tool": "disk_space"}, "answer": {"text": "Both are fine: {{last}}"}}]}`

// A worker that is killed while the model answers goes on there: the tools of the answer before it are not called
// again, and the answers that were there are not asked for again.
func TestAgentIsKilledInTheMiddle(t *testing.T) {
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
	p := perdure.DefaultPolicy()
	p.Lease, p.GapAfter, p.BackoffBase, p.DispatchedRetry = 2*time.Second, time.Second, 10*time.Millisecond, time.Second
	w := servertest.Listen(t, embedded.Options{Policy: &p})
	log := filepath.Join(t.TempDir(), "tools")
	var out bytes.Buffer
	start := func() *exec.Cmd {
		cmd := exec.Command("python3", "agent.py")
		cmd.Env = append(os.Environ(), "PERDURE_URL="+w.URL, "PERDURE_KEY="+w.Key(), "MODEL_URL="+srv.URL+"/v1",
			"PYTHONPATH=../../sdk/python", "TOOL_LOG="+log, "NO_PROXY=*", "PYTHONDONTWRITEBYTECODE=1")
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		return cmd
	}
	first := start()
	id := w.Start(perdure.Submission{Kind: "assistant", Class: perdure.Agent,
		Input: client.JSON("How much disk space have they?")})
	select {
	case <-second:
	case <-w.Ctx.Done():
		first.Process.Kill()
		t.Fatal("the model was not asked twice")
	}
	first.Process.Kill()
	first.Wait()
	again := start()
	run := w.End(id)
	again.Process.Kill()
	again.Wait()
	if want := `"Both are fine: beta has 7 GB left"`; run.State != perdure.Completed || string(run.Result) != want {
		t.Errorf("run %s is %s with %s (error %+v), want %s; the worker said:\n%s", id, run.State, run.Result,
			run.Error, want, &out)
	}
	if tools, err := os.ReadFile(log); err != nil || strings.Join(strings.Fields(string(tools)), " ") != "alpha beta" {
		t.Errorf("the tools were called for %q (%v), want alpha and beta once", tools, err)
	}
	if asked := asked.Load(); asked != 3 {
		t.Errorf("the model was asked %d times, want 3: the first answer is not asked for again", asked)
	}
}
