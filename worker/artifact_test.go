package worker_test

import (
	"context"
	"io"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/worker"
)

func TestArtifactStaysWhenTheRunFails(t *testing.T) {
	both(t, func(w *world) {
		wk := worker.New(w.C, worker.Options{})
		worker.Handle(wk, "job", func(ctx context.Context, _ struct{}) (int, error) {
			if _, err := worker.PutArtifact(ctx, "../x", "", strings.NewReader("no")); err == nil {
				t.Error("PutArtifact accepts a name with a path, want an error")
			}
			if _, err := worker.PutArtifact(ctx, "notes.txt", "text/plain", strings.NewReader("so far")); err != nil {
				return 0, err
			}
			return 0, perdure.Permanent(io.ErrUnexpectedEOF)
		})
		w.Work(wk)
		id := w.Start(perdure.Submission{Kind: "job"})
		if run := w.End(id); run.State != perdure.Failed {
			t.Fatalf("run: %+v, want it failed", run)
		}
		from, a, err := w.C.Artifact(t.Context(), id, "notes.txt")
		if err != nil {
			t.Fatal(err)
		}
		defer from.Close()
		if b, err := io.ReadAll(from); err != nil || string(b) != "so far" || a.ContentType != "text/plain" {
			t.Errorf("artifact %+v: %q, %v, want \"so far\" as text/plain", a, b, err)
		}
		if _, err := worker.PutArtifact(t.Context(), "x", "", strings.NewReader("x")); err == nil {
			t.Error("PutArtifact outside a handler: no error, want one")
		}
	})
}
