package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/perdure/perdure/internal/process/jobdir"
	"github.com/perdure/perdure/internal/testkit/eventually"
	"github.com/perdure/perdure/internal/testkit/pagetest"
	"github.com/perdure/perdure/internal/testkit/pgtest"
)

// A workshop is a folder of processes, and the server that looks after it.
type workshop struct {
	*node
	// space is the workspace, and state the folder of the command line's own files.
	space, state string
	// urls are the addresses that runners know.
	urls string
}

// newWorkshop starts a server whose intervals are short, so that a silent process is dead after
// seconds.
func newWorkshop(t *testing.T, args ...string) *workshop {
	t.Helper()
	return workshopAt(t, t.TempDir(), args...)
}

// workshopAt is newWorkshop with a workspace.
func workshopAt(t *testing.T, space string, args ...string) *workshop {
	t.Helper()
	w := &workshop{space: space, state: t.TempDir()}
	w.node = prepareNode(t, slices.Concat([]string{"--workspace", w.space}, quickProcesses, args)...)
	w.urls = "http://" + w.addr
	t.Cleanup(w.killAll)
	w.start()
	return w
}

// quickProcesses has the settings of processes, shortened.
var quickProcesses = []string{"--sentinel-scan", "200ms", "--reattach-window", "5s",
	"--policy", "stale_after=2s", "--policy", "dead_after=6s", "--policy", "silent=1s"}

// env is the environment of commands: that of the test, with the server and folders of the workshop.
func (w *workshop) env() []string {
	return append(os.Environ(), "PERDURE_URL="+w.urls, "PERDURE_KEY="+w.key, "PERDURE_WORKSPACE="+w.space,
		"XDG_STATE_HOME="+w.state, "PERDURE_SENTINEL_EVERY=200ms")
}

// perdure runs a command and returns what it writes to its standard output.
func (w *workshop) perdure(args ...string) string {
	w.t.Helper()
	path, err := program()
	if err != nil {
		w.t.Fatal(err)
	}
	cmd := exec.Command(path, args...)
	cmd.Env = w.env()
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		w.t.Fatalf("perdure %s: %v\n%s%s", strings.Join(args, " "), err, out, stderr.Bytes())
	}
	return string(out)
}

// exec starts a command of a shell as a process in the background.
func (w *workshop) exec(script string) (id string) {
	w.t.Helper()
	return strings.TrimSpace(w.perdure("exec", "-d", "--", "sh", "-c", script))
}

// gate is a pipe on which commands wait until open is called.
type gate string

func newGate(t *testing.T) gate {
	t.Helper()
	path := filepath.Join(t.TempDir(), "gate")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	return gate(path)
}

// wait is the command that waits.
func (g gate) wait() string { return fmt.Sprintf("cat '%s' > /dev/null", string(g)) }

// open lets all commands go on that wait now, and those that come until the test has ended.
func (g gate) open(t *testing.T) {
	t.Helper()
	f, err := os.OpenFile(string(g), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	os.Remove(string(g)) // a command that comes later finds nothing, and goes on too
	f.Close()
}

// output reads what the log of a run has of its standard output.
func (w *workshop) output(id string) string {
	w.t.Helper()
	text, _, _ := w.account(id)
	return text
}

// account reads what the log of a run has of its standard output: the bytes that are in events, how many
// bytes are there, in artifacts too, and how many were dropped. Every byte has to be told once.
func (w *workshop) account(id string) (text string, kept, dropped int64) {
	w.t.Helper()
	var b strings.Builder
	var at jobdir.Offsets
	for after := 0; ; {
		var page struct {
			Events []struct {
				Type string          `json:"type"`
				Data json.RawMessage `json:"data"`
			} `json:"events"`
			NextAfter int `json:"next_after"`
		}
		if status := w.insist("GET", fmt.Sprintf("/api/v1/runs/%s/events?limit=1000&after=%d", id, after), "", nil,
			&page); status != 200 {
			w.t.Fatalf("events of %s = %d, want 200", id, status)
		}
		for _, e := range page.Events {
			if e.Type != jobdir.EventOutput && e.Type != jobdir.EventDropped {
				continue
			}
			var o jobdir.Output // a jobdir.Dropped has the same names
			if err := json.Unmarshal(e.Data, &o); err != nil {
				w.t.Fatal(err)
			}
			if o.Offset != *at.Of(o.Stream) {
				w.t.Errorf("run %s: %s goes on at %d, want %d: bytes are missing or were told twice", id, o.Stream,
					o.Offset, *at.Of(o.Stream))
			}
			*at.Of(o.Stream) = o.Offset + o.Size
			switch {
			case o.Stream != jobdir.Stdout:
			case e.Type == jobdir.EventDropped:
				dropped += o.Size
			default:
				kept += o.Size
				b.Write(o.Bytes())
			}
		}
		if after = page.NextAfter; len(page.Events) == 0 {
			return b.String(), kept, dropped
		}
	}
}

// shows waits until the log of a run has this as its whole output.
func (w *workshop) shows(id, want string) {
	w.t.Helper()
	eventually.True(w.t, fmt.Sprintf("the output of %s is %q", id, want), func() bool { return w.output(id) == want })
}

// ends waits until a run has ended in a state.
func (w *workshop) ends(id, want string) {
	w.t.Helper()
	var r runView
	eventually.True(w.t, id+" has ended", func() bool {
		r = w.get(id)
		return r.State == "completed" || r.State == "failed" || r.State == "timeout" || r.State == "cancelled"
	})
	if r.State != want {
		w.t.Errorf("run %s ended as %s, want %s", id, r.State, want)
	}
}

// holders are the processes that hold the lock of a job. Only tests look for them.
func (w *workshop) holders(id string) (runner int, others []int) {
	w.t.Helper()
	folders, _ := filepath.Glob("/proc/[0-9]*/fd/*")
	lock := filepath.Join(w.space, "jobs", id, jobdir.LockFile)
	for _, f := range folders {
		if to, err := os.Readlink(f); err != nil || strings.TrimSuffix(to, " (deleted)") != lock {
			continue
		}
		pid, _ := strconv.Atoi(strings.Split(f, "/")[2])
		command, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if bytes.Contains(command, []byte("process-runner")) {
			runner = pid
		} else if !slices.Contains(others, pid) {
			others = append(others, pid)
		}
	}
	return runner, others
}

// killRunner kills the runner of a job, and with others its command too.
func (w *workshop) killRunner(id string, others bool) {
	w.t.Helper()
	runner, rest := w.holders(id)
	if runner == 0 {
		w.t.Fatalf("job %s has no runner", id)
	}
	syscall.Kill(runner, syscall.SIGKILL)
	for _, pid := range rest {
		if others {
			syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}

// killAll leaves no process behind.
func (w *workshop) killAll() {
	folders, _ := filepath.Glob("/proc/[0-9]*/fd/*")
	for _, f := range folders {
		if to, err := os.Readlink(f); err == nil && strings.HasPrefix(to, w.space) {
			if pid, err := strconv.Atoi(strings.Split(f, "/")[2]); err == nil && pid != os.Getpid() {
				syscall.Kill(pid, syscall.SIGKILL)
			}
		}
	}
}

// hasResult tells whether the runner of a job has written its result.
func (w *workshop) hasResult(id string) bool {
	_, err := os.Stat(filepath.Join(w.space, "jobs", id, jobdir.ResultFile))
	return err == nil
}

// A recovery is what the server did with the processes that it found when it started.
type recovery struct {
	Recovery struct {
		State      string `json:"state"`
		Watched    int    `json:"watched"`
		Reattached int    `json:"reattached"`
		Adopted    int    `json:"adopted"`
		Dead       int    `json:"dead"`
		SetAside   int    `json:"setAside"`
	} `json:"recovery"`
}

// recovered waits until the server has judged all processes that it found.
func (w *workshop) recovered() (r recovery) {
	w.t.Helper()
	eventually.True(w.t, "the server has judged all processes", func() bool {
		if status := w.insist("GET", "/api/admin/recovery/jobs/status", "", nil, &r); status != 200 {
			w.t.Fatalf("recovery status = %d, want 200", status)
		}
		return r.Recovery.State == "finished"
	})
	return r
}

func onBothStores(t *testing.T, test func(t *testing.T, w *workshop)) {
	t.Run("SQLite", func(t *testing.T) { test(t, newWorkshop(t)) })
	t.Run("PostgreSQL", func(t *testing.T) { test(t, newWorkshop(t, "--store", pgtest.New(t))) })
}

// A server is killed while forty processes run. Half of them end while it is dead, and of these a
// few lose their runner after that. The next server takes over all of them.
//
// Failure mode: server restart, job still running. Criterion: recovery after crash.
func TestProcessesOutliveTheirServer(t *testing.T) {
	onBothStores(t, func(t *testing.T, w *workshop) {
		const count, orphans = 40, 5
		early, late := newGate(t), newGate(t)
		ids := make([]string, count)
		for i := range ids {
			g := late
			if i < count/2 {
				g = early
			}
			ids[i] = w.exec(fmt.Sprintf("echo begun %d; %s; echo ended %d; exit %d", i, g.wait(), i, i%2))
		}
		for i, id := range ids {
			w.shows(id, fmt.Sprintf("begun %d\n", i))
		}
		w.kill(syscall.SIGKILL)
		early.open(t)
		for _, id := range ids[:count/2] {
			eventually.True(t, id+" has a result", func() bool { return w.hasResult(id) })
		}
		for _, id := range ids[:orphans] {
			w.killRunner(id, true)
		}
		w.start()
		r := w.recovered().Recovery
		if r.Adopted < orphans || r.Adopted > count/2 || r.Adopted+r.Reattached != count || r.Dead != 0 ||
			r.SetAside != 0 {
			t.Errorf("recovery = %+v, want at least %d adopted, all others re-attached, none dead", r, orphans)
		}
		late.open(t)
		for i, id := range ids {
			w.ends(id, []string{"completed", "failed"}[i%2])
			w.shows(id, fmt.Sprintf("begun %d\nended %d\n", i, i))
			if r := w.get(id); r.Attempt != 1 || r.Epoch != 1 {
				t.Errorf("run %s has attempt %d and epoch %d, want 1 and 1: it was executed once", id, r.Attempt,
					r.Epoch)
			}
		}
		log := w.perdure("recovery", "log")
		for _, id := range ids {
			if !strings.Contains(log, id) {
				t.Errorf("the startup log does not name %s:\n%s", id, log)
			}
		}
	})
}

// A store is lost while processes run, and restored from a backup. Those that live go on under the same
// run, those that ended meanwhile have their results adopted, and nothing is started twice.
func TestProcessesOutliveTheirStore(t *testing.T) {
	t.Parallel()
	w := newWorkshop(t)
	early, late := newGate(t), newGate(t)
	once := filepath.Join(t.TempDir(), "starts")
	script := func(g gate) string {
		return fmt.Sprintf("echo x >> '%s'; echo begun; %s; echo ended; exit 3", once, g.wait())
	}
	lives, ends, orphan := w.exec(script(late)), w.exec(script(early)), w.exec(script(early))
	for _, id := range []string{lives, ends, orphan} {
		w.shows(id, "begun\n")
	}
	file := filepath.Join(t.TempDir(), "backup")
	w.perdure("backup", file)
	w.kill(syscall.SIGKILL)
	early.open(t)
	for _, id := range []string{ends, orphan} {
		eventually.True(t, id+" has a result", func() bool { return w.hasResult(id) })
	}
	w.killRunner(orphan, true)
	to := t.TempDir()
	w.perdure("restore", file, "--data", to)
	w.dir = to
	w.start()
	for _, id := range []string{ends, orphan} {
		w.ends(id, "failed")
	}
	eventually.True(t, "the living process has its new epoch", func() bool {
		s, err := jobdir.Dir{ID: lives, Path: filepath.Join(w.space, "jobs", lives)}.ReadSentinel()
		return err == nil && s.Epoch == w.get(lives).Epoch && s.Epoch > 1<<40
	})
	late.open(t)
	w.ends(lives, "failed")
	for _, id := range []string{lives, ends, orphan} {
		w.shows(id, "begun\nended\n")
		if r := w.get(id); r.Attempt != 1 {
			t.Errorf("run %s has attempt %d, want 1", id, r.Attempt)
		}
	}
	if b, _ := os.ReadFile(once); string(b) != "x\nx\nx\n" {
		t.Errorf("the commands were started %d times, want 3", len(b)/2)
	}
}

// An exec is killed between submitting its run and handing it over, and later the run is started again.
func TestExecThatIsKilledStrandsNoRun(t *testing.T) {
	t.Parallel()
	w := newWorkshop(t, "--policy", "local_claim=1s")
	r := w.submit(obj{"kind": "exec", "class": "process", "queue": "exec-local", "max_attempts": 1,
		"input": obj{"command": []string{"sh", "-c", "echo again"}, "dir": "/"}})
	w.ends(r.RunID, "timeout")
	for _, path := range []string{"/runs/" + r.RunID + "/retry", "/dlq/" + r.RunID + "/redrive"} {
		if status := w.insist("POST", "/api/v1"+path, "", obj{}, nil); status != 409 {
			t.Errorf("%s = %d, want 409: nobody may take the run", path, status)
		}
	}
	if got := w.perdure("exec", "--again", r.RunID); got != "again\n" {
		t.Errorf("exec --again printed %q, want again", got)
	}
}

// After a reboot all processes are gone. Their runs end as soon as the server is back.
//
// Failure mode: server restart, job actually dead.
func TestRebootEndsProcesses(t *testing.T) {
	onBothStores(t, func(t *testing.T, w *workshop) {
		g := newGate(t)
		ids := []string{w.exec("echo begun; " + g.wait()), w.exec("echo begun; " + g.wait())}
		for _, id := range ids {
			w.shows(id, "begun\n")
		}
		w.kill(syscall.SIGKILL)
		w.killAll()
		w.start()
		for _, id := range ids {
			w.ends(id, "failed")
			w.shows(id, "begun\n")
		}
		if r := w.recovered().Recovery; r.Dead != len(ids) {
			t.Errorf("recovery = %+v, want %d dead", r, len(ids))
		}
	})
}

// A runner that is killed takes its command with it, and the run ends at once. Processes that the
// command had started may live on: the run then ends when nothing was heard for dead_after.
//
// Failure mode: job crashes, no cleanup. Criterion: dead job detection.
func TestKilledRunnerEndsItsRun(t *testing.T) {
	w := newWorkshop(t)
	g := newGate(t)
	alone, parent := w.exec("echo begun; exec "+g.wait()), w.exec("echo begun; "+g.wait()+"; true")
	w.shows(alone, "begun\n")
	w.shows(parent, "begun\n")
	killed := time.Now()
	w.killRunner(alone, false)
	w.ends(alone, "failed")
	if took := time.Since(killed); took > 4*time.Second {
		t.Errorf("the run ended after %s, want it before dead_after: nobody holds its lock", took)
	}
	w.killRunner(parent, false)
	w.ends(parent, "failed")
}

// A runner that is stopped is stale and then dead. A stopped command is only slow.
//
// Failure mode: job hangs, heartbeat thread blocked. Criterion: staleness detection.
func TestStoppedRunnerIsStaleThenDead(t *testing.T) {
	w := newWorkshop(t)
	g := newGate(t)
	// A shell that is stopped before it begins to wait finds no gate later, which is no failure.
	stopped, slow := w.exec("echo begun; "+g.wait()), w.exec("echo begun; "+g.wait()+" || true")
	w.shows(stopped, "begun\n")
	w.shows(slow, "begun\n")
	runner, _ := w.holders(stopped)
	syscall.Kill(runner, syscall.SIGSTOP)
	_, commands := w.holders(slow)
	for _, pid := range commands {
		syscall.Kill(pid, syscall.SIGSTOP)
	}
	has := func(id, line string) bool {
		return strings.Contains(w.perdure("logs", "--events", id), line)
	}
	eventually.True(t, "the run is stale", func() bool { return has(stopped, "run:stale") })
	w.ends(stopped, "failed")
	syscall.Kill(runner, syscall.SIGCONT)
	eventually.True(t, "the runner that was given up has ended", func() bool {
		runner, others := w.holders(stopped)
		return runner == 0 && len(others) == 0
	})
	if r := w.get(slow); r.State != "running" || has(slow, "run:stale") {
		t.Errorf("a stopped command under a living runner: %s, stale %t; want it running and not stale", r.State,
			has(slow, "run:stale"))
	}
	for _, pid := range commands {
		syscall.Kill(pid, syscall.SIGCONT)
	}
	g.open(t)
	w.ends(slow, "completed")
}

// A node of a fleet that looks after a workspace is killed. Runners go on with the other node, which
// has no workspace and does not judge their files.
func TestProcessesGoOnWithAnotherNode(t *testing.T) {
	url := pgtest.New(t)
	w := newWorkshop(t, "--store", url)
	other := newNode(t, slices.Concat([]string{"--store", url}, quickProcesses)...)
	w.urls += ",http://" + other.addr
	g := newGate(t)
	id := w.exec("echo begun; " + g.wait() + "; echo ended")
	w.shows(id, "begun\n")
	w.kill(syscall.SIGKILL)
	// Longer than dead_after: only beats over HTTP keep it alive.
	begun := time.Now()
	eventually.True(t, "the other node has heard from the process for longer than dead_after", func() bool {
		return time.Since(begun) > 7*time.Second
	})
	if r := other.get(id); r.State != "running" {
		t.Fatalf("state = %s, want running: its runner beats at the other node", r.State)
	}
	g.open(t)
	eventually.True(t, "the run has ended", func() bool { return other.get(id).State == "completed" })
	w.start()
	w.shows(id, "begun\nended\n")
}

// The folder of a process is deleted under it. The command goes on, and its end is told.
func TestDeletedWorkspaceEndsNoProcess(t *testing.T) {
	w := newWorkshop(t)
	g := newGate(t)
	id := w.exec("echo begun; " + g.wait() + "; exit 3")
	w.shows(id, "begun\n")
	if err := os.RemoveAll(filepath.Join(w.space, "jobs", id)); err != nil {
		t.Fatal(err)
	}
	g.open(t)
	w.ends(id, "failed")
}

// The disk under the workspace is full, so no heartbeat can be written. Those over HTTP keep the run
// alive.
//
// Failure mode: heartbeat write fails (disk full, permissions).
func TestFullDiskEndsNoProcess(t *testing.T) {
	fs := forgetful(t)
	w := workshopAt(t, filepath.Join(fs.Dir, "work"))
	g := newGate(t)
	id := w.exec("echo begun; " + g.wait())
	w.shows(id, "begun\n")
	if err := fs.Full(1); err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	eventually.True(t, "dead_after is over", func() bool { return time.Since(begun) > 7*time.Second })
	if r := w.get(id); r.State != "running" {
		t.Fatalf("state = %s, want running: its runner beats over HTTP", r.State)
	}
	if err := fs.Full(0); err != nil {
		t.Fatal(err)
	}
	g.open(t)
	w.ends(id, "completed")
}

// A command prints far more than its files may have. Events say which bytes were not kept. With
// PERDURE_TEST_FULL it prints 5 GB.
func TestTooMuchOutputIsAccountedFor(t *testing.T) {
	size, limit := int64(48<<20), "8388608"
	if os.Getenv("PERDURE_TEST_FULL") != "" {
		size, limit = 5_000_000_000, "268435456"
	}
	w := newWorkshop(t)
	id := strings.TrimSpace(w.perdure("exec", "-d", "--max-output", limit, "--", "sh", "-c",
		fmt.Sprintf("head -c %d /dev/zero | tr '\\0' x", size)))
	for deadline := time.Now().Add(10 * time.Minute); w.get(id).State == "running" || w.get(id).State == "queued"; {
		if time.Now().After(deadline) {
			t.Fatal("the command did not end")
		}
		time.Sleep(20 * time.Millisecond)
	}
	w.ends(id, "completed")
	_, kept, dropped := w.account(id)
	t.Logf("%d bytes are kept, %d were dropped", kept, dropped)
	if kept+dropped != size {
		t.Errorf("%d bytes are kept and %d dropped, want %d together", kept, dropped, size)
	}
}

// The page's agent survives the page's deploy.
func TestProcessesPageIsTrue(t *testing.T) {
	path, err := program()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	pagetest.Run(t, pagetest.Blocks(t, "../docs/processes.md", 5), dir,
		"PATH="+filepath.Dir(path)+":"+os.Getenv("PATH"), "PERDURE_KEY=", "PERDURE_SENTINEL_EVERY=200ms")
}
