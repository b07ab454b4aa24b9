package supervisor_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/client/admin"
	"github.com/perdure/perdure/embedded"
	"github.com/perdure/perdure/internal/testkit/eventually"
	"github.com/perdure/perdure/internal/testkit/mockmodel"
	"github.com/perdure/perdure/internal/testkit/storetest"
	"github.com/perdure/perdure/supervisor"
	"github.com/perdure/perdure/supervisor/model"
	"github.com/perdure/perdure/worker"
)

// An inServer is a supervisor beside a server that serves several tenants.
type inServer struct {
	t   *testing.T
	srv *embedded.Server
	sup *supervisor.Supervisor
	// read counts the bytes of threads that the supervisor has read. modelGets is called for each request
	// to the model.
	read      atomic.Int64
	modelGets func(body string)
}

func openInServer(t *testing.T, opt supervisor.Options, rules ...mockmodel.Rule) *inServer {
	t.Helper()
	x := &inServer{t: t, modelGets: func(string) {}}
	srv, err := embedded.Open(embedded.Options{Store: storetest.Address(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { srv.Close() })
	x.srv = srv
	script, err := mockmodel.New(mockmodel.Script{Rules: rules})
	if err != nil {
		t.Fatal(err)
	}
	hs := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		x.modelGets(string(body))
		r.Body = io.NopCloser(strings.NewReader(string(body)))
		script.ServeHTTP(w, r)
	}))
	t.Cleanup(hs.Close)
	opt.Model, err = model.New(model.Options{Models: []model.Endpoint{{BaseURL: hs.URL + "/v1", Model: "m"}}})
	if err != nil {
		t.Fatal(err)
	}
	if x.sup, err = supervisor.New(opt); err != nil {
		t.Fatal(err)
	}
	return x
}

// work starts the worker. The function that it returns stops it.
func (x *inServer) work() {
	wire := roundTripper(func(r *http.Request) (*http.Response, error) {
		res, err := x.srv.Transport().RoundTrip(r)
		if err == nil && strings.HasSuffix(r.URL.Path, "/messages") {
			res.Body = struct {
				io.Reader
				io.Closer
			}{io.TeeReader(res.Body, counter64{&x.read}), res.Body}
		}
		return res, err
	})
	w := worker.New(client.New("http://perdure", x.srv.Key(), client.Options{Transport: wire}),
		worker.Options{AllTenants: true, AgentSlots: 16, Full: x.sup.Full, DrainTimeout: -1,
			Logger: slog.New(slog.DiscardHandler)})
	x.sup.Register(w)
	ctx, stop := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := w.Run(ctx); err != nil {
			x.t.Error(err)
		}
	})
	x.t.Cleanup(func() {
		stop()
		wg.Wait()
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

type counter64 struct{ n *atomic.Int64 }

func (c counter64) Write(b []byte) (int, error) { c.n.Add(int64(len(b))); return len(b), nil }

// as returns a client of a tenant.
func (x *inServer) as(tenant perdure.TenantID) *client.Client {
	x.t.Helper()
	c := client.New("http://perdure", x.srv.Key(), client.Options{Transport: x.srv.Transport()})
	k, err := admin.New(c).CreateTenantKey(x.t.Context(), tenant, api.CreateKey{Name: "k", Scopes: []string{
		string(perdure.ScopeCreate), string(perdure.ScopeRead), string(perdure.ScopeControl)}})
	if err != nil {
		x.t.Fatal(err)
	}
	return client.New("http://perdure", k.Secret, client.Options{Transport: x.srv.Transport()})
}

// thread makes a thread with messages of a size, and one of a user at the end.
func (x *inServer) thread(c *client.Client, messages, bytes int) perdure.ThreadID {
	x.t.Helper()
	th, err := c.CreateThread(x.t.Context(), nil)
	if err != nil {
		x.t.Fatal(err)
	}
	for n := range messages {
		text := fmt.Sprintf("part-%d-%s", n, strings.Repeat("x ", bytes/2))
		if _, err := c.AppendMessage(x.t.Context(), th.ThreadID,
			perdure.Message{Role: perdure.RoleAssistant, Content: client.JSON(text)}); err != nil {
			x.t.Fatal(err)
		}
	}
	return th.ThreadID
}

// ask says something, and returns the run that answers.
func (x *inServer) ask(c *client.Client, th perdure.ThreadID, text string) perdure.RunID {
	x.t.Helper()
	a, err := c.Chat(x.t.Context(), api.Chat{ThreadID: th, Message: client.JSON(text), Kind: supervisor.Kind})
	if err != nil {
		x.t.Fatal(err)
	}
	return a.RunID
}

// completed waits for the end of a run, and checks it.
func (x *inServer) completed(c *client.Client, id perdure.RunID, answer string) {
	x.t.Helper()
	run, deferred, err := c.Join(x.t.Context(), id, time.Minute)
	if err != nil || deferred || run.State != perdure.Completed || !strings.Contains(string(run.Result), answer) {
		x.t.Fatalf("run %s: %+v (deferred: %t, %v), want it completed with %q", id, run, deferred, err, answer)
	}
}

// Of threads that are far larger than the window only the ends are read, and they hold little memory.
func TestLargeThreadsAreReadFromTheirEnd(t *testing.T) {
	const threads, messages, size = 8, 12, 512 << 10 // 6 MiB each
	x := openInServer(t, supervisor.Options{Window: 10_000, MaxTenantMemory: 8 << 20},
		says("user", "Summarize", "a summary"), says("user", "question", "the answer"))
	var most atomic.Int64
	x.modelGets = func(body string) {
		held, _ := x.sup.Held()
		for was := most.Load(); held > was && !most.CompareAndSwap(was, held); was = most.Load() {
		}
		if strings.Contains(body, "part-0-") || len(body) > 200<<10 {
			t.Errorf("the model got %d bytes, or the beginning of the thread: %t", len(body),
				strings.Contains(body, "part-0-"))
		}
	}
	c := x.as("acme")
	var asked []perdure.RunID
	for range threads {
		asked = append(asked, x.ask(c, x.thread(c, messages, size), "question"))
	}
	x.work()
	for _, id := range asked {
		x.completed(c, id, "the answer")
	}
	// A page has about a MiB, and the last two pages are enough.
	if n := x.read.Load(); n > threads*(2<<20) {
		t.Errorf("%d bytes of %d threads with %d bytes each were read, want at most 2 MiB of each", n, threads,
			messages*size)
	}
	if n := most.Load(); n > 8<<20 || n == 0 {
		t.Errorf("conversations held %d bytes, want at most 8 MiB", n)
	}
	eventually.True(t, "nothing is held after the end", func() bool { n, _ := x.sup.Held(); return n == 0 })
}

// A conversation without room waits: it keeps its run, says so, and other tenants go ahead.
func TestConversationWithoutRoomWaits(t *testing.T) {
	probe, err := supervisor.New(supervisor.Options{Model: new(model.Client), Window: 20_000})
	if err != nil {
		t.Fatal(err)
	}
	_, reading := probe.Held()
	// While the model thinks about 60 KB of text, there is no room for another one to begin.
	x := openInServer(t, supervisor.Options{Window: 20_000, MaxTenantMemory: reading + 100<<10},
		says("user", "question", "the answer"))
	thinking, thought := make(chan struct{}), make(chan struct{})
	think := sync.OnceFunc(func() { close(thought) })
	t.Cleanup(think)
	var once sync.Once
	x.modelGets = func(body string) {
		if strings.Contains(body, "question of acme") {
			once.Do(func() { close(thinking) })
			<-thought
		}
	}
	acme, other := x.as("acme"), x.as("other")
	x.work()
	first := x.ask(acme, x.thread(acme, 3, 20<<10), "question of acme")
	<-thinking
	second := x.ask(acme, x.thread(acme, 3, 20<<10), "question of acme")
	eventually.True(t, "the second conversation waits", func() bool {
		run, err := acme.Get(t.Context(), second)
		return err == nil && run.State == perdure.Running && run.Activity == "waiting_for_memory"
	})
	for range 3 {
		x.completed(other, x.ask(other, "", "question of other"), "the answer")
	}
	if run, err := acme.Get(t.Context(), second); err != nil || run.State != perdure.Running || run.Attempt != 1 {
		t.Errorf("the second conversation is %+v (%v), want it to wait in its first attempt", run, err)
	}
	think()
	x.completed(acme, first, "the answer")
	x.completed(acme, second, "the answer")
	told := 0
	for e, err := range acme.Events(t.Context(), second, 0) {
		if err != nil {
			t.Fatal(err)
		}
		if e.Type == "x:waiting_for_memory" {
			told++
		}
	}
	if told != 1 {
		t.Errorf("run %s: its log tells %d times that it waits, want once", second, told)
	}
}

// A conversation that grows beyond the bound gives way to the one that began before it, and goes on when
// there is room. Its recorded steps are not done again.
func TestConversationThatGrowsGivesWay(t *testing.T) {
	probe, err := supervisor.New(supervisor.Options{Model: new(model.Client), Window: 2_000})
	if err != nil {
		t.Fatal(err)
	}
	_, reading := probe.Held()
	var reads atomic.Int64
	read := supervisor.Func(supervisor.Spec{Name: "read", Parameters: json.RawMessage(`{"type":"object"}`)},
		func(context.Context, struct{}) (string, error) {
			reads.Add(1)
			return strings.Repeat("y ", 125<<10), nil
		})
	five := []mockmodel.Call{call("read", args{}), call("read", args{}), call("read", args{}), call("read", args{}),
		call("read", args{})}
	x := openInServer(t, supervisor.Options{Window: 2_000, MaxResult: 256 << 10, Tools: []supervisor.Tool{read},
		MaxTenantMemory: reading + 500<<10},
		calls("grow", five...), says("user", "Summarize", "a summary"), says("tool", "", "the answer"),
		says("user", "question", "the answer"))
	thinking, thought := make(chan struct{}), make(chan struct{})
	think := sync.OnceFunc(func() { close(thought) })
	t.Cleanup(think)
	x.modelGets = func(body string) {
		if strings.Contains(body, "first question") {
			close(thinking)
			<-thought
		}
	}
	c := x.as("acme")
	x.work()
	first := x.ask(c, "", "first question")
	<-thinking
	second := x.ask(c, "", "grow")
	eventually.True(t, "the second conversation has grown, and waits", func() bool {
		run, err := c.Get(t.Context(), second)
		return err == nil && run.State == perdure.Running && run.Activity == "waiting_for_memory"
	})
	if n := reads.Load(); n != 5 {
		t.Errorf("the tool was called %d times before, want 5", n)
	}
	think()
	x.completed(c, first, "the answer")
	x.completed(c, second, "the answer")
	if run, err := c.Get(t.Context(), second); err != nil || run.Attempt != 1 || reads.Load() != 5 {
		t.Errorf("run %s: attempt %d, and the tool was called %d times (%v), want 1 and 5", second, run.Attempt,
			reads.Load(), err)
	}
}
