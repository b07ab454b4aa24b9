package agent_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/worker"
)

// A view shows the last value that was published, and a replay does not publish again.
func TestViewShowsTheLastValue(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.work(func(wk *worker.Worker) {
		worker.Agent(wk, "plans", func(ctx *agent.Context, _ struct{}) (int, error) {
			for n := range 100 {
				if err := agent.Publish(ctx, "plan", n); err != nil {
					return 0, err
				}
			}
			if _, err := agent.Signal[int](ctx, "go", time.Hour); err != nil {
				return 0, err
			}
			return agent.Step(ctx, "work", func(ctx context.Context) (int, error) {
				return 1, agent.Publish(ctx, "at work", true)
			})
		})
	})
	id := w.start(perdure.Submission{Kind: "plans"})
	w.suspended(id)
	before, err := w.c.View(w.ctx, id, "plan")
	if err != nil || string(before.Value) != "99" {
		t.Fatalf("view plan = %+v (%v), want 99", before, err)
	}
	if _, err := w.c.Signal(w.ctx, id, "go", client.JSON(1)); err != nil {
		t.Fatal(err)
	}
	completed(t, w.end(id), "1")
	after, err := w.c.View(w.ctx, id, "plan")
	if err != nil || string(after.Value) != "99" || after.Version != before.Version {
		t.Errorf("view plan after the end = %s, version %d (%v), want 99 and version %d", after.Value,
			after.Version, err,
			before.Version)
	}
	if v, err := w.c.View(w.ctx, id, "at work"); err != nil || string(v.Value) != "true" {
		t.Errorf("view of a step = %+v (%v), want true", v, err)
	}
	list, err := w.c.Views(w.ctx, id)
	if err != nil || len(list) != 2 || list[0].Name != "at work" || list[1].Size != 2 {
		t.Errorf("views = %+v (%v), want two", list, err)
	}
}

func TestInvalidViewIsRefused(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.work(func(wk *worker.Worker) {
		worker.Agent(wk, "large", func(ctx *agent.Context, _ struct{}) (string, error) {
			err := agent.Publish(ctx, "v", strings.Repeat("x", perdure.MaxView))
			var refused *perdure.Error
			if !errors.As(err, &refused) {
				return "", errors.New("a large view is published")
			}
			return string(refused.Code), nil
		})
		worker.Agent(wk, "misnamed", func(ctx *agent.Context, name string) (int, error) {
			return 0, agent.Publish(ctx, name, 1)
		})
	})
	completed(t, w.ends("large", nil), `"too_large"`)
	for _, name := range []string{"", "a/b", "x\n"} {
		w.defect(w.start(perdure.Submission{Kind: "misnamed", Class: perdure.Agent, Input: client.JSON(name)}),
			agent.CodeMisuse)
	}
	if err := agent.Publish(w.ctx, "v", 1); err == nil {
		t.Error("Publish outside of an agent: no error")
	}
}
