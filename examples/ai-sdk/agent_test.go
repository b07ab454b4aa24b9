// Package aisdk contains an agent of the AI SDK, and a test that kills it.
package aisdk

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

// node is the Node.js that "make typescript" installs.
const node = "../../sdk/typescript/runtime/node_modules/node-22/bin/node"

const script = `{"rule": [
	{"match": {"role": "user"}, "answer": {"tool_calls": [
		{"name": "disk_space", "arguments": {"host": "alpha"}},
		{"name": "disk_space", "arguments": {"host": "beta"}}]}},
	{"match": {"tool": "disk_space"}, "answer": {"text": "Both are fine: {{last}}"}}]}`

// The example has the types of the SDKs that it uses.
func TestTypes(t *testing.T) {
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), node, "../../sdk/typescript/node_modules/typescript/bin/tsc", "--noEmit",
		"--strict", "--skipLibCheck", "--allowImportingTsExtensions", "--module", "nodenext", "--target", "es2023",
		"--lib", "es2023,dom,dom.asynciterable", "--types", "node", "--typeRoots",
		"../../sdk/typescript/node_modules/@types", "agent.ts")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v:\n%s", err, out)
	}
}

// A worker that is killed while the model answers goes on there: the tools of the answer before it are not called
// again, and the answers that were there are not asked for again.
func TestAgentIsKilledInTheMiddle(t *testing.T) {
	t.Parallel()
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
		cmd := exec.Command(node, "agent.ts")
		cmd.Env = append(os.Environ(), "PERDURE_URL="+w.URL, "PERDURE_KEY="+w.Key(), "MODEL_URL="+srv.URL+"/v1",
			"TOOL_LOG="+log, "NO_PROXY=*")
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
