package agent_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/worker"
)

// Each try of a step, and each of two steps at the same time, has a text of its own.
//
//perdurevet:ignore agenterror the test reads the text of the steps
func TestTextBearsItsStepAndTry(t *testing.T) {
	t.Parallel()
	w := open(t)
	var tries tally
	w.work(func(wk *worker.Worker) {
		worker.Agent(wk, "talks", func(ctx *agent.Context, _ struct{}) (int, error) {
			if _, err := agent.Step(ctx, "retried", func(ctx context.Context) (int, error) {
				if err := agent.Delta(ctx, "one "); err != nil {
					return 0, err
				}
				if tries.add("retried") < 2 {
					return 0, errors.New("not yet")
				}
				return 0, agent.Delta(ctx, "two ")
			}, agent.Retry{Attempts: 2}); err != nil {
				return 0, err
			}
			var both []*agent.Branch
			turn := []chan int{make(chan int, 1), make(chan int, 1)}
			turn[0] <- 0
			for i, name := range []string{"left", "right"} {
				both = append(both, agent.Go(ctx, name, func(ctx *agent.Context) error {
					_, err := agent.Step(ctx, name, func(ctx context.Context) (int, error) {
						for range 3 { // in turns
							<-turn[i]
							_ = agent.Delta(ctx, name+" ")
							turn[1-i] <- 0
						}
						return 0, nil
					})
					return err
				}))
			}
			for _, b := range both {
				if err := b.Join(ctx); err != nil {
					return 0, err
				}
			}
			return 1, agent.Delta(ctx, "done")
		})
	})
	id := w.start(perdure.Submission{Kind: "talks"})
	completed(t, w.end(id), "1")
	var text client.Text
	for e, err := range w.c.Events(w.ctx, id, 0) {
		if err != nil {
			t.Fatal(err)
		}
		text.Add(&e)
	}
	var got []string
	for step, part := range text.Steps() {
		got = append(got, step+": "+part)
	}
	slices.Sort(got)
	want := []string{": done", "left#1//left#1: left left left ", "retried#1: one two ",
		"right#1//right#1: right right right "}
	if !slices.Equal(got, want) {
		t.Errorf("text by step = %q, want %q", got, want)
	}
}
