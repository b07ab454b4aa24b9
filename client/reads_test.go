package client_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/client/admin"
	"github.com/perdure/perdure/internal/wire/session"
)

// recorded makes a run with 150 steps, of which the second has a large value, and two inbox items.
func recorded(t *testing.T, c *client.Client) perdure.RunID {
	t.Helper()
	ctx := within(t)
	run := ok[*api.Run](t)(c.Start(ctx, perdure.Submission{Kind: "agent", Class: perdure.Agent})).RunID
	g := ok[*api.Polled](t)(session.Of(c).Poll(ctx, "w", api.Poll{Slots: 1, Start: true})).Runs[0]
	commit := perdure.Commit{ID: "c", RunID: run, Epoch: g.Epoch}
	for i := range 150 {
		value := fmt.Sprint(i)
		if i == 1 {
			value = `"` + strings.Repeat("é", 5000) + `"`
		}
		commit.Journal = append(commit.Journal, perdure.JournalEntry{Key: fmt.Sprintf("s#%d", i),
			Value: json.RawMessage(value)})
	}
	if res := ok[[]api.CommitResult](t)(session.Of(c).Commit(ctx, "w", commit)); !res[0].OK {
		t.Fatalf("commit = %+v, want it taken", res[0])
	}
	for _, name := range []string{"go", "stop"} {
		if _, err := c.Signal(ctx, run, name, json.RawMessage(`{"by":"`+name+`"}`)); err != nil {
			t.Fatal(err)
		}
	}
	return run
}

func TestStepsAreReadPageByPage(t *testing.T) {
	w := open(t, false, nil)
	c, ctx := w.Client(), within(t)
	run := recorded(t, c)
	var all []api.Step
	pages := 0
	for after := int64(0); ; {
		p := ok[*api.Steps](t)(c.Steps(ctx, run, after, 0))
		all, pages = append(all, p.Entries...), pages+1
		if after = p.NextAfter; after == 0 {
			break
		}
	}
	if len(all) != 150 || pages != 2 || all[149].Seq != 150 || all[149].Key != "s#149" ||
		string(all[149].Value) != "149" || all[149].At == 0 {
		t.Errorf("%d steps on %d pages, the last %+v; want 150 on 2", len(all), pages, all[len(all)-1])
	}
	if s := all[1]; s.Value != nil || s.Size != 10002 || !strings.HasPrefix(s.Preview, `"éé`) {
		t.Errorf("a large step on a page = %.300v, want its size and its beginning", s)
	}
	if s := ok[*api.Step](t)(c.Step(ctx, run, 2)); len(s.Value) != 10002 || s.Key != "s#1" {
		t.Errorf("step 2 has %d bytes and the key %s, want all of s#1", len(s.Value), s.Key)
	}
	if p := ok[*api.Steps](t)(c.Steps(ctx, run, 147, 2)); len(p.Entries) != 2 || p.NextAfter != 149 {
		t.Errorf("two steps after 147: %+v, want 148 and 149, and more", p)
	}
	for what, err := range map[string]error{
		"a step that is not recorded": second(c.Step(ctx, run, 151)),
		"the journal of no run":       second(c.Steps(ctx, "nobody", 0, 0)),
		"the inbox of no run":         second(c.InboxItems(ctx, "nobody", 0, 0)),
		"an item that has not come":   second(c.InboxItem(ctx, run, 3)),
	} {
		if client.CodeOf(err) != perdure.CodeNotFound {
			t.Errorf("%s: error %v, want not_found", what, err)
		}
	}
	if err := second(c.Steps(ctx, run, 0, 201)); client.CodeOf(err) != perdure.CodeInvalid {
		t.Errorf("a page of 201 steps: error %v, want invalid", err)
	}
}

// second returns the error of a call.
func second[T any](_ T, err error) error { return err }

func TestInboxItemsAreReadAndStay(t *testing.T) {
	w := open(t, false, nil)
	c, ctx := w.Client(), within(t)
	run := recorded(t, c)
	for range 2 { // reading takes nothing out
		p := ok[*api.InboxItems](t)(c.InboxItems(ctx, run, 0, 1))
		if len(p.Items) != 1 || p.NextAfter != 1 || p.Items[0].Name != "go" || p.Items[0].Status != "pending" {
			t.Errorf("the first item = %+v, want the signal go, and more", p)
		}
		p = ok[*api.InboxItems](t)(c.InboxItems(ctx, run, p.NextAfter, 1))
		if len(p.Items) != 1 || p.NextAfter != 0 || string(p.Items[0].Value) != `{"by":"stop"}` {
			t.Errorf("the second item = %+v, want the signal stop, and no more", p)
		}
	}
	if i := ok[*api.InboxItem](t)(c.InboxItem(ctx, run, 2)); i.Type != perdure.ItemSignal || i.Name != "stop" {
		t.Errorf("item 2 = %+v, want the signal stop", i)
	}
}

func TestPausesAreShown(t *testing.T) {
	w := open(t, false, nil)
	c, ctx := w.Client(), within(t)
	if list := ok[[]api.Queue](t)(c.Queues(ctx)); list == nil || len(list) != 0 {
		t.Errorf("queues of a new tenant = %#v, want an empty list", list)
	}
	run := ok[*api.Run](t)(c.Start(ctx, perdure.Submission{Kind: "job", Queue: "a/b"})).RunID
	p := ok[*api.QueuePaused](t)(admin.New(c).PauseQueue(ctx, "a/b", api.PauseQueue{Reason: "why",
		For: perdure.Duration(time.Hour)}))
	if p.Name != "a/b" || p.Paused == nil || p.Paused.Until != p.Paused.At.Add(time.Hour) {
		t.Fatalf("paused = %+v, want an end in an hour", p.Paused)
	}
	list := ok[[]api.Queue](t)(c.Queues(ctx))
	if len(list) != 1 || list[0].Paused == nil || *list[0].Paused != *p.Paused {
		t.Errorf("queues = %+v, want the pause %+v", list, p.Paused)
	}
	if a := ok[*api.Activity](t)(c.Activity(ctx, run)); a.Paused == nil || a.Paused.Reason != "why" {
		t.Errorf("activity = %+v, want the pause", a)
	}
	if p := ok[*api.QueuePaused](t)(admin.New(c).ResumeQueue(ctx, "a/b")); p.Paused != nil || p.Name != "a/b" {
		t.Errorf("resumed = %+v, want no pause", p)
	}
	if a := ok[*api.Activity](t)(c.Activity(ctx, run)); a.Paused != nil {
		t.Errorf("activity = %+v, want no pause", a)
	}
	if err := second(admin.New(c).PauseQueue(ctx, "$", api.PauseQueue{})); client.CodeOf(err) != perdure.CodeInvalid {
		t.Errorf("a pause of the queue $: error %v, want invalid", err)
	}
}

func TestCountsOfAFilter(t *testing.T) {
	w := open(t, false, nil)
	c, ctx := w.Client(), within(t)
	for _, sub := range []perdure.Submission{{Kind: "a"}, {Kind: "a", Queue: "slow"}, {Kind: "b", Queue: "slow"}} {
		ok[*api.Run](t)(c.Start(ctx, sub))
	}
	finish(t, c, `1`)
	n := ok[*api.RunCounts](t)(c.Counts(ctx, client.Filter{Limit: 1, Cursor: "not used"}))
	if n.State["queued"] != 2 || n.State["completed"] != 1 || n.Queue["slow"]["queued"] != 2 ||
		n.Kind["a"]["completed"] != 1 || n.AtLeast {
		t.Errorf("counts = %+v, want two queued in slow, and one of kind a completed", n)
	}
	n = ok[*api.RunCounts](t)(c.Counts(ctx, client.Filter{Kind: "b", Queue: "slow"}))
	if n.State["queued"] != 1 || n.State["completed"] != 0 {
		t.Errorf("counts of kind b in slow = %+v, want one queued", n)
	}
	if err := second(c.Counts(ctx, client.Filter{State: "lost"})); client.CodeOf(err) != perdure.CodeInvalid {
		t.Errorf("counts of a state that does not exist: error %v, want invalid", err)
	}
}

func TestHistoryCountsRuns(t *testing.T) {
	w := open(t, false, nil)
	c, ctx := w.Client(), within(t)
	ok[*api.Run](t)(c.Start(ctx, perdure.Submission{Kind: "a"}))
	ok[*api.Run](t)(c.Start(ctx, perdure.Submission{Kind: "a"}))
	finish(t, c, `1`)
	for step, seconds := range map[time.Duration]int64{0: 60, time.Hour: 3600} {
		h := ok[*api.History](t)(c.RunHistory(ctx, 6*time.Hour, step))
		var sum api.HistoryPoint
		for _, p := range h.Points {
			sum.Created, sum.Completed = sum.Created+p.Created, sum.Completed+p.Completed
			sum.Dispatched += p.Dispatched
		}
		if h.StepSeconds != seconds || sum.Created != 2 || sum.Completed != 1 || sum.Dispatched != 1 {
			t.Errorf("history in steps of %s = %+v, want two created, one dispatched and completed", step, h)
		}
	}
	for _, bad := range [][2]time.Duration{{-time.Hour, 0}, {1000 * time.Hour, 0}, {time.Hour, time.Second}} {
		if err := second(c.RunHistory(ctx, bad[0], bad[1])); client.CodeOf(err) != perdure.CodeInvalid {
			t.Errorf("the history since %s in steps of %s: error %v, want invalid", bad[0], bad[1], err)
		}
	}
}

// A server of before there was the parameter refuses it. The client then reads forwards, and the answer
// says so by having no NextBefore.
func TestOlderServerIsReadForwards(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Has("before") {
			rw.Header().Set("Content-Type", "application/problem+json")
			rw.WriteHeader(http.StatusBadRequest)
			io.WriteString(rw, `{"code":"invalid","field":"before"}`)
			return
		}
		io.WriteString(rw, `{"messages":[{"seq":1,"role":"user","content":"hello"}],"next_after":1}`)
	}))
	defer s.Close()
	page := ok[*api.Messages](t)(session.Of(client.New(s.URL, "key", client.Options{})).HistoryBackwards(within(t),
		api.Lease{RunID: "r", Epoch: 1}, 0, 0))
	if len(page.Messages) != 1 || page.NextBefore != nil {
		t.Errorf("messages = %v, next before %v, want one message and none", page.Messages, page.NextBefore)
	}
}
