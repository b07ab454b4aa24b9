package agent_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/worker"
)

// A call with the Context of an ended execution gets an error, and its goroutine goes on.
func TestLeakedContextReturnsErrors(t *testing.T) {
	for _, how := range []string{"returns", "sleeps"} {
		t.Run(how, func(t *testing.T) { virtual(t, func(w *scene) { callLeaked(w, how) }) })
	}
}

//perdurevet:ignore agentkept the leak is what is tested
func callLeaked(w *scene, how string) {
	leaked := make(chan *agent.Context, 1)
	stop := w.work(func(wk *worker.Worker) {
		worker.Agent(wk, "leaks", func(ctx *agent.Context, _ int) (string, error) {
			leaked <- ctx
			if how == "sleeps" {
				return "", agent.Sleep(ctx, time.Hour)
			}
			return "done", nil
		})
	})
	defer stop()
	w.start(perdure.Submission{Kind: "leaks"})
	ctx := next(w, leaked)
	synctest.Wait() // the function has ended
	for name, call := range map[string]func() error{
		"Step": func() error {
			_, err := agent.Step(ctx, "s", func(context.Context) (int, error) { return 1, nil })
			return err
		},
		"Sleep":    func() error { return agent.Sleep(ctx, time.Second) },
		"Signal":   func() error { _, err := agent.Signal[int](ctx, "word", time.Second); return err },
		"Spawn":    func() error { _, err := agent.Spawn[int](ctx, "nobody", 1).Join(ctx); return err },
		"Callback": func() error { _, err := agent.Callback[int](ctx, "door", 0).Join(ctx); return err },
		"Approve":  func() error { _, err := agent.Approve(ctx, agent.Approval{Action: 1}); return err },
		"Select":   func() error { _, err := agent.Select(ctx); return err },
		"Continue": func() error { _, err := agent.Continue[int, int](ctx, 1); return err },
		"Anew":     func() error { _, err := agent.Anew(ctx, 1, 2); return err },
		"Saga":     func() error { return agent.Saga(ctx, "s", func() error { return nil }) },
		"Message":  func() error { return agent.Message(ctx, "user", "hi") },
		"History":  func() error { _, err := ctx.History(); return err },
		"Emit":     func() error { return agent.Emit(ctx, "x:line", 1) },
	} {
		heard := make(chan error, 1)
		go func() {
			defer close(heard) // also if the call ends the goroutine
			heard <- call()
		}()
		if err := next(w, heard); perdure.CodeOf(err) != agent.CodeMisuse ||
			!strings.Contains(fmt.Sprint(err), "is over") {
			w.t.Errorf("%s after the end of the execution: %v, want agent_misuse that says it is over", name, err)
		}
	}
	// Functions without an error return a value.
	if agent.Now(ctx, "n").IsZero() || agent.UUID(ctx, "u") == "" || agent.Version(ctx, "v", 1) != 1 {
		w.t.Error("Now, UUID or Version returned a zero value after the end of the execution, want a usable one")
	}
}
