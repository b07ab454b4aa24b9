package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/internal/process/jobdir"
	"github.com/perdure/perdure/internal/testkit/eventually"
	"github.com/perdure/perdure/internal/wire/session"
)

// A testProcess is a run of class process whose runner is the test.
type testProcess struct {
	t     *testing.T
	c     *client.Client
	id    perdure.RunID
	epoch int64
	dir   jobdir.Dir
	files map[string]*os.File
	at    jobdir.Offsets // what the log has
	have  jobdir.Offsets
}

// newProcess starts a run as perdure exec does, and its runner.
func newProcess(t *testing.T, c *client.Client, name string, command ...string) *testProcess {
	t.Helper()
	input, err := json.Marshal(map[string]any{"command": command})
	if err != nil {
		t.Fatal(err)
	}
	sub := perdure.Submission{Kind: execKind, Queue: "exec", Class: perdure.Process, Input: input, MaxAttempts: 2}
	if name != "" {
		sub.Metadata = map[string]string{"name": name}
	}
	r, err := c.Start(t.Context(), sub)
	if err != nil {
		t.Fatal(err)
	}
	p := &testProcess{t: t, c: c, id: r.RunID}
	p.take()
	return p
}

// take leases the run and makes a folder for its output.
func (p *testProcess) take() {
	p.t.Helper()
	var polled *api.Polled
	var err error
	eventually.True(p.t, "the run is granted", func() bool { // after a failure it has a backoff
		polled, err = session.Of(p.c).Poll(p.t.Context(), "exec@test", api.Poll{RunIDs: []perdure.RunID{p.id}, Slots: 1,
			Start: true})
		return err != nil || len(polled.Runs) == 1
	})
	if err != nil {
		p.t.Fatal(err)
	}
	p.epoch, p.at, p.have = polled.Runs[0].Epoch, jobdir.Offsets{}, jobdir.Offsets{}
	if p.dir, err = jobdir.Of(p.t.TempDir(), string(p.id)); err != nil {
		p.t.Fatal(err)
	}
	if err := p.dir.Create(); err != nil {
		p.t.Fatal(err)
	}
	p.files = make(map[string]*os.File)
	for _, stream := range []string{jobdir.Stdout, jobdir.Stderr} {
		if p.files[stream], err = p.dir.OpenOutput(stream); err != nil {
			p.t.Fatal(err)
		}
		p.t.Cleanup(func() { p.files[stream].Close() })
	}
}

// write adds output of a stream, which is in the log when write returns.
func (p *testProcess) write(stream string, b []byte) {
	p.t.Helper()
	if _, err := p.files[stream].Write(b); err != nil {
		p.t.Fatal(err)
	}
	*countOf(&p.have, stream) += int64(len(b))
	for {
		s, more, err := p.dir.NextOutput(p.epoch, p.at, p.have, true)
		if err != nil {
			p.t.Fatal(err)
		}
		if !more {
			return
		}
		if s.Artifact != "" {
			body := make([]byte, s.Size)
			if _, err := p.dir.ReadOutput(s.Stream, body, s.Offset); err != nil {
				p.t.Fatal(err)
			}
			lease := api.Lease{RunID: p.id, Epoch: p.epoch}
			if _, err := session.Of(p.c).PutArtifact(p.t.Context(), lease, s.Artifact, "",
				bytes.NewReader(body)); err != nil {
				p.t.Fatal(err)
			}
		}
		p.commit(s.Commit)
		p.at = s.To
	}
}

func (p *testProcess) commit(c perdure.Commit) {
	p.t.Helper()
	c.RunID, c.Epoch = p.id, p.epoch
	res, err := session.Of(p.c).Commit(p.t.Context(), "exec@test", c)
	if err != nil || !res[0].OK {
		p.t.Fatalf("commit %s of run %s = %+v (error %v)", c.ID, p.id, res, err)
	}
}

// emit adds an event.
func (p *testProcess) emit(typ perdure.LineType, data any) {
	p.t.Helper()
	b, err := perdure.Marshal(data)
	if err != nil {
		p.t.Fatal(err)
	}
	p.commit(perdure.Commit{ID: fmt.Sprint("event-", rand.Uint64()), Events: []perdure.Emitted{{Type: typ, Data: b}}})
}

// exit ends the command with a code, as a runner reports it.
func (p *testProcess) exit(code int, retryable bool) {
	p.t.Helper()
	process, err := perdure.Marshal(jobdir.Process{Engine: "generic", Status: jobdir.StatusRunning, ExitCode: &code})
	if err != nil {
		p.t.Fatal(err)
	}
	o := &perdure.Outcome{Type: perdure.OutcomeComplete, Result: process}
	if code != 0 {
		o = &perdure.Outcome{Type: perdure.OutcomeFail, Retryable: &retryable,
			Error: &perdure.Failure{Code: "exit_status", Message: fmt.Sprintf("the command ended with %d", code)}}
	}
	p.commit(perdure.Commit{ID: fmt.Sprint("end-", p.epoch), Outcome: o,
		Views:  []perdure.View{{Name: jobdir.ProcessView, Value: process}},
		Events: []perdure.Emitted{{Type: jobdir.EventExit, Data: fmt.Appendf(nil, `{"exit_code":%d}`, code)}}})
}

// callRaw calls a command whose output is compared byte by byte.
func callRaw(args ...string) (code int, stdout, stderr []byte) {
	var out, errs bytes.Buffer
	code = run(args, &out, &errs)
	return code, out.Bytes(), errs.Bytes()
}

// same fails if bytes differ, and says where.
func same(t *testing.T, what string, got, want []byte) {
	t.Helper()
	if bytes.Equal(got, want) {
		return
	}
	i := 0
	for i < len(got) && i < len(want) && got[i] == want[i] {
		i++
	}
	t.Errorf("%s has %d bytes, want %d; they differ at %d: %.60q, want %.60q", what, len(got), len(want), i, got[i:],
		want[i:])
}

func TestOutputOfProcessIsByteExact(t *testing.T) {
	c, _ := live(t)
	p := newProcess(t, c, "", "make", "test")
	rng := rand.New(rand.NewPCG(1, 2))
	binary := make([]byte, 300<<10)
	for i := range binary {
		binary[i] = byte(rng.Uint32())
	}
	out := slicesOf([]byte("\x1b[31mred\x1b[0m\x00 日本"[:len("\x1b[31mred\x1b[0m\x00 日")+1]), // half a character
		[]byte("\x1b[31mred\x1b[0m\x00 日本")[len("\x1b[31mred\x1b[0m\x00 日")+1:], binary,
		bytes.Repeat([]byte{'\t', 1, '"'}, 60_000), bytes.Repeat([]byte("more than four megabytes\n"), 200_000),
		[]byte("the end"))
	errs := slicesOf([]byte("careful\n"), []byte("\xff\xfe"), bytes.Repeat([]byte("e"), 70_000))
	var wantOut, wantErr []byte
	for i := range max(len(out), len(errs)) {
		if i < len(errs) {
			p.write(jobdir.Stderr, errs[i])
			wantErr = append(wantErr, errs[i]...)
		}
		if i < len(out) {
			p.write(jobdir.Stdout, out[i])
			wantOut = append(wantOut, out[i]...)
		}
	}
	if list, err := c.Artifacts(t.Context(), p.id); err != nil || len(list) == 0 {
		t.Fatalf("artifacts = %v (error %v), want some: the test has too little output", list, err)
	}
	code, stdout, stderr := callRaw("logs", string(p.id))
	if code != 0 {
		t.Fatalf("logs: exit code %d: %s", code, stderr)
	}
	same(t, "standard output of logs", stdout, wantOut)
	same(t, "standard error of logs", stderr, wantErr)

	p.exit(0, false)
	for _, command := range []string{"logs -f", "fg", "logs"} {
		code, stdout, stderr := callRaw(append(strings.Fields(command), string(p.id))...)
		if code != 0 {
			t.Errorf("%s: exit code %d, want 0", command, code)
		}
		same(t, "standard output of "+command, stdout, wantOut)
		same(t, "standard error of "+command, stderr, wantErr)
	}
	text, _ := mustRun(t, 0, "logs", "--events", string(p.id))
	has(t, text, "run:started", "x:output", "x:exit", "run:completed")
	text, _ = mustRun(t, 0, "logs", "--json", string(p.id))
	has(t, text, `"type":"x:output"`)
}

func slicesOf(parts ...[]byte) [][]byte { return parts }

// A detacher is a writer that sends a signal to the program when a text was written.
type detacher struct {
	bytes.Buffer
	at     string
	signal syscall.Signal
	once   sync.Once
}

func (d *detacher) Write(b []byte) (int, error) {
	n, err := d.Buffer.Write(b)
	if strings.Contains(d.String(), d.at) {
		d.once.Do(func() { syscall.Kill(os.Getpid(), d.signal) })
	}
	return n, err
}

func TestFgGoesOnWhereItWas(t *testing.T) {
	c, _ := live(t)
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTSTP} {
		p := newProcess(t, c, "", "sh", "-c", "echo one; sleep 9")
		mustRun(t, 0, "jobs")
		p.write(jobdir.Stdout, []byte("one\n"))
		p.write(jobdir.Stderr, []byte("warned\n"))
		p.write(jobdir.Stdout, []byte("two\n"))
		out := &detacher{at: "two\n", signal: sig}
		var errs bytes.Buffer
		if code := run([]string{"fg", "%sh"}, out, &errs); code != exitLeft {
			t.Fatalf("%s: exit code %d, want %d: %s", sig, code, exitLeft, &errs)
		}
		if out.String() != "one\ntwo\n" {
			t.Errorf("%s: fg printed %q, want what there was", sig, out)
		}
		has(t, errs.String(), "warned\n", "Detached. The run goes on", "perdure fg "+string(p.id))
		if r, err := c.Get(t.Context(), p.id); err != nil || r.State != perdure.Running {
			t.Errorf("%s: the run is %+v (error %v), want it running", sig, r, err)
		}

		p.write(jobdir.Stdout, []byte("three\n"))
		p.write(jobdir.Stderr, []byte("warned again\n"))
		p.exit(7, false)
		code, stdout, stderr := callRaw("fg", "%%")
		if code != 7 || string(stdout) != "three\n" || string(stderr) != "warned again\n" {
			t.Errorf("%s: fg = exit code %d, %q, %q, want 7 and the rest", sig, code, stdout, stderr)
		}
		// The number is free when the end was shown.
		_, text := mustRun(t, 1, "fg", "%1")
		has(t, text, "no such job")
		code, stdout, _ = callRaw("fg", string(p.id), "--all")
		if code != 7 || string(stdout) != "one\ntwo\nthree\n" {
			t.Errorf("%s: fg --all = exit code %d, %q, want 7 and all output", sig, code, stdout)
		}
	}
}

// "perdure fg" continues after the output that was shown before.
func TestFgGoesOnAfterFiles(t *testing.T) {
	c, dir := live(t)
	p := newProcess(t, c, "", "make")
	p.write(jobdir.Stdout, []byte("one two"))
	p.write(jobdir.Stderr, []byte("careful"))
	p.write(jobdir.Stdout, []byte(" three"))
	p.write(jobdir.Stderr, []byte("!"))
	f := flags("test", "", os.Stderr)
	conn := addConnFlags(f)
	*conn.data = dir
	conn.setShown(p.id, shown{Attempt: 1, Offsets: jobdir.Offsets{Stdout: 4, Stderr: 7}})
	p.exit(0, false)
	code, stdout, stderr := callRaw("fg", string(p.id), "--data", dir)
	if code != 0 || string(stdout) != "two three" || string(stderr) != "!" {
		t.Errorf("fg = exit code %d, %q, %q, want the rest", code, stdout, stderr)
	}
}

func TestExitCodesOfProcesses(t *testing.T) {
	c, _ := live(t)
	for _, code := range []int{0, 1, 2, 7, 143, 255} {
		p := newProcess(t, c, "", "sh")
		p.exit(code, false)
		mustRun(t, code, "wait", string(p.id))
		mustRun(t, code, "wait", string(p.id), "--json")
		mustRun(t, code, "fg", string(p.id))
		mustRun(t, code, "fg", string(p.id), "--json")
	}
	// Nobody has seen how these ended.
	p := newProcess(t, c, "", "sh")
	p.commit(perdure.Commit{ID: "end", Outcome: &perdure.Outcome{Type: perdure.OutcomeFail, Retryable: new(bool),
		Error: &perdure.Failure{Code: "secret_unknown", Message: "there is no such secret"}}})
	_, errs := mustRun(t, 1, "fg", string(p.id))
	has(t, errs, "failed: secret_unknown there is no such secret")
	p = newProcess(t, c, "", "sh")
	mustRun(t, 0, "kill", string(p.id), "--wait", "0s")
	p.commit(perdure.Commit{ID: "end", Outcome: &perdure.Outcome{Type: perdure.OutcomeCancelled}})
	mustRun(t, 5, "wait", string(p.id))
	mustRun(t, 5, "fg", string(p.id))
}

func TestMissingOutputIsMarked(t *testing.T) {
	c, _ := live(t)
	p := newProcess(t, c, "", "make")
	p.write(jobdir.Stdout, []byte("first"))
	p.emit(jobdir.EventDropped, jobdir.Dropped{Stream: jobdir.Stdout, Offset: 5, Size: 1000, Reason: "the limit"})
	p.emit(jobdir.EventOutput, jobdir.Chunk(jobdir.Stdout, 1005, []byte("last")))
	p.emit(jobdir.EventOutput, jobdir.Chunk(jobdir.Stderr, 3, []byte("late")))
	p.emit(jobdir.EventOutput, jobdir.Output{Stream: jobdir.Stderr, Offset: 7, Size: 9, Artifact: "gone"})
	p.emit(jobdir.EventOutput, "nonsense")
	p.emit(jobdir.EventDropped, []int{1})
	code, stdout, stderr := callRaw("logs", string(p.id))
	const want = "[perdure: 1000 bytes of stdout were not kept: the limit]\n[perdure: 3 bytes of stderr are " +
		"missing]\nlate" +
		"[perdure: 9 bytes of stderr are missing: there is no artifact gone any more]\n"
	if code != 0 || string(stdout) != "firstlast" || !strings.HasPrefix(string(stderr), want) ||
		!strings.Contains(string(stderr), "can't be shown") {
		t.Errorf("logs = exit code %d, %q,\n%swant\n%s", code, stdout, stderr, want)
	}
	// From the middle, what comes before is not missing.
	r, err := c.Get(t.Context(), p.id)
	if err != nil {
		t.Fatal(err)
	}
	code, stdout, stderr = callRaw("logs", string(p.id), "--after", fmt.Sprint(r.LastSeq-5))
	if code != 0 || string(stdout) != "last" || strings.Contains(string(stderr), "bytes of stdout") {
		t.Errorf("logs --after = exit code %d, %q, %q, want only the last event of stdout", code, stdout, stderr)
	}
}

func TestOutputOfNextAttemptBeginsAgain(t *testing.T) {
	c, _ := live(t)
	p := newProcess(t, c, "", "make")
	p.write(jobdir.Stdout, []byte("first try\n"))
	p.exit(1, true)
	p.take()
	p.write(jobdir.Stdout, []byte("2nd\n"))
	p.exit(0, false)
	code, stdout, stderr := callRaw("fg", string(p.id))
	if code != 0 || string(stdout) != "first try\n2nd\n" || string(stderr) != "[perdure: attempt 2]\n" {
		t.Errorf("fg = exit code %d, %q, %q, want the output of both attempts", code, stdout, stderr)
	}
}

// A run of class process that is no command has events, and the exit codes of other runs.
func TestOtherProcessesHaveNoOutput(t *testing.T) {
	c, _ := live(t)
	r, err := c.Start(t.Context(), perdure.Submission{Kind: "crawler", Class: perdure.Process})
	if err != nil {
		t.Fatal(err)
	}
	no := false
	answer(t, c, "crawler", perdure.Outcome{Type: perdure.OutcomeFail, Retryable: &no,
		Error: &perdure.Failure{Code: "boom", Message: "it broke"}})
	out, _ := mustRun(t, 0, "logs", string(r.RunID))
	has(t, out, "run:created", "run:failed")
	_, errs := mustRun(t, 1, "fg", string(r.RunID))
	has(t, errs, "run:failed", "failed: boom it broke")
}
