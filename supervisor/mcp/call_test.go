package mcp_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/embedded"
	"github.com/perdure/perdure/internal/testkit/eventually"
	"github.com/perdure/perdure/internal/testkit/servertest"
	"github.com/perdure/perdure/supervisor/mcp"
	"github.com/perdure/perdure/worker"
)

// A world is a server of Perdure with a worker that executes calls. It is in real time, as processes
// have no other.
type world struct {
	*servertest.Server
	mcp *mcp.Client
	// file is that of the MCP server.
	file string
}

// stdio is a server that is this test program.
func stdio(file string) mcp.Server {
	return mcp.Server{Name: "test", Command: os.Args[0], Env: []string{serverVar + "=" + file}, Allow: []string{"*"},
		Timeout: 20 * time.Second}
}

// start starts a world with one MCP server.
func start(t *testing.T, change func(s *mcp.Server)) *world {
	t.Helper()
	w := &world{file: filepath.Join(t.TempDir(), "notes")}
	s := stdio(w.file)
	if change != nil {
		change(&s)
	}
	var err error
	if w.mcp, err = mcp.New(mcp.Options{Servers: []mcp.Server{s}, Timeout: time.Millisecond,
		SuspendTimeout: time.Millisecond,
		Logger:         slog.New(slog.DiscardHandler)}); err != nil {
		t.Fatal(err)
	}
	w.Server = servertest.Open(t, embedded.Options{Dir: t.TempDir()})
	t.Cleanup(w.mcp.Close)
	wk := worker.New(w.C, worker.Options{DrainTimeout: -1, AgentSlots: 20, Logger: slog.New(slog.DiscardHandler)})
	w.mcp.Register(wk)
	w.Work(wk)
	return w
}

// A syncBuffer is a log that several goroutines write.
type syncBuffer struct {
	mu sync.Mutex
	bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.String()
}

// begin starts a call.
func (w *world) begin(t *testing.T, tool string, args any) perdure.RunID {
	t.Helper()
	return w.Start(perdure.Submission{Kind: mcp.Kind, Class: perdure.Agent,
		Input: client.JSON(mcp.Call{Server: "test", Tool: tool, Arguments: client.JSON(args)})})
}

// call makes a call, and returns the run when it has ended.
func (w *world) call(t *testing.T, tool string, args any) *api.Run {
	t.Helper()
	return w.End(w.begin(t, tool, args))
}

// outcome returns the result or the error of a run as one line.
func outcome(run *api.Run) string {
	if run.Error != nil {
		return fmt.Sprintf("%s: %s", run.Error.Code, run.Error.Message)
	}
	text, err := client.Result[string](run)
	if err != nil {
		return err.Error()
	}
	return text
}

type args = map[string]any

// A server that does something wrong is answered for, and the next call works.
func TestFaults(t *testing.T) {
	for _, c := range []struct {
		tool string
		in   any
		want string
		// calls is how often the tool was called; -1 means that it does not count.
		calls int
	}{
		{"echo", args{"text": "hello"}, "echo hello", -1},
		{"echo", args{"text": 7}, "mcp_arguments: the arguments do not fit", -1},
		{"echo", args{}, "mcp_arguments: the arguments do not fit", -1},
		{"echo", []int{1}, "mcp_arguments: the arguments are no JSON object", -1},
		{"launch", args{}, "mcp_no_such_tool", -1},
		{"pay", args{}, "paid", 1},
		{"fail", args{}, "error: no paper", 1},
		{"crash", args{}, "outcome_unknown: the server ended the connection", 1},
		{"crash once", args{}, "at last", 2},
		{"long", args{}, "the artifact result.txt has the whole", 1},
		{"huge", args{}, "outcome_unknown: the server ended the connection", 1},
		{"flood", args{}, "outcome_unknown: the server ended the connection", 1},
		{"stderr", args{}, "quiet now", 1},
		{"garbage", args{}, "outcome_unknown: the server ended the connection", 1},
		{"bytes", args{}, "a\ufffdb", 1},
		{"lie", args{}, "error: the result is not what the tool's schema promises", -1},
		{"image", args{}, "look:\n(image of 6 bytes image/png: the artifact image-1)", -1},
	} {
		t.Run(fmt.Sprint(c.tool, c.in), func(t *testing.T) {
			t.Parallel()
			w := start(t, nil)
			if got := outcome(w.call(t, c.tool, c.in)); !strings.Contains(got, c.want) {
				t.Errorf("call ended with %.300q, want %q", got, c.want)
			} else if len(got) > 33<<10 {
				t.Errorf("result has %d bytes, want 32 KiB at most", len(got))
			} else if strings.Contains(got, "cheese") || strings.Contains(got, "this is no JSON") {
				t.Errorf("call ended with %.300q, which has what the server has printed", got)
			}
			if n := notes(t, w.file); c.calls >= 0 && n != c.calls {
				t.Errorf("the tool was called %d times, want %d", n, c.calls)
			}
			if got := outcome(w.call(t, "echo", args{"text": "again"})); got != "echo again" {
				t.Errorf("the next call ended with %q, want echo again", got)
			}
		})
	}
}

// A tool that hangs is told to stop. A server that gives no sign of life is killed, too.
func TestHangingServerIsKilled(t *testing.T) {
	for tool, want := range map[string]string{"hang": "may or may not have had its effect",
		"freeze": "gave no sign of life, and was stopped"} {
		t.Run(tool, func(t *testing.T) {
			t.Parallel()
			w := start(t, func(s *mcp.Server) { s.Timeout = 500 * time.Millisecond })
			if got := outcome(w.call(t, tool, args{})); !strings.HasPrefix(got, "mcp_timeout") ||
				!strings.Contains(got, want) {
				t.Errorf("call ended with %q, want mcp_timeout and %q", got, want)
			}
			if tool == "freeze" {
				eventually.True(t, "the frozen process has ended", func() bool { return !lives(t, w.file+".pid") })
			}
			if got := outcome(w.call(t, "echo", args{"text": "again"})); got != "echo again" {
				t.Errorf("the next call ended with %q, want echo again", got)
			}
		})
	}
}

// lives tells whether the process whose id is in a file lives.
func lives(t *testing.T, file string) bool {
	t.Helper()
	pid, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	line, err := os.ReadFile("/proc/" + strings.TrimSpace(string(pid)) + "/cmdline")
	return err == nil && len(line) > 0
}

func TestProcessesEndWithTheClient(t *testing.T) {
	t.Parallel()
	w := start(t, nil)
	if got := outcome(w.call(t, "child", args{})); got != "started" {
		t.Fatalf("call ended with %q, want started", got)
	}
	if !lives(t, w.file+".pid") {
		t.Fatal("the child of the server does not live: this test looks at nothing")
	}
	w.mcp.Close()
	eventually.True(t, "the child of the server has ended", func() bool { return !lives(t, w.file+".pid") })
	if got := outcome(w.call(t, "echo", args{"text": "x"})); !strings.HasPrefix(got, "mcp_unavailable") {
		t.Errorf("a call after the end = %q, want mcp_unavailable", got)
	}
}

// A server that does not start is tried again after a pause. What it prints is for the operator alone:
// other callers use the same program, and it may print what they have asked for.
func TestCrashingServerIsStartedAgain(t *testing.T) {
	t.Parallel()
	w := start(t, nil)
	log := &syncBuffer{}
	w.mcp.SetLogger(slog.New(slog.NewTextHandler(log, nil)))
	if err := os.WriteFile(w.file+".crashes", []byte("for this machine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := outcome(w.call(t, "echo", args{"text": "x"})); !strings.HasPrefix(got, "mcp_unavailable") ||
		strings.Contains(got, "licence") {
		t.Errorf("call ended with %q, want mcp_unavailable and nothing that the server has printed", got)
	}
	if !strings.Contains(log.String(), "no licence for this machine") {
		t.Errorf("the operator's log is %q, want what the server has printed", log)
	}
	if _, down := w.mcp.Tools(t.Context()); len(down) != 1 {
		t.Errorf("servers that are down = %v, want one", down)
	}
	if err := os.Remove(w.file + ".crashes"); err != nil {
		t.Fatal(err)
	}
	if got := outcome(w.call(t, "echo", args{"text": "x"})); got != "echo x" {
		t.Errorf("call ended with %q, want echo x", got)
	}
}

func TestMissingProgramIsUnavailable(t *testing.T) {
	t.Parallel()
	w := start(t, func(s *mcp.Server) { s.Command, s.Env = "no-such-program", nil })
	if got := outcome(w.call(t, "echo", args{})); !strings.HasPrefix(got, "mcp_unavailable: start no-such-program") {
		t.Errorf("call ended with %q, want mcp_unavailable", got)
	}
}

// The allow-list and the approval hold for a run that somebody submits by hand, too.
func TestPolicyIsThatOfTheServer(t *testing.T) {
	for _, c := range []struct {
		name, tool, approve string
		decide              perdure.DecisionKind
		want                string
		calls               int
	}{
		{"not on the list", "pay", mcp.ApproveNever, "", "mcp_no_such_tool", 0},
		{"on the list", "fail", mcp.ApproveNever, "", "error: no paper", 1},
		{"approved", "pay", mcp.ApproveUnlisted, perdure.Approve, "paid", 1},
		{"rejected", "pay", mcp.ApproveUnlisted, perdure.Reject, "mcp_not_allowed: a person has forbidden", 0},
		{"always", "fail", mcp.ApproveAlways, perdure.Reject, "mcp_not_allowed: a person has forbidden", 0},
		{"nobody decides", "pay", "", "", "mcp_not_allowed: nobody has allowed", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := start(t, func(s *mcp.Server) {
				s.Allow, s.Approve, s.SuspendTimeout = []string{"fail"}, c.approve, 20*time.Second
				if c.decide == "" {
					s.SuspendTimeout = 200 * time.Millisecond
				}
			})
			id := w.begin(t, c.tool, args{})
			if c.decide != "" {
				w.decide(t, c.decide)
			}
			run, _, err := w.C.Join(t.Context(), id, 50*time.Second)
			if err != nil {
				t.Fatal(err)
			}
			if got := outcome(run); !strings.Contains(got, c.want) {
				t.Errorf("call ended with %q, want %q", got, c.want)
			}
			if n := notes(t, w.file); n != c.calls {
				t.Errorf("the tool was called %d times, want %d", n, c.calls)
			}
		})
	}
}

// decide answers the next approval.
func (w *world) decide(t *testing.T, kind perdure.DecisionKind) {
	t.Helper()
	eventually.True(t, "a person is asked", func() bool {
		open, err := w.C.Approvals(t.Context(), client.ApprovalFilter{})
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range open.Approvals {
			in := api.Decide{Decision: kind}
			if _, err := w.C.Decide(t.Context(), a.ID, in); err != nil {
				t.Fatal(err)
			}
		}
		return len(open.Approvals) > 0
	})
}

func TestHTTP(t *testing.T) {
	t.Parallel()
	within := func(d time.Duration) *world {
		return start(t, func(s *mcp.Server) {
			*s = mcp.Server{Name: "test", URL: httpServer(t, filepath.Join(t.TempDir(), "notes")), Allow: []string{"*"},
				Headers: map[string]string{"Authorization": "Bearer hush"}, Timeout: d}
		})
	}
	w, short := within(time.Minute), within(5*time.Second)
	for _, c := range []struct {
		tool string
		in   any
		want string
	}{
		{"echo", args{"text": "hello"}, "echo hello"},
		{"pay", args{}, "paid"},
		{"fail", args{}, "error: no paper"},
		{"long", args{}, "the artifact result.txt has the whole"},
		{"huge", args{}, "outcome_unknown"},
		{"echo", args{"text": "again"}, "echo again"},
		{"flood", args{}, "outcome_unknown"},
		{"hang", args{}, "mcp_timeout"},
		{"echo", args{"text": "at last"}, "echo at last"},
	} {
		if c.tool == "hang" {
			w = short
		}
		if got := outcome(w.call(t, c.tool, c.in)); !strings.Contains(got, c.want) {
			t.Errorf("call of %s ended with %.300q, want %q", c.tool, got, c.want)
		}
	}
}

func TestHTTPWithoutKeyIsUnavailable(t *testing.T) {
	t.Parallel()
	w := start(t, func(s *mcp.Server) {
		*s = mcp.Server{Name: "test", URL: httpServer(t, filepath.Join(t.TempDir(), "notes")), Allow: []string{"*"}}
	})
	if got := outcome(w.call(t, "echo", args{"text": "x"})); !strings.Contains(got, "mcp_unavailable") {
		t.Errorf("call ended with %q, want mcp_unavailable", got)
	}
}

// The progress that a server reports is that of the run, and a cancelled run ends the call.
func TestProgressAndCancel(t *testing.T) {
	t.Parallel()
	w := start(t, nil)
	id := w.begin(t, "slow", args{})
	eventually.True(t, "the run has the server's progress", func() bool {
		run, err := w.C.Get(t.Context(), id)
		return err == nil && strings.Contains(string(run.Progress), "half way")
	})
	if run, err := w.C.Cancel(t.Context(), id, "enough", 20*time.Second); err != nil || run.State != perdure.Cancelled {
		t.Errorf("run = %+v (error %v), want it cancelled", run, err)
	}
}

// A tool that the server has removed meanwhile is not called.
func TestRemovedToolIsNotCalled(t *testing.T) {
	t.Parallel()
	w := start(t, nil)
	if tools, _ := w.mcp.Tools(t.Context()); len(tools) < 10 {
		t.Fatalf("%d tools are listed, want all", len(tools))
	}
	if got := outcome(w.call(t, "vanish", args{})); got != "pay is gone" {
		t.Fatalf("call ended with %q", got)
	}
	eventually.True(t, "the tool is no longer listed", func() bool {
		return strings.HasPrefix(outcome(w.call(t, "pay", args{})), "mcp_no_such_tool")
	})
}
