package runner

import (
	"context"
	"encoding/json"
	"errors"
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
	"github.com/perdure/perdure/internal/jobdir"
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
			types = append(types, ev.Type)
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
		link: link{c: client.New(hs.URL, "key", client.Options{}), worker: "w", log: log, denied: new(denial)}}
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

func TestTruncatedOutputIsNoLoop(t *testing.T) {
	s := &scriptedServer{}
	e := forwarder(t, s, "some text")
	forwardAll(t, e)
	if err := os.Truncate(e.dir.Path+"/stdout.log", 0); err != nil {
		t.Fatal(err)
	}
	forwardAll(t, e)
	if _, text := s.events(t); text != "some text" {
		t.Errorf("sent %q, want the text once", text)
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
