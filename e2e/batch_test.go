package e2e

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"syscall"
	"testing"

	"github.com/perdure/perdure/internal/testkit/pgtest"
)

type batchView struct {
	Results []struct {
		Run       *runView `json:"run"`
		Duplicate bool     `json:"duplicate"`
		Error     obj      `json:"error"`
	} `json:"results"`
}

// A server is killed while it starts the runs of a batch. The same call again starts those that are
// missing, and each run exists once.
func TestKillDuringABatchStartsEachRunOnce(t *testing.T) {
	t.Run("SQLite", func(t *testing.T) { killedDuringBatches(t, newNode(t)) })
	t.Run("PostgreSQL", func(t *testing.T) { killedDuringBatches(t, newNode(t, "--store", pgtest.New(t))) })
}

func killedDuringBatches(t *testing.T, n *node) {
	const size = 1000
	rounds, cut := 0, 0
	for round := 0; round < 2 || cut == 0 && round < 10; round++ {
		rounds++
		tag := strconv.Itoa(round)
		runs := make([]obj, size)
		for i := range runs {
			runs[i] = obj{"kind": "job", "input": i, "metadata": obj{"round": tag},
				"idempotency_key": fmt.Sprint(tag, "-", i)}
		}
		done := make(chan batchView, 1)
		go func() {
			var first batchView
			n.call("POST", "/api/v1/runs/batch", "", obj{"runs": runs}, &first) // an error: it was cut off
			done <- first
		}()
		var first batchView
		answered := false
		for least := 1 + rand.IntN(size/2); len(n.inRound(tag)) < least && !answered; { // until a part of it is stored
			select {
			case first = <-done:
				answered = true
			default:
			}
		}
		n.kill(syscall.SIGKILL)
		if !answered {
			first = <-done
		}
		n.start()
		before := n.inRound(tag)
		if len(before) > 0 && len(before) < size {
			cut++
		}
		for i, r := range first.Results {
			if r.Run == nil || before[r.Run.RunID] != 1 {
				t.Errorf("round %s: result %d was acknowledged as %+v, and its run is not stored", tag, i, r)
			}
		}
		var all batchView
		status := n.insist("POST", "/api/v1/runs/batch", "", obj{"runs": runs}, &all)
		if status != 200 || len(all.Results) != size {
			t.Fatalf("round %s: the batch again = %d with %d results, want 200 with %d", tag, status,
				len(all.Results), size)
		}
		after := n.inRound(tag)
		known := 0
		for i, r := range all.Results {
			if r.Run == nil || after[r.Run.RunID] != 1 || r.Duplicate != (before[r.Run.RunID] == 1) {
				t.Fatalf("round %s: result %d = %+v, want a run, and a duplicate if it was stored before", tag, i, r)
			}
			if r.Duplicate {
				known++
			}
			if len(first.Results) > 0 && first.Results[i].Run.RunID != r.Run.RunID {
				t.Errorf("round %s: run %d = %s, then %s, want the same", tag, i, first.Results[i].Run.RunID,
					r.Run.RunID)
			}
		}
		if len(after) != size || known != len(before) {
			t.Errorf("round %s: %d runs, %d of %d known before; want %d, and all of them", tag, len(after), known,
				len(before), size)
		}
	}
	t.Logf("%d of %d batches were cut in the middle", cut, rounds)
}

// inRound counts the runs of a round by their ids.
func (n *node) inRound(tag string) map[string]int {
	n.t.Helper()
	out := make(map[string]int)
	for cursor := ""; ; {
		var page struct {
			Runs       []runView `json:"runs"`
			NextCursor string    `json:"next_cursor"`
		}
		path := "/api/v1/runs?limit=1000&metadata.round=" + tag
		if cursor != "" {
			path += "&cursor=" + cursor
		}
		if status := n.insist("GET", path, "", nil, &page); status != 200 {
			n.t.Fatalf("list of round %s = %d, want 200", tag, status)
		}
		for _, r := range page.Runs {
			out[r.RunID]++
		}
		if cursor = page.NextCursor; cursor == "" {
			return out
		}
	}
}
