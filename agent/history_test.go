package agent_test

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/worker"
)

// Messages that the server writes for people are not part of the conversation. An agent gets them
// only from HistoryWithNotices.
func TestHistoryLeavesOutNotices(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.work(func(wk *worker.Worker) {
		worker.Agent(wk, "reads", func(ctx *agent.Context, _ struct{}) (out [2][]string, err error) {
			for i, history := range []func() ([]api.Message, error){ctx.History, ctx.HistoryWithNotices} {
				messages, err := history()
				if err != nil {
					return out, err
				}
				for _, m := range messages {
					var meta struct{ Status string }
					_ = json.Unmarshal(m.Metadata, &meta)
					out[i] = append(out[i], fmt.Sprint(m.Role, " ", meta.Status))
				}
			}
			return out, agent.Sleep(ctx, time.Millisecond) // the agent is executed again
		})
		worker.Agent(wk, "fails", func(*agent.Context, struct{}) (int, error) {
			return 0, perdure.Permanent(fmt.Errorf("no"))
		})
	})
	thread := w.thread()
	say := func(m perdure.Message) {
		t.Helper()
		if _, err := w.c.AppendMessage(w.ctx, thread, m); err != nil {
			t.Fatal(err)
		}
	}
	say(perdure.Message{Role: "user", Content: client.JSON("hello")})
	stuck, deferred, err := w.c.Run(w.ctx, perdure.Submission{Kind: "unknown", ThreadID: thread}, time.Millisecond)
	if err != nil || !deferred {
		t.Fatalf("run that nobody works on: deferred %v, error %v, want a deferred run", deferred, err)
	}
	if _, err := w.c.Cancel(w.ctx, stuck.RunID, "", 0); err != nil {
		t.Fatal(err)
	}
	w.end(w.start(perdure.Submission{Kind: "fails", ThreadID: thread}))
	// A message of a user is no notice, even if its metadata looks like one.
	say(perdure.Message{Role: "assistant", Content: client.JSON("mine"),
		Metadata: json.RawMessage(`{"status":"deferred","run_id":"other"}`)})

	run := w.end(w.start(perdure.Submission{Kind: "reads", ThreadID: thread}))
	completed(t, run, `[["user ","assistant deferred"],`+
		`["user ","system deferred","system cancelled","system failed","assistant deferred"]]`)
}
