package agent_test

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/worker"
)

// A slowInbox is a connection that is slow to deliver an inbox with something in it. found is called before.
type slowInbox struct {
	http.RoundTripper
	found func()
}

func (s slowInbox) RoundTrip(r *http.Request) (*http.Response, error) {
	res, err := s.RoundTripper.RoundTrip(r)
	if err != nil || !strings.HasSuffix(r.URL.Path, "/inbox") {
		return res, err
	}
	body, err := io.ReadAll(res.Body)
	res.Body.Close()
	res.Body = io.NopCloser(bytes.NewReader(body))
	if bytes.Contains(body, []byte(`"come"`)) {
		s.found()
		time.Sleep(50 * time.Millisecond) // the other branch ends, and the agent looks whether all wait
	}
	return res, err
}

// A branch reads its signal from the inbox while the other one ends. The run is not suspended on a wait whose
// signal it has taken: nothing would wake it.
func TestSignalReadWhileTheOtherBranchEndsIsNotLost(t *testing.T) {
	t.Parallel()
	w := open(t)
	working, found := make(chan int, 10), make(chan struct{})
	wire := slowInbox{w.nodes[0].Transport(), sync.OnceFunc(func() { close(found) })}
	w.workAt(wire, worker.Options{}, func(wk *worker.Worker) {
		worker.Agent(wk, "two", func(ctx *agent.Context, _ any) (string, error) {
			return "both", both(ctx, func(ctx *agent.Context) error {
				_, err := agent.Step(ctx, "work", func(context.Context) (int, error) {
					working <- 1
					<-found
					return 1, nil
				})
				return err
			}, func(ctx *agent.Context) error {
				_, err := agent.Signal[int](ctx, "come", time.Hour)
				return err
			})
		})
	})
	id := w.start(perdure.Submission{Kind: "two"})
	next(w, working)
	w.signal(id, "come", 1)
	completed(t, w.end(id), `"both"`)
}
