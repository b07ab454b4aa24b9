package worker_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/testkit/servertest"
	"github.com/perdure/perdure/worker"
)

// texts joins the deltas of a run's log, by attempt. Lines of type x:… appear as "[x:…]".
func (w *world) texts(id perdure.RunID) (byAttempt map[int]string, lines, size int) {
	w.T.Helper()
	byAttempt = make(map[int]string)
	b := make(map[int]*strings.Builder)
	for e, err := range w.C.Events(w.Ctx, id, 0) {
		if err != nil {
			w.T.Fatal(err)
		}
		if b[e.Attempt] == nil {
			b[e.Attempt] = &strings.Builder{}
		}
		switch {
		case e.Type == perdure.LineDelta:
			lines++
			size += len(e.Data)
			text := textOf(w.T, e)
			if len(text) > perdure.MaxDelta {
				w.T.Errorf("run %s: a delta of %d bytes, want at most %d", id, len(text), perdure.MaxDelta)
			}
			b[e.Attempt].WriteString(text)
		case strings.HasPrefix(string(e.Type), "x:"):
			b[e.Attempt].WriteString("[" + string(e.Type) + "]")
		}
	}
	for n, s := range b {
		byAttempt[n] = s.String()
	}
	return byAttempt, lines, size
}

func textOf(t *testing.T, e api.Event) string {
	t.Helper()
	var d struct {
		Try  int64
		Text string
	}
	read := json.NewDecoder(bytes.NewReader(e.Data))
	read.DisallowUnknownFields()
	if err := read.Decode(&d); err != nil || d.Try == 0 {
		t.Fatalf("delta %s: %v, want an object with a try and text alone", e.Data, err)
	}
	return d.Text
}

func TestManyTokensAreJoinedIntoFewLines(t *testing.T) {
	both(t, func(w *world) {
		const many = 100_000
		token := func(i int) string { return fmt.Sprintf(" tök%d", i%1000) }
		var want strings.Builder
		for i := range many {
			want.WriteString(token(i))
			if i%10_000 == 0 {
				want.WriteString("[x:mark]")
			}
		}
		wk := worker.New(w.Via(w.Wire), worker.Options{})
		worker.Handle(wk, "talk", func(ctx context.Context, _ int) (int, error) {
			for i := range many {
				if err := worker.Delta(ctx, token(i)); err != nil {
					return 0, err
				}
				if i%10_000 == 0 {
					if err := worker.Emit(ctx, "x:mark", nil); err != nil {
						return 0, err
					}
				}
			}
			return many, nil
		})
		w.Work(wk)
		id := w.Start(perdure.Submission{Kind: "talk"})
		if run := w.End(id); run.State != perdure.Completed {
			w.T.Fatalf("run: %+v, want it completed", run)
		}
		got, lines, bytes := w.texts(id)
		if got[1] != want.String() {
			w.T.Errorf("the log has another text: %d bytes, want %d", len(got[1]), want.Len())
		}
		if lines > 3000 || bytes > 3*want.Len() {
			w.T.Errorf("%d lines of %d bytes for a text of %d, want at most 3000 lines and thrice the bytes",
				lines, bytes, want.Len())
		}
		w.T.Logf("%d lines of %d bytes for a text of %d", lines, bytes, want.Len())
	})
}

// Outcomes of other runs are sent at once, but do not flush the deltas of a streaming run.
func TestOutcomesDoNotFlushDeltas(t *testing.T) {
	t.Parallel()
	w := open(t, false, nil)
	x := &servertest.Wire{Next: w.Wire, Only: "/commit"}
	wk := worker.New(w.Via(x), worker.Options{})
	quiet := make(chan struct{})
	worker.Handle(wk, "talk", func(ctx context.Context, _ int) (int, error) {
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for n := 0; ; n++ {
			select {
			case <-quiet:
				return n, nil
			case <-tick.C:
			}
			if err := worker.Delta(ctx, "x"); err != nil {
				return n, err
			}
		}
	})
	worker.Handle(wk, "quick", func(context.Context, int) (int, error) { return 1, nil })
	w.Work(wk)
	id := w.Start(perdure.Submission{Kind: "talk"})
	for range 100 {
		w.End(w.Start(perdure.Submission{Kind: "quick"}))
	}
	close(quiet)
	run := w.End(id)
	took := run.FinishedAt.Sub(run.CreatedAt)
	got, lines, _ := w.texts(id)
	if most := int(took.Milliseconds())/50 + 3; lines > most || fmt.Sprint(len(got[1])) != string(run.Result) {
		t.Errorf("%d lines in %s, want at most %d; %d tokens in the log, want %s", lines, took, most, len(got[1]),
			run.Result)
	}
}

func TestTextIsKeptHoweverItIsCut(t *testing.T) {
	t.Parallel()
	w := open(t, false, nil)
	wk := worker.New(w.C, worker.Options{})
	type cut struct {
		Seed uint64
		Text string // the text that the log must have
	}
	worker.Handle(wk, "talk", func(ctx context.Context, seed uint64) (cut, error) {
		r := rand.New(rand.NewPCG(seed, 1))
		want := ""
		for range 1 + r.IntN(4) {
			text := someText(r, 1<<r.IntN(17))
			want += text
			for text != "" { // at any byte
				n := 1 + r.IntN(min(len(text), 1<<r.IntN(17)))
				if err := worker.Delta(ctx, text[:n]); err != nil {
					return cut{}, err
				}
				text = text[n:]
			}
			if err := worker.Emit(ctx, "x:mark", nil); err != nil {
				return cut{}, err
			}
			want += "[x:mark]"
		}
		return cut{seed, want}, nil
	})
	worker.Handle(wk, "broken", func(ctx context.Context, _ int) (int, error) {
		if worker.Delta(ctx, "a\x00b") == nil {
			return 0, perdure.Permanent(fmt.Errorf("a NUL was taken"))
		}
		for _, s := range []string{"a\xff", "b", "\xe2\x82", "", "\xac", "c\xe2"} {
			if err := worker.Delta(ctx, s); err != nil {
				return 0, err
			}
		}
		return 0, nil
	})
	w.Work(wk)
	for seed := range 25 {
		id := w.Start(perdure.Submission{Kind: "talk", Input: json.RawMessage(fmt.Sprint(seed))})
		run := w.End(id)
		var want cut
		if err := json.Unmarshal(run.Result, &want); err != nil {
			t.Fatalf("result of run %+v: %v", run, err)
		}
		if got, _, _ := w.texts(id); got[1] != want.Text {
			t.Errorf("seed %d: the log has %.200q, want %.200q", seed, got[1], want.Text)
		}
	}
	id := w.Start(perdure.Submission{Kind: "broken"})
	if run := w.End(id); run.State != perdure.Completed {
		t.Errorf("run with invalid UTF-8: %+v, want it completed", run)
	}
	if got, _, _ := w.texts(id); got[1] != "a\ufffdb€c\ufffd" {
		t.Errorf("text with invalid UTF-8: %q, want \"a\ufffdb€c\ufffd\"", got[1])
	}
	if worker.Delta(t.Context(), "x") == nil {
		t.Error("Delta outside a handler: no error, want one")
	}
}

func someText(r *rand.Rand, n int) string {
	var b strings.Builder
	for b.Len() < n {
		c := []rune{rune(1 + r.IntN(0x20)), '"', '\\', '<', '\u2028', rune('a' + r.IntN(26)),
			rune(r.IntN(utf8.MaxRune + 1))}[r.IntN(7)]
		if c != 0 && utf8.ValidRune(c) {
			b.WriteRune(c)
		}
	}
	return b.String()
}

// The text of a lost attempt stays in the log under that attempt. The next attempt has its own
// text.
func TestDeltasAreKeptPerAttempt(t *testing.T) {
	virtual(t, func(w *world) {
		tokens := func(ctx context.Context, n int) error {
			for i := range n {
				if err := worker.Delta(ctx, fmt.Sprintf("%d ", i)); err != nil {
					return err
				}
			}
			return nil
		}
		const many = 5000
		var whole strings.Builder
		for i := range many {
			fmt.Fprintf(&whole, "%d ", i)
		}
		x := &servertest.Wire{Next: w.Wire, Only: "/commit", Failed: make(chan struct{}, 1)}
		x.Lose.Store(2) // so that commits are sent again
		// With one slot, the worker leases no other run while its handler hangs.
		first := worker.New(w.Via(x), worker.Options{Slots: 1, DrainTimeout: -1})
		worker.Handle(first, "talk", func(ctx context.Context, _ int) (int, error) {
			if err := tokens(ctx, many/2); err != nil {
				return 0, err
			}
			for e, err := range w.C.Events(ctx, mustInfo(ctx).RunID, 0) { // until a part of it is in the log
				if err != nil {
					return 0, err
				}
				if e.Type == perdure.LineDelta {
					break
				}
			}
			x.Cut.Store(true)
			<-ctx.Done() // the lease is not renewed any more
			return 0, ctx.Err()
		})
		stop := w.Work(first)
		id := w.Start(perdure.Submission{Kind: "talk"})
		<-x.Failed
		second := worker.New(w.C, worker.Options{})
		worker.Handle(second, "talk", func(ctx context.Context, _ int) (int, error) { return many, tokens(ctx, many) })
		w.Work(second)
		if run := w.End(id); run.State != perdure.Completed || run.Attempt != 2 {
			t.Errorf("run: %+v, want it completed in attempt 2", run)
		}
		x.Cut.Store(false)
		stop()
		got, _, _ := w.texts(id)
		if got[1] == "" || !strings.HasPrefix(whole.String(), got[1]) || got[2] != whole.String() {
			t.Errorf("attempt 1 has %d bytes, attempt 2 %d, want a part of the text and all %d",
				len(got[1]), len(got[2]), whole.Len())
		}
	})
}

func mustInfo(ctx context.Context) worker.RunInfo {
	info, ok := worker.Info(ctx)
	if !ok {
		panic("no handler's context")
	}
	return info
}
