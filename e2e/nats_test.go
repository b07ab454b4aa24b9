package e2e

import (
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/perdure/perdure/internal/testkit/eventually"
	"github.com/perdure/perdure/internal/testkit/natstest"
	"github.com/perdure/perdure/internal/testkit/pgtest"
)

// A history is a sequence of calls by clients and workers of two nodes, the same for the same seed.
// A run that is submitted at one node is executed at the other, and waited for at the first.
type history struct {
	*fleet
	seed uint64

	mu       sync.Mutex
	outcomes map[string]string // of every run, by its name
	ids      map[string]string // by name
	took     []time.Duration   // from the submission to the answer at its end
}

var plots = []string{"job", "fail", "flaky", "parent", "signal", "timer", "cancel"}

// play executes the history. meanwhile is called with the number of ended runs.
func (h *history) play(runs int, meanwhile func(ended int)) {
	h.outcomes, h.ids = map[string]string{}, map[string]string{}
	ctx, stop := context.WithCancel(context.Background())
	var clients, workers sync.WaitGroup
	defer workers.Wait()
	defer stop()
	for at := range h.nodes {
		for i := range 2 {
			workers.Go(func() {
				for ctx.Err() == nil {
					h.worker(ctx, at, fmt.Sprintf("w-%d-%d", at, i))
				}
			})
		}
	}
	rng := rand.New(rand.NewPCG(h.seed, 1))
	tokens := make(chan struct{}, 24)
	var ended atomic.Int64
	var once sync.Mutex
	for i := range runs {
		plot, at := plots[rng.IntN(len(plots))], rng.IntN(len(h.nodes))
		tokens <- struct{}{}
		clients.Go(func() {
			h.client(fmt.Sprintf("%d-%s", i, plot), plot, at)
			<-tokens
			once.Lock()
			defer once.Unlock()
			meanwhile(int(ended.Add(1)))
		})
	}
	clients.Wait()
	for name, id := range h.ids {
		h.outcomes[name] = h.outcome(id)
	}
}

// client executes one plot at one node.
func (h *history) client(name, plot string, at int) {
	begin := time.Now()
	var r runView
	in := obj{"kind": plot, "input": name, "queue": fmt.Sprint("at-", 1-at), "max_attempts": 3}
	if s, err := h.call(at, "POST", "/api/v1/runs", name, in, &r); err != nil || s != 201 {
		h.t.Errorf("submit: %d %v", s, err)
		return
	}
	h.note(name, r.RunID)
	if plot == "signal" || plot == "cancel" {
		h.suspended(at, r.RunID)
		path := "/api/v1/runs/" + r.RunID + "/signals/go"
		if plot == "cancel" {
			path = "/api/v1/runs/" + r.RunID + "/cancel"
		}
		if s, err := h.call(at, "POST", path, "", obj{}, nil); err != nil || s != 200 {
			h.t.Errorf("POST %s: status %d (error %v), want 200", path, s, err)
		}
	}
	if s, err := h.call(at, "GET", "/api/v1/runs/"+r.RunID+"/join?timeout=50s", "", nil, nil); err != nil || s != 200 {
		h.t.Errorf("join of %s: %d %v", name, s, err)
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.took = append(h.took, time.Since(begin))
}

func (h *history) note(name, id string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ids[name] = id
}

type logged struct {
	Events []struct{ Type string }
	Next   int64 `json:"next_after"`
}

// suspended follows the log of a run until it is suspended.
func (h *history) suspended(at int, id string) {
	var next int64
	for end := time.Now().Add(eventually.Within); time.Now().Before(end); {
		var l logged
		if s, err := h.call(at, "GET", fmt.Sprintf("/api/v1/runs/%s/events?after=%d&wait=10s", id, next), "", nil,
			&l); err != nil || s != 200 {
			h.t.Errorf("events of %s: %d %v", id, s, err)
			return
		}
		next = l.Next
		for _, e := range l.Events {
			if e.Type == "run:suspended" {
				return
			}
		}
	}
	h.t.Errorf("run %s did not suspend in time", id)
}

// outcome returns what must not depend on the doorbell: the state, the result, and the order of
// events.
func (h *history) outcome(id string) string {
	var r runView
	var l logged
	if s, err := h.call(0, "GET", "/api/v1/runs/"+id, "", nil, &r); err != nil || s != 200 {
		h.t.Errorf("get %s: %d %v", id, s, err)
	}
	if s, err := h.call(1, "GET", "/api/v1/runs/"+id+"/events", "", nil, &l); err != nil || s != 200 {
		h.t.Errorf("events of %s: %d %v", id, s, err)
	}
	types := make([]string, len(l.Events))
	siblings := 0 // index of the first event about children, whose order may vary
	for i, e := range l.Events {
		types[i] = e.Type
		if !strings.HasPrefix(e.Type, "worker:") {
			siblings = i + 1
		}
		slices.Sort(types[siblings : i+1])
	}
	return fmt.Sprintf("%s %s, attempt %d, epoch %d: %s", r.State, r.Result, r.Attempt, r.Epoch,
		strings.Join(types, " "))
}

type granted struct {
	runView
	Kind  string
	Input string
	Inbox []struct {
		Seq  int64
		Type string
	}
	Journal []any
}

func (h *history) worker(ctx context.Context, at int, name string) {
	var p struct{ Runs []granted }
	s, err := h.call(at, "POST", "/api/v1/workers/"+name+"/poll", "",
		obj{"queues": []string{fmt.Sprint("at-", at)}, "slots": 2, "start": true, "wait": "2s"}, &p)
	if err != nil || s != 200 {
		h.t.Errorf("poll: %d %v", s, err)
		return
	}
	for _, g := range p.Runs {
		var out struct {
			Results []struct {
				Children []struct {
					Key   string
					RunID string `json:"run_id"`
				}
			}
		}
		if s, err := h.call(at, "POST", "/api/v1/workers/"+name+"/commit", "", obj{"commits": []obj{h.turn(g, at)}},
			&out); err != nil || s != 200 {
			h.t.Errorf("commit of %s: %d %v", g.Input, s, err)
			continue
		}
		for _, c := range out.Results[0].Children {
			h.note(g.Input+"/"+c.Key, c.RunID)
		}
	}
}

// turn returns the commit of a worker for a granted run.
func (h *history) turn(g granted, at int) obj {
	c := obj{"commit_id": fmt.Sprint("c-", g.Epoch), "run_id": g.RunID, "epoch": g.Epoch,
		"outcome": obj{"type": "complete", "result": g.Input}}
	var ack []int64
	for _, i := range g.Inbox {
		ack = append(ack, i.Seq)
	}
	if len(ack) > 0 {
		c["ack"] = ack
	}
	suspend := func(wait obj) {
		c["journal"] = []obj{{"key": "begun", "value": true}}
		wait["id"] = "w"
		c["waits"], c["outcome"] = []obj{wait}, obj{"type": "suspend"}
	}
	switch {
	case g.Kind == "fail":
		c["outcome"] = obj{"type": "fail", "error": obj{"code": "broken", "message": g.Input}, "retryable": false}
	case g.Kind == "flaky" && g.Attempt == 1:
		c["outcome"] = obj{"type": "fail", "error": obj{"code": "broken", "message": g.Input}, "retryable": true}
	case len(g.Journal) > 0: // it has been suspended before
	case g.Kind == "parent":
		var children []obj
		for _, k := range []string{"a", "b"} {
			children = append(children,
				obj{"key": k, "kind": "job", "input": g.Input + "/" + k, "queue": fmt.Sprint("at-", 1-at)})
		}
		suspend(obj{"type": "children", "keys": []string{"a", "b"}})
		c["children"] = children
	case g.Kind == "signal", g.Kind == "cancel":
		suspend(obj{"type": "signal", "name": "go"})
	case g.Kind == "timer":
		suspend(obj{"type": "timer", "timeout": "20ms"})
	}
	return c
}

func TestNATSChangesLatencyOnly(t *testing.T) {
	t.Parallel()
	const runs = 40
	seed := number("PERDURE_SEED", uint64(time.Now().UnixNano()))
	type disturbed func(*testing.T, *natstest.Server) (meanwhile func(int), done func())
	still := func(*testing.T, *natstest.Server) (func(int), func()) { return func(int) {}, func() {} }
	variants := []struct {
		name    string
		disturb disturbed
	}{
		{"there", still},
		{"absent", func(_ *testing.T, s *natstest.Server) (func(int), func()) {
			s.Kill()
			return func(int) {}, func() {}
		}},
		{"killed and started again", func(_ *testing.T, s *natstest.Server) (func(int), func()) {
			return func(ended int) {
				switch ended {
				case runs / 4, runs * 3 / 4:
					s.Kill()
				case runs / 2:
					s.Restart()
				}
			}, func() {}
		}},
		{"flooded with forgeries", forge},
		{"late, doubled, out of order and robbed", meddle},
	}
	var mu sync.Mutex
	outcomes := map[string]map[string]string{}
	t.Run("nodes", func(t *testing.T) {
		for _, v := range variants {
			t.Run(v.name, func(t *testing.T) {
				t.Parallel()
				s := natstest.Start(t, natstest.Options{Port: lowPort(t)})
				address := s.URL()
				meanwhile, done := v.disturb(t, s)
				args := []string{"--doorbell", address, "--policy", "backoff_base=20ms", "--log-level", "error"}
				h := &history{fleet: newFleet(t, 2, pgtest.New(t), args...), seed: seed}
				h.play(runs, meanwhile)
				done()
				t.Logf("a run took %s (p50), %s (p95), %s (max)", quantile(h.took, 0.5), quantile(h.took, 0.95),
					quantile(h.took, 1))
				mu.Lock()
				defer mu.Unlock()
				outcomes[v.name] = h.outcomes
			})
		}
	})
	want := outcomes["there"]
	if len(want) < runs {
		t.Fatalf("%d outcomes with NATS, want at least %d", len(want), runs)
	}
	for name, got := range outcomes {
		for _, run := range slices.Sorted(maps.Keys(want)) {
			if got[run] != want[run] {
				t.Errorf("seed %d, %s, run %s:\n%s\nwith NATS:\n%s", seed, name, run, got[run], want[run])
			}
		}
		if len(got) != len(want) {
			t.Errorf("seed %d, %s: %d runs, with NATS %d", seed, name, len(got), len(want))
		}
	}
}

// eavesdrop connects to NATS and receives all messages between nodes, without its own.
func eavesdrop(t *testing.T, s *natstest.Server, hear nats.MsgHandler) *nats.Conn {
	t.Helper()
	conn, err := nats.Connect(s.URL(), nats.NoEcho())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	if _, err := conn.Subscribe("perdure.>", hear); err != nil {
		t.Fatal(err)
	}
	return conn
}

// forge publishes thousands of messages a second, on every subject that a node has used and on
// others. They are messages of nodes with changed, missing and added bytes, requests to look at
// everything, rings for a million runs, and noise.
func forge(t *testing.T, s *natstest.Server) (func(int), func()) {
	var mu sync.Mutex
	heard := map[string][]byte{}
	subjects := []string{"perdure", "perdure.all", "perdure.0123456789abcdef.all", "perdure.0123456789abcdef.q.zz"}
	conn := eavesdrop(t, s, func(m *nats.Msg) {
		mu.Lock()
		defer mu.Unlock()
		if heard[m.Subject] == nil {
			subjects = append(subjects, m.Subject, m.Subject, m.Subject)
		}
		heard[m.Subject] = m.Data
	})
	stop := make(chan struct{})
	var wg sync.WaitGroup
	sent, begin := 0, time.Now()
	wg.Go(func() {
		rng := rand.New(rand.NewPCG(1, 2))
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				return
			case <-tick.C:
			}
			mu.Lock()
			for range 20 {
				to := subjects[rng.IntN(len(subjects))]
				if err := conn.Publish(to, forgery(rng, to, heard[to])); err != nil {
					t.Errorf("publish: %v", err)
				}
				sent++
			}
			mu.Unlock()
		}
	})
	return func(int) {}, func() {
		close(stop)
		wg.Wait()
		rate := float64(sent) / time.Since(begin).Seconds()
		t.Logf("%d forgeries on %d subjects, %.0f a second", sent, len(heard), rate)
		if len(heard) < 3 || sent < 1000 {
			t.Errorf("%d forged messages on %d subjects, want at least 1000 on 3", sent, len(heard))
		}
	}
}

func forgery(rng *rand.Rand, subject string, message []byte) []byte {
	b := slices.Clone(message)
	switch n := rng.IntN(6); {
	case n == 0 && len(b) > 0:
		b[rng.IntN(len(b))] ^= byte(1 << rng.IntN(8))
	case n == 1 && len(b) > 0:
		b = b[:rng.IntN(len(b))]
	case n == 2:
		b = append(b, make([]byte, rng.IntN(100_000))...)
	case n == 3 && strings.HasSuffix(subject, ".all"): // look at everything; a new node; a request for all nodes
		b = binary.BigEndian.AppendUint64([]byte{1, 7}, rng.Uint64())
	case n == 3: // a million runs to claim
		b = binary.AppendUvarint([]byte{1, 0}, 1<<20)
	case n == 4:
		b = make([]byte, rng.IntN(300))
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
	}
	return b
}

// meddle repeats messages of nodes later and in another order, and takes rings of queues by posing
// as a node with idle workers.
func meddle(t *testing.T, s *natstest.Server) (func(int), func()) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	robbed := map[string]bool{}
	var again, stolen atomic.Int64
	var conn *nats.Conn
	ready := make(chan struct{})
	conn = eavesdrop(t, s, func(m *nats.Msg) {
		<-ready
		mu.Lock()
		if strings.Contains(m.Subject, ".q.") && !robbed[m.Subject] {
			robbed[m.Subject] = true
			if _, err := conn.QueueSubscribe(m.Subject, "perdure", func(*nats.Msg) { stolen.Add(1) }); err != nil {
				t.Error(err)
			}
		}
		mu.Unlock()
		for range 2 {
			wg.Add(1)
			time.AfterFunc(time.Duration(rand.IntN(100))*time.Millisecond, func() {
				defer wg.Done()
				if conn.Publish(m.Subject, m.Data) == nil {
					again.Add(1)
				}
			})
		}
	})
	close(ready)
	return func(int) {}, func() {
		conn.Close() // no more messages from here on
		wg.Wait()
		t.Logf("%d messages were repeated, %d rings were taken", again.Load(), stolen.Load())
		if again.Load() == 0 || stolen.Load() == 0 {
			t.Error("no message was repeated, or no ring was taken; want some of both")
		}
	}
}
