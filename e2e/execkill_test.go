package e2e

import (
	"bytes"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/perdure/perdure/internal/testkit/eventually"
	"github.com/perdure/perdure/internal/testkit/pgtest"
)

// This file kills perdure exec and its runner with SIGKILL at every boundary of a command's life. Whatever
// is killed, the run ends, and the command is started at most once.

// The boundaries, in the order in which an execution comes to them.
const (
	// execSubmitted: the server has the run, and exec has no answer.
	execSubmitted = "submitted"
	// execHandedOver: the runner has its job, and the server has not heard from the runner.
	execHandedOver = "handed over"
	// execGranted: the server has granted the run, and the runner has no answer.
	execGranted = "granted"
	// execConfirmed: the server has heard from the runner, which has no answer.
	execConfirmed = "confirmed"
	// execStarted: the command has had its effect, and goes on.
	execStarted = "started"
	// execEnded: the command has ended, its result is on the disk, and the server has not heard of it.
	execEnded = "ended"
	// execReported: the server has taken the end, and the runner has no answer.
	execReported = "reported"
)

// An execBoundary is where something is killed, and what becomes of the run.
type execBoundary struct {
	point string
	// match finds the call of the boundary, and before tells that it has not come to the server.
	match  func(path, body string) bool
	before bool
	// survived is the state in which the run ends if its runner lives, and killed if not. Several states
	// have bars between them.
	survived, killed string
	// happened counts how often the command has had its effect if its runner is killed.
	happened int
}

// execBoundaries are all of them.
var execBoundaries = []execBoundary{
	{point: execSubmitted, match: callOf("/api/v1/runs"), survived: "timeout", killed: "timeout"},
	{point: execHandedOver, match: callOf("/poll"), before: true, survived: "completed", killed: "timeout"},
	{point: execGranted, match: callOf("/poll"), survived: "completed", killed: "timeout|failed"},
	{point: execConfirmed, match: callOf("/heartbeat"), survived: "completed", killed: "timeout|failed"},
	{point: execStarted, survived: "completed", killed: "failed", happened: 1},
	{point: execEnded, match: theEnd, before: true, survived: "completed", killed: "completed", happened: 1},
	{point: execReported, match: theEnd, survived: "completed", killed: "completed", happened: 1},
}

// callOf matches calls by the end of their path.
func callOf(suffix string) func(path, body string) bool {
	return func(path, _ string) bool { return strings.HasSuffix(path, suffix) }
}

// theEnd matches the commit that ends a run.
func theEnd(path, body string) bool {
	return strings.HasSuffix(path, "/commit") && strings.Contains(body, `"outcome"`)
}

func TestKillExecAtEveryBoundary(t *testing.T) {
	settings := []string{"--policy", "local_claim=4s", "--policy", "dispatched_retry=2s", "--policy",
		"dispatched_timeout=4s"}
	for _, store := range []string{"SQLite", "PostgreSQL"} {
		t.Run(store, func(t *testing.T) {
			t.Parallel()
			args := settings
			if store == "PostgreSQL" {
				args = append(append([]string{}, settings...), "--store", pgtest.New(t))
			}
			w := newWorkshop(t, args...)
			var all []*killedExec
			for _, b := range execBoundaries {
				for _, who := range []string{"exec", "runner", "both"} {
					if who == "runner" && b.point == execSubmitted {
						continue // exec has no answer, and gives no job to another one
					}
					k := &killedExec{execBoundary: b, who: who, w: *w}
					k.kill(t)
					all = append(all, k)
				}
			}
			for _, k := range all { // they all wait for the same clocks
				k.check(t)
			}
			w.sound()
		})
	}
}

// A killedExec is an execution that is killed at a boundary.
type killedExec struct {
	execBoundary
	// who is killed: exec, the runner, or both.
	who string
	w   workshop
	// effects is a file to which the command adds a line.
	effects string
	cmd     *exec.Cmd
	run     string
}

// name is the name of the run.
func (k *killedExec) name() string { return strings.ReplaceAll(k.point+"-"+k.who, " ", "-") }

// count counts the effects of the command.
func (k *killedExec) count() int {
	text, _ := os.ReadFile(k.effects) // no file is no effect
	return bytes.Count(text, []byte("x\n"))
}

// kill brings the execution to its boundary, and kills.
func (k *killedExec) kill(t *testing.T) {
	t.Helper()
	stop := newStopover(t, k.w.urls, k.execBoundary)
	k.w.urls = stop.url
	var g gate
	k.effects, g = filepath.Join(t.TempDir(), "effects"), newGate(t)
	script := fmt.Sprintf("echo x >> '%s'", k.effects)
	if k.point == execStarted {
		script += "; " + g.wait() + "; true"
	}
	path, err := program()
	if err != nil {
		t.Fatal(err)
	}
	k.cmd = exec.Command(path, "exec", "--name", k.name(), "--", "sh", "-c", script)
	k.cmd.Env = k.w.env()
	if err := k.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = k.cmd.Process.Kill() })
	eventually.True(t, k.name()+" is at its boundary", func() bool {
		return k.match != nil && stop.isReached() || k.match == nil && k.count() == 1
	})
	var page polled
	if status := k.w.insist("GET", "/api/v1/runs?metadata.name="+url.QueryEscape(k.name()), "", nil,
		&page); status != 200 || len(page.Runs) != 1 {
		t.Fatalf("runs of the name %s: %d, %+v, want one", k.name(), status, page.Runs)
	}
	if k.run = page.Runs[0].RunID; k.point == execEnded && !k.w.hasResult(k.run) {
		t.Errorf("%s: the result is not on the disk when the end is reported", k.name())
	}
	if k.who != "exec" {
		runner := runnerOf(t, k.cmd.Process.Pid)
		if err := syscall.Kill(runner, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		eventually.True(t, "the runner is gone", func() bool { return isGone(runner) })
	}
	if k.who != "runner" {
		_ = k.cmd.Process.Kill()
		_ = k.cmd.Wait()
	}
	if k.who == "exec" {
		stop.release() // the call of a runner that was killed never arrives
	}
	g.open(t)
}

// check waits for the end of the run, and counts the effects.
func (k *killedExec) check(t *testing.T) {
	t.Helper()
	want, effects := k.survived, 1
	switch {
	case k.who != "exec":
		want, effects = k.killed, k.happened
	case k.point == execSubmitted:
		effects = 0
	}
	var r runView
	eventually.True(t, k.name()+" has ended", func() bool {
		r = k.w.get(k.run)
		return strings.Contains("completed failed timeout cancelled", r.State)
	})
	if !strings.Contains(want, r.State) {
		t.Errorf("%s: run %s ended as %s, want %s", k.name(), k.run, r.State, want)
	}
	if n := k.count(); n != effects {
		t.Errorf("%s: run %s: the command had its effect %d times, want %d", k.name(), k.run, n, effects)
	}
	if k.who == "runner" {
		_ = k.cmd.Wait() // exec shows the end
	}
}

// runnerOf waits for the process-runner that an exec has started. It has that name only when it has
// replaced the program of the process that exec has forked. Only tests look for it.
func runnerOf(t *testing.T, parent int) (pid int) {
	t.Helper()
	eventually.True(t, fmt.Sprintf("exec %d has a runner", parent), func() bool {
		files, _ := filepath.Glob("/proc/[0-9]*/stat")
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				continue // it has ended
			}
			// The name is in brackets, and may have anything in it. State and parent come behind it.
			fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
			command, _ := os.ReadFile(filepath.Join(filepath.Dir(file), "cmdline"))
			isRunner := bytes.Contains(command, []byte("process-runner"))
			if len(fields) > 1 && fields[1] == strconv.Itoa(parent) && isRunner {
				pid, _ = strconv.Atoi(strings.Split(file, "/")[2])
				return true
			}
		}
		return false
	})
	return pid
}

// isGone tells whether a process has ended. One that nobody has waited for yet is a zombie.
func isGone(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return true
	}
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	return len(fields) > 0 && fields[0] == "Z"
}

// A stopover is between an execution and its server. It keeps the first call of a boundary, or the answer
// to it, until it is released.
type stopover struct {
	url      string
	boundary execBoundary
	proxy    *httputil.ReverseProxy
	first    sync.Once
	reached  chan struct{}
	open     chan struct{}
	released sync.Once
}

func newStopover(t *testing.T, server string, b execBoundary) *stopover {
	t.Helper()
	to, err := url.Parse(server)
	if err != nil {
		t.Fatal(err)
	}
	s := &stopover{boundary: b, proxy: httputil.NewSingleHostReverseProxy(to), reached: make(chan struct{}),
		open: make(chan struct{})}
	s.proxy.ErrorLog = log.New(discard{}, "", 0)
	hs := httptest.NewServer(s)
	hs.Config.ErrorLog = s.proxy.ErrorLog
	s.url = hs.URL
	t.Cleanup(func() {
		s.release()
		hs.CloseClientConnections()
		hs.Close()
	})
	return s
}

func (s *stopover) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if s.boundary.match == nil || r.Method != http.MethodPost {
		s.proxy.ServeHTTP(w, r)
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	stops := false
	if s.boundary.match(r.URL.Path, string(body)) {
		s.first.Do(func() { stops = true })
	}
	if !stops {
		s.proxy.ServeHTTP(w, r)
		return
	}
	if s.boundary.before {
		close(s.reached)
		s.wait(r)
		s.proxy.ServeHTTP(w, r)
		return
	}
	answer := httptest.NewRecorder()
	s.proxy.ServeHTTP(answer, r)
	close(s.reached)
	s.wait(r)
	for name, values := range answer.Header() {
		w.Header()[name] = values
	}
	w.WriteHeader(answer.Code)
	_, _ = w.Write(answer.Body.Bytes())
}

// wait waits until the call may go on. That of a process which was killed never does.
func (s *stopover) wait(r *http.Request) {
	select {
	case <-s.open:
	case <-r.Context().Done():
	}
	if r.Context().Err() != nil {
		panic(http.ErrAbortHandler)
	}
}

func (s *stopover) isReached() bool {
	select {
	case <-s.reached:
		return true
	default:
		return false
	}
}

// release lets the call go on.
func (s *stopover) release() { s.released.Do(func() { close(s.open) }) }
