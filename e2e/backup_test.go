package e2e

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/perdure/perdure/internal/testkit/pgtest"
)

// cli runs a command of the program, which has to succeed.
func cli(t *testing.T, args ...string) string {
	t.Helper()
	path, err := program()
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(path, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("perdure %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// A backup that is made under load contains everything that was acknowledged before it began, and
// violates no invariant. After a restore to another kind of store, a worker that held a run before
// is fenced, and another worker finishes the run.
func TestBackupUnderLoadCanBeRestored(t *testing.T) {
	for _, x := range []struct {
		name     string
		from, to func(*testing.T) string
	}{
		{"SQLite to PostgreSQL", func(*testing.T) string { return "" }, func(t *testing.T) string {
			return pgtest.New(t)
		}},
		{"PostgreSQL to SQLite", func(t *testing.T) string { return pgtest.New(t) }, func(*testing.T) string {
			return ""
		}},
	} {
		t.Run(x.name, func(t *testing.T) {
			n := newNode(t, storeArgs(x.from(t))...)
			n.submit(obj{"kind": "held", "input": 1})
			var p polled
			if status := n.insist("POST", "/api/v1/workers/old/poll", "",
				obj{"kinds": []string{"held"}, "slots": 1, "start": true}, &p); status != 200 || len(p.Runs) != 1 {
				t.Fatalf("poll: status %d, %v; want one run", status, p)
			}
			held := p.Runs[0]
			sure, stop := n.busy()
			file := filepath.Join(t.TempDir(), "backup")
			acknowledged := sure(50)
			cli(t, "backup", file, "--url", "http://"+n.addr, "--data", n.dir)
			stop()
			key := n.key
			n.kill(syscall.SIGKILL)

			m := prepareNode(t)
			to := x.to(t)
			m.args = storeArgs(to)
			if to == "" {
				to = m.dir
				cli(t, "restore", file, "--data", to)
			} else {
				cli(t, "restore", file, "--store", to)
			}
			m.key = key // the backup has the key
			m.start()
			for _, id := range acknowledged {
				m.get(id)
			}
			m.sound()
			status, err := m.call("POST", "/api/v1/workers/old/commit", "", complete(held, "late"), nil)
			if err != nil || status != 409 {
				t.Errorf("commit of the former holder: status %d (error %v), want 409", status, err)
			}
			if r := m.get(held.RunID); r.State != "queued" || r.Attempt != 1 || r.Late != 1 {
				t.Errorf("run after the restore = %+v, want it queued in attempt 1, with 1 late result", r)
			}
			if status := m.insist("POST", "/api/v1/workers/new/poll", "",
				obj{"kinds": []string{"held"}, "slots": 1, "start": true, "wait": "10s"}, &p); status != 200 ||
				len(p.Runs) != 1 {
				t.Fatalf("poll: status %d, %v; want one run", status, p)
			}
			if again := p.Runs[0]; again.RunID != held.RunID || again.Epoch>>41 != 1 {
				t.Errorf("grant after the restore = %+v, want the same run with an epoch of generation 1", again)
			}
			if status := m.insist("POST", "/api/v1/workers/new/commit", "", complete(p.Runs[0], "done"),
				nil); status != 200 {
				t.Errorf("commit of the new holder: status %d, want 200", status)
			}
			var check struct{ Generation int }
			if status := m.insist("GET", "/api/admin/invariants", "", nil, &check); status != 200 ||
				check.Generation != 1 {
				t.Errorf("invariants: status %d, %+v; want generation 1", status, check)
			}
		})
	}
}

func storeArgs(url string) []string {
	if url == "" {
		return nil
	}
	return []string{"--store", url}
}

// busy submits and finishes runs until it is stopped. sure waits until a number of further submits
// are acknowledged, and returns all that are.
func (n *node) busy() (sure func(more int) []string, stop func()) {
	var mu sync.Mutex
	var ids []string
	more := sync.NewCond(&mu)
	done := make(chan struct{})
	var wg sync.WaitGroup
	for i := range 3 {
		wg.Go(func() {
			for k := 0; ; k++ {
				select {
				case <-done:
					return
				default:
				}
				var r runView
				if status, err := n.call("POST", "/api/v1/runs", fmt.Sprint(i, "-", k), obj{"kind": "job", "input": k},
					&r); err == nil && status == 201 {
					mu.Lock()
					ids = append(ids, r.RunID)
					mu.Unlock()
					more.Broadcast()
				}
				var p polled
				if status, err := n.call("POST", "/api/v1/workers/"+fmt.Sprint("w", i)+"/poll", "",
					obj{"kinds": []string{"job"}, "slots": 1, "start": true, "wait": "0s"}, &p); err != nil ||
					status != 200 {
					continue
				}
				for _, g := range p.Runs {
					if k%3 != 0 { // some stay leased
						n.call("POST", "/api/v1/workers/"+fmt.Sprint("w", i)+"/commit", "", complete(g, "ok"), nil)
					}
				}
			}
		})
	}
	sure = func(want int) []string {
		mu.Lock()
		defer mu.Unlock()
		for want += len(ids); len(ids) < want; {
			more.Wait()
		}
		return append([]string(nil), ids...)
	}
	return sure, func() { close(done); wg.Wait() }
}
