package agent_test

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/worker"
)

type (
	order   struct{ City, Street string }
	moved   struct{ Town, Street string }
	retyped struct{ City, Street int }
	orders  struct {
		Orders []order
		By     map[string]order
	}
	ordersLess struct {
		Orders []struct{ City string }
		By     map[string]order
	}
)

// reads returns a release whose agent has an input of a type. It waits for a signal between two steps, or
// asks a person if there is none.
func reads[In any](asks bool, opts ...worker.Kind) func(w *scene, build string) (stop func()) {
	return func(w *scene, build string) (stop func()) {
		return w.workAt(w.nodes[0].Transport(), worker.Options{Build: build}, func(wk *worker.Worker) {
			worker.Agent(wk, "changes", func(ctx *agent.Context, in In) (string, error) {
				if asks {
					if _, err := agent.Approve(ctx, agent.Approval{Title: "go on?", Timeout: time.Minute}); err != nil {
						return "", err
					}
				} else if _, err := agent.Signal[any](ctx, "go on", time.Minute); err != nil {
					return "", err
				}
				return agent.Step(ctx, "b", func(context.Context) (string, error) { return fmt.Sprint(in), nil })
			}, opts...)
		})
	}
}

// answer approves a question of the run if there is one, and otherwise sends it a signal.
func (w *scene) answer(id perdure.RunID) {
	w.t.Helper()
	page, err := w.c.Approvals(w.ctx, client.ApprovalFilter{RunID: id})
	if err != nil {
		w.t.Fatal(err)
	}
	if len(page.Approvals) == 0 {
		w.signal(id, "go on", nil)
	} else if _, err := w.c.Decide(w.ctx, page.Approvals[0].ID, api.Decide{Decision: perdure.Approve}); err != nil {
		w.t.Fatal(err)
	}
}

// The type of an agent's input may change while a run waits. A run whose input the new type can't read, or
// of which it lacks a field that the old one had, is held.
func TestInputOfALaterRelease(t *testing.T) {
	t.Parallel()
	full := `{"City":"Bonn","Street":"Main"}`
	deep := `{"Orders":[{"City":"Bonn","Street":"Main"}],"By":{"x":{"City":"Ulm","extra":1}}}`
	type release = func(w *scene, build string) (stop func())
	for _, c := range []struct {
		name, input   string
		before, after release
		held          string // a part of the sentence, or empty if the run completes
		result        string
	}{
		{"a field is renamed, and nothing was recorded but a question", full, reads[order](true), reads[moved](true),
			"the field City", ""},
		{"a field was never known", full, reads[moved](false), reads[moved](false), "", "{ Main}"},
		{"a field that is null is gone", `{"City":null,"Street":"Main"}`, reads[order](false), reads[moved](false), "",
			"{ Main}"},
		{"a field in a list is gone", deep, reads[orders](false), reads[ordersLess](false),
			"the field Orders/*/Street", ""},
		{"a field in a map was never known", deep, reads[orders](false), reads[orders](false), "",
			"{[{Bonn Main}] map[x:{Ulm }]}"},
		{"an input without fields", `7`, reads[int](false), reads[float64](false), "", "7"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := openHeld(t)
			stop := c.before(w, "before")
			id := w.start(perdure.Submission{Kind: "changes", Input: json.RawMessage(c.input)})
			w.suspended(id)
			stop()
			stop = c.after(w, "after")
			w.answer(id)
			if c.held == "" {
				completed(t, w.end(id), fmt.Sprintf("%q", c.result))
				return
			}
			contains(t, w.defect(id, perdure.CodeNondeterminism), "input: ", c.held)
			stop()
			c.before(w, "before again")
			if r := w.end(id); r.State != perdure.Completed {
				t.Errorf("the release before: %s (%+v), want completed", r.State, r.Error)
			}
		})
	}
}

// An input that does not fit at the first execution ends the run.
func TestInputThatNeverFits(t *testing.T) {
	t.Parallel()
	w := open(t)
	reads[retyped](false)(w, "v1")
	r := w.ends("changes", order{"Bonn", "Main"})
	if r.State != perdure.Failed || r.Error == nil || r.Error.Code != worker.CodeInput {
		t.Errorf("state %s, error %+v, want failed with %s", r.State, r.Error, worker.CodeInput)
	}
}

// takes returns an agent that takes a signal and the result of a child, both of a type, waits for another
// signal, and tells what it got.
func takes[T any](ctx *agent.Context, _ int) (string, error) {
	tell := func(v any, err error) string {
		if err != nil {
			return "error"
		}
		return fmt.Sprint(v)
	}
	got, err := agent.Signal[T](ctx, "data", time.Minute)
	text := tell(got, err)
	result, err := agent.Spawn[T](ctx, "child", nil).Join(ctx)
	text += " " + tell(result, err)
	if _, err := agent.Signal[any](ctx, "go on", time.Minute); err != nil {
		return "", err
	}
	return agent.Step(ctx, "tell", func(context.Context) (string, error) { return text, nil })
}

// A signal or a result that does not fit is an error that the agent handles. It is a fact: a later release
// gets it, too, whatever its type. One that an earlier release could read, and this one can't, holds the
// run.
func TestDataThatDoesNotFit(t *testing.T) {
	t.Parallel()
	number, text := takes[int], takes[string]
	for _, c := range []struct {
		name, data    string
		before, after code
		held, result  string
	}{
		{"it fits", `7`, number, number, "", "7 7"},
		{"it never fits", `"a"`, number, number, "", "error error"},
		{"it did not fit, and does now", `"a"`, number, text, "", "error error"},
		{"it did fit, and does not now", `"a"`, text, number,
			"signal:data#1: the signal data, a string, is no int", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := openHeld(t)
			w.work(func(wk *worker.Worker) {
				worker.Handle(wk, "child", func(context.Context, any) (json.RawMessage, error) {
					return json.RawMessage(c.data), nil
				})
			})
			stop := w.release("before", c.before)
			id := w.start(perdure.Submission{Kind: "changes", Input: client.JSON(1)})
			w.signal(id, "data", json.RawMessage(c.data))
			w.waits(id, "signal:go on#1")
			stop()
			w.release("after", c.after)
			w.signal(id, "go on", nil)
			if c.held != "" {
				contains(t, w.defect(id, perdure.CodeNondeterminism), c.held)
				w.giveUp(id)
				return
			}
			completed(t, w.end(id), fmt.Sprintf("%q", c.result))
		})
	}
}

// A run that fails because of a signal that does not fit waits for another one when it is retried from its
// journal.
func TestRetryDoesNotTakeASignalThatDoesNotFit(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.release("v1", func(ctx *agent.Context, _ int) (string, error) {
		if _, err := agent.Step(ctx, "a", func(context.Context) (int, error) { return 1, nil }); err != nil {
			return "", err
		}
		n, err := agent.Signal[int](ctx, "data", time.Minute)
		return fmt.Sprint(n), err
	})
	id := w.start(perdure.Submission{Kind: "changes", Input: client.JSON(1)})
	w.waits(id, "signal:data#1")
	w.signal(id, "data", "no number")
	reached(t, w.end(id), perdure.Failed)
	again, err := w.c.Retry(w.ctx, id, api.Retry{})
	if err != nil {
		t.Fatal(err)
	}
	w.waits(again.RunID, "signal:data#1")
	w.signal(again.RunID, "data", 7)
	completed(t, w.end(again.RunID), `"7"`)
}
