package python

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/embedded"
	"github.com/perdure/perdure/internal/testkit/agentcases"
	"github.com/perdure/perdure/internal/testkit/eventually"
	"github.com/perdure/perdure/internal/testkit/servertest"
)

// A misuse is a row of docs/misuses.md in Python, and its two runs: of an agent that returns the error, and of one
// that ignores it and goes on with a step.
type misuse struct {
	*agentcases.Misuse
	name, kind string
	has        bool
	// becomes is what becomes of it, in the words of the page. Reason is set if Go has it otherwise.
	becomes, reason string
	run, ignores    perdure.RunID
}

// becomes says what becomes of a row in Go, in words.
func becomes(m *agentcases.Misuse) string {
	switch {
	case m.Held != "":
		return "held, `" + string(m.Held) + "`"
	case m.Fails != "":
		return "fails, `" + string(m.Fails) + "`"
	case m.Error != "":
		return "an error that it may handle, `" + string(m.Error) + "`"
	case m.Right != "":
		return "right"
	case m.Kit:
		return "found by the test kit"
	}
	return "reported by vet"
}

// Each misuse of docs/misuses.md is executed in Python. None is silent: the run is right, or held before the next
// step with a text, or the error has a code, or the test kit finds it. The page of Python has the rows that are
// otherwise than in Go.
func TestMisusesOfTheTable(t *testing.T) {
	t.Parallel()
	var inPython map[string][3]any
	if err := json.Unmarshal([]byte(run(t, "-m", "tests.misuses")), &inPython); err != nil {
		t.Fatal(err)
	}
	var rows []*misuse
	var names, kit []string
	for _, area := range agentcases.Misuses {
		for n := range area.Rows {
			m := &misuse{Misuse: &area.Rows[n], name: area.Rows[n].Name, kind: fmt.Sprintf("misuse-%03d", len(rows))}
			row, ok := inPython[m.name]
			if !ok {
				t.Errorf("tests/misuses.py has no row %q", m.name)
				continue
			}
			m.has, m.becomes, m.reason = row[0].(bool), becomes(m.Misuse), row[2].(string)
			if other := row[1].(string); other == "" {
				m.reason = ""
			} else {
				m.becomes = other
			}
			if m.becomes == "found by the test kit" {
				kit = append(kit, m.name)
			}
			rows, names = append(rows, m), append(names, m.name)
		}
	}
	for name := range inPython {
		if !slices.Contains(names, name) {
			t.Errorf("tests/misuses.py has a row %q, which docs/misuses.md does not have", name)
		}
	}
	checkPage(t, rows)
	execute(t, rows, names, kit)
}

var ofMisuses = regexp.MustCompile(`(?m)^\| (.*) \| (.*) \| (.*) \|$`)

// checkPage compares the rows that are otherwise in Python with the table of the page.
func checkPage(t *testing.T, rows []*misuse) {
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	_, part, _ := strings.Cut(string(text), "<!-- misuses -->")
	part, _, found := strings.Cut(part, "<!-- end -->")
	if !found {
		t.Fatalf("%s has no table of misuses", page)
	}
	var listed, want []string
	for _, m := range ofMisuses.FindAllStringSubmatch(part, -1)[1:] {
		listed = append(listed, m[0])
	}
	for _, m := range rows {
		if m.reason != "" {
			want = append(want, fmt.Sprintf("| %s | %s | %s |", m.name, m.becomes, m.reason))
		}
	}
	if !slices.Equal(listed[1:], want) {
		t.Errorf("the table of misuses of %s is not that of tests/misuses.py, which has:\n%s", page,
			strings.Join(want, "\n"))
	}
}

func execute(t *testing.T, rows []*misuse, names, kit []string) {
	p := perdure.DefaultPolicy()
	p.BackoffBase, p.BackoffMax = time.Hour, time.Hour
	p.DispatchedRetry, p.DispatchedTimeout = p.Lease, 5*p.Lease
	w := world{servertest.Listen(t, embedded.Options{Policy: &p}), filepath.Join(t.TempDir(), "log")}
	listed, err := json.Marshal(names)
	if err != nil {
		t.Fatal(err)
	}
	w.start("tests.misuses", "ROWS="+string(listed))
	found := w.kit(kit)
	for _, m := range rows {
		if m.has && m.becomes != "found by the test kit" {
			m.run, m.ignores = m.start(w, false), m.start(w, true)
		}
	}
	for _, m := range rows {
		if m.Wakes && m.run != "" {
			w.wake(m.run)
			w.wake(m.ignores)
		}
	}
	for _, m := range rows {
		if m.has {
			t.Run(m.name, func(t *testing.T) { m.check(t, w) })
		}
	}
	for name, ok := range found() {
		if !ok {
			t.Errorf("%s: the test kit does not find it", name)
		}
	}
}

// kit begins to execute rows with the test kit, and returns the function that gives which of them it has found.
func (w world) kit(names []string) func() map[string]bool {
	listed, err := json.Marshal(names)
	if err != nil {
		w.T.Fatal(err)
	}
	var out, complaint bytes.Buffer
	cmd := exec.CommandContext(w.Ctx, "python3", "-m", "tests.misuses")
	cmd.Env = append(os.Environ(), "PERDURE_URL="+w.URL, "PERDURE_KEY="+w.Key(), "NO_PROXY=*",
		"PYTHONDONTWRITEBYTECODE=1", "LOG="+w.log, "KIT="+string(listed))
	cmd.Stdout, cmd.Stderr = &out, &complaint
	if err := cmd.Start(); err != nil {
		w.T.Fatal(err)
	}
	return func() (found map[string]bool) {
		if err := cmd.Wait(); err != nil {
			w.T.Fatalf("the test kit has ended with %v:\n%s", err, &complaint)
		}
		if err := json.Unmarshal(out.Bytes(), &found); err != nil || len(found) != len(names) {
			w.T.Fatalf("the test kit has told of %d rows of %d: %v", len(found), len(names), err)
		}
		return found
	}
}

func (m *misuse) start(w world, ignores bool) perdure.RunID {
	sub := perdure.Submission{Kind: m.kind, Class: perdure.Agent, Input: client.JSON(ignores), MaxAttempts: 1}
	if m.OnThread {
		th, err := w.C.CreateThread(w.Ctx, nil)
		if err != nil {
			w.T.Fatal(err)
		}
		sub.ThreadID = th.ThreadID
	}
	id := w.Start(sub)
	return id
}

// wake signals a run that is suspended.
func (w world) wake(id perdure.RunID) {
	w.T.Helper()
	eventually.True(w.T, "run "+string(id)+" waits", func() bool {
		run, err := w.C.Get(w.Ctx, id)
		return err == nil && (run.State == perdure.Suspended || run.State.Terminal() || run.Hold != nil)
	})
	if _, err := w.C.Signal(w.Ctx, id, "go on", nil); err != nil {
		w.T.Logf("run %s: %v", id, err)
	}
}

// rested returns what has become of a run, in the words of the page, and its text.
func (w world) rested(t *testing.T, id perdure.RunID) (what, text string) {
	t.Helper()
	eventually.True(t, "run "+string(id)+" is held or ends", func() bool {
		run, err := w.C.Get(w.Ctx, id)
		switch {
		case err != nil:
			t.Fatal(err)
		case run.State == perdure.Completed:
			what, text = "right", string(run.Result)
		case run.State.Terminal():
			what, text = "fails, `"+string(run.Error.Code)+"`", run.Error.Message
		case run.Hold != nil:
			what, text = "held, `"+string(run.Hold.Code)+"`", run.Hold.Message
		}
		return what != ""
	})
	return what, text
}

func (m *misuse) check(t *testing.T, w world) {
	if m.run == "" {
		return // the test kit executes it
	}
	want, silent := m.becomes, m.becomes == "reported by vet"
	code, handled := strings.CutPrefix(want, "an error that it may handle, ")
	switch {
	case handled:
		want = "fails, " + code
	case silent:
		want = "right"
	}
	got, text := w.rested(t, m.run)
	if got != want {
		t.Errorf("run %s is %s (%.200s), want %s", m.run, got, text, want)
	}
	if want != "right" && len(text) < 3 {
		t.Errorf("run %s is %s with the text %q, want one that says why", m.run, got, text)
	}
	got, text = w.rested(t, m.ignores)
	// Code that catches a TypeError and the like has handled it, and one of the library's it has not.
	switch held := strings.HasPrefix(want, "held") && want != "held, `panic`"; {
	case held && got != want:
		t.Errorf("run %s, which ignores the error, is %s (%.200s), want %s", m.ignores, got, text, want)
	case held && slices.Contains(w.effects(m.ignores), "next"):
		t.Errorf("run %s has executed the step after the misuse, want it held before", m.ignores)
	case handled && (got != "right" || text != strings.ReplaceAll(code, "`", `"`)):
		t.Errorf("run %s, which handles the error, is %s with %.200s, want the code %s", m.ignores, got, text, code)
	}
}

// effects returns what a run has done.
func (w world) effects(id perdure.RunID) (out []string) {
	b, _ := os.ReadFile(w.log)
	for line := range strings.Lines(string(b)) {
		if what, ok := strings.CutPrefix(strings.TrimSpace(line), string(id)+" "); ok {
			out = append(out, what)
		}
	}
	return out
}
