package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/cmd/internal/golden"
	"github.com/perdure/perdure/internal/process/runner"
	"github.com/perdure/perdure/internal/wire/release"
)

// TestMain lets the demo start the test binary as their servers, workers and clients.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "serve", "demo-agent", "exec", runner.ProcessCommand:
			os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
		case workerProgram:
			os.Exit(runWorkerProgram(os.Args[2]))
		}
	}
	// Tests have a job table of their own, so that they don't change the user's.
	dir, err := os.MkdirTemp("", "perdure-state")
	if err != nil {
		panic(err)
	}
	os.Setenv("XDG_STATE_HOME", dir)
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

func call(args ...string) (code int, stdout, stderr string) {
	var out, complaint bytes.Buffer
	code = run(args, &out, &complaint)
	return code, out.String(), complaint.String()
}

func TestCommandLine(t *testing.T) {
	for _, c := range []struct {
		name   string
		args   []string
		code   int
		stdout string // a part of it
		stderr string
	}{
		{"nothing", nil, 2, "", "Usage:"},
		{"help", []string{"help"}, 0, "Usage:", ""},
		{"--help", []string{"--help"}, 0, "demo", ""},
		{"unknown command", []string{"dmeo"}, 2, "", `no command "dmeo"`},
		{"unknown flag", []string{"version", "--jsno"}, 2, "", "jsno"},
		{"argument", []string{"version", "now"}, 2, "", "takes no arguments: now"},
		{"help of a command", []string{"demo", "-h"}, 0, "", "SIGKILL"},
		{"version", []string{"version"}, 0, "perdure " + release.Version, ""},
		{"--version", []string{"--version"}, 0, "perdure " + release.Version, ""},
		{"bench", []string{"bench", "--scenario", "jobs"}, 2, "", "a program of its own, perdure-bench"},
		{"inner command", []string{"demo-agent"}, 1, "", "for perdure demo alone"},
	} {
		t.Run(c.name, func(t *testing.T) {
			code, stdout, stderr := call(c.args...)
			if code != c.code {
				t.Errorf("exit code %d, want %d", code, c.code)
			}
			if !strings.Contains(stdout, c.stdout) || (c.stdout == "") != (stdout == "") {
				t.Errorf("stdout %q, want a part %q", stdout, c.stdout)
			}
			if !strings.Contains(stderr, c.stderr) || (c.stderr == "") != (stderr == "") {
				t.Errorf("stderr %q, want a part %q", stderr, c.stderr)
			}
		})
	}
}

func TestUsage(t *testing.T) {
	_, stdout, _ := call("help")
	golden.Compare(t, "usage.txt", stdout)
}

func TestVersionAsJSON(t *testing.T) {
	code, stdout, _ := call("version", "--json")
	var v versionOf
	err := json.Unmarshal([]byte(stdout), &v)
	if err != nil || code != 0 || v.Version != release.Version || v.Go == "" {
		t.Errorf("exit code %d, %q (%v)", code, stdout, err)
	}
}

// The demo shows that an answer survives the end of its caller's wait, and a kill -9 of the server.
func TestDemo(t *testing.T) {
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	code, stdout, stderr := call("demo", "--json")
	if code != 0 {
		t.Fatalf("exit code %d\n%s", code, stderr)
	}
	var got struct {
		State    perdure.State `json:"state"`
		Attempts int           `json:"attempts"`
		Worker   int           `json:"worker_attempts"`
		Waited   int           `json:"waited_ms"`
		Executed int           `json:"df_executions"`
		Messages []api.Message `json:"messages"`
		Promises []struct {
			Kept bool   `json:"kept"`
			Text string `json:"text"`
		} `json:"promises"`
	}
	if err := json.Unmarshal([]byte(stdout), &got); err != nil {
		t.Fatal(err)
	}
	if got.State != perdure.Completed || got.Attempts != 1 || got.Worker != 1 || got.Executed != 1 ||
		got.Waited < 3000 || len(got.Promises) != 6 {
		t.Errorf("demo = %+v, want completed in attempt 1 with one df, after a wait of 3 s", got)
	}
	last := got.Messages[len(got.Messages)-1]
	if last.Role != perdure.RoleAssistant || !strings.Contains(string(last.Content), "Filesystem") {
		t.Errorf("the last message is %s: %s, want the agent's, with what df has printed", last.Role, last.Content)
	}
	if left, _ := filepath.Glob(filepath.Join(tmp, "perdure-demo-*")); len(left) > 0 {
		t.Errorf("files after the demo = %v, want none", left)
	}
}

func TestManualListsEveryCommand(t *testing.T) {
	manual, err := os.ReadFile("../../docs/server.md")
	if err != nil {
		t.Fatal(err)
	}
	help, _ := mustRun(t, 0, "--help")
	for _, c := range commands() {
		if !c.hidden {
			has(t, string(manual), "perdure "+c.name)
			has(t, help, "  "+c.name+" ")
		}
	}
	for _, more := range []string{"perdure keys signing", "perdure keys create", "revoke ID"} {
		has(t, string(manual), more)
	}
}
