package main

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agenttest"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/worker"
)

func Example() {
	if err := run(context.Background(), false, os.Stdout); err != nil {
		panic(err)
	}
	// Output:
	// reserve Elm
	// charge 29
	// ship reserve-1
	// completed [{Elm 29} {Maple 33} {Birch 35} {Alder 41} {Hazel 52}] ship-1
}

func Example_broken() {
	if err := run(context.Background(), true, os.Stdout); err != nil {
		panic(err)
	}
	// Output:
	// reserve Elm
	// charge 29
	// refund charge-1
	// release reserve-1
	// failed: no van is left
}

// A ledger is a shop that writes down what it did, in order. It notes each call with the whole ledger,
// so all trials must have the same one.
type ledger struct {
	s  *agenttest.Trial
	mu sync.Mutex
	// done has what was done, and known the ledger after the first call with each key.
	done  []string
	known map[string]string
}

func (l *ledger) call(ctx context.Context, key, action, what string) (string, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.known[key] == "" {
		l.done = append(l.done, action+" "+what)
		l.known[key] = strings.Join(l.done, ", ")
	}
	l.s.Note(ctx, l.known[key])
	if action == "ship" {
		return "", perdure.Permanent(errors.New("no van is left"))
	}
	return action + "-1", nil
}

// The last step fails, and the worker or the server crashes at every point. Each step is done once
// and undone once, in reverse order, and a recorded step is not executed again.
func TestPurchaseIsUndoneOnceAfterEveryCrash(t *testing.T) {
	sc := agenttest.Scenario{
		Setup: func(s *agenttest.Trial) func(*worker.Worker) {
			return Shop((&ledger{s: s, known: make(map[string]string)}).call).register
		},
		Start: perdure.Submission{Kind: "research", Class: perdure.Agent, Input: client.JSON("a lamp")},
		// A source that has not answered after the first five is cancelled. That may be the closed one
		// too, so the states of the sources are left to the check below.
		Scrub: func(field, text string) string {
			if strings.HasPrefix(field, "research: ") || strings.HasPrefix(field, "noted: ") {
				return text
			}
			return ""
		},
	}
	sc.CrashEverywhere(t, func(t *testing.T, end *agenttest.End) {
		if end.Run.State != perdure.Failed || end.Run.Error == nil || end.Run.Error.Message != "no van is left" {
			t.Errorf("run is %s with error %v, want failed: no van is left", end.Run.State, end.Run.Error)
		}
		states := make(map[perdure.State]int)
		for _, r := range end.Tree {
			if r.Kind == "ask" {
				states[r.State]++
			}
		}
		if states[perdure.Completed] != 5 || states[perdure.Cancelled]+states[perdure.Failed] != 3 {
			t.Errorf("states of the sources = %v, want 5 completed, and 3 cancelled or failed", states)
		}
		checkCalls(t, end)
	})
}

// checkCalls compares the calls of the shop with those of a purchase that fails at its end.
func checkCalls(t *testing.T, end *agenttest.End) {
	t.Helper()
	steps := []struct{ record, does string }{
		{"reserve#1", "reserve Elm"}, {"charge#1", "charge 29"}, {"ship#1", "ship reserve-1"},
		{"undo charge#1", "refund charge-1"}, {"undo reserve#1", "release reserve-1"},
	}
	var all, want []string
	for _, step := range steps {
		all = append(all, step.does)
		so := strings.Join(all, ", ")
		want = append(want, so)
		// The one step that a worker was about to record when it died is executed again. A source
		// may report while the agent executes any step.
		before := strings.HasPrefix(end.Crash, "the worker dies before ") &&
			strings.Contains(end.Crash, "records "+step.record)
		beside := strings.HasPrefix(end.Crash, "the worker dies ") && strings.Contains(end.Crash, " of research/ask#")
		if n := end.Notes[so]; n < 1 || n > 2 || n == 2 && !before && !beside {
			t.Errorf("step %s was executed %d times, want once", step.record, n)
		}
	}
	for so := range end.Notes {
		if !slices.Contains(want, so) {
			t.Errorf("the shop was asked to: %s; want %s", so, want[len(want)-1])
		}
	}
}
