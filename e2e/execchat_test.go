package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/perdure/perdure/internal/testkit/eventually"
	"github.com/perdure/perdure/internal/testkit/mockmodel"
	"github.com/perdure/perdure/internal/testkit/pgtest"
)

// A model has a command executed by a pool: a real "perdure runner". The server is killed during the
// command, which ends while the server is away or after its return. The answer has the output, and the
// command was executed once.
func TestExecOfChatSurvivesItsServer(t *testing.T) {
	for _, away := range []bool{true, false} {
		name := "the command ends after the restart/"
		if away {
			name = "the command ends while the server is away/"
		}
		t.Run(name+"SQLite", func(t *testing.T) { t.Parallel(); execSurvives(t, away) })
		t.Run(name+"PostgreSQL", func(t *testing.T) {
			t.Parallel()
			execSurvives(t, away, "--store", pgtest.New(t))
		})
	}
}

func execSurvives(t *testing.T, away bool, args ...string) {
	dir := t.TempDir()
	made := filepath.Join(dir, "made")
	hold := newGate(t)
	model := startModel(t, dir, mockmodel.Script{Rules: []mockmodel.Rule{
		{Match: mockmodel.Match{Role: "user"}, Answer: mockmodel.Answer{
			ToolCalls: []mockmodel.Call{{Name: "code", Arguments: obj{"prompt": "fix it; exit 3"}}}}},
		{Match: mockmodel.Match{Tool: "code"}, Answer: mockmodel.Answer{Text: "It said: {{last}}"}},
	}})
	script := fmt.Sprintf("echo begun | tee -a '%s'; %s; echo \"did $0\"", made, hold.wait())
	config := filepath.Join(dir, "supervisor.toml")
	text := fmt.Sprintf("[[model]]\nbase_url = %q\nmodel = \"m\"\n[[exec]]\nname = \"code\"\n"+
		"command = [\"sh\", \"-c\", %q, \"{prompt}\"]\nqueue = \"agents\"\napprove = \"never\"\ntimeout = \"2m\"\n",
		model, script)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	w := newWorkshop(t, slices.Concat([]string{"--supervisor", config}, short, args)...)
	w.startPool("agents")
	var asked struct {
		ThreadID string `json:"thread_id"`
		RunID    string `json:"run_id"`
	}
	w.insist("POST", "/api/v1/chat", "ask", obj{"message": "go"}, &asked)
	var id string
	eventually.True(t, "the command has begun, and its output is in the log", func() bool {
		var page struct {
			Runs []runView `json:"runs"`
		}
		w.insist("GET", "/api/v1/runs?parent_run_id="+asked.RunID, "", nil, &page)
		if len(page.Runs) == 0 {
			return false
		}
		id = page.Runs[0].RunID
		return strings.Contains(w.output(id), "begun")
	})
	w.kill(syscall.SIGKILL)
	if away {
		hold.open(t)
		eventually.True(t, "the command has ended", func() bool { return w.hasResult(id) })
	}
	w.start()
	if !away {
		hold.open(t)
	}
	eventually.True(t, "the answer is in the thread", func() bool {
		return len(w.said(asked.ThreadID, "assistant")) > 0
	})
	if said := w.said(asked.ThreadID, "assistant"); len(said) != 1 || !strings.HasPrefix(said[0], "It said: ") ||
		!strings.Contains(said[0], "did fix it; exit 3") {
		t.Errorf("answers = %q, want one with the output of the command", said)
	}
	if n := strings.Count(calls(t, made), "begun"); n != 1 {
		t.Errorf("the command was executed %d times, want once", n)
	}
	w.ends(id, "completed")
	w.sound()
}

// startPool starts "perdure runner" for a queue.
func (w *workshop) startPool(queue string) {
	w.t.Helper()
	path, err := program()
	if err != nil {
		w.t.Fatal(err)
	}
	cmd := exec.Command(path, "runner", "--queue", queue, "--env", "PATH")
	cmd.Env = w.env()
	if err := cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { killWorker(cmd) })
}
