package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
)

var update = flag.Bool("update", false, "write the golden files")

// TestMain lets the demo and the bench start the test's own binary as their servers, workers and clients.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "serve", "demo-worker", "bench-clients", "bench-serve":
			os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
		}
	}
	os.Exit(m.Run())
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
		{"version", []string{"version"}, 0, "perdure dev", ""},
		{"--version", []string{"--version"}, 0, "perdure dev", ""},
		{"inner command", []string{"demo-worker"}, 1, "", "for perdure demo alone"},
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
	golden(t, "usage.txt", stdout)
}

func TestVersionAsJSON(t *testing.T) {
	code, stdout, _ := call("version", "--json")
	var v versionOf
	if err := json.Unmarshal([]byte(stdout), &v); err != nil || code != 0 || v.Version != "dev" || v.Go == "" {
		t.Errorf("exit code %d, %q (%v)", code, stdout, err)
	}
}

// The demo is a promise: a run outlives its caller's wait, a kill -9 of the server and one of its worker.
func TestDemo(t *testing.T) {
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	code, stdout, stderr := call("demo", "--json")
	if code != 0 {
		t.Fatalf("exit code %d\n%s", code, stderr)
	}
	var got struct {
		State      perdure.State  `json:"state"`
		Attempts   int            `json:"attempts"`
		Executions map[string]int `json:"executions"`
		Killed     []struct {
			Acked   []int `json:"acknowledged_steps"`
			Attempt int   `json:"attempt_afterwards"`
		} `json:"killed"`
		Events []api.Event `json:"events"`
	}
	if err := json.Unmarshal([]byte(stdout), &got); err != nil {
		t.Fatal(err)
	}
	if got.State != perdure.Completed || got.Attempts != 2 || len(got.Killed) != 2 || len(got.Killed[0].Acked) != demoServerDies-1 || got.Killed[0].Attempt != 1 {
		t.Errorf("%+v", got)
	}
	for i, step := range demoSteps {
		want := 1
		if i+1 == demoWorkerDies {
			want = 2
		}
		if got.Executions[step] != want {
			t.Errorf("step %q was executed %d times, want %d", step, got.Executions[step], want)
		}
	}
	types := make(map[string]int)
	for _, l := range got.Events {
		types[l.Type]++
	}
	for _, typ := range []string{perdure.LineDeferred, perdure.LineReattached, perdure.LineReclaimed, perdure.LineRetrying, perdure.LineCompleted} {
		if types[typ] != 1 {
			t.Errorf("%d lines of type %s, want 1", types[typ], typ)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(tmp, "perdure-demo-*")); len(left) > 0 {
		t.Errorf("the demo left %v behind", left)
	}
}

// The picture is drawn from instants alone, so that it can be compared.
func TestPicture(t *testing.T) {
	at := func(ms int) perdure.Instant {
		return perdure.Instant(1_000_000_000_000).Add(time.Duration(ms) * time.Millisecond)
	}
	event := func(typ string, ms int) api.Event { return api.Event{Type: typ, At: at(ms)} }
	step := func(n, ms int) api.Event {
		return api.Event{Type: demoLine, At: at(ms), Data: json.RawMessage(fmt.Sprintf(`{"step":%d}`, n))}
	}
	s := &story{
		Run: &api.Run{State: perdure.Completed, Attempt: 2}, Back: &api.Run{Attempt: 1}, Checked: 27, Acked: []int{1, 2},
		Servers: [2]life{{PID: 1, Up: at(0), Down: at(1000)}, {PID: 2, Up: at(2100), Down: at(6700)}},
		Workers: [2]life{{PID: 3, Up: at(20), Down: at(2780)}, {PID: 4, Up: at(3700), Down: at(6700)}},
		Events: []api.Event{event(perdure.LineCreated, 50), event(perdure.LineDispatched, 60), event(perdure.LineStarted, 60), step(1, 430), event(perdure.LineDeferred, 550),
			step(2, 830), step(3, 2250), step(4, 2600), event(perdure.LineReattached, 3750), event(perdure.LineReclaimed, 5600), event(perdure.LineRetrying, 5600),
			event(perdure.LineDispatched, 5950), event(perdure.LineStarted, 5950), step(5, 6310), step(6, 6650), event(perdure.LineCompleted, 6660)},
		Began:   [2][]mark{{{1, at(60)}, {2, at(430)}, {3, at(830)}, {4, at(2250)}, {5, at(2600)}}, {{5, at(5950)}, {6, at(6310)}}},
		Ended:   map[int]perdure.Instant{1: at(430), 2: at(830), 3: at(2250), 4: at(2600), 5: at(6310), 6: at(6650)},
		Effects: map[string]int{},
	}
	for i, name := range demoSteps {
		s.Effects[name] = 1
		if i+1 == demoWorkerDies {
			s.Effects[name] = 2
		}
	}
	if err := s.verify(); err != nil {
		t.Errorf("verify: %v", err)
	}
	golden(t, "picture.txt", s.picture(painter{})+"\n"+s.verdict(painter{}))
	golden(t, "picture.colour.txt", s.picture(painter{on: true}))

	s.Effects[demoSteps[0]] = 2
	if err := s.verify(); err == nil || !strings.Contains(err.Error(), "executed 2 times") {
		t.Errorf("a recorded step that was executed again is not found: %v", err)
	}
}

func TestColourOnlyWhereItIsWanted(t *testing.T) {
	for _, c := range []struct {
		name, force, no string
		want            bool
	}{
		{"a pipe", "", "", false},
		{"forced", "1", "", true},
		{"forced and refused", "1", "1", true},
		{"forced off", "0", "", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Setenv("FORCE_COLOR", c.force)
			t.Setenv("NO_COLOR", c.no)
			if got := colourful(new(bytes.Buffer)); got != c.want {
				t.Errorf("colours: %v, want %v", got, c.want)
			}
		})
	}
}

// golden compares with a file of testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("not what stands in %s; if it should be, run the test with -update\n%s", path, got)
	}
}

func TestTheManualHasEveryCommand(t *testing.T) {
	manual, err := os.ReadFile("../../docs/server.md")
	if err != nil {
		t.Fatal(err)
	}
	help, _ := mustRun(t, 0, "--help")
	for _, c := range commands() {
		if !c.inner {
			has(t, string(manual), "perdure "+c.name)
			has(t, help, "  "+c.name+" ")
		}
	}
	for _, more := range []string{"perdure keys signing", "perdure keys create", "revoke ID"} {
		has(t, string(manual), more)
	}
}
