package httpd

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/httpd/feed"
	"github.com/perdure/perdure/internal/testkit/eventually"
)

// of tells changes of a run in a state.
func of(id string, state perdure.State) func(api.Change) bool {
	return func(c api.Change) bool { return string(c.RunID) == id && c.Run.State == state }
}

func anyChange(api.Change) bool { return true }

// Runs that are made one right after the other are all listened for, not only found.
func TestSocketListensForNewRunsAtOnce(t *testing.T) {
	w := newWorld(t, setup{})
	x, _ := w.watch("?kind=job")
	began := time.Now()
	for range 3 {
		x.until(of(w.start(`{"kind":"job"}`), perdure.Queued))
		id := w.start(`{"kind":"job"}`) // while the socket takes a pause
		x.until(of(id, perdure.Queued))
		w.do("POST", runs+"/"+id+"/cancel", `{}`).is(200)
		x.until(of(id, perdure.Cancelled))
	}
	if took := time.Since(began); took >= pingEvery {
		t.Errorf("it took %s: what woke the socket was its own ping", took)
	}
}

// Runs that match are watched before those that only may come to match.
func TestBacklogDoesNotDisplaceMatchingRuns(t *testing.T) {
	w := newWorld(t, setup{})
	g := w.running(`{"kind":"job"}`)
	old := g["run_id"].(string)
	ops := make([]kernel.Op, feed.MaxPlain+200)
	for i := range ops {
		ops[i] = &life.Submit{Tenant: "a", Submission: perdure.Submission{Kind: "waiting", Queue: "elsewhere"}}
	}
	for part := range slices.Chunk(ops, 200) {
		if err := errors.Join(w.e.Step(w.e.Store().Now(), part...)...); err != nil {
			t.Fatal(err)
		}
	}
	x, first := w.watch("?status=running")
	if !slices.Equal(idsOf(first.Runs), []string{old}) {
		t.Fatalf("idsOf(first.Runs) = %v, want %v", idsOf(first.Runs), []string{old})
	}
	w.commits(g, complete)
	if c := x.until(of(old, perdure.Completed)); !c[len(c)-1].Left {
		t.Errorf("changes = %+v, want the last one to have left the filter", c)
	}
}

// Lines beyond the bound are left out, and the sequence numbers show it.
func TestChangeHasBoundedLines(t *testing.T) {
	w := newWorld(t, setup{})
	g := w.running(`{"kind":"job"}`)
	x, first := w.watch("")
	known := first.Runs[0].LastSeq
	many := strings.TrimSuffix(strings.Repeat(`{"type":"x:tick","data":1},`, feed.ChangeLines+20), ",")
	w.commits(g, `"events":[`+many+`]`)
	c := x.until(anyChange)[0]
	if c.Seq != known+feed.ChangeLines+20 || len(c.Events) > feed.ChangeLines ||
		len(c.Events) > 0 && c.Events[0].Seq <= known+1 {
		t.Errorf("known up to %d, told of %d with %d lines", known, c.Seq, len(c.Events))
	}
	big := `{"type":"x:big","data":"` + strings.Repeat("b", 20<<10) + `"}`
	w.commits(g, `"events":[`+strings.Join([]string{big, big, big, big}, ",")+`]`)
	next, size := x.until(anyChange)[0], 0
	for _, e := range next.Events {
		size += len(e.Data)
	}
	if next.Seq != c.Seq+4 || size > feed.ChangeBytes {
		t.Errorf("%d bytes of lines up to %d", size, next.Seq)
	}
}

func TestInvalidHandshakeIsRefused(t *testing.T) {
	w := newWorld(t, setup{})
	hs := httptest.NewServer(w.s.Handler())
	defer hs.Close()
	for name, value := range map[string]string{"Connection": "close", "Upgrade": "h2c", "Sec-Websocket-Version": "12",
		"Sec-Websocket-Key": "short"} {
		req, err := http.NewRequest("GET", hs.URL+"/api/v1/ws", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header = http.Header{"Connection": {"keep-alive, Upgrade"}, "Upgrade": {"websocket"},
			"Sec-Websocket-Version": {"13"},
			"Sec-Websocket-Key":     {"AAAAAAAAAAAAAAAAAAAAAA=="}, "Authorization": {"Bearer " + w.key}}
		req.Header.Set(name, value)
		res, err := http.DefaultTransport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != 426 || res.Header.Get("Content-Type") != "application/problem+json" {
			t.Errorf("%s: %s: %v", name, value, res)
		}
	}
	eventually.True(t, "nobody keeps a seat", func() bool { return w.streams() == 0 })
}

func TestSocketFindsRunsOfOtherNode(t *testing.T) {
	a, b := twoNodes(t)
	x, _ := a.watch("")
	id := b.start(`{"kind":"job"}`)
	x.until(of(id, perdure.Queued))
	b.commits(b.lease("w", `,"start":true`), complete)
	x.until(of(id, perdure.Completed))
}

// Runs of another tenant are in neither the snapshot nor the changes.
func TestSocketShowsOwnTenantOnly(t *testing.T) {
	w := newWorld(t, setup{})
	b := w.as(w.newKey("b", nil))
	has := furnish(b)
	for _, query := range []string{"thread_id=" + has.ids["thread"], "root_run_id=" + has.ids["asleep"],
		"parent_run_id=" + has.ids["asleep"],
		"thread_id=" + unknown, "queue=q-" + canary, "metadata.who=" + canary} {
		if _, first := w.watch("?" + query); len(first.Runs) != 0 || first.Truncated {
			t.Errorf("%s: %+v", query, first)
		}
	}
	x, _ := w.watch("")
	b.start(fmt.Sprintf(`{"kind":"job","metadata":{"who":"%s"}}`, canary))
	own := w.start(`{"kind":"own"}`)
	if c := x.until(anyChange)[0]; string(c.RunID) != own {
		t.Errorf("change = %+v, want one of the own run", c)
	}
}

// A survey has a bounded number of lines, however many runs have changed.
func TestSurveyIsBounded(t *testing.T) {
	w := newWorld(t, setup{})
	const many = 40
	var grants []obj
	for range many {
		grants = append(grants, w.running(`{"kind":"job"}`))
	}
	x, _ := w.watch("")
	hold := w.holdLooks() // nobody looks until all of it has happened
	for _, g := range grants {
		w.commits(g, `"events":[{"type":"x:big","data":"`+strings.Repeat("b", 60<<10)+`"}]`)
	}
	hold()
	told, size := map[perdure.RunID]bool{}, 0
	x.until(func(c api.Change) bool {
		told[c.RunID] = true
		for _, e := range c.Events {
			size += len(e.Data)
		}
		return len(told) == many
	})
	if size > feed.LookBytes+feed.ChangeBytes || size < feed.LookBytes/2 {
		t.Errorf("%d bytes of lines", size)
	}
}

// holdLooks keeps the feed from looking at the store until the function that it gives is called.
func (w *world) holdLooks() (release func()) {
	w.t.Helper()
	var held []func()
	for i := range feed.MaxReads {
		leave, err := w.s.feed.Gate.Enter(context.Background(), perdure.TenantID(fmt.Sprint("test", i)), 1)
		if err != nil {
			w.t.Fatal(err)
		}
		held = append(held, leave)
	}
	return func() {
		for _, leave := range held {
			leave()
		}
	}
}
