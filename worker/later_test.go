package worker_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/testkit/eventually"
	"github.com/perdure/perdure/worker"
)

// A task that could do nothing hands its run back, which costs no attempt, even if it has only one.
func TestTaskHandsItsRunBackForLater(t *testing.T) {
	both(t, func(w *world) {
		at := time.Now().Add(time.Hour)
		wk := worker.New(w.C, worker.Options{ID: "tester"})
		worker.Handle(wk, "later", func(context.Context, disk) (int, error) {
			return 0, worker.Later(at, errors.New("429"))
		})
		w.Work(wk)
		for _, attempts := range []int{1, 3} {
			r, err := w.C.Start(w.Ctx, perdure.Submission{Kind: "later", MaxAttempts: attempts, Class: perdure.Agent})
			if err != nil {
				t.Fatal(err)
			}
			eventually.True(t, "it waits for its time", func() bool {
				d, err := w.C.Get(w.Ctx, r.RunID)
				return err == nil && d.WaitingFor != nil && d.WaitingFor.Reason == perdure.WaitingNotBefore &&
					d.WaitingFor.Until == perdure.At(at) && d.Attempt == 1
			})
		}
	})
}
