package client_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/client/admin"
	"github.com/perdure/perdure/internal/testkit/servertest"
	"github.com/perdure/perdure/internal/testkit/stage"
	"github.com/perdure/perdure/internal/wire/session"
)

// A run is started, executed, joined, listed and retried, and its late result is adopted.
func TestRunFromStartToLateResult(t *testing.T) {
	both(t, func(t *testing.T, w *servertest.Server) {
		ctx, c := within(t), w.Client()
		run := ok[*api.Run](t)(c.Start(ctx, perdure.Submission{Kind: "job", Input: client.JSON(map[string]int{"n": 1}),
			Metadata: map[string]string{"for": "test"}}))
		if run.State != perdure.Queued {
			t.Fatalf("started run: %+v, want it queued", run)
		}
		if id := finish(t, c, `{"sum":"<1>"}`); id != run.RunID {
			t.Fatalf("the worker got run %s, want %s", id, run.RunID)
		}
		done, deferred, err := c.Join(ctx, run.RunID, time.Second)
		if err != nil || deferred {
			t.Fatalf("Join: deferred %v, %v, want an ended run", deferred, err)
		}
		got, err := client.Result[struct{ Sum string }](done)
		if err != nil || got.Sum != "<1>" {
			t.Fatalf("Result = %+v, %v, want the sum <1>", got, err)
		}
		var types []string
		for e, err := range c.Events(ctx, run.RunID, 0) {
			if err != nil {
				t.Fatalf("Events: %v", err)
			}
			types = append(types, string(e.Type))
		}
		const want = "run:created run:dispatched run:started run:completed"
		if s := strings.Join(types, " "); s != want {
			t.Errorf("events of run %s: %s, want %s", run.RunID, s, want)
		}
		d := ok[*api.Deliverable](t)(c.Deliverable(ctx, run.RunID))
		if d.Kind != "result" || string(d.Content) != string(done.Result) {
			t.Errorf("deliverable: %+v, want the result %s", d, done.Result)
		}
		page := ok[*api.Runs](t)(c.List(ctx, client.Filter{Kind: "job", State: perdure.Completed,
			Metadata: map[string]string{"for": "test"}}))
		if len(page.Runs) != 1 {
			t.Errorf("%d runs match the filter, want 1", len(page.Runs))
		}
		again := ok[*api.Run](t)(c.Retry(ctx, run.RunID, api.Retry{}))
		finish(t, c, `2`)
		late := ok[[]api.LateResult](t)(c.LateResults(ctx, run.RunID))
		if len(late) != 1 || late[0].FromRunID != again.RunID {
			t.Fatalf("late results: %+v, want one from run %s", late, again.RunID)
		}
		if r := ok[*api.Run](t)(c.Adopt(ctx, run.RunID, 1)); r.State != perdure.Completed {
			t.Errorf("run after Adopt: %+v, want it completed", r)
		}
		if tree := ok[*api.Runs](t)(c.Tree(ctx, run.RunID, "")); len(tree.Runs) == 0 {
			t.Error("the tree is empty, want the run in it")
		}
	})
}

func TestRunIsDeferredAndJoinedLater(t *testing.T) {
	both(t, func(t *testing.T, w *servertest.Server) {
		ctx, c := within(t), w.Client()
		run, deferred, err := c.Run(ctx, perdure.Submission{Kind: "job"}, 50*time.Millisecond)
		if err != nil || !deferred || run.Status != perdure.StatusDeferred || run.State != perdure.Queued {
			t.Fatalf("Run = %+v, deferred %v, %v, want a queued, deferred run", run, deferred, err)
		}
		if _, err := client.Result[int](run); err == nil {
			t.Error("Result of a live run: no error, want one")
		}
		completed := make(chan error, 1)
		go func() {
			_, err := complete(c, `7`)
			completed <- err
		}()
		run, deferred, err = c.Join(ctx, run.RunID, 0)
		if err != nil || deferred {
			t.Fatalf("Join: deferred %v, %v, want an ended run", deferred, err)
		}
		if n, err := client.Result[int](run); n != 7 || err != nil {
			t.Errorf("Result = %d, %v, want 7", n, err)
		}
		if err := <-completed; err != nil {
			t.Errorf("completing the run: %v", err)
		}
	})
}

func TestErrorsHaveCodes(t *testing.T) {
	both(t, func(t *testing.T, w *servertest.Server) {
		ctx, c := within(t), w.Client()
		reader := ok[*api.NewKey](t)(admin.New(c).CreateKey(ctx, api.CreateKey{Name: "reader",
			Scopes: []string{"runs:read"}}))
		only := client.New(w.URL, reader.Secret, client.Options{Transport: w.Wire})
		nobody := client.New(w.URL, "prd_nonsense", client.Options{Transport: w.Wire})
		for _, row := range []struct {
			name  string
			call  func() error
			code  perdure.Code
			field string
		}{
			{"no such run", func() error { _, err := c.Get(ctx, "nothing"); return err }, perdure.CodeNotFound, ""},
			{"a bad submission", func() error { _, err := c.Start(ctx, perdure.Submission{}); return err },
				perdure.CodeInvalid, "kind"},
			{"a live run has no deliverable", func() error {
				run, err := c.Start(ctx, perdure.Submission{Kind: "x", Queue: "elsewhere"})
				if err == nil {
					_, err = c.Deliverable(ctx, run.RunID)
				}
				return err
			}, perdure.CodeWrongState, ""},
			{"the key lacks a scope",
				func() error { _, err := only.Start(ctx, perdure.Submission{Kind: "x"}); return err },
				api.CodeForbidden, ""},
			{"no valid key", func() error { _, err := nobody.List(ctx, client.Filter{}); return err },
				api.CodeUnauthorized, ""},
			{"a key used for two things", func() error {
				_, err := c.Start(ctx, perdure.Submission{Kind: "a"}, client.IdempotencyKey("k"))
				if err == nil {
					_, err = c.Start(ctx, perdure.Submission{Kind: "b"}, client.IdempotencyKey("k"))
				}
				return err
			}, perdure.CodeReused, ""},
			{"events of no run", func() error {
				for _, err := range c.Events(ctx, "nothing", 0) {
					return err
				}
				return nil
			}, perdure.CodeNotFound, ""},
		} {
			err := row.call()
			var p *api.Problem
			same := errors.Is(err, &perdure.Error{Code: row.code}) && errors.Is(err, &api.Problem{Code: row.code})
			if client.CodeOf(err) != row.code || !same || !errors.As(err, &p) || p.Field != row.field {
				t.Errorf("%s: %v, want the code %s and the field %q", row.name, err, row.code, row.field)
			}
			if client.Transient(err) {
				t.Errorf("%s: Transient(%v) = true, want false", row.name, err)
			}
		}
	})
}

func TestStartWithLostAnswersMakesOneRun(t *testing.T) {
	both(t, func(t *testing.T, w *servertest.Server) {
		x := &servertest.Wire{}
		ctx, c := within(t), w.Client(x.Wrap)
		x.Lose.Store(2)
		run := ok[*api.Run](t)(c.Start(ctx, perdure.Submission{Kind: "job"}))
		if n := x.Sent.Load(); n != 3 || x.Keys()[0] == "" || x.Keys()[0] != x.Keys()[2] {
			t.Errorf("sent %d times with the keys %v, want 3 times with one key", n, x.Keys())
		}
		page := ok[*api.Runs](t)(c.List(ctx, client.Filter{}))
		if len(page.Runs) != 1 || page.Runs[0].RunID != run.RunID {
			t.Errorf("%d runs, want only %s", len(page.Runs), run.RunID)
		}
		second := ok[*api.Run](t)(c.Start(ctx, perdure.Submission{Kind: "job"}))
		if second.RunID == run.RunID {
			t.Error("two calls returned the same run, want two runs")
		}
		// The same holds in the foreground: the second attempt finds the run of the first.
		x.Lose.Store(1)
		_, deferred, err := c.Run(ctx, perdure.Submission{Kind: "job"}, 20*time.Millisecond)
		if err != nil || !deferred {
			t.Errorf("Run: deferred %v, %v, want a deferred run", deferred, err)
		}
		if page := ok[*api.Runs](t)(c.List(ctx, client.Filter{})); len(page.Runs) != 3 {
			t.Errorf("%d runs, want 3", len(page.Runs))
		}
	})
}

func TestWhichFailuresAreRetried(t *testing.T) {
	stage.NoStore(t)
	var answers []func(http.ResponseWriter)
	var seen []time.Time
	s := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		seen = append(seen, time.Now())
		f := answers[min(len(seen), len(answers))-1]
		f(rw)
	}))
	defer s.Close()
	problem := func(status int, code perdure.Code, after string) func(http.ResponseWriter) {
		return func(rw http.ResponseWriter) {
			rw.Header().Set("Content-Type", "application/problem+json")
			if after != "" {
				rw.Header().Set("Retry-After", after)
			}
			rw.WriteHeader(status)
			io.WriteString(rw, `{"code":"`+string(code)+`"}`)
		}
	}
	fine := func(rw http.ResponseWriter) { io.WriteString(rw, `{"run_id":"r","state":"queued","thread_id":"t"}`) }
	page := func(status int) func(http.ResponseWriter) {
		return func(rw http.ResponseWriter) { rw.WriteHeader(status); io.WriteString(rw, "<html>") }
	}
	start := func(c *client.Client) error { _, err := c.Start(within(t), perdure.Submission{Kind: "x"}); return err }
	for _, row := range []struct {
		name    string
		answers []func(http.ResponseWriter)
		call    func(*client.Client) error
		sent    int
		code    perdure.Code
	}{
		{"busy, then fine", []func(http.ResponseWriter){problem(429, api.CodeRate, ""),
			problem(503, perdure.CodeUnavailable, "0"), fine}, start, 3, ""},
		{"a gateway, then fine", []func(http.ResponseWriter){page(502), page(504), fine}, start, 3, ""},
		{"a defect is not tried again", []func(http.ResponseWriter){problem(500, perdure.CodeInternal, "")}, start, 1,
			perdure.CodeInternal},
		{"somebody else's page", []func(http.ResponseWriter){page(404)}, start, 1, perdure.CodeInternal},
		{"retries end", []func(http.ResponseWriter){problem(503, perdure.CodeUnavailable, "0")}, start, 3,
			perdure.CodeUnavailable},
		{"it may have counted: asked again", []func(http.ResponseWriter){problem(503, perdure.CodeUnknown, "0"), fine},
			start, 2, ""},
		{"it may have counted, and nobody says", []func(http.ResponseWriter){page(502),
			problem(503, perdure.CodeUnavailable, "0")}, start, 3, perdure.CodeUnknown},
		{"it may have counted, and did not", []func(http.ResponseWriter){page(502),
			problem(400, perdure.CodeInvalid, "")}, start, 2, perdure.CodeInvalid},
		{"it may have counted, and the key is no longer good",
			[]func(http.ResponseWriter){page(502), problem(401, api.CodeUnauthorized, "")}, start, 2,
			perdure.CodeUnknown},
		{"a redirect is not followed", []func(http.ResponseWriter){func(rw http.ResponseWriter) {
			rw.Header().Set("Location", "http://127.0.0.1:1/")
			rw.WriteHeader(307)
		}}, start, 1, perdure.CodeInternal},
	} {
		answers, seen = row.answers, nil
		err := row.call(client.New(s.URL+"/", "k", client.Options{Retries: 2}))
		if len(seen) != row.sent || client.CodeOf(err) != row.code || (err == nil) != (row.code == "") {
			t.Errorf("%s: sent %d times, %v, want %d times and the code %q", row.name, len(seen), err, row.sent,
				row.code)
		}
	}

	answers, seen = []func(http.ResponseWriter){problem(503, perdure.CodeUnavailable, "1"), fine}, nil
	if err := start(client.New(s.URL, "k", client.Options{})); err != nil || seen[1].Sub(seen[0]) < time.Second {
		t.Errorf("Retry-After was not honoured: %v", err)
	}
	// A caller without enough time for the retry gets the error at once.
	answers, seen = []func(http.ResponseWriter){problem(503, perdure.CodeUnavailable, "60")}, nil
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Second)
	defer cancel()
	_, err := client.New(s.URL, "k", client.Options{}).Start(ctx, perdure.Submission{Kind: "x"})
	if client.CodeOf(err) != perdure.CodeUnavailable || ctx.Err() != nil {
		t.Errorf("Start = %v, context %v, want %s before the context ends", err, ctx.Err(), perdure.CodeUnavailable)
	}
}

func TestCallsEndWithTheirContext(t *testing.T) {
	w := open(t, false, nil)
	c := w.Client()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Get(ctx, "r"); !errors.Is(err, context.Canceled) || client.CodeOf(err) != "" {
		t.Errorf("Get with a cancelled context: %v, want context.Canceled without a code", err)
	}
	if _, err := c.Start(ctx, perdure.Submission{Kind: "x"}); !errors.Is(err, context.Canceled) {
		t.Errorf("Start with a cancelled context: %v, want context.Canceled", err)
	}
	run := ok[*api.Run](t)(c.Start(t.Context(), perdure.Submission{Kind: "x"}))
	ctx, cancel = context.WithCancel(t.Context())
	defer cancel()
	lines := 0
	for _, err := range c.Events(ctx, run.RunID, 0) {
		if lines++; lines == 1 && err == nil {
			cancel() // the next request would wait for 30 s
		} else if lines == 2 && !errors.Is(err, context.Canceled) {
			t.Errorf("Events after the cancel: %v, want context.Canceled", err)
		}
	}
	if lines != 2 {
		t.Errorf("Events yielded %d values, want an event and an error", lines)
	}
}

func TestAnswerSizeIsLimited(t *testing.T) {
	endless := servertest.Tripper(func(r *http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: 200, Header: http.Header{}, Body: io.NopCloser(zeros{}), Request: r}, nil
	})
	c := client.New("http://perdure", "k", client.Options{Transport: endless})
	if _, err := c.Get(t.Context(), "r"); err == nil || !strings.Contains(err.Error(), "more than") {
		t.Errorf("an endless answer: %v, want an error about its size", err)
	}
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

func TestEventsContinueAfterFailures(t *testing.T) {
	both(t, func(t *testing.T, w *servertest.Server) {
		x := &servertest.Wire{Only: "/events"}
		ctx := within(t)
		c, other := client.New(w.URL, w.Key(), client.Options{Transport: x.Wrap(w.Wire), Retries: -1}), w.Client()
		run := ok[*api.Run](t)(c.Start(ctx, perdure.Submission{Kind: "job"}))
		last := int64(0)
		for e, err := range c.Events(ctx, run.RunID, 0) {
			if err != nil {
				t.Fatalf("Events: %v", err)
			}
			if e.Seq != last+1 {
				t.Errorf("event %d after %d, want %d", e.Seq, last, last+1)
			}
			if last = e.Seq; last == 1 {
				x.Drop.Store(2)
				x.Lose.Store(1)
				finish(t, other, `1`)
			}
		}
		if last != 4 {
			t.Errorf("the last event is %d, want 4", last)
		}
	})
}

func TestJoinContinuesAfterServerShutdown(t *testing.T) {
	w := open(t, false, nil)
	ctx, c := within(t), w.Client()
	run := ok[*api.Run](t)(c.Start(ctx, perdure.Submission{Kind: "job"}))
	// The first join is answered at once, as by a server that shuts down. The second reaches the
	// next node.
	joins := 0
	x := servertest.Tripper(func(r *http.Request) (*http.Response, error) {
		if strings.HasSuffix(r.URL.Path, "/join") {
			if joins++; joins == 1 {
				body := `{"run_id":"` + string(run.RunID) + `","state":"queued","status":"deferred"}`
				return &http.Response{StatusCode: 202, Header: http.Header{}, Request: r,
					Body: io.NopCloser(strings.NewReader(body))}, nil
			}
			finish(t, c, `1`)
		}
		return w.Wire.RoundTrip(r)
	})
	done, deferred, err := client.New(w.URL, w.Key(), client.Options{Transport: x}).Join(ctx, run.RunID,
		time.Minute)
	if err != nil || deferred || done.State != perdure.Completed {
		t.Errorf("Join = %+v, deferred %v, %v, want a completed run", done, deferred, err)
	}
}

// Calls that no other test makes.
func TestOtherCalls(t *testing.T) {
	both(t, func(t *testing.T, w *servertest.Server) {
		ctx, c := within(t), w.Client()
		if h := ok[*api.Health](t)(c.Health(ctx)); h.Status != "ok" {
			t.Errorf("Health = %+v, want ok", h)
		}
		if h, ready, err := c.Ready(ctx); !ready || err != nil {
			t.Errorf("Ready = %+v, %v, %v, want true", h, ready, err)
		}

		th := ok[*api.Thread](t)(c.CreateThread(ctx, client.JSON(map[string]string{"title": "x"})))
		ok[*api.MessageAppended](t)(c.AppendMessage(ctx, th.ThreadID,
			perdure.Message{Role: "user", Content: client.JSON("hello")}))
		ms := ok[*api.Messages](t)(c.Messages(ctx, th.ThreadID, 0))
		if len(ms.Messages) != 1 || string(ms.Messages[0].Content) != `"hello"` {
			t.Errorf("messages: %+v, want one with \"hello\"", ms)
		}
		if got := ok[*api.Thread](t)(c.Thread(ctx, th.ThreadID)); got.LastSeq != 1 {
			t.Errorf("thread: %+v, want the last seq 1", got)
		}

		a := ok[*api.Run](t)(c.Start(ctx, perdure.Submission{Kind: "a"}))
		b := ok[*api.Run](t)(c.Start(ctx, perdure.Submission{Kind: "b", Queue: "other"}))
		g := ok[*api.Group](t)(c.CreateGroup(ctx, api.CreateGroup{Mode: "any",
			RunIDs: []perdure.RunID{a.RunID, b.RunID}}))
		if _, open, err := c.JoinGroup(ctx, g.GroupID, 20*time.Millisecond); !open || err != nil {
			t.Errorf("JoinGroup: open %v, %v, want an open group", open, err)
		}
		ok[*api.SignalSent](t)(c.Signal(ctx, b.RunID, "go/on", client.JSON(1)))
		finish(t, c, `1`)
		if g, open, err := c.JoinGroup(ctx, g.GroupID, time.Minute); open || err != nil || g.Completed != 1 {
			t.Errorf("JoinGroup = %+v, open %v, %v, want one completed run", g, open, err)
		}
		if g := ok[*api.Group](t)(c.Group(ctx, g.GroupID)); g.State == "open" {
			t.Errorf("group: %+v, want it ended", g)
		}
		for state, want := range map[perdure.GatheringState]int{"": 1, perdure.GroupEnded: 1, "open": 0} {
			list := ok[*api.Groups](t)(c.Groups(ctx, client.GroupFilter{State: state, Limit: 5})).Groups
			if len(list) != want || want > 0 && (list[0].GroupID != g.GroupID || list[0].Completed != 1) {
				t.Errorf("groups of the state %q: %+v, want %d", state, list, want)
			}
		}
		if r := ok[*api.Run](t)(c.Defer(ctx, b.RunID)); r.State != perdure.Queued {
			t.Errorf("run after Defer: %+v, want it queued", r)
		}
		if r := ok[*api.Run](t)(c.Cancel(ctx, b.RunID, "enough", time.Second)); r.State != perdure.Cancelled {
			t.Errorf("run after Cancel: %+v, want it cancelled", r)
		}

		// A run that fails without attempts left is a dead letter.
		d := ok[*api.Run](t)(c.Start(ctx, perdure.Submission{Kind: "d", MaxAttempts: 1}))
		p := ok[*api.Polled](t)(session.Of(c).Poll(ctx, "w", api.Poll{Slots: 1}))
		lease := api.Lease{RunID: p.Runs[0].RunID, Epoch: p.Runs[0].Epoch}
		if res := ok[[]api.LeaseResult](t)(session.Of(c).StartRuns(ctx, "w", lease)); !res[0].OK {
			t.Errorf("StartRuns: %+v, want OK", res)
		}
		res := ok[[]api.LeaseResult](t)(session.Of(c).StartRuns(ctx, "w", api.Lease{RunID: lease.RunID, Epoch: 99}))
		if res[0].Error == nil || res[0].Error.Code != perdure.CodeStaleEpoch {
			t.Errorf("StartRuns with a wrong epoch: %+v, want %s", res, perdure.CodeStaleEpoch)
		}
		ok[*api.JournalPage](t)(session.Of(c).Journal(ctx, lease, 0))
		ok[*api.InboxPage](t)(session.Of(c).Inbox(ctx, lease, 0))
		ok[*api.Beaten](t)(session.Of(c).Heartbeat(ctx, "w", api.Beat{RunID: lease.RunID, Epoch: lease.Epoch,
			Activity: "x"}))
		fail := perdure.Commit{ID: "f", RunID: lease.RunID, Epoch: lease.Epoch,
			Outcome: &perdure.Outcome{Type: perdure.OutcomeFail, Error: &perdure.Failure{Code: "broken"}}}
		for range 2 { // the second time gets the same answer
			if res := ok[[]api.CommitResult](t)(session.Of(c).Commit(ctx, "w", fail)); !res[0].OK ||
				res[0].State != perdure.Failed {
				t.Errorf("Commit: %+v, want OK and failed", res)
			}
		}
		_, err := client.Result[int](ok[*api.Run](t)(c.Get(ctx, d.RunID)))
		if !errors.Is(err, &perdure.Error{Code: "broken"}) {
			t.Errorf("Result of the failed run: %v, want the code broken", err)
		}
		l := ok[*api.DeadLetters](t)(admin.New(c).DeadLetters(ctx, admin.DeadLetterFilter{}))
		if len(l.DeadLetters) != 1 || l.DeadLetters[0].RunID != d.RunID {
			t.Errorf("dead letters: %+v, want run %s", l, d.RunID)
		}
		ok[*api.DeadLetterStory](t)(admin.New(c).DeadLetter(ctx, d.RunID))
		r := ok[*api.Run](t)(admin.New(c).Redrive(ctx, d.RunID, api.Redrive{}))
		if again := ok[*api.Run](t)(admin.New(c).Redrive(ctx, d.RunID, api.Redrive{})); again.RunID != r.RunID {
			t.Errorf("the second Redrive made run %s, want %s again", again.RunID, r.RunID)
		}
		if err := admin.New(c).DropDeadLetter(ctx, d.RunID); err != nil {
			t.Errorf("DropDeadLetter: %v", err)
		}
		if err := admin.New(c).DropDeadLetter(ctx, d.RunID); client.CodeOf(err) != perdure.CodeNotFound {
			t.Errorf("the second DropDeadLetter: %v, want %s", err, perdure.CodeNotFound)
		}

		k := ok[*api.NewKey](t)(admin.New(c).CreateTenantKey(ctx, "acme",
			api.CreateKey{Name: "k", Scopes: []string{"runs:read", "keys:admin"}}))
		acme := client.New(w.URL, k.Secret, client.Options{Transport: w.Wire})
		if list := ok[[]perdure.Key](t)(admin.New(acme).Keys(ctx)); len(list) != 1 || list[0].Tenant != "acme" {
			t.Errorf("keys: %+v, want one of acme", list)
		}
		if _, err := acme.Get(ctx, d.RunID); client.CodeOf(err) != perdure.CodeNotFound {
			t.Errorf("another tenant's run: %v, want %s", err, perdure.CodeNotFound)
		}
		ok[*perdure.Key](t)(admin.New(acme).RevokeKey(ctx, k.ID))
		if _, err := admin.New(acme).Keys(ctx); client.CodeOf(err) != api.CodeUnauthorized {
			t.Errorf("a call with a revoked key: %v, want %s", err, api.CodeUnauthorized)
		}

		if ws := ok[[]perdure.Worker](t)(admin.New(c).Workers(ctx)); len(ws) != 1 || ws[0].ID != "w" {
			t.Errorf("workers: %+v, want w", ws)
		}
		if qs := ok[[]api.Queue](t)(c.Queues(ctx)); len(qs) == 0 {
			t.Error("no queues, want some")
		}
		if inv := ok[*api.Invariants](t)(admin.New(c).Invariants(ctx)); len(inv.Violations) != 0 || inv.Checked == 0 {
			t.Errorf("invariants: %+v, want some checked and no violations", inv)
		}
		if p := ok[*api.Policy](t)(admin.New(c).Policy(ctx)); len(p.Settings) == 0 || p.Settings[0].Name != "lease" {
			t.Errorf("settings of the policy: %+v, want them to begin with the lease", p.Settings)
		}
		n := 0
		for _, err := range c.All(ctx, client.Filter{Limit: 1}) {
			if n++; err != nil {
				t.Fatalf("All: %v", err)
			}
		}
		if n != 4 {
			t.Errorf("All yielded %d runs, want 4", n)
		}
	})
}

func TestValueThatJSONCannotHoldIsErrorOfCall(t *testing.T) {
	c := client.New("http://perdure", "k",
		client.Options{Transport: servertest.Tripper(func(*http.Request) (*http.Response, error) {
			t.Error("the request was sent, want it refused before")
			return nil, errors.New("unplugged")
		})})
	for _, v := range []any{make(chan int), math.NaN(), func() {}} {
		_, err := c.Start(t.Context(), perdure.Submission{Kind: "job", Input: client.JSON(v)})
		if client.CodeOf(err) != perdure.CodeInvalid || !strings.Contains(err.Error(), fmt.Sprintf("a %T can't", v)) {
			t.Errorf("Start with a %T: %v, want %s and the type", v, err, perdure.CodeInvalid)
		}
		m := perdure.Message{Role: "user", Content: client.JSON(v)}
		_, err = c.Start(t.Context(), perdure.Submission{Kind: "job", Messages: []perdure.Message{m}})
		if client.CodeOf(err) != perdure.CodeInvalid || !strings.Contains(err.Error(), fmt.Sprintf("a %T can't", v)) {
			t.Errorf("Start with a message of a %T: %v, want %s and the type", v, err, perdure.CodeInvalid)
		}
	}
}
