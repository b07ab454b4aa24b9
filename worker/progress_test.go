package worker_test

import (
	"context"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/worker"
)

// The last progress is committed with the outcome if no heartbeat has reported it.
func TestLastProgressIsReported(t *testing.T) {
	both(t, func(w *world) {
		wk := worker.New(w.C, worker.Options{})
		worker.Handle(wk, "job", func(ctx context.Context, _ struct{}) (int, error) {
			return 1, worker.Progress(ctx, map[string]int{"percent": 100})
		})
		w.Work(wk)
		id := w.Start(perdure.Submission{Kind: "job"})
		if run := w.End(id); run.State != perdure.Completed {
			t.Fatalf("run: %+v, want it completed", run)
		}
		if lines := w.lines(id); lines[perdure.LineProgress] != 1 {
			t.Errorf("run %s: log lines %v, want one %s", id, lines, perdure.LineProgress)
		}
	})
}
