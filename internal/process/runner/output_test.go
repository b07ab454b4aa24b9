package runner

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
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
	"github.com/perdure/perdure/internal/testkit/lossfs"
)

// A scriptedServer takes commits and artifacts, or refuses them.
type scriptedServer struct {
	mu        sync.Mutex
	commits   []perdure.Commit
	artifacts int
	// refuse returns the refusal of a commit, or nil.
	refuse func(c *perdure.Commit) *api.Refusal
	// artifact is the code with which artifacts are refused.
	artifact perdure.Code
	view     jobdir.Logged
}

func (s *scriptedServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	switch {
	case strings.HasSuffix(r.URL.Path, "/commit"):
		var in api.Commits
		if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
			panic(err)
		}
		c := &in.Commits[0]
		res := api.CommitResult{RunID: c.RunID, OK: true}
		if s.refuse != nil {
			res.Error = s.refuse(c)
		}
		if res.Error == nil {
			s.commits = append(s.commits, *c)
		}
		_ = json.NewEncoder(w).Encode(api.CommitResults{Results: []api.CommitResult{res}})
	case r.Method == http.MethodPut && s.artifact != "":
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(http.StatusRequestEntityTooLarge)
		_ = json.NewEncoder(w).Encode(api.NewProblem(s.artifact, "a run has at most 100 artifacts", ""))
	case r.Method == http.MethodPut:
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			return
		}
		s.artifacts++
		_ = json.NewEncoder(w).Encode(perdure.Artifact{})
	case strings.Contains(r.URL.Path, "/views/"):
		value, _ := json.Marshal(s.view)
		_ = json.NewEncoder(w).Encode(map[string]any{"name": jobdir.OutputView, "value": json.RawMessage(value)})
	default:
		w.WriteHeader(http.StatusNotFound)
	}
}

// events returns the types of all events, and the bytes of output.
func (s *scriptedServer) events(t *testing.T) (types []string, text string) {
	for _, c := range s.commits {
		for _, ev := range c.Events {
			types = append(types, string(ev.Type))
			var o jobdir.Output
			if err := json.Unmarshal(ev.Data, &o); err != nil {
				t.Fatal(err)
			}
			text += string(o.Bytes())
		}
	}
	return types, text
}

// forwarder returns an execution that copies output to a scripted server.
func forwarder(t *testing.T, s *scriptedServer, stdout string) *execution {
	t.Helper()
	hs := httptest.NewServer(s)
	t.Cleanup(hs.Close)
	d, err := jobdir.Of(t.TempDir(), "job")
	if err == nil {
		err = d.Create()
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, stream := range streams {
		f, err := d.OpenOutput(stream)
		if err != nil {
			t.Fatal(err)
		}
		if stream == jobdir.Stdout {
			_, err = f.WriteString(stdout)
		}
		if f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	log := slog.New(slog.DiscardHandler)
	e := &execution{job: &Job{}, log: log, grant: &api.Grant{RunID: "job", Epoch: 3},
		hold: hold{run: "job", epoch: 3}, dir: d, cancelled: newFlag(),
		link: link{c: client.New(hs.URL, "key", client.Options{}), worker: "w", log: log, contact: new(contact)}}
	if e.output, err = openOutput(d, 1<<20); err != nil {
		t.Fatal(err)
	}
	e.output.parsed = -1
	return e
}

// forwardAll copies all output.
func forwardAll(t *testing.T, e *execution) {
	t.Helper()
	for n := 0; ; n++ {
		more, err := e.forwardOutput(context.Background(), true)
		if err != nil {
			t.Fatal(err)
		}
		if !more {
			return
		}
		if n > 1000 {
			t.Fatal("copying the output does not end")
		}
	}
}

func TestArtifactsThatAreRefusedAreReported(t *testing.T) {
	s := &scriptedServer{artifact: perdure.CodeTooLarge}
	e := forwarder(t, s, strings.Repeat("0123456789abcdef", (5<<20)/16))
	forwardAll(t, e)
	types, _ := s.events(t)
	if last := types[len(types)-1]; last != jobdir.EventDropped {
		t.Errorf("the last event is %s, want %s", last, jobdir.EventDropped)
	}
	if e.output.at.Stdout != 5<<20 || e.output.lost().Stdout != 1<<20 {
		t.Errorf("the log has %+v, and %+v are lost, want all 5 MiB told and 1 MiB lost", e.output.at, e.output.lost())
	}
}

func TestRefusedOutputIsReported(t *testing.T) {
	s := &scriptedServer{refuse: func(c *perdure.Commit) *api.Refusal {
		if c.Events[0].Type == jobdir.EventOutput && strings.Contains(string(c.Events[0].Data), "bad") {
			return &api.Refusal{Code: perdure.CodeInvalid, Detail: "no"}
		}
		return nil
	}}
	e := forwarder(t, s, "bad")
	forwardAll(t, e)
	f, err := os.OpenFile(e.dir.Path+"/stdout.log", os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString("good"); err != nil {
		t.Fatal(err)
	}
	forwardAll(t, e)
	if types, text := s.events(t); len(types) != 2 || types[0] != jobdir.EventDropped || text != "good" {
		t.Errorf("events = %v with %q, want the drop and then good", types, text)
	}
}

func TestOutputGoesOnAfterThatOfAnother(t *testing.T) {
	s := &scriptedServer{view: jobdir.Logged{Epoch: 3, Offsets: jobdir.Offsets{Stdout: 4}}}
	s.refuse = func(c *perdure.Commit) *api.Refusal {
		if c.ID == "output-3-0-0" {
			return &api.Refusal{Code: perdure.CodeReused, Detail: "used"}
		}
		return nil
	}
	e := forwarder(t, s, "one two")
	forwardAll(t, e)
	if _, text := s.events(t); text != "two" {
		t.Errorf("sent %q, want the part that the log does not have", text)
	}
}

func TestStaleEpochSendsNothing(t *testing.T) {
	s := &scriptedServer{refuse: func(*perdure.Commit) *api.Refusal {
		return &api.Refusal{Code: perdure.CodeStaleEpoch}
	}}
	e := forwarder(t, s, "text")
	if _, err := e.forwardOutput(t.Context(), true); !errors.Is(err, errLost) {
		t.Errorf("error = %v, want %v", err, errLost)
	}
}

func TestOutputIsBoundedOnTheDisk(t *testing.T) {
	s := &scriptedServer{}
	e := forwarder(t, s, strings.Repeat("x", 8<<20))
	if lost := e.output.bound(); lost < 7<<20 {
		t.Errorf("%d bytes were given back, want 7 MiB at least", lost)
	}
	var st syscall.Stat_t
	if err := syscall.Stat(e.dir.Path+"/stdout.log", &st); err != nil {
		t.Fatal(err)
	}
	if used := st.Blocks * 512; used > 1<<20 || st.Size != 8<<20 {
		t.Errorf("the file has %d bytes on the disk and the size %d, want 1 MiB at most, and its size as it was", used,
			st.Size)
	}
	forwardAll(t, e)
	if types, _ := s.events(t); types[0] != jobdir.EventDropped {
		t.Errorf("the first event is %s, want %s", types[0], jobdir.EventDropped)
	}
	if at, lost := e.output.at.Stdout, e.output.lost().Stdout; at != 8<<20 || lost > 7<<20+1<<19 || s.artifacts != 1 {
		t.Errorf("the log has told %d bytes, with %d lost and %d artifacts, want all, with the last part in one", at,
			lost, s.artifacts)
	}
	if lost := e.output.bound(); lost != 0 {
		t.Errorf("%d more bytes were given up, want none", lost)
	}
}

// A command empties its own output, as logs are rotated. That is told, and what it writes then follows.
func TestTruncatedOutputIsTold(t *testing.T) {
	w := newWorld(t)
	s := w.start(`echo first; echo x > first; while [ ! -e gate ]; do sleep 0.01; done
		: > /proc/self/fd/1; echo second; echo x > second; while [ ! -e gate2 ]; do sleep 0.01; done; echo third`, nil)
	s.until(Started)
	file(t, s.cwd()+"/first")
	eventually.True(t, "the first output is in the log", func() bool { return s.logged(jobdir.Stdout) == "first\n" })
	for _, gate := range []string{"/gate", "/gate2"} {
		if err := os.WriteFile(s.cwd()+gate, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if gate == "/gate" {
			file(t, s.cwd()+"/second")
			eventually.True(t, "the second output is in the log", func() bool {
				return strings.HasSuffix(s.logged(jobdir.Stdout), "second\n")
			})
		}
	}
	if n := s.until(Notice); !strings.Contains(n.Message, "truncated the file of its stdout") {
		t.Errorf("notice = %q, want the truncation", n.Message)
	}
	r := s.ended(perdure.Completed, "")
	if got := s.logged(jobdir.Stdout); got != "first\nsecond\nthird\n" {
		t.Errorf("output = %q, want what was written before and after the truncation", got)
	}
	told := 0
	for _, e := range s.events() {
		var n jobdir.Notice
		if e.Type == jobdir.EventTruncated && unmarshal(e.Data, &n) == nil && n.Stream == jobdir.Stdout &&
			n.Offset == 6 {
			told++
		}
	}
	if told != 1 {
		t.Errorf("%d events tell of the truncation, want one", told)
	}
	if !strings.Contains(string(r.Result), `"output_tail":"second\nthird"`) {
		t.Errorf("result = %s, want the end of the output", r.Result)
	}
}

// Bytes that were seen, and gone before they were copied, are told as lost.
func TestTruncatedOutputThatWasNotCopiedIsReported(t *testing.T) {
	s := &scriptedServer{}
	e := forwarder(t, s, "some text")
	e.output.have() // as the loop does that bounds the files
	if err := os.Truncate(e.dir.Path+"/stdout.log", 0); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(e.dir.Path+"/stdout.log", os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString("new"); err != nil {
		t.Fatal(err)
	}
	forwardAll(t, e)
	types, text := s.events(t)
	if len(types) != 2 || types[0] != jobdir.EventDropped || text != "new" || e.output.lost().Stdout != 9 {
		t.Errorf("events = %v with %q, and %+v lost; want 9 bytes dropped and then new", types, text, e.output.lost())
	}
	if told := e.output.takeTruncated(); len(told) != 1 {
		t.Errorf("truncations = %+v, want one", told)
	}
}

// A command truncates its output while a part of it is stored: that part is not complete.
func TestArtifactOfATruncatedFileIsNotStored(t *testing.T) {
	e := forwarder(t, &scriptedServer{}, "0123456789")
	e.hide = (&Server{Key: "a key that is long enough"}).hide()
	lease, _ := e.hold.now()
	for size, want := range map[int64]error{10: nil, 100: errTruncated} {
		err := e.upload(t.Context(), lease, &jobdir.Step{Artifact: "part", Stream: jobdir.Stdout, Size: size})
		if !errors.Is(err, want) {
			t.Errorf("upload of %d bytes of a file with 10: %v, want %v", size, err, want)
		}
	}
}

// A command truncates its output and writes as much again.
func TestTruncatedOutputOfTheSameSizeIsSeen(t *testing.T) {
	s := &scriptedServer{}
	e := forwarder(t, s, "first")
	forwardAll(t, e)
	if err := os.WriteFile(e.dir.Path+"/stdout.log", []byte("other"), 0o600); err != nil {
		t.Fatal(err)
	}
	forwardAll(t, e)
	forwardAll(t, e)
	if _, text := s.events(t); text != "firstother" {
		t.Errorf("output = %q, want firstother", text)
	}
	if told := e.output.takeTruncated(); len(told) != 1 {
		t.Errorf("truncations = %+v, want one", told)
	}
}

// The disk under the workspace is full. The log and the starter are told, and the command's end, too.
func TestFullDiskIsTold(t *testing.T) {
	w := newWorld(t)
	fs, err := lossfs.Mount(t.TempDir(), lossfs.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := fs.Unmount(); err != nil {
			t.Error(err)
		}
	})
	if err := fs.Full(256 << 10); err != nil {
		t.Fatal(err)
	}
	w.workspace = fs.Dir + "/work"
	s := w.start(`echo begun; head -c 1000000 /dev/zero | tr '\0' x; echo failed >&2; exit 3`, nil)
	n := s.until(Notice)
	if !strings.Contains(n.Message, "is full") || !strings.Contains(n.Message, fs.Dir) {
		t.Errorf("notice = %q, want the full disk", n.Message)
	}
	s.ended(perdure.Failed, CodeExit)
	told := 0
	for _, e := range s.events() {
		if e.Type == jobdir.EventDiskFull && strings.Contains(string(e.Data), "is full") {
			told++
		}
	}
	view, err := w.C.View(t.Context(), s.id, jobdir.ProcessView)
	if err != nil {
		t.Fatal(err)
	}
	if told != 1 || !strings.Contains(string(view.Value), `"disk_full":true`) {
		t.Errorf("%d events tell of the full disk, and the process is %s; want one, and disk_full", told, view.Value)
	}
}

// The key of the runner is kept out of all that the server gets, also where it is written in parts, and
// across the border of an event.
func TestKeyOfTheRunnerIsMaskedInOutput(t *testing.T) {
	w := newWorld(t)
	s := w.start(`printf 'whole %s, ' "$LEAK"; printf '%s' "${LEAK%??????????}"; echo x > half
		while [ ! -e gate ]; do sleep 0.01; done
		printf '%s, ' "${LEAK#"${LEAK%??????????}"}"; head -c 45000 /dev/zero | tr '\0' x; printf '%s' "$LEAK"
		printf '%s' "$LEAK" | base64 -w 0; echo "$LEAK" >&2; exit 3`,
		func(j *Job, _ *perdure.Submission) { j.Env = append(j.Env, "LEAK="+j.Server.Key) })
	s.until(Started)
	file(t, s.cwd()+"/half")
	eventually.True(t, "the first output is in the log", func() bool {
		return strings.Contains(s.logged(jobdir.Stdout), "whole")
	})
	if err := os.WriteFile(s.cwd()+"/gate", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	r := s.ended(perdure.Failed, CodeExit)
	out := s.logged(jobdir.Stdout)
	if !strings.HasPrefix(out, "whole [redacted], [redacted], xxx") || !strings.Contains(out, "xxx[redacted]") {
		t.Errorf("output = %.200q…%q, want the key masked wherever it stands", out, out[max(0, len(out)-100):])
	}
	all, err := json.Marshal(s.events())
	if err != nil {
		t.Fatal(err)
	}
	result, err := os.ReadFile(s.dir().Path + "/" + jobdir.ResultFile)
	if err != nil {
		t.Fatal(err)
	}
	for what, text := range map[string]string{"the log": out + s.logged(jobdir.Stderr) + string(all),
		"the error": r.Error.Message, "the result file": string(result)} {
		for _, part := range []string{w.Key(), w.Key()[4:40], w.Key()[len(w.Key())-12:],
			base64.StdEncoding.EncodeToString([]byte(w.Key()))[4:60]} {
			if strings.Contains(text, part) {
				t.Errorf("%s has %q of the key", what, part)
			}
		}
	}
}

func TestBytesThatAreNoTextAreRefused(t *testing.T) {
	for name, s := range map[string]Spec{
		"argument": {Command: []string{"echo", "caf\xe9"}},
		"folder":   {Command: []string{"true"}, Dir: "/tmp/caf\xe9"},
	} {
		if err := s.Validate(); err == nil || !strings.Contains(err.Error(), "UTF-8") {
			t.Errorf("%s: %v, want a refusal that names UTF-8", name, err)
		}
	}
}
