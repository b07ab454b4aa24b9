package worker_test

import (
	"context"
	"net/http/httptest"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/worker"
)

// A worker with several addresses finishes its run, and takes the next one, after a server has died.
func TestWorkerGoesOnAtAnotherServer(t *testing.T) {
	t.Parallel()
	w := open(t, true, nil)
	first := httptest.NewServer(w.Server.Handler())
	wk := worker.New(client.New(first.URL+","+w.URL, w.Key(), client.Options{}), worker.Options{})
	begun, dead := make(chan struct{}), make(chan struct{})
	worker.Handle(wk, "long", func(ctx context.Context, _ struct{}) (string, error) {
		close(begun)
		<-dead
		return "done", nil
	})
	worker.Handle(wk, "short", func(context.Context, struct{}) (string, error) { return "done", nil })
	w.Work(wk)
	long := w.Start(perdure.Submission{Kind: "long"})
	<-begun
	first.Listener.Close()
	first.CloseClientConnections()
	close(dead)
	for _, id := range []perdure.RunID{long, w.Start(perdure.Submission{Kind: "short"})} {
		if run := w.End(id); run.State != perdure.Completed || string(run.Result) != `"done"` || run.Attempt != 1 {
			t.Errorf("run %s is %s with %s, attempt %d, want its result of the first attempt", id, run.State,
				run.Result, run.Attempt)
		}
	}
	first.CloseClientConnections()
	first.Close()
}
