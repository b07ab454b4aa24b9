package python

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/client/admin"
	"github.com/perdure/perdure/embedded"
	"github.com/perdure/perdure/internal/testkit/eventually"
	"github.com/perdure/perdure/worker"
)

var compiled atomic.Bool

// program compiles the command perdure, once for all tests.
var program = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "perdure-python-")
	if err != nil {
		return "", err
	}
	compiled.Store(true)
	path := filepath.Join(dir, "perdure")
	out, err := exec.Command("go", "build", "-ldflags=-s -w", "-o", path, "../../cmd/perdure").CombinedOutput()
	if err != nil {
		os.Stderr.Write(out)
	}
	return path, err
})

func TestMain(m *testing.M) {
	code := m.Run()
	if compiled.Load() {
		path, _ := program()
		os.RemoveAll(filepath.Dir(path))
	}
	os.Exit(code)
}

// perdure executes the command, and returns its exit code and what it printed.
func (w world) perdure(env []string, args ...string) (code int, stdout, stderr string) {
	w.T.Helper()
	path, err := program()
	if err != nil {
		w.T.Fatal(err)
	}
	cmd := exec.CommandContext(w.Ctx, path, args...)
	cmd.Env = append(os.Environ(), "PERDURE_URL="+w.URL, "PERDURE_KEY="+w.Key(), "NO_PROXY=*",
		"PYTHONDONTWRITEBYTECODE=1")
	cmd.Env = append(cmd.Env, env...)
	var out, complaint bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaint
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		w.T.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), out.String(), complaint.String()
}

// asleep starts runs of both kinds, and waits until they sleep.
func (w world) asleep(effects string) (ids []perdure.RunID) {
	w.T.Helper()
	cmd := exec.Command("python3", "-m", "tests.check_worker")
	cmd.Env = append(os.Environ(), "PERDURE_URL="+w.URL, "PERDURE_KEY="+w.Key(), "NO_PROXY=*",
		"PYTHONDONTWRITEBYTECODE=1", "EFFECTS="+effects)
	if err := cmd.Start(); err != nil {
		w.T.Fatal(err)
	}
	for range 2 {
		ids = append(ids, w.Start(perdure.Submission{Kind: "approval", Class: perdure.Agent, Input: client.JSON(7)}))
	}
	ids = append(ids, w.Start(perdure.Submission{Kind: "paid", Class: perdure.Agent}))
	eventually.True(w.T, fmt.Sprintf("%d runs sleep", len(ids)), func() bool {
		list, err := w.C.List(w.Ctx, client.Filter{State: perdure.Suspended})
		return err == nil && len(list.Runs) == len(ids)
	})
	cmd.Process.Kill()
	cmd.Wait()
	return ids
}

// stored returns all that the server has of runs.
func (w world) stored(ids []perdure.RunID) (all string) {
	for _, id := range ids {
		r, err := w.C.Replay(w.Ctx, id)
		if err != nil {
			w.T.Fatal(err)
		}
		all += string(client.JSON(r)) + "\n"
	}
	return all
}

// A release in Python is checked against live runs as one in Go is, with a key that may only read. Nothing is executed.
func TestBuildsAreChecked(t *testing.T) {
	t.Parallel()
	w := open(t)
	effects := filepath.Join(t.TempDir(), "effects")
	ids := w.asleep(effects)
	key, err := admin.New(w.C).CreateTenantKey(w.Ctx, embedded.DefaultTenant, api.CreateKey{Name: "pipeline",
		Scopes: []string{string(perdure.ScopeRead)}})
	if err != nil {
		t.Fatal(err)
	}
	before, done := w.stored(ids), size(effects)
	check := func(want int, release string, flags ...string) string {
		t.Helper()
		args := append(append([]string{"builds", "check", "--json"}, flags...), "--", "python3", "-m",
			"tests.check_worker")
		code, out, complaint := w.perdure([]string{"PERDURE_KEY=" + key.Secret, "RELEASE=" + release,
			"EFFECTS=" + effects}, args...)
		if code != want {
			t.Errorf("the check of the release %q has the exit code %d, want %d:\n%s%s", release, code, want, out,
				complaint)
		}
		return out + complaint
	}
	file := filepath.Join(t.TempDir(), "run.json")
	if code, _, complaint := w.perdure(nil, "journal", string(ids[0]), "--export", file); code != 0 {
		t.Fatal(complaint)
	}
	for _, c := range []struct {
		release, where, message string
		held, failed            int
	}{
		{"good", "", "", 0, 0},
		{"a renamed step", "card#1", "the step charge#1", 2, 0},
		{"a step more", "more#1", "left#1", 2, 0},
		{"a renamed signal", "signal:payment#1", "signal:paid#1", 1, 0},
		{"a renamed signal in a branch", "left#1//signal:renamed#1", "left#1//signal:left#1", 2, 0},
		{"ends", "the end of the agent", "left#1", 2, 0},
		{"fails", "", "this release has a bug", 0, 2},
	} {
		code := 0
		if c.held+c.failed > 0 {
			code = 1
		}
		out := check(code, c.release)
		var report worker.CheckReport
		if err := json.NewDecoder(strings.NewReader(out)).Decode(&report); err != nil || report.Runs != 3 ||
			report.Held != c.held || report.Failed != c.failed || report.Unknown != 0 {
			t.Errorf("the check of the release %q has found %s (%v), want 3 runs, %d held, %d failed", c.release, out,
				err, c.held, c.failed)
			continue
		}
		if code != 0 && c.message != "" && (len(report.Causes) != 1 || report.Causes[0].Where != c.where ||
			!strings.Contains(report.Causes[0].Message, c.message)) {
			t.Errorf("the check of the release %q has found %s, want one cause at %s with %q", c.release, out, c.where,
				c.message)
		}
	}
	if out := check(69, "no worker"); !strings.Contains(out, "no database") {
		t.Errorf("the check of a program without a worker says %q", out)
	}
	if out := check(0, "good", "--sample", "1"); !strings.Contains(out, `"runs": 2`) {
		t.Errorf("the check of a sample says %s, want 2 runs", out)
	}
	if out := check(1, "a renamed step", "--file", file); !strings.Contains(out, "charge#1") {
		t.Errorf("the check of a file says %s", out)
	}
	if out := check(69, "good", "--file", file+".gone"); !strings.Contains(out, "No such file") {
		t.Errorf("the check of a file that is not there says %s", out)
	}
	if out := check(69, "does not end"); !strings.Contains(out, "the check says 2") {
		t.Errorf("the check of an agent that does not end says %s", out)
	}
	if after := w.stored(ids); after != before || size(effects) != done || done == 0 {
		t.Errorf("the checks have changed the runs, or have executed steps (%d bytes, want %d):\n%s\nwant\n%s",
			size(effects), done, after, before)
	}
}

func size(file string) int64 {
	at, err := os.Stat(file)
	if err != nil {
		return -1
	}
	return at.Size()
}
