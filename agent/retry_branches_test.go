package agent_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/worker"
)

// keyed executes a step that is counted by its key, with the run whose idempotency key it has.
func (y *tally) keyed(ctx *agent.Context, name string, opts ...agent.StepOption) error {
	_, err := agent.Step(ctx, name, func(ctx context.Context) (string, error) {
		_, key, _ := strings.Cut(agent.IdempotencyKey(ctx), "/")
		y.add(key)
		return name, nil
	}, opts...)
	return err
}

// journalOf returns the journal of a run.
func (w *scene) journalOf(id perdure.RunID) []api.JournalEntry {
	w.t.Helper()
	r, err := w.c.Replay(w.ctx, id)
	if err != nil {
		w.t.Fatalf("journal of run %s: %v", id, err)
	}
	return r.Journal
}

// A retry can begin at every entry of a journal, with branches, a saga, a map and choices in it. It executes
// the steps that it has no record of, and no others. A step that can be undone keeps its mark: the mark by
// itself is nowhere to begin.
func TestRetryFromEveryEntryOfARunWithBranches(t *testing.T) {
	t.Parallel()
	w := open(t)
	var done tally
	undo := agent.Undo(func(context.Context, string) error { return nil })
	w.work(func(wk *worker.Worker) {
		worker.Handle(wk, "double", func(_ context.Context, n int) (int, error) { return 2 * n, nil })
		worker.Agent(wk, "all", func(ctx *agent.Context, _ any) (out string, err error) {
			if err := done.keyed(ctx, "plan"); err != nil {
				return "", err
			}
			double := 0
			err = agent.Saga(ctx, "trip", func() error {
				return both(ctx, func(ctx *agent.Context) error {
					if err := done.keyed(ctx, "book", undo); err != nil {
						return err
					}
					if _, err := agent.Signal[int](ctx, "go", time.Hour); err != nil {
						return err
					}
					return done.keyed(ctx, "pay", undo)
				}, func(ctx *agent.Context) (err error) {
					if err := done.keyed(ctx, "book", undo); err != nil {
						return err
					}
					double, err = agent.Spawn[int](ctx, "double", 1).Join(ctx)
					return err
				})
			})
			if err != nil {
				return "", err
			}
			set, err := agent.Map[int](ctx, "double", []int{1, 2, 3}, agent.MapOptions{Limit: 2})
			if err != nil {
				return "", err
			}
			n, err := agent.Select(ctx, agent.After(ctx, time.Hour), agent.OnSignal[int](ctx, "come"))
			if err != nil {
				return "", err
			}
			return fmt.Sprint(double, set.Results, n), done.keyed(ctx, "mail")
		})
	})
	const want = `"2 [2 4 6] 1"`
	// A retry that keeps the records of both signals may have ended before it gets them again.
	goes := func(id perdure.RunID) *api.Run {
		for _, name := range []string{"go", "come"} {
			_, err := w.c.Signal(w.ctx, id, name, client.JSON(1))
			if err != nil && client.CodeOf(err) != perdure.CodeRunEnded {
				t.Fatalf("signal %s to run %s: %v", name, id, err)
			}
		}
		return w.end(id)
	}
	first := w.start(perdure.Submission{Kind: "all"})
	completed(t, goes(first), want)
	journal := w.journalOf(first)
	for n, entry := range journal {
		before := len(done.all())
		run, err := w.c.Retry(w.ctx, first, api.Retry{From: entry.Key})
		if strings.HasPrefix(entry.Key, perdure.UndoPrefix) {
			if client.CodeOf(err) != perdure.CodeFrom || !strings.Contains(err.Error(), journal[n-1].Key) {
				t.Errorf("retry from %s: %v, want %s that names the step", entry.Key, err, perdure.CodeFrom)
			}
			if err != nil {
				continue
			}
		}
		if err != nil {
			t.Errorf("retry from %s: %v", entry.Key, err)
			continue
		}
		completed(t, goes(run.RunID), want)
		has := map[string]bool{}
		for _, e := range journal[:n] {
			has[e.Key] = true
		}
		again := map[string]int{}
		for _, key := range done.all()[before:] {
			if again[key]++; has[key] || again[key] > 1 {
				t.Errorf("retry from %s: %s was executed %d times, and it had the record: %t", entry.Key, key,
					again[key], has[key])
			}
		}
		now := map[string]bool{}
		for _, e := range w.journalOf(run.RunID) {
			now[e.Key] = true
		}
		for _, e := range journal {
			if step, ok := strings.CutPrefix(e.Key, perdure.UndoPrefix); ok && (!now[e.Key] || !now[step]) {
				t.Errorf("retry from %s: the journal has %s: %t, and its mark: %t; want both", entry.Key, step,
					now[step], now[e.Key])
			}
			if !strings.HasPrefix(e.Key, "_") && !has[e.Key] && again[e.Key] != 1 {
				t.Errorf("retry from %s: %s was executed %d times, want once", entry.Key, e.Key, again[e.Key])
			}
		}
	}
}

// A branch fails for good while another one has recorded more. A retry begins before the failure. What the
// other branch has recorded later is executed again, under the same idempotency key.
func TestRetryAfterAFailureInABranch(t *testing.T) {
	t.Parallel()
	w := open(t)
	var done tally
	var fixed atomic.Bool
	w.work(func(wk *worker.Worker) {
		worker.Agent(wk, "two", func(ctx *agent.Context, _ any) (string, error) {
			err := both(ctx, func(ctx *agent.Context) error {
				if err := done.keyed(ctx, "book"); err != nil {
					return err
				}
				_, err := agent.Step(ctx, "pay", func(context.Context) (int, error) {
					if fixed.Load() {
						return 1, nil
					}
					return 0, perdure.Permanent(errors.New("no money"))
				})
				return err
			}, func(ctx *agent.Context) error {
				if err := done.keyed(ctx, "book"); err != nil {
					return err
				}
				_, err := agent.Signal[int](ctx, "go", time.Hour)
				return errors.Join(err, done.keyed(ctx, "late"))
			})
			return "both", err
		})
	})
	id := w.start(perdure.Submission{Kind: "two"})
	run := w.end(id)
	if run.State != perdure.Failed || run.Error.CauseKey != "left#1//pay#1" {
		t.Fatalf("run %s: %s with %+v, want it failed because of left#1//pay#1", id, run.State, run.Error)
	}
	if _, err := w.c.Retry(w.ctx, id, api.Retry{From: "journal"}); client.CodeOf(err) != perdure.CodeWouldRepeat {
		t.Errorf("retry from the whole journal: %v, want %s", err, perdure.CodeWouldRepeat)
	}
	fixed.Store(true)
	kept := map[string]bool{}
	for _, e := range w.journalOf(id) {
		if e.Key == run.Error.CauseKey {
			break
		}
		kept[e.Key] = true
	}
	before := len(done.all())
	again, err := w.c.Retry(w.ctx, id, api.Retry{})
	if err != nil {
		t.Fatal(err)
	}
	w.signal(again.RunID, "go", 1)
	completed(t, w.end(again.RunID), `"both"`)
	for _, key := range done.all()[before:] {
		if kept[key] {
			t.Errorf("%s was executed again, and the retry has its record", key)
		}
	}
	if done.of("right#1//late#1") != 1 || done.of("left#1//book#1") != 1 {
		t.Errorf("effects = %v, want the step before the failure, and that after the signal, once", done.all())
	}
}
