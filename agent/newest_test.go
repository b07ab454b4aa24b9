package agent_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/worker"
)

// An agent reads the end of a thread without the rest, and each execution reads the same.
func TestNewestMessagesReadsTheEnd(t *testing.T) {
	t.Parallel()
	w := open(t)
	thread := w.thread()
	large := strings.Repeat("x", 600<<10)
	for n := range 8 {
		w.say(thread, fmt.Sprint(n, large))
	}
	w.say(thread, "last")
	var read atomic.Int64
	wire := w.nodes[0].Transport()
	counting := tripper(func(r *http.Request) (*http.Response, error) {
		res, err := wire.RoundTrip(r)
		if err == nil && strings.HasSuffix(r.URL.Path, "/messages") {
			res.Body = &countingBody{res.Body, &read}
		}
		return res, err
	})
	w.workAt(counting, worker.Options{}, func(wk *worker.Worker) {
		worker.Agent(wk, "reads", func(ctx *agent.Context, _ struct{}) (out []string, err error) {
			for round := range 3 {
				// The first loop is left, the others go to their ends.
				after := []int64{0, 7, 9}[round]
				for m, err := range ctx.NewestMessages(after) {
					if err != nil {
						return nil, err
					}
					out = append(out, fmt.Sprint(round, " ", m.Seq, " ", len(m.Content)))
					if round == 0 && len(out) == 2 {
						break
					}
				}
				if err := agent.Message(ctx, perdure.RoleAssistant, "seen"); err != nil {
					return nil, err
				}
				if err := agent.Sleep(ctx, time.Millisecond); err != nil { // the agent is executed again
					return nil, err
				}
			}
			return out, nil
		})
	})
	run := w.end(w.start(perdure.Submission{Kind: "reads", ThreadID: thread}))
	completed(t, run, `["0 9 6","0 8 614403","1 10 6","1 9 6","1 8 614403","2 11 6","2 10 6"]`)
	// Four executions read one or two large messages each time, and not the eight.
	if n := read.Load(); n > 9<<20 {
		t.Errorf("the worker has read %d bytes of messages, want at most 9 MiB", n)
	}
}

// A countingBody counts what is read of it.
type countingBody struct {
	io.ReadCloser
	n *atomic.Int64
}

func (b *countingBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.n.Add(int64(n))
	return n, err
}

type tripper func(*http.Request) (*http.Response, error)

func (f tripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
