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
	"github.com/perdure/perdure/internal/store"
)

var update = flag.Bool("update", false, "write the golden files")

// TestMain lets the demo start the test's own binary as its server.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "demo-server" {
		os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
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
		{"inner command", []string{"demo-server"}, 1, "", "for perdure demo alone"},
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

// The demo is a promise: a run outlives its caller's wait and a kill -9.
func TestDemo(t *testing.T) {
	if testing.Short() {
		t.Skip("starts and kills real processes")
	}
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	code, stdout, stderr := call("demo", "--json")
	if code != 0 {
		t.Fatalf("exit code %d\n%s", code, stderr)
	}
	var got struct {
		State        perdure.State  `json:"state"`
		Attempts     int            `json:"attempts"`
		Executions   map[string]int `json:"executions"`
		Acknowledged struct {
			Steps []string `json:"steps"`
		} `json:"acknowledged_before_kill"`
		Events []perdure.Line `json:"events"`
	}
	if err := json.Unmarshal([]byte(stdout), &got); err != nil {
		t.Fatal(err)
	}
	if got.State != perdure.Completed || got.Attempts != 2 || len(got.Acknowledged.Steps) != demoFatal-1 {
		t.Errorf("%+v", got)
	}
	for i, step := range demoSteps {
		want := 1
		if i+1 == demoFatal {
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
	lines := []perdure.Line{
		{Type: perdure.LineCreated, At: at(10)}, {Type: perdure.LineDispatched, At: at(20)}, {Type: perdure.LineStarted, At: at(20)},
		{Type: perdure.LineHeartbeat, At: at(30)}, {Type: perdure.LineDeferred, At: at(800)}, {Type: perdure.LineHeartbeat, At: at(1100)},
		{Type: perdure.LineReattached, At: at(2400)}, {Type: perdure.LineReclaimed, At: at(3100)}, {Type: perdure.LineRetrying, At: at(3100)},
		{Type: perdure.LineDispatched, At: at(3500)}, {Type: perdure.LineStarted, At: at(3500)}, {Type: perdure.LineCompleted, At: at(4600)},
	}
	s := &story{Left: &stock{State: perdure.Completed, Attempt: 2, Steps: demoSteps, Lines: lines}, Found: &stock{Steps: demoSteps[:3]},
		Recorded: map[int]perdure.Instant{1: at(400), 2: at(750), 3: at(1100), 4: at(3850), 5: at(4200), 6: at(4550)},
		AckedIn:  [2][]int{{1, 2, 3}, {4, 5, 6}},
		Effects:  map[string]int{demoSteps[0]: 1, demoSteps[1]: 1, demoSteps[2]: 1, demoSteps[3]: 2, demoSteps[4]: 1, demoSteps[5]: 1}}
	s.Lives[0], s.Lives[1] = life{PID: 1, Up: at(0), Down: at(1450)}, life{PID: 2, Up: at(2350), Down: at(4620)}
	s.Began[0] = []mark{{1, at(30)}, {2, at(400)}, {3, at(750)}, {4, at(1100)}}
	s.Began[1] = []mark{{4, at(3500)}, {5, at(3850)}, {6, at(4200)}}
	if err := s.verify(); err != nil {
		t.Errorf("verify: %v", err)
	}
	verdict := strings.Replace(s.verdict(painter{}), fmt.Sprint(len(store.Invariants), " invariants"), "N invariants", 1)
	golden(t, "picture.txt", s.picture(painter{})+"\n"+verdict)
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
