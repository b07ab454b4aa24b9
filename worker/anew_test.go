package worker_test

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/internal/testkit/servertest"
	"github.com/perdure/perdure/worker"
)

// A server of the release before refuses continue_with, which it does not know. The run is held, and goes on
// anew when the server is upgraded, or when the call comes to another node.
func TestOlderServerWithoutContinueWith(t *testing.T) {
	virtual(t, func(w *world) {
		var older atomic.Bool
		var refused atomic.Int64
		older.Store(true)
		x := servertest.Tripper(func(r *http.Request) (*http.Response, error) {
			b, err := io.ReadAll(r.Body)
			if err != nil {
				return nil, err
			}
			known, unknown := []byte(`continue_with`), []byte(`not_yet_known`) // of the same length
			asOlder := older.Load() && bytes.Contains(b, known)
			if asOlder {
				refused.Add(1)
				b = bytes.Replace(b, known, unknown, 1)
			}
			r = r.Clone(r.Context())
			r.Body = io.NopCloser(bytes.NewReader(b))
			resp, err := w.Wire.RoundTrip(r)
			if err == nil && asOlder {
				var answer []byte
				if answer, err = io.ReadAll(resp.Body); err == nil {
					resp.Body = io.NopCloser(bytes.NewReader(bytes.ReplaceAll(answer, unknown, known)))
				}
			}
			return resp, err
		})
		wk := worker.New(w.Via(x), worker.Options{})
		worker.Agent(wk, "keeper", func(ctx *agent.Context, n int) (int, error) {
			if n == 2 {
				return n, nil
			}
			return agent.Anew(ctx, n, n+1)
		})
		w.Work(wk)
		id := w.Start(perdure.Submission{Kind: "keeper", Input: []byte(`1`)})
		time.Sleep(10 * time.Minute)
		run, err := w.C.Get(w.Ctx, id)
		if err != nil || run.Hold == nil || run.Attempt != 1 || refused.Load() == 0 ||
			!strings.Contains(run.Hold.Message, "upgrade the server") {
			t.Errorf("run = %+v, %v, hold %+v, refused %d times; want it held in its first attempt", run, err, run.Hold,
				refused.Load())
		}
		older.Store(false)
		run = w.End(id)
		if run.State != perdure.Completed || run.ContinuedByRunID == "" {
			t.Errorf("run %s: %s, continued by %q, want completed and continued", id, run.State, run.ContinuedByRunID)
		}
		if run.ContinuedByRunID == "" {
			return
		}
		if next := w.End(run.ContinuedByRunID); next.State != perdure.Completed || string(next.Result) != "2" {
			t.Errorf("run %s: %s with %s, want completed with 2", next.RunID, next.State, next.Result)
		}
	})
}
