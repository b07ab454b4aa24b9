package worker_test

import (
	"context"
	"io"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/worker"
)

// What a handler leaves stays, also if it fails then.
func TestWhatAHandlerLeavesStays(t *testing.T) {
	both(t, func(w *world) {
		wk := worker.New(w.c, worker.Options{})
		worker.Handle(wk, "job", func(ctx context.Context, _ struct{}) (int, error) {
			if _, err := worker.PutArtifact(ctx, "../x", "", strings.NewReader("no")); err == nil {
				t.Error("a name with a path was taken")
			}
			if _, err := worker.PutArtifact(ctx, "notes.txt", "text/plain", strings.NewReader("so far")); err != nil {
				return 0, err
			}
			return 0, worker.Permanent(io.ErrUnexpectedEOF)
		})
		w.work(wk)
		id := w.start(perdure.Submission{Kind: "job"})
		if run := w.end(id); run.State != perdure.Failed {
			t.Fatalf("%+v", run)
		}
		from, a, err := w.c.Artifact(t.Context(), id, "notes.txt")
		if err != nil {
			t.Fatal(err)
		}
		defer from.Close()
		if b, err := io.ReadAll(from); err != nil || string(b) != "so far" || a.ContentType != "text/plain" {
			t.Errorf("%q %v %+v", b, err, a)
		}
		if _, err := worker.PutArtifact(t.Context(), "x", "", strings.NewReader("x")); err == nil {
			t.Error("left by nobody")
		}
	})
}
