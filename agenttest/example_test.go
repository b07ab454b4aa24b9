package agenttest_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/agenttest"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/worker"
)

// sell is an agent of a program: it charges, waits for a person, and ships.
func sell(ctx *agent.Context, bank *bank, item string) (string, error) {
	receipt, err := agent.Step(ctx, "charge", func(ctx context.Context) (string, error) {
		return bank.charge(ctx, agent.IdempotencyKey(ctx), item)
	})
	if err != nil {
		return "", err
	}
	if _, err := agent.Signal[bool](ctx, agent.StartTask, 24*time.Hour); err != nil {
		return "", err
	}
	shipped, err := agent.Spawn[string](ctx, "ship", item).Join(ctx)
	return shipped + " for " + receipt, err
}

// A bank is the test's fake. If a worker dies after its call, the bank is called twice and charges
// once.
type bank struct {
	s        *agenttest.Trial
	mu       sync.Mutex
	receipts map[string]string // by idempotency key
}

func (b *bank) charge(ctx context.Context, key, item string) (string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.s.Note(ctx, "asked")
	if b.receipts[key] == "" {
		b.s.Note(ctx, "charged for "+item)
		b.receipts[key] = "receipt 1"
	}
	return b.receipts[key], nil
}

// This is the example of the package: a test as a user writes one.
func TestSaleSurvivesEveryCrash(t *testing.T) {
	t.Parallel()
	sale := agenttest.Scenario{
		Start: perdure.Submission{Kind: "sell", Class: perdure.Agent, Input: client.JSON("a lamp")},
		Setup: func(s *agenttest.Trial) func(*worker.Worker) {
			b := &bank{s: s, receipts: make(map[string]string)}
			return func(w *worker.Worker) {
				worker.Agent(w, "sell", func(ctx *agent.Context, item string) (string, error) {
					return sell(ctx, b, item)
				})
				worker.Handle(w, "ship", func(_ context.Context, item string) (string, error) {
					return "shipped " + item, nil
				})
			}
		},
		Script: func(s *agenttest.Trial) {
			s.Sleep(time.Hour) // the person has lunch first
			s.Signal(agent.StartTask, true)
		},
	}
	sale.CrashEverywhere(t, func(t *testing.T, end *agenttest.End) {
		answer, err := client.Result[string](&end.Run)
		if err != nil || answer != "shipped a lamp for receipt 1" {
			t.Errorf("result = %q (error %v), want a shipped lamp and a receipt", answer, err)
		}
		if n := end.Notes["charged for a lamp"]; n != 1 {
			t.Errorf("the card was charged %d times, want once", n)
		}
	})
}
