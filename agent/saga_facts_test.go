package agent_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/agenttest"
	"github.com/perdure/perdure/worker"
)

// script returns an agent that executes words in order: "(name" begins a saga and ")" ends it, "fail"
// returns an error from where it stands, "wait" waits, a word with "+" is a step with an undo, and any
// other is a step without.
func script(done *tally, words string) code {
	return func(ctx *agent.Context, _ int) (string, error) {
		rest := strings.Fields(words)
		var play func() error
		play = func() error {
			for len(rest) > 0 {
				word := rest[0]
				rest = rest[1:]
				var err error
				switch name, undo := strings.CutSuffix(word, "+"); {
				case word == ")":
					return nil
				case word == "fail":
					err = errors.New("a bug")
				case word == "wait":
					err = wait(ctx)
				case word[0] == '(':
					err = agent.Saga(ctx, word[1:], play)
				case undo:
					err = done.book(ctx, name)
				default:
					err = done.do(ctx, name)
				}
				if err != nil {
					return err
				}
			}
			return nil
		}
		return "well", play()
	}
}

// A run whose saga succeeded before sagas recorded that goes on. The steps that it keeps tell that a
// saga which fails now had succeeded.
func TestSagaWithoutARecordIsContinued(t *testing.T) {
	t.Parallel()
	older := func(key string, value json.RawMessage) json.RawMessage {
		if strings.HasPrefix(key, "_saga:") && string(value) == `{"ok":true}` {
			return nil
		}
		return value
	}
	for _, words := range []string{"(trip flight+ ) wait mail", "(trip flight ) mail wait end",
		"(trip flight+ ) mail wait end", "(outer a+ (inner b+ ) wait c+ )", "(outer a+ (inner b+ ) c+ ) wait d"} {
		t.Run(words, func(t *testing.T) {
			t.Parallel()
			w := open(t)
			var done tally
			completed(t, w.end(w.changesSince(older, script(&done, words), script(&done, words))), `"well"`)
		})
	}
	t.Run("fails", func(t *testing.T) {
		t.Parallel()
		w := open(t)
		var done tally
		id := w.changesSince(older, script(&done, "(trip flight+ ) wait mail"),
			script(&done, "(trip flight+ fail ) wait mail"))
		contains(t, w.defect(id, perdure.CodeNondeterminism), "trip#1", "the saga has succeeded")
		done.expect(t, "flight")
	})
}

// A run that is cancelled after its saga has succeeded keeps the steps, also if the body looks at the
// context and returns early. A saga around it undoes them.
func TestCancelKeepsASagaThatSucceeded(t *testing.T) {
	t.Parallel()
	w := open(t)
	for _, outer := range []bool{false, true} {
		t.Run(fmt.Sprint("in another one ", outer), func(t *testing.T) {
			var done tally
			kind := fmt.Sprint("trip ", outer)
			w.work(func(wk *worker.Worker) {
				worker.Agent(wk, kind, func(ctx *agent.Context, _ struct{}) (string, error) {
					trip := func() error {
						err := agent.Saga(ctx, "trip", func() error {
							if err := done.book(ctx, "flight"); err != nil {
								return err
							}
							return ctx.Err()
						})
						if err != nil {
							return err
						}
						return wait(ctx)
					}
					if outer {
						return "", agent.Saga(ctx, "outer", trip)
					}
					if err := trip(); err != nil {
						return "", agent.ErrCancelled
					}
					return "", nil
				})
			})
			id := w.start(perdure.Submission{Kind: kind})
			w.waits(id, "signal:go on#1")
			if _, err := w.c.Cancel(w.ctx, id, "", 0); err != nil {
				t.Fatal(err)
			}
			run := w.end(id)
			if run.State.Terminal() && len(w.lines(id, "run:held")) > 0 {
				t.Errorf("run %s was held, want it to end", id)
			}
			if outer {
				done.expect(t, "flight", "unflight")
			} else {
				done.expect(t, "flight")
			}
			w.notUndone(run)
		})
	}
}

// seats is an agent with a Parallel in a saga, which fails afterwards, or because of one item.
func seats(done *tally, broken int) code {
	return func(ctx *agent.Context, _ int) (string, error) {
		err := agent.Saga(ctx, "trip", func() error {
			if err := done.book(ctx, "flight"); err != nil {
				return err
			}
			_, err := agent.Parallel(ctx, "seat", numbers(3), func(_ context.Context, n int) (string, error) {
				if n == broken {
					return "", perdure.Permanent(errors.New("taken"))
				}
				return fmt.Sprint("seat ", n), nil
			}, agent.MapOptions{Limit: 1, Step: agent.Undo(func(ctx context.Context, seat string) error {
				done.add("un" + seat + " " + agent.IdempotencyKey(ctx)[36:])
				return nil
			})})
			if err != nil {
				return err
			}
			if err := agent.Sleep(ctx, time.Millisecond); err != nil {
				return err
			}
			return errors.New("no money")
		})
		if err := agent.Sleep(ctx, time.Millisecond); err != nil { // so that the saga is replayed as a whole
			return "", err
		}
		return err.Error(), nil
	}
}

// The items of a Parallel in a saga are undone, the last first: all of them, or those that completed
// before one failed.
func TestParallelInASagaIsUndone(t *testing.T) {
	t.Parallel()
	w := open(t)
	undone := func(n int) string { return fmt.Sprintf("unseat %d /_undone:seat#1/%d", n, n) }
	for broken, want := range map[int][]string{
		-1: {undone(2), undone(1), undone(0)}, 2: {undone(1), undone(0)}, 0: nil,
	} {
		t.Run(fmt.Sprint(broken), func(t *testing.T) {
			var done tally
			stop := w.release("", seats(&done, broken))
			defer stop()
			id := w.start(perdure.Submission{Kind: "changes"})
			text := `"taken"`
			if broken < 0 {
				text = `"no money"`
			}
			completed(t, w.end(id), text)
			done.expect(t, slices.Concat([]string{"flight"}, want, []string{"unflight"})...)
		})
	}
}

// The deliverable lists the items that were not undone.
func TestItemsOfParallelAreListedAsNotUndone(t *testing.T) {
	virtual(t, func(w *scene) {
		stop := w.release("", func(ctx *agent.Context, _ int) (string, error) {
			return "", agent.Saga(ctx, "trip", func() error {
				_, err := agent.Parallel(ctx, "seat", numbers(3), func(ctx context.Context, n int) (int, error) {
					if n == 2 {
						<-ctx.Done()
						return 0, ctx.Err()
					}
					return n, nil
				}, agent.MapOptions{Limit: 1, Step: agent.Undo(func(context.Context, int) error { return nil })})
				return err
			})
		})
		defer stop()
		run := w.end(w.start(perdure.Submission{Kind: "changes", Timeout: perdure.Duration(time.Minute)}))
		failed(w.t, run, perdure.TimedOut, perdure.CodeDeadline, 1)
		w.notUndone(run, "seat#1/0", "seat#1/1")
	})
}

// Wherever the worker dies, each item that was recorded is undone.
func TestParallelInASagaSurvivesCrashes(t *testing.T) {
	t.Parallel()
	agenttest.Scenario{
		Setup: func(s *agenttest.Trial) func(*worker.Worker) {
			return func(wk *worker.Worker) {
				worker.Agent(wk, "boss", func(ctx *agent.Context, _ int) (string, error) {
					err := agent.Saga(ctx, "trip", func() error {
						book := func(ctx context.Context, n int) (int, error) {
							s.Note(ctx, fmt.Sprint("booked ", n))
							return n, nil
						}
						cancel := func(ctx context.Context, n int) error {
							s.Note(ctx, fmt.Sprint("cancelled ", n))
							return nil
						}
						_, err := agent.Parallel(ctx, "seat", numbers(2), book,
							agent.MapOptions{Limit: 1, Step: agent.Undo(cancel)})
						if err != nil {
							return err
						}
						return errors.New("no money")
					})
					return err.Error(), nil
				})
			}
		},
		Start: perdure.Submission{Kind: "boss", Class: perdure.Agent},
	}.CrashEverywhere(t, nil)
}
