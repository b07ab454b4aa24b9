package webhook

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine"
	"github.com/perdure/perdure/internal/server/engine/dispatch"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/engine/outbox"
	"github.com/perdure/perdure/internal/server/store"
	"github.com/perdure/perdure/internal/server/watchdog"
	"github.com/perdure/perdure/internal/testkit/eventually"
	"github.com/perdure/perdure/internal/testkit/storetest"
)

const tenant perdure.TenantID = "acme"

// A receiver is a Sender without a network, so that time can be virtual.
type receiver struct {
	mu     sync.Mutex
	got    []Message
	at     []time.Time
	answer map[string]func(context.Context) Result // by URL; others get 200
	judge  func(Message) Result                    // if set, decides by message
}

func (r *receiver) Send(ctx context.Context, m Message) Result {
	r.mu.Lock()
	r.got, r.at = append(r.got, m), append(r.at, time.Now())
	answer := r.answer[m.URL]
	r.mu.Unlock()
	if r.judge != nil {
		return r.judge(m)
	}
	if answer != nil {
		return answer(ctx)
	}
	return Result{Status: 200, Response: "ok"}
}

// of returns the messages for a URL, and when they came.
func (r *receiver) of(url string) (got []Message, at []time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, m := range r.got {
		if m.URL == url {
			got, at = append(got, m), append(at, r.at[i])
		}
	}
	return got, at
}

func always(status int) func(context.Context) Result {
	return func(context.Context) Result { return Result{Status: status} }
}

func hangs(ctx context.Context) Result {
	t := time.NewTimer(AttemptTimeout)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
	return Result{Err: "no answer within 15s"}
}

// A world is an engine on a store, with helpers for tests.
type world struct {
	t   *testing.T
	e   *engine.Engine
	who perdure.TenantID
}

func newWorld(t *testing.T, at store.Options) *world {
	t.Helper()
	e, err := engine.New(storetest.Open(t, at), engine.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return &world{t, e, tenant}
}

// virtual returns a world with the clock of a synctest bubble.
func virtual(t *testing.T) *world {
	return newWorld(t,
		store.Options{Hooks: store.Hooks{Clock: func() perdure.Instant { return perdure.At(time.Now()) }}})
}

func (w *world) do(op kernel.Op) {
	w.t.Helper()
	if err := w.e.Do(context.Background(), op); err != nil {
		w.t.Fatalf("%T: %v", op, err)
	}
}

func (w *world) hook(url string, events ...string) perdure.Webhook {
	w.t.Helper()
	op := &outbox.CreateWebhook{Tenant: w.who, URL: url, Events: events}
	w.do(op)
	return op.Webhook
}

func (w *world) start(kind string) dispatch.Grant {
	w.t.Helper()
	w.do(&life.Submit{Tenant: w.who, Submission: perdure.Submission{Kind: kind,
		Timeout: perdure.Duration(time.Hour), Metadata: map[string]string{"for": "test"}}})
	claim := &dispatch.Claim{Tenant: w.who, Worker: "w1", Kinds: []string{kind}, Slots: 1, Start: true}
	w.do(claim)
	if len(claim.Grants) != 1 {
		w.t.Fatalf("Claim of %s: %d grants, want 1", kind, len(claim.Grants))
	}
	return claim.Grants[0]
}

func (w *world) commit(g dispatch.Grant, id string, c perdure.Commit) {
	w.t.Helper()
	c.ID, c.RunID, c.Epoch = id, g.Run.ID, g.Run.Epoch
	op := &life.Commit{Tenant: w.who, Worker: "w1", Commit: c}
	if w.do(op); op.Refused != nil {
		w.t.Fatalf("commit %s of run %s is refused: %v", id, g.Run.ID, op.Refused)
	}
}

func (w *world) end() perdure.RunID {
	w.t.Helper()
	g := w.start("job")
	done := &perdure.Outcome{Type: perdure.OutcomeComplete, Result: json.RawMessage(`{"n":1}`)}
	w.commit(g, "c", perdure.Commit{Outcome: done})
	return g.Run.ID
}

// many writes n lines of the type x:many to the log of one run.
func (w *world) many(n int) {
	w.t.Helper()
	g := w.start("many")
	for i := 0; n > 0; i++ {
		part := min(n, 100)
		events := make([]perdure.Emitted, part)
		for k := range events {
			events[k] = perdure.Emitted{Type: "x:many", Data: json.RawMessage(fmt.Sprint(i*100 + k))}
		}
		w.commit(g, fmt.Sprint("c", i), perdure.Commit{Events: events})
		n -= part
	}
}

// deliver runs a deliverer until the test ends, or stop is called.
func (w *world) deliver(opt Options) (stop func()) {
	return w.run(New(w.e, opt).Run)
}

func (w *world) run(service func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- service(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			w.t.Errorf("the service ended with %v, want nil", err)
		}
	})
	w.t.Cleanup(stop)
	return stop
}

func (w *world) deliveries(id perdure.WebhookID, state string) (out []perdure.Notification) {
	w.t.Helper()
	err := w.e.Store().View(context.Background(), func(v *store.View) (err error) {
		out, err = v.Outbox.Deliveries(w.who, id, state, "", 100000)
		return err
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return out
}

func (w *world) attempts(n perdure.Notification) (out []perdure.WebhookAttempt) {
	w.t.Helper()
	err := w.e.Store().View(context.Background(), func(v *store.View) (err error) {
		out, err = v.Outbox.Attempts(&n)
		return err
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return out
}

// Twelve minutes of heartbeats without progress cause an alert, and the run continues.
func TestAlertOfALongActivityIsSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := virtual(t)
		sink := &receiver{}
		hook := w.hook("https://a.example/")
		w.deliver(Options{Sender: sink})
		w.run(watchdog.New(w.e, nil).Run)
		g := w.start("think")
		for range 12 * 60 / 10 {
			time.Sleep(10 * time.Second)
			lease := life.Lease{RunID: g.Run.ID, Epoch: g.Run.Epoch}
			w.do(&life.Heartbeat{Tenant: tenant, Worker: "w1",
				Beats: []life.BeatOf{{Lease: lease, Activity: "thinking"}}})
		}
		d, err := w.e.Runs.Get(context.Background(), tenant, g.Run.ID)
		if err != nil || d.State != perdure.Running || d.Epoch != g.Run.Epoch || d.Attempt != 1 {
			t.Fatalf("run: %s, epoch %d, attempt %d, %v, want running in epoch %d and attempt 1",
				d.State, d.Epoch, d.Attempt, err, g.Run.Epoch)
		}
		w.commit(g, "c", perdure.Commit{Outcome: &perdure.Outcome{Type: perdure.OutcomeComplete,
			Result: json.RawMessage(`1`)}})
		synctest.Wait()
		var types []string
		got, _ := sink.of(hook.URL)
		for _, m := range got {
			var b body
			if err := json.Unmarshal(m.Body, &b); err != nil {
				t.Fatal(err)
			}
			var why struct{ Reason string }
			if err := json.Unmarshal([]byte(b.Data.Event.Data), &why); err != nil {
				t.Fatal(err)
			}
			types = append(types, string(b.Type)+" "+why.Reason)
		}
		if want := []string{"run:slow no_progress", "run:completed "}; !slices.Equal(types, want) {
			t.Errorf("the webhook got %q, want %q", types, want)
		}
		storetest.Check(t, w.e.Store())
	})
}

func TestFailedMessageIsRetriedForADayUnchanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := virtual(t)
		sink := &receiver{answer: map[string]func(context.Context) Result{"https://a.example/": always(500)}}
		hook := w.hook("https://a.example/")
		w.deliver(Options{Sender: sink, Look: time.Minute})
		w.end()
		time.Sleep(30 * time.Hour)
		got, at := sink.of(hook.URL)
		if len(got) != 10 {
			t.Fatalf("sent %d times, want 10", len(got))
		}
		for i, m := range got[1:] {
			if m.ID != got[0].ID || string(m.Body) != string(got[0].Body) {
				t.Errorf("attempt %d has another id or body: %+v", i+2, m)
			}
			wait := at[i+1].Sub(at[i]).Seconds()
			plan := []float64{5, 295, 1500, 5400, 10800, 18000, 14400, 21600, 14400}[i]
			if wait < plan*.79 || wait > plan*1.21 {
				t.Errorf("attempt %d came after %.0f s, want %.0f s ± 21 %%", i+2, wait, plan)
			}
		}
		dead := w.deliveries(hook.ID, perdure.NoteDead)
		if len(dead) != 1 || len(w.attempts(dead[0])) != 10 {
			t.Fatalf("dead deliveries: %+v, want one with 10 attempts", dead)
		}
		sink.mu.Lock()
		clear(sink.answer)
		sink.mu.Unlock()
		w.do(&outbox.Redeliver{Tenant: tenant, DeliveryID: dead[0].ID()})
		synctest.Wait()
		again, when := sink.of(hook.URL)
		if len(again) != 11 || again[10].ID != got[0].ID || string(again[10].Body) != string(got[0].Body) ||
			when[10] != time.Now() {
			t.Errorf("redelivered: %+v, want the same message at once", again[10:])
		}
		storetest.Check(t, w.e.Store())
	})
}

func TestMessagesAreSentAtOnceAndHonourRetryAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := virtual(t)
		busy := func(context.Context) Result { return Result{Status: 429, RetryAfter: time.Hour} }
		sink := &receiver{answer: map[string]func(context.Context) Result{"https://busy.example/": busy,
			"https://gone.example/": always(410)}}
		fine, later, gone := w.hook("https://fine.example/"), w.hook("https://busy.example/"),
			w.hook("https://gone.example/")
		w.deliver(Options{Sender: sink})
		began := time.Now()
		for range 3 {
			w.end()
			synctest.Wait()
			time.Sleep(10 * time.Millisecond)
		}
		if _, at := sink.of(fine.URL); len(at) != 3 || at[2].Sub(began) > 50*time.Millisecond {
			t.Errorf("sent at %v, want 3 messages within 50ms of %v", at, began)
		}
		if got, _ := sink.of(gone.URL); len(got) != 1 || len(w.deliveries(gone.ID, perdure.NotePending)) != 0 {
			t.Errorf("an endpoint that answers 410 got %d messages, want 1 and none pending", len(got))
		}
		time.Sleep(50 * time.Minute)
		if got, _ := sink.of(later.URL); len(got) != 1 {
			t.Errorf("within its Retry-After an endpoint got %d messages, want 1", len(got))
		}
		time.Sleep(20 * time.Minute)
		if got, _ := sink.of(later.URL); len(got) < 2 {
			t.Errorf("after its Retry-After an endpoint got %d messages, want at least 2", len(got))
		}
		storetest.Check(t, w.e.Store())
	})
}

func TestHangingEndpointsDelayNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := virtual(t)
		answer := make(map[string]func(context.Context) Result)
		sink := &receiver{answer: answer}
		for i := range 40 { // more than there are places
			url := fmt.Sprintf("https://hangs%d.example/", i)
			answer[url] = hangs
			w.hook(url, "x:*", "run:completed")
		}
		answer["https://broken.example/"] = always(500)
		broken := w.hook("https://broken.example/", "x:*")
		fine := w.hook("https://fine.example/", "run:completed")
		w.many(100)
		w.deliver(Options{Sender: sink})
		time.Sleep(100 * time.Millisecond)
		for range 8 {
			began := time.Now()
			n, _ := sink.of(fine.URL)
			w.end()
			for {
				if got, _ := sink.of(fine.URL); len(got) > len(n) {
					break
				}
				if time.Since(began) > time.Second {
					t.Fatal("the message of a quick endpoint was not sent within a second")
				}
				time.Sleep(10 * time.Millisecond)
			}
			time.Sleep(7 * time.Second)
		}
		if got, _ := sink.of(broken.URL); len(got) < 3 || len(got) > 20 {
			t.Errorf("an endpoint that fails got %d messages in a minute, want 3 to 20", len(got))
		}
		storetest.Check(t, w.e.Store())
	})
}

func TestFailingEndpointsLeavePlacesForNewOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := virtual(t)
		sink := &receiver{answer: make(map[string]func(context.Context) Result)}
		for i := range 20 {
			url := fmt.Sprintf("https://hangs%d.example/", i)
			sink.answer[url] = hangs
			w.hook(url, "x:*")
		}
		w.many(50)
		w.deliver(Options{Sender: sink, Concurrency: 8})
		time.Sleep(2 * time.Minute) // each of them was tried
		for i := range 20 {
			fresh := w.hook(fmt.Sprintf("https://fresh%d.example/", i))
			w.end()
			synctest.Wait()
			if got, _ := sink.of(fresh.URL); len(got) != 1 {
				t.Fatalf("new endpoint %d got %d messages at once, want 1", i, len(got))
			}
			time.Sleep(time.Second)
			w.do(&outbox.DeleteWebhook{Tenant: tenant, ID: fresh.ID})
		}
	})
}

func TestEndpointWithManyMessagesDelaysNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := virtual(t)
		sink := &receiver{answer: map[string]func(context.Context) Result{"https://a.example/": hangs}}
		full := w.hook("https://a.example/", "x:*")
		fine := w.hook("https://b.example/")
		w.many(20000)
		w.deliver(Options{Sender: sink})
		w.end()
		synctest.Wait()
		if got, _ := sink.of(fine.URL); len(got) != 1 {
			t.Errorf("the other endpoint got %d messages, want 1", len(got))
		}
		w.do(&outbox.DeleteWebhook{Tenant: tenant, ID: full.ID})
		time.Sleep(AttemptTimeout + time.Second)
		if n := len(w.deliveries(full.ID, perdure.NotePending)); n != 0 {
			t.Errorf("%d messages of a deleted webhook are pending, want 0", n)
		}
	})
}

func TestRecoveredEndpointGetsTheRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := virtual(t)
		sink := &receiver{answer: map[string]func(context.Context) Result{"https://a.example/": always(503)}}
		hook := w.hook("https://a.example/", "x:*")
		w.many(300)
		w.deliver(Options{Sender: sink})
		time.Sleep(10 * time.Minute)
		if got, _ := sink.of(hook.URL); len(got) > 25 {
			t.Errorf("called %d times in 10 minutes while it was down, want at most 25", len(got))
		}
		sink.mu.Lock()
		clear(sink.answer)
		sink.mu.Unlock()
		time.Sleep(3 * time.Minute)
		// Messages that have failed wait for their next attempt. The others have arrived.
		if done := len(w.deliveries(hook.ID, perdure.NoteDelivered)); done < 270 {
			t.Errorf("%d of 300 messages have arrived after 3 minutes, want at least 270", done)
		}
		time.Sleep(time.Hour)
		if done := len(w.deliveries(hook.ID, perdure.NoteDelivered)); done != 300 {
			t.Errorf("%d of 300 messages have arrived after an hour, want all", done)
		}
		storetest.Check(t, w.e.Store())
	})
}

func TestStoppedNodeLeavesMessagesToTheNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := virtual(t)
		sink := &receiver{answer: map[string]func(context.Context) Result{"https://a.example/": hangs}}
		hook := w.hook("https://a.example/")
		stop := w.deliver(Options{Sender: sink})
		w.end()
		synctest.Wait()
		began := time.Now()
		stop()
		if took := time.Since(began); took != grace {
			t.Errorf("stopping took %s, want %s", took, grace)
		}
		next := &receiver{}
		w.deliver(Options{Sender: next})
		time.Sleep(time.Second)
		got, _ := next.of(hook.URL)
		before, _ := sink.of(hook.URL)
		if len(got) != 1 || got[0].ID != before[0].ID || string(got[0].Body) != string(before[0].Body) {
			t.Errorf("the next node sent %+v, want the same message once", got)
		}
		if n := w.deliveries(hook.ID, "")[0]; n.State != perdure.NoteDelivered || n.Tries != 1 || n.Attempts != 2 {
			t.Errorf("notification: %+v, want delivered with 1 try and 2 attempts", n)
		}
	})
}

func TestMessageOfADeadNodeIsSentAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := virtual(t)
		first, second := &receiver{}, &receiver{}
		hook := w.hook("https://a.example/")
		w.end()
		dies := New(w.e, Options{Sender: first})
		if _, err := dies.pass(context.Background(), context.Background()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait() // it has sent the message, and never stores the result
		w.deliver(Options{Sender: second})
		time.Sleep(outbox.SendLease - time.Second)
		if got, _ := second.of(hook.URL); len(got) != 0 {
			t.Errorf("a second node sent %d messages within the claim of the first, want 0", len(got))
		}
		time.Sleep(2 * time.Second)
		a, _ := first.of(hook.URL)
		b, _ := second.of(hook.URL)
		if len(a) != 1 || len(b) != 1 || a[0].ID != b[0].ID || string(a[0].Body) != string(b[0].Body) {
			t.Errorf("the nodes sent %+v and %+v, want the same message once each", a, b)
		}
	})
}

func TestEveryMessageIsSentByOneNode(t *testing.T) {
	for name, open := range map[string]func(t *testing.T) []*world{
		"SQLite": func(t *testing.T) []*world {
			w := newWorld(t, store.Options{Path: t.TempDir() + "/perdure.db"})
			return []*world{w, w}
		},
		"PostgreSQL": func(t *testing.T) []*world {
			at := store.Options{URL: storetest.Postgres(t)}
			return []*world{newWorld(t, at), newWorld(t, at)}
		},
	} {
		t.Run(name, func(t *testing.T) {
			nodes, sink := open(t), &receiver{}
			hook := nodes[0].hook("https://a.example/", "x:*")
			if err := Settle(t.Context(), nodes[0].e); err != nil {
				t.Fatal(err)
			}
			for _, w := range nodes {
				w.deliver(Options{Sender: sink, PerEndpoint: 16, Look: 10 * time.Millisecond})
			}
			nodes[0].many(500)
			eventually.True(t, "everything is delivered", func() bool {
				return len(nodes[1].deliveries(hook.ID, perdure.NoteDelivered)) == 500
			})
			got, _ := sink.of(hook.URL)
			ids := make(map[string]int)
			for _, m := range got {
				ids[m.ID]++
			}
			if len(got) != 500 || len(ids) != 500 {
				t.Errorf("%d messages were sent %d times, want 500 once each", len(ids), len(got))
			}
			storetest.Check(t, nodes[0].e.Store())
		})
	}
}

func TestReceiverOverHTTPVerifiesTheMessage(t *testing.T) {
	w := newWorld(t, storetest.OnDisk(t))
	type arrival struct {
		header http.Header
		body   []byte
	}
	arrived := make(chan arrival, 10)
	sink := newSink(t, false, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		arrived <- arrival{r.Header, b}
	})
	op := &outbox.CreateWebhook{Tenant: tenant, URL: sink.URL + "/hook"}
	w.do(op)
	rotate := &outbox.RotateWebhook{Tenant: tenant, ID: op.Webhook.ID}
	w.do(rotate)
	if err := Settle(t.Context(), w.e); err != nil {
		t.Fatal(err)
	}
	w.deliver(Options{Sender: NewHTTP(HTTPOptions{Guard: loopback})})
	id := w.end()
	a := <-arrived
	for _, secret := range []string{op.Secret, rotate.Secret} {
		if err := verify(t, secret, a.header, a.body); err != nil {
			t.Errorf("signature of %s: %v", a.body, err)
		}
	}
	var got struct {
		Type string
		Data struct {
			RunID     string            `json:"run_id"`
			StatusURL string            `json:"status_url"`
			Metadata  map[string]string `json:"metadata"`
			Event     struct {
				Data struct{ Result struct{ N int } }
			}
		}
	}
	if err := json.Unmarshal(a.body, &got); err != nil || got.Type != "run:completed" ||
		got.Data.RunID != string(id) || got.Data.Event.Data.Result.N != 1 ||
		got.Data.StatusURL != "/api/v1/runs/"+string(id) || got.Data.Metadata["for"] != "test" {
		t.Errorf("body %s, %v, want run:completed of run %s with its result, URL and metadata", a.body, err, id)
	}
	eventually.True(t, "the message is recorded as delivered", func() bool {
		return len(w.deliveries(op.Webhook.ID, perdure.NoteDelivered)) == 1
	})
}

func TestLargeBodyOmitsParts(t *testing.T) {
	long := func(n int) string { return strings.Repeat("a", n) }
	r := &perdure.Run{ID: "r", RootID: "r", Kind: "k", Queue: "q"}
	for _, c := range []struct {
		name           string
		result, other  int
		meta           int
		want, wantNone []string
	}{
		{"all fits", 100, 100, 100, []string{`"result":"aaa`, `"other":"aaa`, `"metadata":{"m":"aaa`},
			[]string{"omitted"}},
		{"the result", 19000, 1000, 100, []string{`"result":{"omitted":true,"size":19002}`, `"other":"aaa`,
			`"metadata":{"m":"aaa`}, nil},
		{"the line", 19000, 20000, 100, []string{`"data":{"omitted":true,"size":`, `"metadata":{"m":"aaa`},
			[]string{`"other"`}},
		{"the metadata", 100, 100, 20000, []string{`"data":{"omitted":true`}, []string{`"metadata"`}},
	} {
		r.Metadata = perdure.Object("m", long(c.meta))
		line := &perdure.Line{Seq: 1, Type: "run:completed", At: 1,
			Data: perdure.Object("result", long(c.result), "other", long(c.other))}
		b, err := Body("https://perdure.example", r, line)
		const url = `"status_url":"https://perdure.example/api/v1/runs/r"`
		if err != nil || len(b) > maxBody || !json.Valid(b) || !strings.Contains(string(b), url) {
			t.Errorf("%s: %d bytes, %v, want valid JSON of at most %d bytes with the status URL", c.name, len(b), err,
				maxBody)
		}
		if i := slices.IndexFunc(c.want, func(s string) bool { return !strings.Contains(string(b), s) }); i >= 0 {
			t.Errorf("%s: the body lacks %s", c.name, c.want[i])
		}
		if i := slices.IndexFunc(c.wantNone, func(s string) bool { return strings.Contains(string(b), s) }); i >= 0 {
			t.Errorf("%s: the body has %s, want it omitted", c.name, c.wantNone[i])
		}
	}
}

// A deliverer finds events that wait for the fan-out without a signal, as after a crash.
func TestWaitingEventsAreFannedOutWithoutASignal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := virtual(t)
		sink := &receiver{}
		for i := range 8 {
			w.hook(fmt.Sprintf("https://a%d.example/", i), "x:*")
		}
		w.many(100)
		w.e.TakePosted()
		w.deliver(Options{Sender: sink})
		time.Sleep(10 * time.Second)
		for i := range 8 {
			if got, _ := sink.of(fmt.Sprintf("https://a%d.example/", i)); len(got) != 100 {
				t.Errorf("endpoint %d got %d messages, want 100", i, len(got))
			}
		}
		storetest.Check(t, w.e.Store())
	})
}
