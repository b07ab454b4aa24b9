package e2e

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/internal/testkit/eventually"
	"github.com/perdure/perdure/internal/testkit/pgtest"
	"github.com/perdure/perdure/worker"
)

// frozen is a worker process that will be stopped in the middle of its run. It finishes when it is
// told to, and ignores the loss of its lease.
func frozen(addr, key string) error {
	w := worker.New(client.New("http://"+addr, key, client.Options{Transport: &answers{}}),
		worker.Options{ID: "frozen", Slots: 1, HeartbeatEvery: 200 * time.Millisecond,
			Logger: slog.New(slog.DiscardHandler)})
	worker.Handle(w, "job", func(context.Context, struct{}) (string, error) {
		_, err := bufio.NewReader(os.Stdin).ReadString('\n')
		return "from the freezer", err
	})
	return w.Run(context.Background())
}

// answers is a transport that prints the first heartbeat and the answers to commits.
type answers struct{ heard sync.Once }

func (a *answers) RoundTrip(r *http.Request) (*http.Response, error) {
	res, err := http.DefaultTransport.RoundTrip(r)
	switch {
	case err != nil:
	case strings.HasSuffix(r.URL.Path, "/commit"):
		fmt.Println("commit", res.StatusCode)
	case strings.HasSuffix(r.URL.Path, "/heartbeat") && res.StatusCode == 200:
		a.heard.Do(func() { fmt.Println("heard") })
	}
	return res, err
}

// A freezer has a frozen worker's process.
type freezer struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.Writer
	out *bufio.Reader
}

// freeze starts a worker, and stops it with SIGSTOP after its first sign of life.
func freeze(t *testing.T, n *node) *freezer {
	t.Helper()
	f := &freezer{t: t, cmd: exec.Command(os.Args[0])}
	f.cmd.Env = append(os.Environ(), "PERDURE_FROZEN="+n.addr, "PERDURE_FROZEN_KEY="+n.key)
	f.cmd.Stderr = os.Stderr
	in, err := f.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := f.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	f.in, f.out = in, bufio.NewReader(out)
	if err := f.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		f.cmd.Process.Kill()
		f.cmd.Wait()
	})
	f.says("heard")
	f.cmd.Process.Signal(syscall.SIGSTOP)
	return f
}

func (f *freezer) says(want string) {
	f.t.Helper()
	if line, err := f.out.ReadString('\n'); err != nil || strings.TrimSpace(line) != want {
		f.t.Fatalf("the frozen worker says %q (%v), want %q", line, err, want)
	}
}

// wake continues the process, and lets it finish.
func (f *freezer) wake() {
	f.cmd.Process.Signal(syscall.SIGCONT)
	fmt.Fprintln(f.in)
}

type lateView struct {
	N       int    `json:"n"`
	State   string `json:"state"`
	Epoch   int64  `json:"epoch"`
	Attempt int    `json:"attempt"`
	Worker  string `json:"worker_id"`
	Size    int    `json:"size"`
}

func (n *node) lates(id string) []lateView {
	n.t.Helper()
	var list struct {
		Lates []lateView `json:"late_results"`
	}
	if s := n.insist("GET", "/api/v1/runs/"+id+"/late-results", "", nil, &list); s != 200 {
		n.t.Fatalf("late results: %d", s)
	}
	return list.Lates
}

// brief is a policy with a short lease. gap_after is shorter, so that a machine that stands still
// for a moment is a gap, in which no lease is lost.
var brief = []string{"--policy", "lease=3s", "--policy", "gap_after=2s", "--policy", "gap_spare=1s", "--policy",
	"backoff_base=50ms", "--policy", "dispatched_retry=500ms"}

// A worker is stopped past its lease, and another one gets its run. When the first one continues
// and completes, its result is refused and kept. A person then adopts it, for a live run and for an
// ended one.
func TestLateResultOfFrozenWorkerCanBeAdopted(t *testing.T) {
	t.Parallel()
	for store, args := range map[string]func(*testing.T) []string{
		"SQLite":     func(*testing.T) []string { return nil },
		"PostgreSQL": func(t *testing.T) []string { return []string{"--store", pgtest.New(t)} },
	} {
		for _, ended := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, ended %t", store, ended), func(t *testing.T) {
				t.Parallel()
				n := newNode(t, append(args(t), brief...)...)
				r := n.submit(obj{"kind": "job"})
				f := freeze(t, n)
				var got []runView
				eventually.True(t, "the run is taken over", func() bool {
					got = n.poll("healthy", 1, true, "10s")
					return len(got) > 0
				})
				if got[0].RunID != r.RunID || got[0].Attempt != 2 || got[0].Epoch <= 1 {
					t.Fatalf("poll of the healthy worker = %+v, want run %s in attempt 2 under a higher epoch", got,
						r.RunID)
				}
				if ended {
					if s := n.insist("POST", "/api/v1/workers/healthy/commit", "", complete(got[0], "fresh"),
						nil); s != 200 {
						t.Fatalf("commit of the healthy worker: status %d, want 200", s)
					}
				}
				f.wake()
				f.says("commit 409")
				was := n.get(r.RunID)
				if ended != (string(was.Result) == `"fresh"`) || was.Late != 1 {
					t.Errorf("run = %+v, want 1 late result, and the healthy worker's result only if it ended", was)
				}
				want := lateView{N: 1, State: "kept", Epoch: 1, Attempt: 1, Worker: "frozen",
					Size: len(`"from the freezer"`)}
				if list := n.lates(r.RunID); len(list) != 1 || list[0] != want {
					t.Fatalf("late results = %+v, want only %+v", list, want)
				}
				var adopted runView
				for range 2 { // a second call changes nothing
					if s := n.insist("POST", "/api/v1/runs/"+r.RunID+"/late-results/1/adopt", "", nil,
						&adopted); s != 200 {
						t.Fatalf("adopt: %d", s)
					}
				}
				if adopted.State != "completed" || string(adopted.Result) != `"from the freezer"` ||
					ended != (adopted.Epoch == was.Epoch) {
					t.Errorf("%+v, and it was %+v", adopted, was)
				}
				// The other worker is too late now, and its result is kept as well.
				late := complete(got[0], "fresh, too late")
				late["commits"].([]obj)[0]["commit_id"] = "again"
				if s := n.insist("POST", "/api/v1/workers/healthy/commit", "", late, nil); s != 409 {
					t.Errorf("the other worker's commit: %d", s)
				}
				if list := n.lates(r.RunID); len(list) != 2 || list[0].State != "adopted" || list[1].Attempt != 2 ||
					list[1].Worker != "healthy" {
					t.Errorf("late results = %+v, want an adopted one, and one of the healthy worker", list)
				}
			})
		}
	}
}
