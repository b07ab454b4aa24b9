package runner

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/process/jobdir"
	"github.com/perdure/perdure/internal/testkit/eventually"
	"github.com/perdure/perdure/internal/wire/session"
)

func unmarshal(b []byte, v any) error { return json.Unmarshal(b, v) }

// alive tells whether a process exists and is no zombie.
func alive(id string) bool {
	b, err := os.ReadFile("/proc/" + id + "/stat")
	if err != nil {
		return false
	}
	fields := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	return len(fields) > 0 && fields[0] != "Z"
}

func dies(t *testing.T, what, id string) {
	t.Helper()
	eventually.True(t, what+" has ended", func() bool { return !alive(id) })
}

func TestCancelKillsACommandThatIgnoresTERM(t *testing.T) {
	w := newWorld(t)
	s := w.start(`trap '' TERM; echo $$ > id; sleep 1000 & echo $! > child; while :; do sleep 0.1; done`, nil)
	s.until(Started)
	dir := s.cwd()
	command, child := file(t, dir+"/id"), file(t, dir+"/child")
	if _, err := w.C.Cancel(t.Context(), s.id, "enough", 0); err != nil {
		t.Fatal(err)
	}
	if r := s.until(Ended); r.ExitCode != 128+9 {
		t.Errorf("exit code of the killed command = %d, want %d", r.ExitCode, 128+9)
	}
	s.until(Sent)
	dies(t, "the command", command)
	dies(t, "its child", child)
	r := s.ended(perdure.Cancelled, perdure.CodeCancelled)
	if r.Cancel == nil || r.Cancel.AckedAt == 0 {
		t.Errorf("run %s: cancel = %+v, want it acknowledged", s.id, r.Cancel)
	}
}

// cwd returns the folder that the command starts in.
func (s *started) cwd() string { return s.w.cwd }

func TestCancelKillsDoubleForkedDescendants(t *testing.T) {
	w := newWorld(t)
	// The grandchild has a session of its own, ignores TERM, and its parent is gone.
	s := w.start(`(setsid sh -c 'trap "" TERM; echo $$ > grandchild; exec sleep 1000' &) ; echo started > ready; `+
		`sleep 1000`, nil)
	s.until(Started)
	grandchild := file(t, s.cwd()+"/grandchild")
	file(t, s.cwd()+"/ready")
	if _, err := w.C.Cancel(t.Context(), s.id, "enough", 0); err != nil {
		t.Fatal(err)
	}
	s.until(Sent)
	dies(t, "the grandchild", grandchild)
	if held, err := s.dir().LockHeld(""); err != nil {
		t.Fatal(err)
	} else if held {
		eventually.True(t, "the lock is free", func() bool { held, _ := s.dir().LockHeld(""); return !held })
	}
}

func TestDescendantsEndWithTheCommand(t *testing.T) {
	w := newWorld(t)
	s := w.start(`setsid sh -c 'trap "" TERM; echo $$ > daemon; exec sleep 1000' &
		while [ ! -s daemon ]; do sleep 0.01; done; exit 3`, nil)
	if r := s.until(Ended); r.ExitCode != 3 {
		t.Errorf("exit code = %d, want 3: that of the command, not of its child", r.ExitCode)
	}
	dies(t, "the daemon", file(t, s.cwd()+"/daemon"))
	s.ended(perdure.Failed, CodeExit)
}

func TestForkBombEnds(t *testing.T) {
	w := newWorld(t)
	s := w.start(`i=0
		while [ $i -lt 40 ]; do (setsid sh -c 'trap "" TERM; while :; do sleep 0.01; done' &); i=$((i+1)); done
		echo x > ready; sleep 1000`, nil)
	s.until(Started)
	file(t, s.cwd()+"/ready")
	if _, err := w.C.Cancel(t.Context(), s.id, "enough", 0); err != nil {
		t.Fatal(err)
	}
	s.until(Sent)
	s.ended(perdure.Cancelled, perdure.CodeCancelled)
	eventually.True(t, "the lock is free", func() bool { held, _ := s.dir().LockHeld(""); return !held })
}

func TestServerAwayIsCaughtUp(t *testing.T) {
	w := newWorld(t)
	s := w.start(`i=0; while [ $i -lt 20 ]; do echo line $i; i=$((i+1)); done; echo > before; echo x >> before
		while [ ! -e gate ]; do sleep 0.01; done
		while [ $i -lt 40 ]; do echo line $i; i=$((i+1)); done; exit 9`, nil)
	s.until(Started)
	file(t, s.cwd()+"/before")
	w.Down()
	if err := os.WriteFile(s.cwd()+"/gate", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if r := s.until(Ended); r.ExitCode != 9 {
		t.Errorf("exit code = %d, want 9", r.ExitCode)
	}
	result, err := s.dir().ReadResult()
	if err != nil {
		t.Fatalf("result of a command that ended without a server: %v", err)
	}
	if result.Commit.ID != "end-1" || result.Output.Stdout != s.size(jobdir.Stdout) {
		t.Errorf("result = %+v, want the commit end-1 and all of the output", result)
	}
	w.Reopen()
	s.until(Sent)
	s.ended(perdure.Failed, CodeExit)
	var want strings.Builder
	for i := range 40 {
		fmt.Fprintf(&want, "line %d\n", i)
	}
	if got := s.logged(jobdir.Stdout); got != want.String() {
		t.Errorf("output in the log = %q, want %q", got, want.String())
	}
}

// size returns the size of a stream's file.
func (s *started) size(stream string) int64 {
	info, err := os.Stat(filepath.Join(s.dir().Path, stream+".log"))
	if err != nil {
		s.w.T.Fatal(err)
	}
	return info.Size()
}

func TestOlderEpochStopsAndWritesNothing(t *testing.T) {
	w := newWorld(t)
	s := w.start(`echo $$ > id; while :; do echo old; sleep 0.05; done`, func(j *Job, sub *perdure.Submission) {
		sub.MaxAttempts = 5
	})
	s.until(Started)
	command := file(t, s.cwd()+"/id")
	eventually.True(t, "there is output", func() bool { return s.logged(jobdir.Stdout) != "" })
	takeOver(t, w, s)
	r := s.until(Lost)
	if !strings.Contains(r.Message, "no longer") {
		t.Errorf("the older runner reports %+v, want that the run is no longer its", r)
	}
	dies(t, "the older command", command)
	if _, err := s.dir().ReadResult(); err == nil {
		t.Error("the older runner has written a result")
	}
	grants := 0
	for _, ev := range s.events() {
		if ev.Type == perdure.LineDispatched {
			grants++
		}
		if ev.Type == jobdir.EventExit || ev.Type == jobdir.EventOutput && grants == 2 {
			t.Errorf("event %d is of the older runner, after the run was given away: %s %s", ev.Seq, ev.Type, ev.Data)
		}
	}
	if grants != 2 {
		t.Errorf("the run was granted %d times, want 2", grants)
	}
}

// takeOver gives the run to another worker: it is released in the name of the runner, and leased.
func takeOver(t *testing.T, w *world, s *started) {
	t.Helper()
	r := s.run()
	res, err := session.Of(w.C).Release(t.Context(), r.WorkerID,
		api.ReleasedLease{Lease: api.Lease{RunID: s.id, Epoch: r.Epoch}})
	if err != nil || !res[0].OK {
		t.Fatalf("release of run %s: %+v (error %v)", s.id, res, err)
	}
	var polled *api.Polled
	eventually.True(t, "the run is granted again", func() bool {
		polled, err = session.Of(w.C).Poll(t.Context(), "other", api.Poll{RunIDs: []perdure.RunID{s.id}, Slots: 1,
			Start: true})
		return err == nil && len(polled.Runs) == 1
	})
}

func TestSecondRunnerCantLockTheFolder(t *testing.T) {
	w := newWorld(t)
	s := w.start(`sleep 1000`, nil)
	s.until(Started)
	r, err := w.C.Start(t.Context(), perdure.Submission{Kind: Kind, Class: perdure.Process, Queue: LocalQueue,
		MaxAttempts: 1})
	if err != nil {
		t.Fatal(err)
	}
	// Another run whose folder is that of the first.
	if err := os.Symlink(s.dir().Path, filepath.Join(w.workspace, "jobs", string(r.RunID))); err != nil {
		t.Fatal(err)
	}
	second := w.give(&Job{Server: w.access(), Workspace: w.workspace, Dir: "/",
		RunID: r.RunID, Spec: Spec{Command: []string{"true"}}, Env: os.Environ()})
	if f := second.until(Failed); f.Code != CodeWorkspace {
		t.Errorf("second runner of the folder reports %+v, want %s", f, CodeWorkspace)
	}
	second.until(Sent)
	second.ended(perdure.Failed, CodeWorkspace)
	if _, err := s.dir().ReadOutput(jobdir.Stdout, make([]byte, 1), 0); err != nil && err.Error() != "EOF" {
		t.Errorf("the output of the first runner is gone: %v", err)
	}
}

func TestWorkspaceDeletedUnderALivingProcess(t *testing.T) {
	w := newWorld(t)
	s := w.start(`echo before; echo x > ready; while [ ! -e gate ]; do sleep 0.01; done; echo after; exit 4`, nil)
	s.until(Started)
	file(t, s.cwd()+"/ready")
	if err := os.RemoveAll(w.workspace); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(s.cwd()+"/gate", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s.until(Sent)
	s.ended(perdure.Failed, CodeExit)
	if got := s.logged(jobdir.Stdout); got != "before\nafter\n" {
		t.Errorf("output in the log = %q, want before and after", got)
	}
}

func TestWorkspaceThatCantBeWritten(t *testing.T) {
	w := newWorld(t)
	if err := os.WriteFile(w.workspace, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s := w.start(`true`, nil)
	if f := s.until(Failed); f.Code != CodeWorkspace {
		t.Errorf("the runner reports %+v, want %s", f, CodeWorkspace)
	}
	s.ended(perdure.Failed, CodeWorkspace)
}

func TestSentinelIsSignedAndMoves(t *testing.T) {
	w := newWorld(t)
	s := w.start(`sleep 1000`, nil)
	s.until(Started)
	var first, second jobdir.Sentinel
	eventually.True(t, "there is a sentinel", func() (ok bool) {
		var err error
		first, err = s.dir().ReadSentinel()
		return err == nil
	})
	eventually.True(t, "the counter moves", func() bool {
		var err error
		second, err = s.dir().ReadSentinel()
		return err == nil && second.Counter > first.Counter
	})
	held, err := s.dir().LockHeld(second.Lock)
	if err != nil || !held {
		t.Errorf("lock of the living process: held %v, error %v, want held", held, err)
	}
	if second.Epoch != 1 || second.Tenant == "" || second.AgentEngine != "generic" || second.MAC == "" {
		t.Errorf("sentinel = %+v, want epoch 1, a tenant, the engine generic and a MAC", second)
	}
}

func TestStoppedCommandIsShown(t *testing.T) {
	w := newWorld(t)
	s := w.start(`echo $$ > id; sleep 1000`, nil)
	s.until(Started)
	id, err := strconv.Atoi(file(t, s.cwd()+"/id"))
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		signal unix.Signal
		want   string
	}{{unix.SIGSTOP, "stopped"}, {unix.SIGCONT, "running"}} {
		if err := unix.Kill(id, step.signal); err != nil {
			t.Fatal(err)
		}
		eventually.True(t, "the activity is "+step.want, func() bool { return s.run().Activity == step.want })
	}
}

func TestKilledRunnerTakesItsCommandAlong(t *testing.T) {
	w := newWorld(t)
	s := w.start(`echo out; echo $$ > id; exec sleep 1000`, nil)
	s.until(Started)
	id := file(t, s.cwd()+"/id")
	if err := s.p.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	dies(t, "the command", id)
	if got := s.size(jobdir.Stdout); got != 4 {
		t.Errorf("the output has %d bytes after the runner was killed, want 4", got)
	}
}

func TestTermToTheRunnerEndsTheCommand(t *testing.T) {
	w := newWorld(t)
	s := w.start(`echo $$ > id; sleep 1000`, nil)
	s.until(Started)
	id := file(t, s.cwd()+"/id")
	if err := s.p.cmd.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	s.until(Sent)
	dies(t, "the command", id)
	s.ended(perdure.Failed, CodeKilled)
}

func TestNoProcessIDIsStoredOrSent(t *testing.T) {
	for _, pattern := range []string{"*.go", "../../server/sentinel/*.go", "../jobdir/*.go"} {
		names, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			if name == "signal.go" || strings.HasSuffix(name, "_test.go") {
				continue
			}
			b, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			for i, line := range strings.Split(string(b), "\n") {
				code, _, _ := strings.Cut(line, "//")
				for _, word := range []string{"Pid", "pid", "PID", "Process.Kill", "syscall.Kill", "unix.Kill",
					"FindProcess"} {
					if strings.Contains(code, word) {
						t.Errorf("%s:%d has %s: process ids are in signal.go only", name, i+1, word)
					}
				}
			}
		}
	}
	w := newWorld(t)
	s := w.start(`echo $$ > id; sleep 0.3`, nil)
	runnerID := strconv.Itoa(s.p.cmd.Process.Pid)
	s.until(Sent)
	command := file(t, s.cwd()+"/id")
	texts := map[string]string{}
	for _, name := range []string{jobdir.SentinelFile, jobdir.ResultFile, jobdir.LogFile, jobdir.LockFile} {
		b, err := os.ReadFile(filepath.Join(s.dir().Path, name))
		if err != nil {
			t.Fatal(err)
		}
		texts[name] = string(b)
	}
	for _, ev := range s.events() {
		texts[fmt.Sprintf("event %d", ev.Seq)] = string(ev.Data)
	}
	texts["run"] = fmt.Sprintf("%+v", *s.run())
	for what, text := range texts {
		for _, id := range []string{runnerID, command} {
			for _, form := range []string{":" + id + ",", ":" + id + "}", "\"" + id + "\"", "=" + id + " ", "@" + id} {
				if strings.Contains(text, form) {
					t.Errorf("%s has the process id %s: %s", what, id, text)
				}
			}
		}
	}
}

func TestFrozenServerDelaysNoSentinel(t *testing.T) {
	w := newWorld(t)
	s := w.start(`sleep 1000`, nil)
	s.until(Started)
	w.Down()
	var before jobdir.Sentinel
	eventually.True(t, "there is a sentinel", func() bool {
		var err error
		before, err = s.dir().ReadSentinel()
		return err == nil
	})
	began := time.Now()
	eventually.True(t, "the counter moves five times", func() bool {
		now, err := s.dir().ReadSentinel()
		return err == nil && now.Counter >= before.Counter+5
	})
	t.Logf("five sentinels without a server took %s", time.Since(began))
	w.Reopen()
	eventually.True(t, "heartbeats arrive again", func() bool {
		r := s.run()
		return r.SeenAt != nil && r.SeenAt.Time().After(began)
	})
}
