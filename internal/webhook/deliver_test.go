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
	"github.com/perdure/perdure/internal/engine"
	"github.com/perdure/perdure/internal/eventually"
	"github.com/perdure/perdure/internal/store"
	"github.com/perdure/perdure/internal/storetest"
	"github.com/perdure/perdure/internal/watchdog"
)

const tenant perdure.TenantID = "acme"

// A receiver takes messages without a network in between, so that time can be virtual.
type receiver struct {
	mu     sync.Mutex
	got    []Message
	at     []time.Time
	answer map[string]func(context.Context) Result // by URL; others are taken
	judge  func(Message) Result                    // or by message
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

// of gives what came for a URL, and when.
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

// A world is an engine on a store, with what a test says to it.
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

// virtual is a world in which time is the bubble's.
func virtual(t *testing.T) *world {
	return newWorld(t, store.Options{Hooks: store.Hooks{Clock: func() perdure.Instant { return perdure.At(time.Now()) }}})
}

func (w *world) do(op engine.Op) {
	w.t.Helper()
	if err := w.e.Do(context.Background(), op); err != nil {
		w.t.Fatalf("%T: %v", op, err)
	}
}

func (w *world) hook(url string, events ...string) perdure.Webhook {
	w.t.Helper()
	op := &engine.CreateWebhook{Tenant: w.who, URL: url, Events: events}
	w.do(op)
	return op.Webhook
}

func (w *world) start(kind string) engine.Grant {
	w.t.Helper()
	w.do(&engine.Submit{Tenant: w.who, Submission: perdure.Submission{Kind: kind, Timeout: perdure.Duration(time.Hour), Metadata: map[string]string{"for": "test"}}})
	claim := &engine.Claim{Tenant: w.who, Worker: "w1", Kinds: []string{kind}, Slots: 1, Start: true}
	w.do(claim)
	if len(claim.Grants) != 1 {
		w.t.Fatal("nothing to claim")
	}
	return claim.Grants[0]
}

func (w *world) commit(g engine.Grant, id string, c perdure.Commit) {
	w.t.Helper()
	c.ID, c.RunID, c.Epoch = id, g.Run.ID, g.Run.Epoch
	op := &engine.Commit{Tenant: w.who, Worker: "w1", Commit: c}
	if w.do(op); op.Refused != nil {
		w.t.Fatal(op.Refused)
	}
}

func (w *world) end() perdure.RunID {
	w.t.Helper()
	g := w.start("job")
	w.commit(g, "c", perdure.Commit{Outcome: &perdure.Outcome{Type: perdure.OutcomeComplete, Result: json.RawMessage(`{"n":1}`)}})
	return g.Run.ID
}

// many notes so many lines of one run, for whoever wants lines "x:many".
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
			w.t.Error(err)
		}
	})
	w.t.Cleanup(stop)
	return stop
}

func (w *world) deliveries(id perdure.WebhookID, state string) (out []perdure.Notification) {
	w.t.Helper()
	err := w.e.Store().View(context.Background(), func(v *store.View) (err error) {
		out, err = v.Deliveries(w.who, id, state, "", 100000)
		return err
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return out
}

func (w *world) attempts(n perdure.Notification) (out []perdure.WebhookAttempt) {
	w.t.Helper()
	if err := w.e.Store().View(context.Background(), func(v *store.View) (err error) { out, err = v.Attempts(&n); return err }); err != nil {
		w.t.Fatal(err)
	}
	return out
}

func TestTwelveMinutesOfSilentThinkingAreToldAndKillNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := virtual(t)
		sink := &receiver{}
		hook := w.hook("https://a.example/")
		w.deliver(Options{Sender: sink})
		w.run(watchdog.New(w.e, nil).Run)
		g := w.start("think")
		for range 12 * 60 / 10 {
			time.Sleep(10 * time.Second)
			w.do(&engine.Heartbeat{Tenant: tenant, Worker: "w1", Beats: []engine.BeatOf{{Lease: engine.Lease{RunID: g.Run.ID, Epoch: g.Run.Epoch}, Activity: "thinking"}}})
		}
		d, err := w.e.Get(context.Background(), tenant, g.Run.ID)
		if err != nil || d.State != perdure.Running || d.Epoch != g.Run.Epoch || d.Attempt != 1 {
			t.Fatalf("%s, epoch %d, attempt %d, %v", d.State, d.Epoch, d.Attempt, err)
		}
		w.commit(g, "c", perdure.Commit{Outcome: &perdure.Outcome{Type: perdure.OutcomeComplete, Result: json.RawMessage(`1`)}})
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
			types = append(types, b.Type+" "+why.Reason)
		}
		if !slices.Equal(types, []string{"run:slow no_progress", "run:completed "}) {
			t.Errorf("it was told %q", types)
		}
		storetest.Check(t, w.e.Store())
	})
}

func TestWhatFailsIsSentAgainOverADayWithTheSameIDAndBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := virtual(t)
		sink := &receiver{answer: map[string]func(context.Context) Result{"https://a.example/": always(500)}}
		hook := w.hook("https://a.example/")
		w.deliver(Options{Sender: sink, Look: time.Minute})
		w.end()
		time.Sleep(30 * time.Hour)
		got, at := sink.of(hook.URL)
		if len(got) != 10 {
			t.Fatalf("sent %d times", len(got))
		}
		for i, m := range got[1:] {
			if m.ID != got[0].ID || string(m.Body) != string(got[0].Body) {
				t.Errorf("attempt %d is another message: %+v", i+2, m)
			}
			if wait, plan := at[i+1].Sub(at[i]), []int{5, 295, 1500, 5400, 10800, 18000, 14400, 21600, 14400}[i]; wait.Seconds() < float64(plan)*.79 || wait.Seconds() > float64(plan)*1.21 {
				t.Errorf("attempt %d came after %s", i+2, wait)
			}
		}
		dead := w.deliveries(hook.ID, perdure.NoteDead)
		if len(dead) != 1 || len(w.attempts(dead[0])) != 10 {
			t.Fatalf("%+v", dead)
		}
		sink.mu.Lock()
		clear(sink.answer)
		sink.mu.Unlock()
		w.do(&engine.Redeliver{Tenant: tenant, DeliveryID: dead[0].ID()})
		synctest.Wait()
		if again, when := sink.of(hook.URL); len(again) != 11 || again[10].ID != got[0].ID || string(again[10].Body) != string(got[0].Body) || when[10] != time.Now() {
			t.Errorf("redelivered: %+v", again[10:])
		}
		storetest.Check(t, w.e.Store())
	})
}

func TestAReceiverIsSentWhatIsDueAtOnceAndRetryAfterIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := virtual(t)
		busy := func(context.Context) Result { return Result{Status: 429, RetryAfter: time.Hour} }
		sink := &receiver{answer: map[string]func(context.Context) Result{"https://busy.example/": busy, "https://gone.example/": always(410)}}
		fine, later, gone := w.hook("https://fine.example/"), w.hook("https://busy.example/"), w.hook("https://gone.example/")
		w.deliver(Options{Sender: sink})
		began := time.Now()
		for range 3 {
			w.end()
			synctest.Wait()
			time.Sleep(10 * time.Millisecond)
		}
		if _, at := sink.of(fine.URL); len(at) != 3 || at[2].Sub(began) > 50*time.Millisecond {
			t.Errorf("sent at %v", at)
		}
		if got, _ := sink.of(gone.URL); len(got) != 1 || len(w.deliveries(gone.ID, perdure.NotePending)) != 0 {
			t.Errorf("one that is gone was sent %d", len(got))
		}
		time.Sleep(50 * time.Minute)
		if got, _ := sink.of(later.URL); len(got) != 1 {
			t.Errorf("one that wants to be left alone was sent %d", len(got))
		}
		time.Sleep(20 * time.Minute)
		if got, _ := sink.of(later.URL); len(got) < 2 {
			t.Errorf("one that wants to be left alone for an hour was sent %d", len(got))
		}
		storetest.Check(t, w.e.Store())
	})
}

func TestAnEndpointThatHangsAndOneWithManyMessagesDelayNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := virtual(t)
		answer := make(map[string]func(context.Context) Result)
		sink := &receiver{answer: answer}
		for i := range 40 { // more than there are places for
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
					t.Fatalf("not sent within a second")
				}
				time.Sleep(10 * time.Millisecond)
			}
			time.Sleep(7 * time.Second)
		}
		if got, _ := sink.of(broken.URL); len(got) < 3 || len(got) > 20 {
			t.Errorf("one that fails was called %d times in a minute", len(got))
		}
		storetest.Check(t, w.e.Store())
	})
}

func TestEndpointsThatFailLeavePlacesToNewOnes(t *testing.T) {
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
		time.Sleep(2 * time.Minute) // each of them was tried, and they take turns
		for i := range 20 {
			fresh := w.hook(fmt.Sprintf("https://fresh%d.example/", i))
			w.end()
			synctest.Wait()
			if got, _ := sink.of(fresh.URL); len(got) != 1 {
				t.Fatalf("a new one was sent %d", len(got))
			}
			time.Sleep(time.Second)
			w.do(&engine.DeleteWebhook{Tenant: tenant, ID: fresh.ID})
		}
	})
}

func TestAnEndpointWithTwentyThousandMessagesIsSteppedOver(t *testing.T) {
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
			t.Errorf("sent %d", len(got))
		}
		w.do(&engine.DeleteWebhook{Tenant: tenant, ID: full.ID})
		time.Sleep(AttemptTimeout + time.Second)
		if n := len(w.deliveries(full.ID, perdure.NotePending)); n != 0 {
			t.Errorf("%d are left for one that was deleted", n)
		}
	})
}

func TestAnEndpointThatFailedIsSentTheRestWhenItIsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := virtual(t)
		sink := &receiver{answer: map[string]func(context.Context) Result{"https://a.example/": always(503)}}
		hook := w.hook("https://a.example/", "x:*")
		w.many(300)
		w.deliver(Options{Sender: sink})
		time.Sleep(10 * time.Minute)
		if got, _ := sink.of(hook.URL); len(got) > 25 {
			t.Errorf("called %d times while it was down", len(got))
		}
		sink.mu.Lock()
		clear(sink.answer)
		sink.mu.Unlock()
		time.Sleep(3 * time.Minute)
		// What was tried and failed waits for its turn; the rest has arrived.
		if done := len(w.deliveries(hook.ID, perdure.NoteDelivered)); done < 270 {
			t.Errorf("%d of 300 have arrived", done)
		}
		time.Sleep(time.Hour)
		if done := len(w.deliveries(hook.ID, perdure.NoteDelivered)); done != 300 {
			t.Errorf("%d of 300 have arrived", done)
		}
		storetest.Check(t, w.e.Store())
	})
}

func TestANodeThatStopsLeavesWhatIsOnItsWayToTheNext(t *testing.T) {
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
			t.Errorf("stopping took %s", took)
		}
		next := &receiver{}
		w.deliver(Options{Sender: next})
		time.Sleep(time.Second)
		got, _ := next.of(hook.URL)
		before, _ := sink.of(hook.URL)
		if len(got) != 1 || got[0].ID != before[0].ID || string(got[0].Body) != string(before[0].Body) {
			t.Errorf("the next node sent %+v", got)
		}
		if n := w.deliveries(hook.ID, "")[0]; n.State != perdure.NoteDelivered || n.Tries != 1 || n.Attempts != 2 {
			t.Errorf("%+v", n)
		}
	})
}

func TestANodeThatDiesAfterItHasSentHasItSentAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := virtual(t)
		first, second := &receiver{}, &receiver{}
		hook := w.hook("https://a.example/")
		w.end()
		dies := New(w.e, Options{Sender: first})
		if _, err := dies.pass(context.Background(), context.Background()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait() // it has sent, and never says so
		w.deliver(Options{Sender: second})
		time.Sleep(engine.SendLease - time.Second)
		if got, _ := second.of(hook.URL); len(got) != 0 {
			t.Errorf("sent by two nodes at once")
		}
		time.Sleep(2 * time.Second)
		a, _ := first.of(hook.URL)
		b, _ := second.of(hook.URL)
		if len(a) != 1 || len(b) != 1 || a[0].ID != b[0].ID || string(a[0].Body) != string(b[0].Body) {
			t.Errorf("%+v, then %+v", a, b)
		}
	})
}

func TestEveryMessageIsSentByOneOfManyNodes(t *testing.T) {
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
			eventually.True(t, "everything is delivered", func() bool { return len(nodes[1].deliveries(hook.ID, perdure.NoteDelivered)) == 500 })
			got, _ := sink.of(hook.URL)
			ids := make(map[string]int)
			for _, m := range got {
				ids[m.ID]++
			}
			if len(got) != 500 || len(ids) != 500 {
				t.Errorf("%d messages were sent %d times", len(ids), len(got))
			}
			storetest.Check(t, nodes[0].e.Store())
		})
	}
}

func TestARealReceiverVerifiesWhatItIsSent(t *testing.T) {
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
	op := &engine.CreateWebhook{Tenant: tenant, URL: sink.URL + "/hook"}
	w.do(op)
	rotate := &engine.RotateWebhook{Tenant: tenant, ID: op.Webhook.ID}
	w.do(rotate)
	if err := Settle(t.Context(), w.e); err != nil {
		t.Fatal(err)
	}
	w.deliver(Options{Sender: NewHTTP(HTTPOptions{Guard: loopback})})
	id := w.end()
	a := <-arrived
	for _, secret := range []string{op.Secret, rotate.Secret} {
		if err := verify(t, secret, a.header, a.body); err != nil {
			t.Errorf("%v: %s", err, a.body)
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
	if err := json.Unmarshal(a.body, &got); err != nil || got.Type != "run:completed" || got.Data.RunID != string(id) || got.Data.Event.Data.Result.N != 1 ||
		got.Data.StatusURL != "/api/v1/runs/"+string(id) || got.Data.Metadata["for"] != "test" {
		t.Errorf("%v: %s", err, a.body)
	}
	eventually.True(t, "it is delivered", func() bool { return len(w.deliveries(op.Webhook.ID, perdure.NoteDelivered)) == 1 })
}

func TestABodyThatIsTooLargeSaysWhatIsLeftOut(t *testing.T) {
	long := func(n int) string { return strings.Repeat("a", n) }
	r := &perdure.Run{ID: "r", RootID: "r", Kind: "k", Queue: "q"}
	for _, c := range []struct {
		name           string
		result, other  int
		meta           int
		want, wantNone []string
	}{
		{"all fits", 100, 100, 100, []string{`"result":"aaa`, `"other":"aaa`, `"metadata":{"m":"aaa`}, []string{"omitted"}},
		{"the result", 19000, 1000, 100, []string{`"result":{"omitted":true,"size":19002}`, `"other":"aaa`, `"metadata":{"m":"aaa`}, nil},
		{"the line", 19000, 20000, 100, []string{`"data":{"omitted":true,"size":`, `"metadata":{"m":"aaa`}, []string{`"other"`}},
		{"the metadata", 100, 100, 20000, []string{`"data":{"omitted":true`}, []string{`"metadata"`}},
	} {
		r.Metadata = perdure.Object("m", long(c.meta))
		line := &perdure.Line{Seq: 1, Type: "run:completed", At: 1, Data: perdure.Object("result", long(c.result), "other", long(c.other))}
		b, err := Body("https://perdure.example", r, line)
		if err != nil || len(b) > maxBody || !json.Valid(b) || !strings.Contains(string(b), `"status_url":"https://perdure.example/api/v1/runs/r"`) {
			t.Errorf("%s: %d bytes, %v", c.name, len(b), err)
		}
		if i := slices.IndexFunc(c.want, func(s string) bool { return !strings.Contains(string(b), s) }); i >= 0 {
			t.Errorf("%s: lacks %s", c.name, c.want[i])
		}
		if i := slices.IndexFunc(c.wantNone, func(s string) bool { return strings.Contains(string(b), s) }); i >= 0 {
			t.Errorf("%s: has %s", c.name, c.wantNone[i])
		}
	}
}

// Events that an operation left for the fan-out are found by a deliverer that nobody told of them, as after a crash.
func TestEventsThatWaitAreFannedOutAndSentOnceEach(t *testing.T) {
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
				t.Errorf("endpoint %d was sent %d messages, want 100", i, len(got))
			}
		}
		storetest.Check(t, w.e.Store())
	})
}
