package agent_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/client/admin"
	"github.com/perdure/perdure/embedded"
	"github.com/perdure/perdure/internal/testkit/eventually"
	"github.com/perdure/perdure/internal/testkit/storetest"
	"github.com/perdure/perdure/worker"
)

// A scene is a server, or two on one store, with a client and workers.
type scene struct {
	t     *testing.T
	ctx   context.Context
	nodes []*embedded.Server
	c     *client.Client // for the caller's side: its connection is never cut
	// foreseen has the runs that a check of the next build would have held, and why. See check_test.go.
	foreseen map[perdure.RunID]string
}

// steady returns a policy with quick retries, under which a busy machine neither loses a lease nor
// has a run granted twice.
func steady() *perdure.Policy {
	p := perdure.DefaultPolicy()
	p.DispatchedRetry, p.DispatchedTimeout = p.Lease, 5*p.Lease
	p.BackoffBase = 5 * time.Millisecond
	p.WatchdogInterval = 50 * time.Millisecond
	return &p
}

// open opens a scene in real time, on the store that tests run on.
func open(t *testing.T) *scene { return openUnder(t, steady(), 1) }

// openUnder opens a scene with a policy, and with several nodes if the store can be shared.
func openUnder(t *testing.T, policy *perdure.Policy, nodes int) *scene {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), eventually.Left(t))
	t.Cleanup(cancel)
	w := &scene{t: t, ctx: ctx}
	at := storetest.Address(t)
	if at == "" {
		nodes = 1
	}
	for i := range nodes {
		opt := embedded.Options{Store: at, Policy: policy}
		if i > 0 { // only the first start of a store creates a key
			opt.Key = w.nodes[0].Key()
		}
		srv, err := embedded.Open(opt)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { srv.Close() })
		w.nodes = append(w.nodes, srv)
	}
	w.c = w.client(nil)
	t.Cleanup(w.checkInvariants)
	return w
}

// virtual runs a test in a scene with virtual time, in a bubble of synctest. Time passes only while
// all goroutines wait.
func virtual(t *testing.T, f func(w *scene)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		srv, err := embedded.Open(embedded.Options{Clock: time.Now})
		if err != nil {
			t.Fatal(err)
		}
		defer srv.Close()
		w := &scene{t: t, ctx: t.Context(), nodes: []*embedded.Server{srv}}
		w.c = w.client(nil)
		f(w)
		w.checkInvariants()
	})
}

// checkInvariants checks the store's invariants, unless the test has failed already.
func (w *scene) checkInvariants() {
	w.t.Helper()
	if w.t.Failed() {
		return
	}
	found, err := admin.New(w.c).Invariants(context.WithoutCancel(w.ctx))
	if err != nil {
		w.t.Error(err)
		return
	}
	for _, v := range found.Violations {
		w.t.Errorf("invariant %s is violated by %s: %s", v.ID, v.Row, v.Statement)
	}
}

// client returns a client of the first node, or one with a transport of the test's own.
func (w *scene) client(wire http.RoundTripper) *client.Client {
	if wire == nil {
		wire = w.nodes[0].Transport()
	}
	return client.New("http://perdure", w.nodes[0].Key(), client.Options{Transport: wire})
}

// work runs a worker until the test ends or stop is called, which waits for it.
func (w *scene) work(register func(*worker.Worker)) (stop func()) {
	return w.workAt(w.nodes[0].Transport(), worker.Options{}, register)
}

// workEverywhere runs a worker at each node. On a store that can't be shared it runs two at the
// one.
func (w *scene) workEverywhere(register func(*worker.Worker)) {
	for n := range 2 {
		w.workAt(w.nodes[n%len(w.nodes)].Transport(), worker.Options{}, register)
	}
}

// workAt runs a worker with a transport and options.
func (w *scene) workAt(wire http.RoundTripper, opt worker.Options, register func(*worker.Worker)) (stop func()) {
	if opt.Slots == 0 {
		opt.Slots = 110 // some tests have many children that hang
	}
	if opt.HeartbeatEvery == 0 {
		opt.HeartbeatEvery = 500 * time.Millisecond // handlers that hang soon learn that they may end
	}
	opt.Logger = slog.New(slog.NewTextHandler(w.t.Output(), nil))
	wk := worker.New(w.client(wire), opt)
	register(wk)
	ctx, cancel := context.WithCancel(w.ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := wk.Run(ctx); err != nil {
			w.t.Error(err)
		}
	})
	stop = func() {
		cancel()
		wg.Wait()
	}
	w.t.Cleanup(stop)
	return stop
}

// start submits a run, of class agent by default.
func (w *scene) start(sub perdure.Submission) perdure.RunID {
	w.t.Helper()
	if sub.Class == "" {
		sub.Class = perdure.Agent
	}
	run, err := w.c.Start(w.ctx, sub)
	if err != nil {
		w.t.Fatal(err)
	}
	return run.RunID
}

// end waits until a run has ended.
func (w *scene) end(id perdure.RunID) *api.Run {
	w.t.Helper()
	for {
		run, deferred, err := w.c.Join(w.ctx, id, time.Minute)
		if err != nil {
			w.t.Fatalf("join of run %s: %v", id, err)
		}
		if !deferred {
			w.noFalseAlarm(id)
			return run
		}
	}
}

// next receives from a channel.
func next[T any](w *scene, from <-chan T) (v T) {
	w.t.Helper()
	select {
	case v = <-from:
	case <-w.ctx.Done():
		w.t.Fatal("nothing was sent before the end of the test")
	}
	return v
}

// ends starts an agent and waits until it has ended.
func (w *scene) ends(kind string, input any) *api.Run {
	w.t.Helper()
	return w.end(w.start(perdure.Submission{Kind: kind, Input: client.JSON(input)}))
}

// thread creates a thread.
func (w *scene) thread() perdure.ThreadID {
	w.t.Helper()
	th, err := w.c.CreateThread(w.ctx, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	return th.ThreadID
}

// lines returns the data of the lines of a type in a run's log.
func (w *scene) lines(id perdure.RunID, typ perdure.LineType) (out []json.RawMessage) {
	w.t.Helper()
	for after, page := int64(0), (*api.Events)(nil); page == nil || len(page.Events) > 0; after = page.NextAfter {
		var err error
		if page, err = w.c.EventPage(w.ctx, id, after, 0); err != nil {
			w.t.Fatal(err)
		}
		for _, e := range page.Events {
			if e.Type == typ {
				out = append(out, e.Data)
			}
		}
	}
	return out
}

// runs returns the runs that a filter selects.
func (w *scene) runs(f client.Filter) (out []api.Run) {
	w.t.Helper()
	for r, err := range w.c.All(w.ctx, f) {
		if err != nil {
			w.t.Fatal(err)
		}
		out = append(out, r)
	}
	return out
}

// signal sends a signal to a run.
func (w *scene) signal(id perdure.RunID, name string, data any, opts ...client.CallOptions) {
	w.t.Helper()
	if _, err := w.c.Signal(w.ctx, id, name, client.JSON(data), opts...); err != nil {
		w.t.Fatal(err)
	}
}

// completed checks that a run has completed with this result, as JSON.
func completed(t *testing.T, run *api.Run, want string) {
	t.Helper()
	if run.State != perdure.Completed || string(run.Result) != want {
		t.Errorf("run %s of kind %s: %s with result %.300s (error %+v), want completed with %.300s",
			run.RunID, run.Kind, run.State, run.Result, run.Error, want)
	}
}

// reached checks the state of a run.
func reached(t *testing.T, run *api.Run, want perdure.State) {
	t.Helper()
	if run.State != want {
		t.Errorf("run %s of kind %s: state = %s (error %+v), want %s", run.RunID, run.Kind, run.State, run.Error, want)
	}
}

// failed checks that a run ended without a result, with this state and code, after so many
// attempts.
func failed(t *testing.T, run *api.Run, state perdure.State, code perdure.Code, attempts int) {
	t.Helper()
	if run.State != state || run.Error == nil || run.Error.Code != code || run.Attempt != attempts {
		t.Errorf("run %s of kind %s: %s after %d attempts (error %+v, result %s), want %s with %s after %d",
			run.RunID, run.Kind, run.State, run.Attempt, run.Error, run.Result, state, code, attempts)
	}
}

// A tally counts the effects of an agent, independently of its journal.
type tally struct {
	mu    sync.Mutex
	n     map[string]int
	order []string
}

func (y *tally) add(what string) int {
	y.mu.Lock()
	defer y.mu.Unlock()
	if y.n == nil {
		y.n = map[string]int{}
	}
	y.n[what]++
	y.order = append(y.order, what)
	return y.n[what]
}

func (y *tally) of(what string) int {
	y.mu.Lock()
	defer y.mu.Unlock()
	return y.n[what]
}

// all returns all effects, in order.
func (y *tally) all() []string {
	y.mu.Lock()
	defer y.mu.Unlock()
	return append([]string(nil), y.order...)
}

// do executes a step that is counted.
func (y *tally) do(ctx *agent.Context, name string, opts ...agent.StepOption) error {
	_, err := agent.Step(ctx, name, func(context.Context) (string, error) {
		y.add(name)
		return name, nil
	}, opts...)
	return err
}
