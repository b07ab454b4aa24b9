package runner

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/embedded"
	"github.com/perdure/perdure/internal/process/jobdir"
	"github.com/perdure/perdure/internal/testkit/eventually"
	"github.com/perdure/perdure/internal/testkit/servertest"
)

// TestMain lets tests start this program as a process-runner.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == ProcessCommand {
		if err := Main(); err != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	if len(os.Args) > 1 && os.Args[1] == shieldedCommand {
		shielded()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// A world is a server at an address that stays the same, and a workspace.
type world struct {
	*servertest.Server
	workspace string
	cwd       string // of the last command
}

// newWorld starts a server. The test runs beside others: it mostly waits.
func newWorld(t *testing.T, change ...func(*embedded.Options)) *world {
	t.Helper()
	t.Parallel()
	dir := t.TempDir()
	opt := embedded.Options{Dir: filepath.Join(dir, "data")}
	for _, f := range change {
		f(&opt)
	}
	return &world{Server: servertest.Listen(t, opt), workspace: filepath.Join(dir, "workspace")}
}

// access returns the server as a job has it.
func (w *world) access() Server { return Server{URL: w.URL, Key: w.Key()} }

// A started job is a command that was started as perdure exec does it.
type started struct {
	w  *world
	id perdure.RunID
	p  *Process
}

// start starts a shell script. change may change the job.
func (w *world) start(script string, change func(j *Job, s *perdure.Submission)) *started {
	w.T.Helper()
	w.cwd = w.T.TempDir()
	j := &Job{Server: w.access(), Workspace: w.workspace, Dir: w.cwd,
		Spec: Spec{Command: []string{"sh", "-c", script}}, Env: os.Environ(), Grace: 300 * time.Millisecond,
		SentinelEvery: 100 * time.Millisecond}
	sub := perdure.Submission{Kind: Kind, Class: perdure.Process, Queue: LocalQueue, MaxAttempts: 1}
	if change != nil {
		change(j, &sub)
	}
	var err error
	if sub.Input, err = perdure.Marshal(j.Spec); err != nil {
		w.T.Fatal(err)
	}
	r, err := w.C.Start(w.T.Context(), sub)
	if err != nil {
		w.T.Fatal(err)
	}
	j.RunID = r.RunID
	return w.give(j)
}

// give starts a process-runner for a job.
func (w *world) give(j *Job) *started {
	w.T.Helper()
	p, err := Start()
	if err == nil {
		err = p.Give(j)
	}
	if err != nil {
		w.T.Fatal(err)
	}
	w.T.Cleanup(func() {
		_ = p.cmd.Process.Signal(syscall.SIGTERM) // it ends the command with all its descendants
		late := time.AfterFunc(10*time.Second, func() { _ = p.cmd.Process.Kill() })
		defer late.Stop()
		p.Close()
		p.Wait()
	})
	return &started{w, j.RunID, p}
}

// until waits for a report.
func (s *started) until(event string) Report {
	s.w.T.Helper()
	var all []string
	for {
		r, err := s.p.Next()
		if err != nil {
			s.w.T.Fatalf("run %s: the runner ended after the reports %s, want %s\n%s", s.id, all, event, s.runnerLog())
		}
		if all = append(all, fmt.Sprintf("%+v", r)); r.Event == event {
			return r
		}
	}
}

func (s *started) dir() jobdir.Dir {
	d, err := jobdir.Of(s.w.workspace, string(s.id))
	if err != nil {
		s.w.T.Fatal(err)
	}
	return d
}

func (s *started) runnerLog() string {
	b, _ := os.ReadFile(filepath.Join(s.dir().Path, jobdir.LogFile))
	return string(b)
}

// run returns the run as the server has it.
func (s *started) run() *api.Run {
	s.w.T.Helper()
	r, err := s.w.C.Get(s.w.T.Context(), s.id)
	if err != nil {
		s.w.T.Fatal(err)
	}
	return r
}

// ended waits until the run has ended, and checks how.
func (s *started) ended(state perdure.State, code perdure.Code) *api.Run {
	s.w.T.Helper()
	var r *api.Run
	eventually.True(s.w.T, "the run has ended", func() bool {
		var err error
		r, err = s.w.C.Get(s.w.T.Context(), s.id)
		return err == nil && r.State.Terminal()
	})
	got := perdure.Code("")
	if r.Error != nil {
		got = r.Error.Code
	}
	if r.State != state || got != code {
		s.w.T.Errorf("run %s is %s with %q (%v), want %s with %q\n%s", s.id, r.State, got, r.Error, state, code,
			s.runnerLog())
	}
	return r
}

// events returns the run's log so far.
func (s *started) events() (out []api.Event) {
	s.w.T.Helper()
	for after := int64(0); ; {
		page, err := s.w.C.EventPage(s.w.T.Context(), s.id, after, 0)
		if err != nil {
			s.w.T.Fatal(err)
		}
		if len(page.Events) == 0 {
			return out
		}
		out, after = append(out, page.Events...), page.NextAfter
	}
}

// logged returns a stream of output as the run's log has it.
func (s *started) logged(stream string) string {
	s.w.T.Helper()
	var b strings.Builder
	next := int64(0)
	for _, ev := range s.events() {
		var o jobdir.Output
		if ev.Type != jobdir.EventOutput || unmarshal(ev.Data, &o) != nil || o.Stream != stream {
			continue
		}
		if o.Offset != next {
			s.w.T.Errorf("run %s: event %d has %s from %d, want from %d", s.id, ev.Seq, stream, o.Offset, next)
		}
		next = o.Offset + o.Size
		b.Write(o.Bytes())
	}
	return b.String()
}

// file waits until a file has a text, and returns it.
func file(t *testing.T, path string) string {
	t.Helper()
	var b []byte
	eventually.True(t, path+" is there", func() bool {
		b, _ = os.ReadFile(path)
		return len(b) > 0
	})
	return strings.TrimSpace(string(b))
}
