package agent_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/internal/testkit/eventually"
	"github.com/perdure/perdure/worker"
)

// say appends a user's message to a thread.
func (w *scene) say(id perdure.ThreadID, text string) {
	w.t.Helper()
	if _, err := w.c.AppendMessage(w.ctx, id,
		perdure.Message{Role: perdure.RoleUser, Content: client.JSON(text)}); err != nil {
		w.t.Fatal(err)
	}
}

// Messages of the user reach an agent while its children work, in order and once each.
func TestMessagesSteerAnAgentWhileItsChildWorks(t *testing.T) {
	t.Parallel()
	w := open(t)
	var g gates
	w.work(func(wk *worker.Worker) {
		g.register(wk)
		worker.Agent(wk, "chat", func(ctx *agent.Context, _ struct{}) (out []string, err error) {
			work := agent.Spawn[int](ctx, "gated", 1)
			for {
				said := agent.OnMessage[string](ctx)
				n, err := agent.Select(ctx, work, said)
				if err != nil {
					return out, err
				}
				if n == 0 {
					v, err := work.Result()
					return append(out, fmt.Sprint(v)), err
				}
				text, err := said.Result()
				if err != nil {
					return out, err
				}
				out = append(out, text)
				if err := agent.Emit(ctx, "x:took", text); err != nil {
					return out, err
				}
			}
		})
	})
	th := w.thread()
	id := w.start(perdure.Submission{Kind: "chat", ThreadID: th})
	w.suspended(id)
	w.say(th, "faster")
	w.say(th, "and cheaper")
	eventually.True(t, "both messages are taken", func() bool { return len(w.lines(id, "x:took")) == 2 })
	g.open(1)
	completed(t, w.end(id), `["faster","and cheaper","1"]`)
}

// One child is asked to stop, once, and the others go on.
func TestCancelOfOneChild(t *testing.T) {
	t.Parallel()
	w := open(t)
	var g gates
	w.work(func(wk *worker.Worker) {
		g.register(wk)
		worker.Agent(wk, "boss", func(ctx *agent.Context, _ struct{}) (string, error) {
			fs := gated(ctx, 0, 1)
			if err := fs[0].Cancel(ctx); err != nil {
				return "", err
			}
			_, err := fs[0].Join(ctx)
			if !errors.Is(err, agent.ErrCancelled) {
				return "", perdure.Permanent(fmt.Errorf("%w, want cancelled", err))
			}
			if err := agent.Emit(ctx, "x:cancelled", nil); err != nil {
				return "", err
			}
			v, err := fs[1].Join(ctx)
			return fmt.Sprint(v), err
		})
	})
	id := w.start(perdure.Submission{Kind: "boss"})
	eventually.True(t, "the child is cancelled", func() bool { return len(w.lines(id, "x:cancelled")) == 1 })
	g.open(1)
	completed(t, w.end(id), `"1"`)
	if n := len(w.runs(client.Filter{Kind: "gated", State: perdure.Cancelled})); n != 1 {
		t.Errorf("%d children were cancelled, want 1", n)
	}
}

// The first two of four complete, and the others are cancelled.
func TestFirstOKAndCancelOfTheRest(t *testing.T) {
	t.Parallel()
	w := open(t)
	var g gates
	w.work(func(wk *worker.Worker) {
		g.register(wk)
		worker.Agent(wk, "boss", func(ctx *agent.Context, _ struct{}) (string, error) {
			fs := gated(ctx, 0, 1, 2, 3)
			got, err := agent.FirstOK(ctx, 2, fs...)
			if err != nil {
				return "", err
			}
			for _, f := range got.Remaining {
				if err := f.Cancel(ctx); err != nil {
					return "", err
				}
			}
			set, err := agent.JoinAllSettled(ctx, fs...)
			return fmt.Sprint(set.Completed, set.Cancelled), err
		})
	})
	id := w.start(perdure.Submission{Kind: "boss"})
	g.open(1)
	g.open(3)
	completed(t, w.end(id), `"2 2"`)
}

// A map that fails fast cancels the children that it leaves.
func TestMapThatFailsCancelsTheRest(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.work(func(wk *worker.Worker) {
		worker.Handle(wk, "first", func(ctx context.Context, n int) (int, error) {
			if n == 0 {
				return 0, perdure.Permanent(errors.New("no"))
			}
			<-ctx.Done()
			return 0, context.Cause(ctx)
		})
		worker.Agent(wk, "boss", func(ctx *agent.Context, _ struct{}) (string, error) {
			_, err := agent.Map[int](ctx, "first", numbers(5), agent.MapOptions{Limit: 3})
			if !errors.Is(err, agent.ErrTaskFailed{}) {
				return "", perdure.Permanent(fmt.Errorf("%w, want a failed task", err))
			}
			_, err = agent.Signal[int](ctx, "go on", time.Hour)
			return "handled", err
		})
	})
	id := w.start(perdure.Submission{Kind: "boss"})
	w.children("first", perdure.Cancelled, 2)
	w.signal(id, "go on", 1)
	completed(t, w.end(id), `"handled"`)
}
