package main

import (
	"bytes"
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/perdure/perdure"
)

// An execLine is a line of perdure exec --json.
type execLine struct {
	Type, Stream, Message string
	RunID                 perdure.RunID `json:"run_id"`
	Watched               *bool
	State, Status         string
	Text                  string
	Base64                []byte
	ExitCode              *int `json:"exit_code"`
	Error                 *perdure.Failure
}

// execLines reads the lines of perdure exec --json: the output of each stream, and all other lines.
func execLines(t *testing.T, text string) (output map[string]string, others []execLine) {
	t.Helper()
	output = make(map[string]string)
	for line := range strings.Lines(text) {
		var l execLine
		if err := json.Unmarshal([]byte(line), &l); err != nil {
			t.Fatalf("%q is no JSON: %v", line, err)
		}
		if l.Type == "output" {
			output[l.Stream] += l.Text + string(l.Base64)
			continue
		}
		others = append(others, l)
	}
	return output, others
}

func TestExecPrintsJSON(t *testing.T) {
	c := liveForExec(t)
	code, stdout, stderr := call("exec", "--json", "--", "sh", "-c", `echo "a <b>"; printf 'c\377' >&2; exit 3`)
	output, lines := execLines(t, stdout)
	if code != 3 || stderr != "" || len(lines) != 2 {
		t.Fatalf("exec --json: exit code %d, want 3, and %d lines beside the output, want 2: %s%s", code, len(lines),
			stdout, stderr)
	}
	if output["stdout"] != "a <b>\n" || output["stderr"] != "c\xff" {
		t.Errorf("output = %q", output)
	}
	start, end := lines[0], lines[1]
	if start.Type != "started" || start.RunID == "" || start.Watched == nil || !*start.Watched {
		t.Errorf("the first line is %+v, want the run, and that a server looks after it", start)
	}
	if end.Type != "ended" || end.RunID != start.RunID || end.State != "failed" || end.Status != "failed" ||
		end.ExitCode == nil || *end.ExitCode != 3 || end.Error == nil || end.Error.Code != "exit_status" {
		t.Errorf("the last line is %+v, want that the run has failed with 3", end)
	}
	code, stdout, _ = call("exec", "--json", "--", "true")
	if _, lines = execLines(t, stdout); code != 0 || len(lines) != 2 || lines[1].State != "completed" ||
		lines[1].ExitCode == nil || *lines[1].ExitCode != 0 {
		t.Errorf("exec --json of true: exit code %d: %s", code, stdout)
	}
	code, stdout, _ = call("exec", "--json", "--", "no-such-program")
	if _, lines = execLines(t, stdout); code != 127 || len(lines) != 2 || lines[1].ExitCode == nil ||
		*lines[1].ExitCode != 127 || lines[1].Error == nil || lines[1].Error.Code != "not_started" {
		t.Errorf("exec --json of no program: exit code %d: %s", code, stdout)
	}
	code, stdout, _ = call("exec", "--json", "--timeout", "1s", "--", "sleep", "1000")
	if _, lines = execLines(t, stdout); code != exitTimeout || lines[len(lines)-1].State != "timeout" {
		t.Errorf("exec --json with a timeout: exit code %d, want %d: %s", code, exitTimeout, stdout)
	}

	// Somebody leaves, and comes back.
	out := &detachingWriter{at: `one`}
	var errs bytes.Buffer
	code = run([]string{"exec", "--json", "--", "sh", "-c", "echo one; exec sleep 1000"}, out, &errs)
	_, lines = execLines(t, out.String())
	if code != exitLeft || len(lines) != 2 || lines[1].Type != "detached" || lines[1].ExitCode != nil ||
		lines[1].State != "running" {
		t.Errorf("exec --json that is left: exit code %d, want %d, and that the run goes on: %s", code, exitLeft, out)
	}
	code, stdout, _ = call("exec", "--json", "-d", "--", "sleep", "1000")
	_, lines = execLines(t, stdout)
	if code != 0 || len(lines) != 1 || lines[0].RunID == "" {
		t.Fatalf("exec --json -d: exit code %d, it printed %s, want one line with the run", code, stdout)
	}
	if r, err := c.Get(t.Context(), lines[0].RunID); err != nil || r.State != perdure.Running {
		t.Errorf("the run of exec --json -d is %+v (error %v), want it running", r, err)
	}
	mustRun(t, 0, "kill", "%1", "%2")
}

// The first line is that of the start, whatever there is to say before.
func TestNotesBeforeTheStartAreText(t *testing.T) {
	for _, detach := range []bool{false, true} {
		var out, errs bytes.Buffer
		s := newExecScreen(true, detach, &out, &errs)
		s.say("waiting")
		if err := s.started(execStart{RunID: "r"}); err != nil {
			t.Fatal(err)
		}
		s.say("truncated")
		_, lines := execLines(t, out.String())
		want := "[perdure: waiting]\n"
		if detach {
			want += "[perdure: truncated]\n"
		}
		if n := len(lines); lines[0].Type != "started" || (n == 1) != detach || errs.String() != want {
			t.Errorf("detached %v: the lines are %+v, and stderr has %q; want started first, and %q", detach, lines,
				&errs, want)
		}
	}
}

// A character whose bytes come one by one is text.
func TestJSONOutputHasWholeCharacters(t *testing.T) {
	var b bytes.Buffer
	o := &jsonOutput{w: &b, stream: "stdout"}
	for _, c := range []byte("aé€\xe2\x82") {
		if _, err := o.Write([]byte{c}); err != nil {
			t.Fatal(err)
		}
	}
	o.flush()
	var texts []string
	for line := range strings.Lines(b.String()) {
		var l execLine
		if err := json.Unmarshal([]byte(line), &l); err != nil {
			t.Fatal(err)
		}
		texts = append(texts, l.Text+"|"+string(l.Base64))
	}
	if got := strings.Join(texts, " "); got != "a| é| €| |\xe2\x82" {
		t.Errorf("lines = %q, want whole characters, and the torn one as bytes", got)
	}
}

// A server that does not look after the workspace notices late that a runner is lost.
func TestExecSaysThatNobodyWatchesTheWorkspace(t *testing.T) {
	liveForExec(t)
	const says = "no server looks after the workspace"
	if _, _, stderr := call("exec", "--", "true"); stderr != "" {
		t.Errorf("exec with the server of the workspace says %q, want nothing", stderr)
	}
	other := filepath.Join(t.TempDir(), "other")
	_, _, stderr := call("exec", "--workspace", other, "--", "true")
	if strings.Count(stderr, "\n") != 1 {
		t.Errorf("exec in another workspace says %q, want one line", stderr)
	}
	has(t, stderr, says, other, "dead_after")
	_, stdout, stderr := call("exec", "--workspace", other, "--json", "--", "true")
	if _, lines := execLines(t, stdout); stderr != "" || lines[0].Watched == nil || *lines[0].Watched {
		t.Errorf("exec --json in another workspace: %s%s, want watched false", stdout, stderr)
	}
}
