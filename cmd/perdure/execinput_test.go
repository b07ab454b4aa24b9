package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/internal/process/jobdir"
)

// pipeIn makes a pipe the standard input of this program.
func pipeIn(t *testing.T) (w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	before := os.Stdin
	os.Stdin = r
	t.Cleanup(func() {
		os.Stdin = before
		w.Close()
		r.Close()
	})
	return w
}

// feed writes to a pipe and closes it.
func feed(w *os.File, b []byte) {
	go func() {
		_, _ = w.Write(b) // the reader may have had enough
		w.Close()
	}()
}

// jobFolders returns the names in the workspace's folder of jobs.
func jobFolders(t *testing.T) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(os.Getenv("PERDURE_WORKSPACE"), "jobs"))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// runsOf counts the runs of a server.
func runsOf(t *testing.T, c *client.Client) int {
	t.Helper()
	page, err := c.List(t.Context(), client.Filter{Limit: 10})
	if err != nil {
		t.Fatal(err)
	}
	return len(page.Runs)
}

func TestExecPassesOnItsInput(t *testing.T) {
	c := liveForExec(t)
	want := make([]byte, 1<<20)
	for i := range want {
		want[i] = byte(i * i >> 7)
	}
	feed(pipeIn(t), want)
	code, stdout, stderr := callRaw("exec", "--", "cat")
	if code != 0 || len(stderr) > 0 {
		t.Fatalf("exec of cat: exit code %d: %s", code, stderr)
	}
	same(t, "output of cat", stdout, want)
	names := jobFolders(t)
	if len(names) != 1 {
		t.Fatalf("the workspace has the folders %q, want that of the job", names)
	}
	file := filepath.Join(os.Getenv("PERDURE_WORKSPACE"), "jobs", names[0], jobdir.StdinFile)
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the kept input is %v (error %v), want it readable by its owner only", info, err)
	}
	// The same command once more has the same input, whatever is piped into exec.
	feed(pipeIn(t), []byte("another"))
	code, stdout, stderr = callRaw("exec", "--again", names[0])
	if code != 0 {
		t.Fatalf("exec --again: exit code %d: %s", code, stderr)
	}
	same(t, "output of cat that is started again", stdout, want)
	has(t, string(stderr), "the input of the original run")
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	code, _, stderr = callRaw("exec", "--again", names[0])
	has(t, string(stderr), "can't be started again with the same input", "no longer there")
	if n := runsOf(t, c); code != exitFail || n != 2 {
		t.Errorf("exec --again without its input: exit code %d and %d runs, want %d and 2", code, n, exitFail)
	}
}

func TestExecTakesInputFromAFile(t *testing.T) {
	liveForExec(t)
	f, err := os.Open(writeFile(t, strings.Repeat("x", jobdir.MaxStdin)))
	if err != nil {
		t.Fatal(err)
	}
	before := os.Stdin
	os.Stdin = f
	t.Cleanup(func() { os.Stdin = before; f.Close() })
	code, stdout, stderr := call("exec", "--", "wc", "-c")
	if code != 0 || strings.TrimSpace(stdout) != "16777216" {
		t.Errorf("exec of wc: exit code %d, it counts %q bytes, want 16 MiB: %s", code, stdout, stderr)
	}
}

// nohup in a terminal gives a program the null device as its standard input, for writing only.
func TestExecTakesInputThatCannotBeReadAsEmpty(t *testing.T) {
	liveForExec(t)
	f, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	before := os.Stdin
	os.Stdin = f
	t.Cleanup(func() { os.Stdin = before; f.Close() })
	if code, stdout, stderr := call("exec", "--", "wc", "-c"); code != 0 || strings.TrimSpace(stdout) != "0" {
		t.Errorf("exec of wc: exit code %d, it counts %q bytes, want none: %s", code, stdout, stderr)
	}
}

func TestExecRefusesEndlessInput(t *testing.T) {
	c := liveForExec(t)
	w := pipeIn(t)
	go func() {
		for line := bytes.Repeat([]byte("y\n"), 32<<10); ; {
			if _, err := w.Write(line); err != nil {
				return
			}
		}
	}()
	code, _, stderr := call("exec", "--", "cat")
	has(t, stderr, "more than 16 MiB", "nothing was started")
	if n := runsOf(t, c); code != exitFail || n != 0 {
		t.Errorf("exec with endless input: exit code %d and %d runs, want %d and none", code, n, exitFail)
	}
	if names := jobFolders(t); len(names) > 0 {
		t.Errorf("the workspace has the folders %q, want none", names)
	}
}

// onText is a writer that calls a function when it gets a text.
type onText struct {
	bytes.Buffer
	text string
	do   func()
}

func (w *onText) Write(b []byte) (int, error) {
	n, err := w.Buffer.Write(b)
	if w.do != nil && strings.Contains(w.String(), w.text) {
		do := w.do
		w.do = nil
		do()
	}
	return n, err
}

func TestExecSaysThatItWaitsForInput(t *testing.T) {
	c := liveForExec(t)
	before := inputPatience
	inputPatience = 1
	t.Cleanup(func() { inputPatience = before })
	const says = "waiting for the end of the standard input"

	w := pipeIn(t)
	stderr := &onText{text: says, do: func() { feed(w, []byte("late")) }}
	var out bytes.Buffer
	if code := run([]string{"exec", "--", "cat"}, &out, stderr); code != 0 || out.String() != "late" {
		t.Errorf("exec with late input: exit code %d, it printed %q, want late: %s", code, &out, stderr)
	}
	pipeIn(t)
	stderr = &onText{text: says, do: func() { _ = syscall.Kill(os.Getpid(), syscall.SIGINT) }}
	code := run([]string{"exec", "--", "cat"}, io.Discard, stderr)
	has(t, stderr.String(), "nothing was started")
	if n := runsOf(t, c); code != exitFail || n != 1 {
		t.Errorf("exec that is interrupted: exit code %d and %d runs, want %d and 1", code, n, exitFail)
	}
	// The pipe is still open, and nobody waits for it.
	if code, stdout, errs := call("exec", "--stdin=false", "--", "cat"); code != 0 || stdout+errs != "" {
		t.Errorf("exec without input: exit code %d, it printed %q and %q", code, stdout, errs)
	}
	if code, _, errs := call("exec", "--pty", "--", "true"); code != 0 || !strings.Contains(errs, "--pty") {
		t.Errorf("exec --pty with a pipe: exit code %d, it says %q, want that the pipe is not passed on", code, errs)
	}
}
