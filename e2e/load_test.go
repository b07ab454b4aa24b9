package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/perdure/perdure/internal/testkit/eventually"
)

// A fleet is several server processes on one PostgreSQL. A caller uses any of them, and another one
// if it gets no answer.
type fleet struct {
	t     *testing.T
	store string
	nodes []*node
	key   string
	http  *http.Client
}

// newFleet starts servers that share a database.
func newFleet(t *testing.T, size int, store string, args ...string) *fleet {
	t.Helper()
	f := &fleet{t: t, store: store,
		http: &http.Client{Timeout: time.Minute, Transport: &http.Transport{MaxIdleConnsPerHost: 200}}}
	t.Cleanup(f.http.CloseIdleConnections)
	for range size {
		f.nodes = append(f.nodes, newNode(t, append([]string{"--store", store}, args...)...))
	}
	if size > 0 {
		f.key = f.nodes[0].key
	}
	return f
}

// lowPort finds a port that stays free while its server is away. It is below the range from which
// the system assigns ports, which other tests use.
func lowPort(t *testing.T) int {
	t.Helper()
	for range 100 {
		port := 15000 + rand.IntN(15000)
		if l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
			l.Close()
			return port
		}
	}
	t.Fatal("no free port was found in 100 tries")
	return 0
}

// call makes one request to one node. No answer may be a 500, and every 503 needs a Retry-After.
func (f *fleet) call(at int, method, path, idempotency string, in, out any) (int, error) {
	res, b, err := exchange(f.http, f.key, method, "http://"+f.nodes[at].addr+path, idempotency, in)
	if err != nil {
		return 0, err
	}
	switch {
	case res.StatusCode == 500:
		f.t.Errorf("%s %s: status 500, want none: %s", method, path, b)
	case res.StatusCode == 503 && res.Header.Get("Retry-After") == "":
		f.t.Errorf("%s %s: 503 without Retry-After, want one", method, path)
	case out != nil && res.StatusCode < 300:
		if err := json.Unmarshal(b, out); err != nil {
			return 0, fmt.Errorf("%s %s: %s", method, path, b)
		}
	}
	return res.StatusCode, nil
}

// insist calls one node after the other until there is a final answer, and returns which node gave
// it.
func (f *fleet) insist(method, path, idempotency string, in, out any) (status, at int) {
	for end := time.Now().Add(eventually.Within); ; time.Sleep(time.Duration(10+rand.IntN(20)) * time.Millisecond) {
		at = rand.IntN(len(f.nodes))
		status, err := f.call(at, method, path, idempotency, in, out)
		if err == nil && status != 503 {
			return status, at
		}
		if time.Now().After(end) {
			f.t.Errorf("%s %s: no answer for a minute: %d %v", method, path, status, err)
			return 0, at
		}
	}
}

// A load is clients and workers of a fleet, with a record of what was acknowledged to them.
type load struct {
	*fleet
	stopClients, stopWorkers context.CancelFunc
	clients, workers         sync.WaitGroup

	mu        sync.Mutex
	submitted map[string]string // runs by key
	completed map[string]string // results by run
	at        map[string]done   // node and time of the acknowledged result, by run
	answered  map[string]string // results that waiters got, by run
	granted   map[string]string // workers by run and epoch
	lossy     bool              // acknowledged commits may be lost
	wakes     []time.Duration   // from the acknowledgement at one node to the waiter's answer at another
}

type done struct {
	node int
	when time.Time
}

// load starts clients and workers, until finish.
func (f *fleet) load(clients, workers int) *load {
	l := &load{fleet: f, submitted: map[string]string{}, completed: map[string]string{}, at: map[string]done{},
		answered: map[string]string{}, granted: map[string]string{}}
	var ctx, work context.Context
	ctx, l.stopClients = context.WithCancel(context.Background())
	work, l.stopWorkers = context.WithCancel(context.Background())
	f.t.Cleanup(func() { // if the test fails early
		l.stopClients()
		l.stopWorkers()
		l.clients.Wait()
		l.workers.Wait()
	})
	for i := range clients {
		l.clients.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				l.client(fmt.Sprintf("%d-%d", i, n))
			}
		})
	}
	for i := range workers {
		l.workers.Go(func() {
			for work.Err() == nil {
				l.worker(fmt.Sprint("w", i))
			}
		})
	}
	return l
}

// client submits three runs at a time and waits for their ends, each at a random node.
func (l *load) client(name string) {
	var ids []string
	for i := range 3 {
		key := fmt.Sprintf("k-%s-%d", name, i)
		var r runView
		if s, _ := l.insist("POST", "/api/v1/runs", key, obj{"kind": "job", "input": key, "max_attempts": 100},
			&r); s != 201 && s != 200 {
			l.t.Errorf("submit: %d", s)
			return
		}
		ids = append(ids, r.RunID)
		l.mu.Lock()
		l.submitted[key] = r.RunID
		l.mu.Unlock()
	}
	for _, id := range ids {
		l.wait(id)
	}
}

func (l *load) wait(id string) {
	begin := time.Now()
	for end := time.Now().Add(eventually.Within); time.Now().Before(end); {
		var r runView
		s, at := l.insist("GET", "/api/v1/runs/"+id+"/join?timeout=10s", "", nil, &r)
		now := time.Now()
		switch s {
		case 202:
			continue
		case 200:
		case http.StatusNotFound:
			if l.mayLose() {
				return
			}
			fallthrough
		default:
			l.t.Errorf("join %s: %d", id, s)
			return
		}
		l.mu.Lock()
		l.answered[id] = string(r.Result)
		if d, ok := l.at[id]; ok && d.node != at && d.when.After(begin) {
			l.wakes = append(l.wakes, max(0, now.Sub(d.when)))
		}
		l.mu.Unlock()
		return
	}
	l.t.Errorf("run %s did not end in time", id)
}

func (l *load) worker(name string) {
	var p polled
	at := rand.IntN(len(l.nodes))
	s, err := l.call(at, "POST", "/api/v1/workers/"+name+"/poll", "",
		obj{"slots": 4, "start": true, "wait": "500ms"}, &p)
	if err != nil || s != 200 {
		// A run that was granted may be lost before the answer is written, as in the commit below.
		if err == nil && s != 503 && !(s == http.StatusNotFound && l.mayLose()) {
			l.t.Errorf("poll: %d", s)
		}
		time.Sleep(10 * time.Millisecond)
		return
	}
	for _, r := range p.Runs {
		l.grantedTo(r, name)
		result := fmt.Sprintf("%s by epoch %d", r.RunID, r.Epoch)
		s, at := l.insist("POST", "/api/v1/workers/"+name+"/commit", "", complete(r, result), nil)
		if s != 200 && s != 409 && !(s == http.StatusNotFound && l.mayLose()) {
			l.t.Errorf("commit: %d", s)
		}
		if s != 200 {
			continue
		}
		l.mu.Lock()
		if before, ok := l.completed[r.RunID]; ok && before != result && !l.lossy {
			l.t.Errorf("run %s: two results were acknowledged, %s and %s; want one", r.RunID, before, result)
		}
		l.completed[r.RunID] = result
		l.at[r.RunID] = done{at, time.Now()}
		l.mu.Unlock()
	}
}

// grantedTo records a grant. Each epoch of a run is granted once.
func (l *load) grantedTo(r runView, worker string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	key := fmt.Sprintf("%s epoch %d", r.RunID, r.Epoch)
	if before, ok := l.granted[key]; ok {
		l.t.Errorf("run %s was granted to %s and to %s, want once", key, before, worker)
	}
	l.granted[key] = worker
}

// mayLose tells whether acknowledged commits may be lost.
func (l *load) mayLose() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lossy
}

// enough waits for a number of acknowledged submits, and a number of waits that were answered at
// another node than the one where the run ended.
func (l *load) enough(submits, wakes int) {
	l.t.Helper()
	eventually.True(l.t, fmt.Sprintf("%d submits, %d waits across nodes", submits, wakes), func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return len(l.submitted) >= submits && len(l.wakes) >= wakes
	})
}

// more waits until a number of further submits were acknowledged.
func (l *load) more(submits int) {
	l.t.Helper()
	l.mu.Lock()
	have := len(l.submitted)
	l.mu.Unlock()
	l.enough(have+submits, 0)
}

// finish waits until every run has ended, and checks the record.
func (l *load) finish() {
	l.t.Helper()
	l.stopClients()
	l.clients.Wait() // each client waits for its runs
	l.stopWorkers()
	l.workers.Wait()
	l.check()
}

// check compares what is stored with what was acknowledged.
func (l *load) check() {
	l.t.Helper()
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, l.store)
	if err != nil {
		l.t.Fatal(err)
	}
	defer conn.Close(ctx)
	rows, err := conn.Query(ctx, "SELECT id, input, state, result FROM runs WHERE kind='job'")
	if err != nil {
		l.t.Fatal(err)
	}
	type run struct{ key, state, result string }
	runs, count := map[string]run{}, map[string]int{}
	var id string
	var r run
	if _, err := pgx.ForEachRow(rows, []any{&id, &r.key, &r.state, &r.result}, func() error {
		r.key, _ = strconv.Unquote(r.key)
		runs[id] = r
		count[r.key]++
		return nil
	}); err != nil {
		l.t.Fatal(err)
	}
	for key, id := range l.submitted {
		switch r := runs[id]; {
		case r.key != key:
			l.t.Errorf("key %s was acknowledged as run %s, which is not stored", key, id)
		case r.state != "completed":
			l.t.Errorf("run %s: state = %s, want completed", id, r.state)
		}
	}
	for key, n := range count {
		if l.submitted[key] == "" || n != 1 {
			l.t.Errorf("key %s, acknowledged as %q, has %d runs; want 1", key, l.submitted[key], n)
		}
	}
	for id, want := range l.completed {
		if r := runs[id]; r.result != strconv.Quote(want) {
			l.t.Errorf("run %s: %s with result %s, want the acknowledged %s", id, r.state, r.result, want)
		}
	}
	for id, told := range l.answered {
		if r := runs[id]; r.result != told {
			l.t.Errorf("run %s: its waiter got %s, and the result is %s; want the same", id, told, r.result)
		}
	}
	var check struct {
		Violations []any `json:"violations"`
		Past       int   `json:"runs_past_deadline"`
	}
	if s, _ := l.insist("GET", "/api/admin/invariants", "", nil, &check); s != 200 || len(check.Violations) > 0 ||
		check.Past > 0 {
		l.t.Errorf("invariants: %d %+v", s, check)
	}
}

// quantile returns a quantile of durations.
func quantile(d []time.Duration, share float64) time.Duration {
	if len(d) == 0 {
		return 0
	}
	d = slices.Sorted(slices.Values(d))
	return d[min(len(d)-1, int(share*float64(len(d))))].Round(100 * time.Microsecond)
}
