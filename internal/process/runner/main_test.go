package runner

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/embedded"
	"github.com/perdure/perdure/internal/process/jobdir"
	"github.com/perdure/perdure/internal/testkit/eventually"
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
	t         *testing.T
	dir       string
	address   string
	workspace string
	key       string
	c         *client.Client
	cwd       string // of the last command
	srv       *embedded.Server
	http      *http.Server
	change    []func(*embedded.Options)
}

// newWorld starts a server. The test runs beside others: it mostly waits.
func newWorld(t *testing.T, change ...func(*embedded.Options)) *world {
	t.Helper()
	t.Parallel()
	dir := t.TempDir()
	w := &world{t: t, dir: filepath.Join(dir, "data"), workspace: filepath.Join(dir, "workspace"),
		address: "127.0.0.1:0", change: change}
	w.up()
	t.Cleanup(w.down)
	w.c = client.New("http://"+w.address, w.key, client.Options{})
	return w
}

// up starts the server, at the address that it had before.
func (w *world) up() {
	w.t.Helper()
	var err error
	opt := embedded.Options{Dir: w.dir}
	for _, change := range w.change {
		change(&opt)
	}
	if w.srv, err = embedded.Open(opt); err != nil {
		w.t.Fatal(err)
	}
	var l net.Listener
	eventually.True(w.t, "the address is free", func() bool {
		l, err = net.Listen("tcp", w.address)
		return err == nil
	})
	w.address, w.key = l.Addr().String(), w.srv.Key()
	w.http = &http.Server{Handler: w.srv.Handler(), ReadHeaderTimeout: time.Minute}
	go w.http.Serve(l)
}

// down stops the server.
func (w *world) down() {
	if w.srv == nil {
		return
	}
	w.srv.Drain()
	w.http.Close()
	w.srv.Close()
	w.srv = nil
}

// A started job is a command that was started as perdure exec does it.
type started struct {
	w  *world
	id perdure.RunID
	p  *Process
}

// start starts a shell script. change may change the job.
func (w *world) start(script string, change func(j *Job, s *perdure.Submission)) *started {
	w.t.Helper()
	w.cwd = w.t.TempDir()
	j := &Job{Server: Server{URL: "http://" + w.address, Key: w.key}, Workspace: w.workspace, Dir: w.cwd,
		Spec: Spec{Command: []string{"sh", "-c", script}}, Env: os.Environ(), Grace: 300 * time.Millisecond,
		SentinelEvery: 100 * time.Millisecond}
	sub := perdure.Submission{Kind: Kind, Class: perdure.Process, Queue: LocalQueue, MaxAttempts: 1}
	if change != nil {
		change(j, &sub)
	}
	var err error
	if sub.Input, err = perdure.Marshal(j.Spec); err != nil {
		w.t.Fatal(err)
	}
	r, err := w.c.Start(w.t.Context(), sub)
	if err != nil {
		w.t.Fatal(err)
	}
	j.RunID = r.RunID
	return w.give(j)
}

// give starts a process-runner for a job.
func (w *world) give(j *Job) *started {
	w.t.Helper()
	p, err := Start()
	if err == nil {
		err = p.Give(j)
	}
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
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
	s.w.t.Helper()
	var all []string
	for {
		r, err := s.p.Next()
		if err != nil {
			s.w.t.Fatalf("run %s: the runner ended after the reports %s, want %s\n%s", s.id, all, event, s.runnerLog())
		}
		if all = append(all, fmt.Sprintf("%+v", r)); r.Event == event {
			return r
		}
	}
}

func (s *started) dir() jobdir.Dir {
	d, err := jobdir.Of(s.w.workspace, string(s.id))
	if err != nil {
		s.w.t.Fatal(err)
	}
	return d
}

func (s *started) runnerLog() string {
	b, _ := os.ReadFile(filepath.Join(s.dir().Path, jobdir.LogFile))
	return string(b)
}

// run returns the run as the server has it.
func (s *started) run() *api.Run {
	s.w.t.Helper()
	r, err := s.w.c.Get(s.w.t.Context(), s.id)
	if err != nil {
		s.w.t.Fatal(err)
	}
	return r
}

// ended waits until the run has ended, and checks how.
func (s *started) ended(state perdure.State, code perdure.Code) *api.Run {
	s.w.t.Helper()
	var r *api.Run
	eventually.True(s.w.t, "the run has ended", func() bool {
		var err error
		r, err = s.w.c.Get(s.w.t.Context(), s.id)
		return err == nil && r.State.Terminal()
	})
	got := perdure.Code("")
	if r.Error != nil {
		got = r.Error.Code
	}
	if r.State != state || got != code {
		s.w.t.Errorf("run %s is %s with %q (%v), want %s with %q\n%s", s.id, r.State, got, r.Error, state, code,
			s.runnerLog())
	}
	return r
}

// events returns the run's log so far.
func (s *started) events() (out []api.Event) {
	s.w.t.Helper()
	for after := int64(0); ; {
		page, err := s.w.c.EventPage(s.w.t.Context(), s.id, after, 0)
		if err != nil {
			s.w.t.Fatal(err)
		}
		if len(page.Events) == 0 {
			return out
		}
		out, after = append(out, page.Events...), page.NextAfter
	}
}

// logged returns a stream of output as the run's log has it.
func (s *started) logged(stream string) string {
	s.w.t.Helper()
	var b strings.Builder
	next := int64(0)
	for _, ev := range s.events() {
		var o jobdir.Output
		if ev.Type != jobdir.EventOutput || unmarshal(ev.Data, &o) != nil || o.Stream != stream {
			continue
		}
		if o.Offset != next {
			s.w.t.Errorf("run %s: event %d has %s from %d, want from %d", s.id, ev.Seq, stream, o.Offset, next)
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
