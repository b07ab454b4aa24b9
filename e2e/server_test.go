package e2e

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/perdure/perdure/internal/server/store"
	"github.com/perdure/perdure/internal/testkit/eventually"
	"github.com/perdure/perdure/internal/testkit/pgtest"
)

// built is the folder of the built program. It is removed after all tests.
var built string

// program builds the program once for all tests.
var program = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "perdure-e2e-")
	if err != nil {
		return "", err
	}
	built = dir
	path := filepath.Join(dir, "perdure")
	out, err := exec.Command("go", "build", "-ldflags=-s -w", "-o", path, "../cmd/perdure").CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, out)
	}
	return path, err
})

// A node is a server process that can be killed and started again on the same data and address.
type node struct {
	t    *testing.T
	dir  string
	addr string
	args []string
	// program is the path of the program. Empty: the one of this tree.
	program string
	files   int // limit of open files; zero means that of the test
	key     string
	log     io.Writer // gets its log; nil means stderr of the test
	mu      sync.Mutex
	cmd     *exec.Cmd
	http    *http.Client
	tls     *x509.CertPool // it serves HTTPS with a certificate of these; nil: HTTP
}

func newNode(t *testing.T, args ...string) *node {
	t.Helper()
	n := prepareNode(t, args...)
	n.start()
	return n
}

// prepareNode returns a node that is not started yet.
func prepareNode(t *testing.T, args ...string) *node {
	t.Helper()
	return nodeAt(t, t.TempDir(), args...)
}

// nodeAt returns a node with its data in a given folder. Its address stays free while it is away.
func nodeAt(t *testing.T, dir string, args ...string) *node {
	t.Helper()
	n := &node{t: t, dir: dir, addr: fmt.Sprintf("127.0.0.1:%d", lowPort(t)), args: args,
		http: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 2000}}}
	t.Cleanup(func() {
		n.http.CloseIdleConnections()
		n.kill(syscall.SIGKILL)
	})
	return n
}

func (n *node) start() {
	n.t.Helper()
	path, err := n.program, error(nil)
	if path == "" {
		path, err = program()
	}
	if err != nil {
		n.t.Fatal(err)
	}
	args := append([]string{path, "serve", "--listen", n.addr, "--data", n.dir, "--log-level", "warn"}, n.args...)
	if n.files > 0 {
		args = append([]string{"sh", "-c", fmt.Sprintf(`ulimit -n %d && exec "$0" "$@"`, n.files)}, args...)
	}
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stderr = os.Stderr
	if n.log != nil {
		cmd.Stdout, cmd.Stderr = n.log, n.log
	}
	if err := cmd.Start(); err != nil {
		n.t.Fatal(err)
	}
	n.mu.Lock()
	n.cmd = cmd
	n.mu.Unlock()
	url := "http://" + n.addr
	if n.tls != nil {
		n.http.Transport.(*http.Transport).TLSClientConfig = &tls.Config{RootCAs: n.tls}
		url = "https://" + n.addr
	}
	for deadline := time.Now().Add(eventually.Within); ; {
		res, err := n.http.Get(url + "/readyz")
		if err == nil {
			res.Body.Close()
			if res.StatusCode == 200 {
				break
			}
		}
		if time.Now().After(deadline) {
			n.t.Fatalf("the server did not start in time: %v", err)
		}
		time.Sleep(5 * time.Millisecond)
	}
	n.findKey()
}

// keys has the platform keys of shared stores by address. Only the first start of a store creates
// one.
var keys sync.Map

// findKey reads the node's key. On a shared store it may be in the folder of another node. A
// restored store has that of the backup.
func (n *node) findKey() {
	n.t.Helper()
	store := ""
	if i := slices.Index(n.args, "--store"); i >= 0 {
		store = n.args[i+1]
	}
	b, err := os.ReadFile(filepath.Join(n.dir, "admin.key"))
	if err == nil {
		n.key = strings.TrimSpace(string(b))
		keys.Store(store, n.key)
		return
	}
	if known, ok := keys.Load(store); ok && store != "" {
		n.key = known.(string)
	}
	if n.key == "" {
		n.t.Fatal(err)
	}
}

// kill ends the process and waits until it is gone.
func (n *node) kill(sig syscall.Signal) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.cmd != nil {
		n.cmd.Process.Signal(sig)
		n.cmd.Wait()
		n.cmd = nil
	}
}

// call makes one request. An error is one of the network.
func (n *node) call(method, path, idempotency string, in, out any) (int, error) {
	res, b, err := exchange(n.http, n.key, method, "http://"+n.addr+path, idempotency, in)
	if err != nil {
		return 0, err
	}
	if out != nil && res.StatusCode < 300 {
		if err := json.Unmarshal(b, out); err != nil {
			return 0, fmt.Errorf("%s %s: %s", method, path, b)
		}
	}
	return res.StatusCode, nil
}

// exchange makes one request and reads the answer.
func exchange(c *http.Client, key, method, url, idempotency string, in any) (*http.Response, []byte, error) {
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return nil, nil, err
		}
		body = bytes.NewReader(b)
	}
	req, err := http.NewRequest(method, url, body)
	if err != nil {
		return nil, nil, err
	}
	req.Header.Set("Authorization", "Bearer "+key)
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if idempotency != "" {
		req.Header.Set("Idempotency-Key", idempotency)
	}
	res, err := c.Do(req)
	if err != nil {
		return nil, nil, err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return res, b, err
}

// insist repeats a call until there is a final answer.
func (n *node) insist(method, path, idempotency string, in, out any) int {
	for {
		status, err := n.call(method, path, idempotency, in, out)
		if err == nil && status != 503 {
			return status
		}
		time.Sleep(20 * time.Millisecond)
	}
}

type obj = map[string]any

type runView struct {
	RunID   string          `json:"run_id"`
	State   string          `json:"state"`
	Epoch   int64           `json:"epoch"`
	Attempt int             `json:"attempt"`
	Result  json.RawMessage `json:"result"`
	Late    int             `json:"late_results"`
}

type polled struct {
	Runs []runView `json:"runs"`
}

func (n *node) get(id string) (r runView) {
	n.t.Helper()
	if status := n.insist("GET", "/api/v1/runs/"+id, "", nil, &r); status != 200 {
		n.t.Fatalf("get %s: %d", id, status)
	}
	return r
}

func (n *node) submit(in obj) (r runView) {
	n.t.Helper()
	if status := n.insist("POST", "/api/v1/runs", strconv.FormatUint(rand.Uint64(), 36), in, &r); status != 201 &&
		status != 200 {
		n.t.Fatalf("submit: %d", status)
	}
	return r
}

func (n *node) poll(worker string, slots int, start bool, wait string) []runView {
	var p polled
	if status, err := n.call("POST", "/api/v1/workers/"+worker+"/poll", "",
		obj{"slots": slots, "start": start, "confirms": true, "wait": wait}, &p); err != nil || status != 200 {
		return nil
	}
	return p.Runs
}

func complete(r runView, result string) obj {
	return obj{"commits": []obj{{"commit_id": fmt.Sprintf("end-%d", r.Epoch), "run_id": r.RunID, "epoch": r.Epoch,
		"outcome": obj{"type": "complete", "result": result}}}}
}

// short is a policy with durations of seconds.
var short = []string{"--policy", "lease=2s", "--policy", "dispatched_retry=1s", "--policy",
	"dispatched_timeout=4s", "--policy", "backoff_base=100ms", "--policy", "active_reap=1m"}

func serverKills() int {
	if s := os.Getenv("PERDURE_KILLS"); s != "" {
		if k, err := strconv.Atoi(s); err == nil {
			return k
		}
	}
	return 10 // "make test-long" has 50
}

func TestKillsUnderLoadLoseNothing(t *testing.T) {
	t.Run("SQLite", func(t *testing.T) {
		n := newNode(t, short...)
		killedUnderLoad(t, n, store.Options{Path: filepath.Join(n.dir, "perdure.db")})
	})
	t.Run("PostgreSQL", func(t *testing.T) {
		url := pgtest.New(t)
		killedUnderLoad(t, newNode(t, append([]string{"--store", url}, short...)...), store.Options{URL: url})
	})
}

// job returns a run with a single attempt. The kill of a server costs no attempt.
func job(key string) obj { return obj{"kind": "job", "input": key, "max_attempts": 1} }

// killedUnderLoad kills a server several times while runs are submitted, signalled, leased and
// completed. Then it counts what the store, at an address, contains.
func killedUnderLoad(t *testing.T, n *node, at store.Options) {
	ctx, stopLoad := context.WithCancel(context.Background())
	work, stopWork := context.WithCancel(context.Background())
	defer stopWork()
	var mu sync.Mutex
	submitted, results, signalled := map[string]string{}, map[string]string{}, map[string]string{}
	var wg, workers sync.WaitGroup
	for i := range 6 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for k := 0; ctx.Err() == nil; k++ {
				key := fmt.Sprintf("k-%d-%d", i, k)
				var r runView
				if s := n.insist("POST", "/api/v1/runs", key, job(key), &r); s != 201 && s != 200 {
					t.Errorf("submit: %d", s)
					return
				}
				mu.Lock()
				submitted[key] = r.RunID
				mu.Unlock()
				switch s := n.insist("POST", "/api/v1/runs/"+r.RunID+"/signals/hello", key, obj{"data": key}, nil); s {
				case 200:
					mu.Lock()
					signalled[key] = r.RunID
					mu.Unlock()
				case 409: // it has ended
				default:
					t.Errorf("signal: %d", s)
				}
			}
		}()
	}
	for i := range 4 {
		workers.Add(1)
		go func() {
			defer workers.Done()
			worker := fmt.Sprint("w", i)
			for work.Err() == nil {
				for _, r := range n.poll(worker, 8, true, "500ms") {
					result := fmt.Sprintf("%s by epoch %d", r.RunID, r.Epoch)
					if s := n.insist("POST", "/api/v1/workers/"+worker+"/commit", "", complete(r, result),
						nil); s == 200 {
						mu.Lock()
						if before, ok := results[r.RunID]; ok && before != result {
							t.Errorf("run %s: two results were acknowledged, %s and %s; want one", r.RunID, before,
								result)
						}
						results[r.RunID] = result
						mu.Unlock()
					} else if s != 409 {
						t.Errorf("commit: %d", s)
					}
				}
			}
		}()
	}
	acknowledged := func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(submitted)
	}
	for range serverKills() {
		enough := acknowledged() + 5 + rand.IntN(40) // however long that takes
		eventually.True(t, "submits are acknowledged", func() bool { return acknowledged() >= enough })
		n.kill(syscall.SIGKILL)
		n.start()
	}
	stopLoad()
	wg.Wait()
	// Every run ends.
	for deadline := time.Now().Add(eventually.Within); ; time.Sleep(100 * time.Millisecond) {
		live := 0
		for _, state := range []string{"queued", "dispatched", "running", "suspended"} {
			var page struct {
				Runs []runView `json:"runs"`
			}
			n.insist("GET", "/api/v1/runs?limit=1000&state="+state, "", nil, &page)
			live += len(page.Runs)
		}
		if live == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d runs did not end in time", live)
		}
	}
	stopWork()
	workers.Wait()
	for key, id := range submitted {
		var again runView
		if s := n.insist("POST", "/api/v1/runs", key, job(key), &again); s != 200 || again.RunID != id {
			t.Errorf("key %s was acknowledged as run %s, and a second submit returns %s (status %d); want the same",
				key,
				id, again.RunID, s)
		}
		r := n.get(id)
		if r.State != "completed" {
			t.Errorf("run %s: state = %s, want completed", id, r.State)
		}
		if want, ok := results[id]; ok && string(r.Result) != strconv.Quote(want) {
			t.Errorf("run %s: result = %s, want the acknowledged %s", id, r.Result, want)
		}
	}
	for key, id := range signalled {
		if s := n.insist("POST", "/api/v1/runs/"+id+"/signals/hello", key, obj{"data": key}, nil); s != 200 {
			t.Errorf("signal with key %s was acknowledged, and is sent again with status %d; want 200", key, s)
		}
	}
	var check struct {
		Violations []any `json:"violations"`
		Past       int   `json:"runs_past_deadline"`
	}
	n.insist("GET", "/api/admin/invariants", "", nil, &check)
	if len(check.Violations) > 0 || check.Past > 0 {
		t.Errorf("invariants = %+v, want no violations and no run past its deadline", check)
	}
	t.Logf("%d kills; acknowledged: %d submits, %d signals, %d results", serverKills(), len(submitted),
		len(signalled), len(results))
	n.kill(syscall.SIGTERM)
	countStored(t, at, submitted, signalled)
}

// countStored checks the store itself: each submitted key has one run, with one attempt, and one
// inbox item if its signal was acknowledged. Both maps have runs by key.
func countStored(t *testing.T, at store.Options, submitted, signalled map[string]string) {
	t.Helper()
	s, err := store.Open(at)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	seen := map[string]int{}
	err = s.View(context.Background(), func(v *store.View) error {
		return v.Rows("SELECT r.id, r.input, r.attempt, (SELECT count(*) FROM inbox i WHERE i.tenant=r.tenant AND "+
			"i.run_id=r.id) FROM runs r", nil, func(scan func(...any) error) error {
			var id, input string
			var attempt, items int
			if err := scan(&id, &input, &attempt, &items); err != nil {
				return err
			}
			key := strings.Trim(input, `"`)
			seen[key]++
			want := 0
			if _, ok := signalled[key]; ok {
				want = 1
			}
			if submitted[key] != id || attempt != 1 || items != want {
				t.Errorf("key %s: run %s with %d attempts and %d inbox items, want run %q with 1 and %d", key, id,
					attempt,
					items, submitted[key], want)
			}
			return nil
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	for key, id := range submitted {
		if seen[key] != 1 {
			t.Errorf("key %s, acknowledged as run %s: %d runs in the store, want 1", key, id, seen[key])
		}
	}
}

func TestRestartsCostNoAttemptAndNoLease(t *testing.T) {
	t.Parallel()
	n := newNode(t, "--policy", "lease=8s", "--policy", "active_reap=1m")
	for range 5 {
		n.submit(obj{"kind": "job"})
	}
	held := n.poll("steady", 5, true, "5s")
	if len(held) != 5 {
		t.Fatalf("%d runs", len(held))
	}
	stop, done := make(chan struct{}), make(chan struct{})
	var beats atomic.Int64
	go func() { // a worker that goes on while the server is away
		defer close(done)
		var in []obj
		for _, r := range held {
			in = append(in, obj{"run_id": r.RunID, "epoch": r.Epoch})
		}
		for {
			var out struct {
				Lost []any `json:"lost"`
			}
			if s, err := n.call("POST", "/api/v1/workers/steady/heartbeat", "", obj{"runs": in}, &out); err == nil &&
				s == 200 {
				beats.Add(1)
				if len(out.Lost) > 0 {
					t.Errorf("lost leases = %v, want none", out.Lost)
				}
			}
			select {
			case <-stop:
				return
			case <-time.After(200 * time.Millisecond):
			}
		}
	}()
	for i := range 20 {
		sig := syscall.SIGKILL
		if i%2 == 0 {
			sig = syscall.SIGTERM
		}
		n.kill(sig)
		if i%10 == 9 {
			time.Sleep(2 * time.Second) // away for a while
		}
		n.start()
		before := beats.Load()
		for beats.Load() == before {
			time.Sleep(10 * time.Millisecond)
		}
	}
	close(stop)
	<-done
	for _, r := range held {
		if s := n.insist("POST", "/api/v1/workers/steady/commit", "", complete(r, "kept"), nil); s != 200 {
			t.Errorf("complete after the restarts: status %d, want 200", s)
		}
		if got := n.get(r.RunID); got.State != "completed" || got.Attempt != 1 || got.Epoch != 1 {
			t.Errorf("run %s = %+v, want completed in attempt 1 under epoch 1", r.RunID, got)
		}
	}
}

func TestRunOfVanishedWorkerIsGrantedAgain(t *testing.T) {
	n := newNode(t, "--policy", "dispatched_retry=1s")
	r := n.submit(obj{"kind": "job"})
	if got := n.poll("gone", 1, false, "5s"); len(got) != 1 {
		t.Fatal("the first poll returned no run, want one")
	}
	got := n.poll("next", 1, false, "20s") // a long poll, woken when the run may be granted again
	if len(got) != 1 || got[0].RunID != r.RunID || got[0].Epoch != 2 || got[0].Attempt != 1 {
		t.Fatalf("second poll = %+v, want run %s in attempt 1 under epoch 2", got, r.RunID)
	}
	// Not before dispatched_retry, and soon after it. The instants are those of the server.
	var granted []time.Time
	for _, l := range n.lines(r.RunID) {
		if l.Type == "run:dispatched" {
			granted = append(granted, l.At)
		}
	}
	if len(granted) != 2 {
		t.Fatalf("run %s was granted at %v, want twice", r.RunID, granted)
	}
	if took := granted[1].Sub(granted[0]); took < time.Second || took > 5*time.Second {
		t.Errorf("run %s was granted again after %s, want 1s (dispatched_retry) to 5s", r.RunID, took)
	}
	if n.count(r.RunID, "run:reclaimed") > 0 { // which comes after 30 s
		t.Errorf("run %s was reclaimed, want it granted again without that", r.RunID)
	}
}
