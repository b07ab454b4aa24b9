package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/embedded"
	"github.com/perdure/perdure/internal/process/jobdir"
	"github.com/perdure/perdure/internal/testkit/eventually"
)

// liveForExec starts a server and sets the environment of perdure exec.
func liveForExec(t *testing.T) *client.Client {
	t.Helper()
	workspace := filepath.Join(t.TempDir(), "workspace")
	c, _ := liveWith(t, embedded.Options{Workspace: workspace})
	t.Setenv("PERDURE_WORKSPACE", workspace)
	t.Setenv("PERDURE_SENTINEL_EVERY", "200ms")
	return c
}

func TestExecHasTheExitCodeOfItsCommand(t *testing.T) {
	c := liveForExec(t)
	for _, test := range []struct {
		command string
		code    int
		state   perdure.State
		reason  perdure.Code
	}{
		{"true", 0, perdure.Completed, ""},
		{"exit 7", 7, perdure.Failed, "exit_status"},
		{"kill -9 $$", 128 + 9, perdure.Failed, "killed"},
		{"kill -TERM $$", 128 + 15, perdure.Failed, "killed"},
	} {
		code, stdout, stderr := call("exec", "--", "sh", "-c", test.command)
		if code != test.code || stdout != "" || stderr != "" {
			t.Errorf("exec of %q: exit code %d, want %d; it printed %q and %q", test.command, code, test.code, stdout,
				stderr)
		}
		page, err := c.List(t.Context(), client.Filter{Limit: 1})
		if err != nil {
			t.Fatal(err)
		}
		r := &page.Runs[0]
		got := perdure.Code("")
		if r.Error != nil {
			got = r.Error.Code
		}
		if r.State != test.state || got != test.reason {
			t.Errorf("run of %q is %s with the error %q, want %s with %q", test.command, r.State, got, test.state,
				test.reason)
		}
		if again, _, _ := call("wait", string(r.RunID)); again != test.code {
			t.Errorf("wait for the run of %q: exit code %d, want %d", test.command, again, test.code)
		}
	}
	for name, code := range map[string]int{"no-such-program": 127, "/etc/passwd": 126, "./no/such/file": 127} {
		got, _, stderr := call("exec", "--", name)
		if got != code || !strings.Contains(stderr, "not_started") {
			t.Errorf("exec of %s: exit code %d, want %d; it says %q, want not_started", name, got, code, stderr)
		}
	}
}

func TestExecShowsOutputByteByByte(t *testing.T) {
	c := liveForExec(t)
	file := filepath.Join(t.TempDir(), "bytes")
	want := make([]byte, 6<<20)
	for i := range want {
		want[i] = byte(i * i >> 7)
	}
	copy(want[1<<20:], make([]byte, 100_000)) // NULs are no hole
	if err := os.WriteFile(file, want, 0o600); err != nil {
		t.Fatal(err)
	}
	code, stdout, stderr := callRaw("exec", "--", "sh", "-c", `cat "$1"; printf 'care\377ful' >&2`, "sh", file)
	if code != 0 {
		t.Fatalf("exec: exit code %d: %s", code, stderr)
	}
	same(t, "standard output of exec", stdout, want)
	same(t, "standard error of exec", stderr, []byte("care\xff"+"ful"))
	page, err := c.List(t.Context(), client.Filter{Limit: 1})
	if err != nil {
		t.Fatal(err)
	}
	code, stdout, stderr = callRaw("logs", string(page.Runs[0].RunID))
	if code != 0 {
		t.Fatalf("logs: exit code %d: %s", code, stderr)
	}
	same(t, "standard output of logs", stdout, want)
	same(t, "standard error of logs", stderr, []byte("care\xff"+"ful"))
}

func TestExecEnvironmentHasNoKeys(t *testing.T) {
	liveForExec(t)
	t.Setenv("PERDURE_KEY", "")
	t.Setenv("PERDURE_SEAL_KEYS", "secret")
	t.Setenv("COLOUR", "red")
	t.Setenv("SHAPE", "round")
	_, stdout, stderr := call("exec", "--", "env")
	has(t, stdout, "COLOUR=red", "SHAPE=round", "PERDURE_RUN_ID=", "PATH=")
	for _, name := range []string{"PERDURE_KEY", "PERDURE_SEAL_KEYS", "PERDURE_DATA"} {
		if strings.Contains(stdout, name+"=") {
			t.Errorf("the command's environment has %s: %s%s", name, stdout, stderr)
		}
	}
	_, stdout, _ = call("exec", "--env", "SHAPE", "--", "env")
	if strings.Contains(stdout, "COLOUR=") {
		t.Errorf("with --env SHAPE the command's environment has COLOUR: %s", stdout)
	}
	has(t, stdout, "SHAPE=round", "PATH=", "HOME=")
}

func TestExecStartsWhereItIs(t *testing.T) {
	liveForExec(t)
	dir := t.TempDir()
	t.Chdir(dir)
	if err := os.WriteFile("program", []byte("#!/bin/sh\npwd\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, stdout, stderr := call("exec", "./program"); strings.TrimSpace(stdout) != dir {
		t.Errorf("./program prints %q, want %q: %s", stdout, dir, stderr)
	}
}

// detachingWriter sends this process a signal when it gets a text.
type detachingWriter struct {
	bytes.Buffer
	at string
}

func (w *detachingWriter) Write(b []byte) (int, error) {
	n, err := w.Buffer.Write(b)
	if w.at != "" && strings.Contains(w.String(), w.at) {
		w.at = ""
		_ = syscall.Kill(os.Getpid(), syscall.SIGTSTP)
	}
	return n, err
}

func TestExecDetachesAndFgGoesOn(t *testing.T) {
	liveForExec(t)
	gate := filepath.Join(t.TempDir(), "gate")
	script := `echo one; while [ ! -e "$1" ]; do sleep 0.02; done; echo two; exit 5`
	out := &detachingWriter{at: "one\n"}
	var stderr bytes.Buffer
	code := run([]string{"exec", "--", "sh", "-c", script, "sh", gate}, out, &stderr)
	if code != exitLeft || out.String() != "one\n" {
		t.Fatalf("exec that is detached: exit code %d, want %d; it printed %q %s", code, exitLeft, out.String(),
			stderr.String())
	}
	has(t, stderr.String(), "perdure fg")
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	code, stdout, errs := call("fg", "%%")
	if code != 5 || stdout != "two\n" {
		t.Errorf("fg after exec: exit code %d, want 5; it printed %q, want two: %s", code, stdout, errs)
	}
}

func TestExecDetachedPrintsItsID(t *testing.T) {
	c := liveForExec(t)
	_, stdout, stderr := call("exec", "-d", "--name", "napper", "--", "sleep", "1000")
	r, err := c.Get(t.Context(), perdure.RunID(strings.TrimSpace(stdout)))
	if err != nil || r.State != perdure.Running {
		t.Fatalf("exec -d printed %q %s: the run is %+v (error %v), want running", stdout, stderr, r, err)
	}
	if code, stdout, stderr := call("kill", "%napper"); code != 0 {
		t.Errorf("kill %%napper: exit code %d: %s%s", code, stdout, stderr)
	}
	if r, err = c.Get(t.Context(), r.RunID); err != nil || r.State != perdure.Cancelled {
		t.Errorf("the run after kill is %s (error %v), want cancelled", r.State, err)
	}
	if code, _, _ := call("wait", string(r.RunID)); code != 128+15 {
		t.Errorf("wait for the killed run: exit code %d, want %d", code, 128+15)
	}
}

func TestExecTimeoutEndsTheCommand(t *testing.T) {
	liveForExec(t)
	code, _, stderr := call("exec", "--timeout", "1s", "--", "sleep", "1000")
	if code != exitTimeout {
		t.Errorf("exec with a timeout: exit code %d, want %d: %s", code, exitTimeout, stderr)
	}
}

func TestBadCallsOfExec(t *testing.T) {
	liveForExec(t)
	for _, args := range [][]string{
		{"exec"}, {"exec", "--"}, {"exec", "--grace", "0s", "--", "true"}, {"exec", "--wait", "-1s", "true"},
		{"exec", "--timeout", "0s", "true"}, {"exec", "--max-output", "0", "true"}, {"exec", "--env", "", "true"},
		{"exec", "--", "a\x00b"}, {"exec", "--", ""}, {"exec", "--give-up-after", "0s", "--", "true"},
		{"runner", "--give-up-after", "-1s"}, {"runner", "--trust", "/no/such/file"},
		{"runner", "--trust", "/etc/passwd"},
	} {
		if code, _, stderr := call(args...); code != exitUsage || stderr == "" {
			t.Errorf("perdure %q: exit code %d, want %d; it says %q", args, code, exitUsage, stderr)
		}
	}
	for _, args := range [][]string{
		{"exec", "--engine", "nonsense", "true"}, {"exec", "--continue", "01a1e668-0000-7000-8000-000000000000",
			"true"},
		{"exec", "--workspace", "/dev/null/x", "true"},
	} {
		if code, _, stderr := call(args...); code != exitFail || stderr == "" {
			t.Errorf("perdure %q: exit code %d, want %d; it says %q", args, code, exitFail, stderr)
		}
	}
}

// A hashWriter keeps nothing but a hash.
type hashWriter struct {
	n   int64
	sum io.Writer
}

func (w *hashWriter) Write(b []byte) (int, error) {
	w.n += int64(len(b))
	return w.sum.Write(b)
}

func TestFastOutputIsComplete(t *testing.T) {
	liveForExec(t)
	const size = 60 << 20
	hash := sha256.New()
	out := &hashWriter{sum: hash}
	var stderr bytes.Buffer
	script := fmt.Sprintf("yes 0123456789abcdef 2>/dev/null | head -c %d", size)
	code := run([]string{"exec", "--", "sh", "-c", script}, out, &stderr)
	// On a busy machine the server may take long to store the output, and exec says so.
	late := strings.Contains(stderr.String(), "does not know of the end yet")
	if code != 0 || stderr.Len() > 0 && !late {
		t.Fatalf("exec: exit code %d: %s", code, stderr.String())
	}
	stderr.Reset()
	want := sha256.New()
	line := bytes.Repeat([]byte("0123456789abcdef\n"), 1<<16)
	for left := size; left > 0; left -= len(line) {
		want.Write(line[:min(left, len(line))])
	}
	if !bytes.Equal(hash.Sum(nil), want.Sum(nil)) {
		t.Errorf("exec printed %d bytes, want %d, and other ones", out.n, size)
	}
	logged := sha256.New()
	all := &hashWriter{sum: logged}
	_, stdout, _ := call("jobs", "--limit", "1")
	id := strings.Fields(strings.Split(stdout, "\n")[1])[0]
	if code, _, said := call("wait", id); code != 0 {
		t.Fatalf("wait: exit code %d: %s", code, said)
	}
	if code := run([]string{"logs", id}, all, &stderr); code != 0 || stderr.Len() > 0 {
		t.Fatalf("logs: exit code %d: %s", code, stderr.String())
	}
	if !bytes.Equal(logged.Sum(nil), want.Sum(nil)) {
		t.Errorf("the log has %d bytes, want %d, and other ones", all.n, size)
	}
}

func TestExecGoesOnWithoutItsStarter(t *testing.T) {
	c := liveForExec(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	_, stdout, _ := call("exec", "-d", "--", "sh", "-c", "sleep 0.2; echo done")
	id := perdure.RunID(strings.TrimSpace(stdout))
	eventually.True(t, "the run completes", func() bool {
		r, err := c.Get(ctx, id)
		return err == nil && r.State == perdure.Completed
	})
	if _, stdout, _ := call("logs", string(id)); stdout != "done\n" {
		t.Errorf("output of the run = %q, want done", stdout)
	}
}

func TestExecContinuesASession(t *testing.T) {
	c := liveForExec(t)
	engines := t.TempDir()
	engine := `{"name": "mine", "rules": [{"when": {"event": "start"}, "session": "id", "text": "says"},
			{"when": {"event": "start"}, "usage": {"input_tokens": ["total"], "of_session": true}}],
		"continue": {"args": ["--resume", "{session}"], "place": "end"}}`
	if err := os.WriteFile(filepath.Join(engines, "mine.json"), []byte(engine), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PERDURE_ENGINES", engines)
	code, _, stderr := call("exec", "--engine", "mine", "--name", "fix", "--", "echo",
		`{"event": "start", "id": "session-7", "says": "hello", "total": 100}`)
	if code != 0 {
		t.Fatalf("exec: exit code %d: %s", code, stderr)
	}
	page, err := c.List(t.Context(), client.Filter{Limit: 1})
	if err != nil {
		t.Fatal(err)
	}
	first := page.Runs[0].RunID
	// Its end was shown, and its name is still known.
	code, stdout, stderr := call("exec", "--continue", "%fix", "--", "echo", "go on")
	if code != 0 || stdout != "go on --resume session-7\n" {
		t.Errorf("exec --continue: exit code %d, output %q, want the session's id at the end: %s", code, stdout, stderr)
	}
	if page, err = c.List(t.Context(), client.Filter{Limit: 1}); err != nil ||
		page.Runs[0].Metadata["continues"] != string(first) {
		t.Errorf("metadata of the second run = %v (error %v), want that it continues %s", page.Runs[0].Metadata,
			err, first)
	}
	code, _, stderr = call("exec", "--continue", string(first), "--", "printf", "%s\\n",
		`{"event": "start", "total": 130}`, "{session}")
	if page, err = c.List(t.Context(), client.Filter{Limit: 1}); code != 0 || err != nil {
		t.Fatalf("exec --continue: exit code %d (error %v): %s", code, err, stderr)
	}
	v, err := c.View(t.Context(), page.Runs[0].RunID, jobdir.ProcessView)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(v.Value), `"input_tokens":30,`) {
		t.Errorf("process = %s, want the 30 tokens that the session has used since", v.Value)
	}
}

func TestRunnerCommandTakesRuns(t *testing.T) {
	c := liveForExec(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error)
	go func() {
		done <- runnerCommand(ctx, []string{"--queue", "builds", "--slots", "2"}, io.Discard, io.Discard)
	}()
	code, _, stderr := call("run", "exec", "--class", "process", "--queue", "builds", "--input",
		`{"command": ["echo", "built"]}`)
	if code != 0 {
		t.Errorf("run exec: exit code %d: %s", code, stderr)
	}
	page, err := c.List(t.Context(), client.Filter{Limit: 1})
	if err != nil {
		t.Fatal(err)
	}
	if _, stdout, _ := call("logs", string(page.Runs[0].RunID)); stdout != "built\n" {
		t.Errorf("output of the run = %q, want built", stdout)
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("perdure runner: %v", err)
	}
	for _, args := range [][]string{{"runner", "--slots", "0"}, {"runner", "--queue", "exec-local"},
		{"runner", "--secrets", "/no/such"}, {"runner", "--env", "PERDURE_KEY"},
		{"runner", "--grace", "-1s"}, {"runner", "make"}} {
		if code, _, stderr := call(args...); code != exitUsage || stderr == "" {
			t.Errorf("perdure %q: exit code %d, want %d; it says %q", args, code, exitUsage, stderr)
		}
	}
}

func TestExecWithinExecGoesOn(t *testing.T) {
	c := liveForExec(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	// The inner program has to find the key.
	code, stdout, stderr := call("exec", "--env", "PERDURE_URL,PERDURE_DATA,PERDURE_WORKSPACE,XDG_STATE_HOME", "--",
		self, "exec", "-d", "--", "sleep", "1000")
	inner := perdure.RunID(strings.TrimSpace(stdout))
	if code != 0 || inner == "" {
		t.Fatalf("exec of exec: exit code %d, it printed %q: %s", code, stdout, stderr)
	}
	r, err := c.Get(t.Context(), inner)
	if err != nil || r.State != perdure.Running {
		t.Fatalf("the inner run %s is %+v (error %v), want running after the outer one has ended", inner, r, err)
	}
	if r, err = c.Cancel(t.Context(), inner, "enough", eventually.Within); err != nil || r.State != perdure.Cancelled {
		t.Errorf("the inner run after a cancel is %+v (error %v), want cancelled by its runner", r, err)
	}
	if r.Cancel.AckedAt == 0 {
		t.Errorf("cancel of the inner run = %+v, want it acknowledged", r.Cancel)
	}
}

func TestExecLeavesNoFilesOpen(t *testing.T) {
	liveForExec(t)
	f, err := os.Create(filepath.Join(t.TempDir(), "inherited"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	// As a shell does it, with exec 9>file.
	if _, err := unix.FcntlInt(f.Fd(), unix.F_SETFD, 0); err != nil {
		t.Fatal(err)
	}
	_, stdout, stderr := call("exec", "--", "sh", "-c", "ls -l /proc/$$/fd /proc/$PPID/fd")
	if strings.Contains(stdout, "inherited") || !strings.Contains(stdout, jobdir.LockFile) {
		t.Errorf("runner and command have these files, want the lock and not the one of the shell: %s%s", stdout,
			stderr)
	}
}
