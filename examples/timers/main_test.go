package main

import (
	"context"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agenttest"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/worker"
)

func Example() {
	main()
	// Output:
	// to Ada: welcome
	// to Ada: your trial ends in three days
	// to Ada: goodbye
	// completed "closed"
}

// trial returns a scenario in which days have a certain length.
func trial(day time.Duration) agenttest.Scenario {
	return agenttest.Scenario{
		Setup: func(s *agenttest.Trial) func(*worker.Worker) {
			agent := Trial{Day: day, Mail: func(ctx context.Context, _, to, text string) error {
				s.Note(ctx, text)
				return nil
			}}
			return func(w *worker.Worker) { worker.Agent(w, "trial", agent.run) }
		},
		Start: perdure.Submission{Kind: "trial", Class: perdure.Agent, Input: client.JSON("Ada"),
			Timeout: perdure.Duration(30 * day)},
		Patience: 31 * day,
	}
}

func TestTrialEndsAfterAMonth(t *testing.T) {
	end := trial(24 * time.Hour).Run(t)
	if result, err := client.Result[string](&end.Run); err != nil || result != "closed" {
		t.Errorf("result = %q (error %v), want closed", result, err)
	}
	if took := end.Run.FinishedAt.Sub(end.Run.CreatedAt).Round(time.Hour); took != 28*24*time.Hour {
		t.Errorf("the run took %s, want 28 days", took)
	}
}

func TestSubscriptionEndsTrial(t *testing.T) {
	const day = time.Minute // a short day, because there is one trial for every crash
	sc := trial(day)
	sc.Script = func(s *agenttest.Trial) {
		s.Sleep(14 * day)
		s.Signal("subscribed", "gold")
	}
	sc.CrashEverywhere(t, func(t *testing.T, end *agenttest.End) {
		plan, err := client.Result[string](&end.Run)
		if err != nil || plan != "gold" || end.Notes["thank you"] == 0 || end.Notes["goodbye"] != 0 {
			t.Errorf("result = %q (error %v), mails %v; want gold, a thank you and no goodbye", plan, err, end.Notes)
		}
	})
}
