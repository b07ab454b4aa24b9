package agent_test

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/worker"
)

// For says what a step of a loop is about. A release that changes the outline of a report is held,
// instead of putting recorded paragraphs under other headings.
func ExampleFor() {
	write := func(heading string) func(context.Context) (string, error) {
		return func(context.Context) (string, error) { return "about the " + strings.ToLower(heading), nil }
	}
	release := func(outline ...string) func(w *worker.Worker) {
		return func(w *worker.Worker) {
			worker.Agent(w, "report", func(ctx *agent.Context, _ struct{}) (string, error) {
				report := ""
				for _, heading := range outline {
					text, err := agent.Step(ctx, "paragraph", write(heading), agent.For(heading))
					if err != nil {
						return "", err
					}
					report += heading + ": " + text + "\n"
				}
				if _, err := agent.Signal[any](ctx, "print", time.Hour); err != nil {
					return "", err
				}
				return report, nil
			})
		}
	}
	w := newWorld(func(w *worker.Worker) {
		worker.Handle(w, "else", func(context.Context, struct{}) (struct{}, error) { return struct{}{}, nil })
	})
	defer w.close()

	stop := work(w.Client, release("Purpose", "Costs"))
	run := w.start("report", nil)
	w.suspended(run.RunID)
	stop() // deploy another outline
	defer work(w.Client, release("Summary", "Purpose"))()
	if _, err := w.Signal(context.Background(), run.RunID, "print", nil); err != nil {
		panic(err)
	}
	fmt.Println(w.heldWith(run.RunID))
	// Output:
	// nondeterminism
}

// heldWith waits until a run is on hold, and returns the code.
func (w world) heldWith(id perdure.RunID) perdure.Code {
	for {
		run, err := w.Get(context.Background(), id)
		if err != nil {
			panic(err)
		}
		if run.Hold != nil {
			return run.Hold.Code
		}
		time.Sleep(5 * time.Millisecond)
	}
}
