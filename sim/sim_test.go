package sim

import (
	"fmt"
	"io"
	"maps"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/perdure/perdure/internal/testkit/pairs"
)

// base is the first seed of a campaign, unless PERDURE_SIM_BASE says otherwise.
const base = 1

// regressions are seeds that have failed once.
var regressions = []uint64{24, 80, 246, 20312, 20394, 30099}

// Without a given number of seeds a campaign has as many as fit into the time limit: at least
// fewest, and at most most.
const (
	limit  = 75 * time.Second // with repeated seeds and the other tests the package stays below 90 s
	fewest = 200
	most   = 400
)

// situations are those that a campaign has to reach. A situation that never occurs is not tested.
var situations = []string{
	"a batch was decided again after a conflict",
	"a busy thread refused a run",
	"a call was repeated because its outcome was unknown",
	"a callback came after its wait",
	"a cancel came after the end",
	"a cancel lost to a complete",
	"a cancel was acknowledged",
	"a chord fired at once",
	"a closed wait gave back what had come for it",
	"a commit was answered as the first time",
	"a commit was kept and its caller told otherwise",
	"a commit was sent again because its outcome was unknown",
	"a conversation began",
	"a dead letter was redriven",
	"a dead letter was written",
	"a dispatch that nobody spoke of went back to the queue",
	"a gap began",
	"a gap held the watchdog back",
	"a grant was marked to be cancelled",
	"a held run was given up",
	"a hold was released",
	"a key gave the same run again",
	"a key was revoked",
	"a key with another body was refused",
	"a late result was adopted",
	"a late result was kept",
	"a lost dispatch was granted again",
	"a lost worker's run was taken back",
	"a node granted before it knew of a pause",
	"a pause was asked for again",
	"a pause was changed while the other node was deciding",
	"a poll that stood by ended with its key",
	"a process completed with all of its output",
	"a process outlived the server",
	"a process that was gone was given up",
	"a process was found that had outlived its store",
	"a process went on under a new epoch",
	"a queue was paused",
	"a queue was resumed",
	"a queue with claimable runs was paused",
	"a result was adopted",
	"a run left a chord",
	"a run was deferred",
	"a run was granted after a pause",
	"a run was granted by the batch that made it claimable",
	"a run was handed back",
	"a run was held again by the same build",
	"a run was held",
	"a run's turn on its thread came",
	"a second execution chose the winner of a select",
	"a select was won by a child",
	"a select was won by a message",
	"a select was won by a signal",
	"a select was won by a timer",
	"a sentinel was a sign of life",
	"a single attempt began after an answer",
	"a stale commit was refused",
	"a step was undone",
	"a suspend was refused because of a cancel request",
	"a suspended run was resumed",
	"a tenant at its limit could not spawn",
	"a tenant got a limit of live runs",
	"a wait was over already when the run suspended",
	"an attempt was retried",
	"an ended run was continued",
	"another build tried a held run",
	"ended by: attempts_exhausted",
	"ended by: deadline_exceeded",
	"ended by: dispatch_timeout",
	"ended by: outcome_unknown",
	"ended by: rejected",
	"ended by: timeout_reaped_by_watchdog",
	"ended by: wait_timeout",
	"fault: all nodes away",
	"fault: clock jumped",
	"fault: code defect",
	"fault: commit failed after",
	"fault: commit failed before",
	"fault: commit sent again",
	"fault: doorbell forged",
	"fault: doorbell lost",
	"fault: doorbell twice",
	"fault: lost lease ignored",
	"fault: node crashed",
	"fault: node died after a commit",
	"fault: node died inside a transaction",
	"fault: other node between two reads",
	"fault: other node in between",
	"fault: program hung",
	"fault: reply lost",
	"fault: request lost",
	"fault: request twice",
	"fault: run released",
	"fault: statement failed after",
	"fault: statement failed before",
	"fault: worker crashed",
	"fault: worker stalled",
	"outside work made a continuation",
	"rule W11 queued-too-long",
	"rule W12 dead",
	"rule W12 stale",
	"rule W13 no-progress",
	"rule W13 silent",
	"rule W14 workers",
	"rule W15 cancel-grace",
	"rule W15 due",
	"rule W15 group-deadline",
	"rule W15 hold-timeout",
	"rule W15 waiters",
	"rule W2 suspended-too-long",
	"rule W4 dispatch-retry",
	"rule W5 dispatch-timeout",
	"rule W6 lost-worker",
	"rule W8 deadline",
	"runs were submitted together",
	"several operations shared a batch",
	"the store was restored from a backup",
}

// number returns a number from the environment.
func number(t *testing.T, name string, byDefault uint64) uint64 {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return byDefault
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s is not a number: %v", name, err)
	}
	return n
}

// explain describes a failed seed, and how to replay it.
func explain(r *Report) string {
	return fmt.Sprintf("seed %d breaks %s\n\n%s\n\nreplay: make sim SEED=%d", r.Seed, r.Violation,
		strings.Join(r.Tail, "\n"), r.Seed)
}

// campaign runs several seeds at a time. Each simulation has one goroutine.
func campaign(t *testing.T, opt Options, seeds []uint64, until time.Time, each func(*Report)) {
	t.Helper()
	var mu sync.Mutex
	var group sync.WaitGroup
	next := 0
	for range runtime.GOMAXPROCS(0) {
		group.Go(func() {
			for {
				mu.Lock()
				if next >= len(seeds) || (next >= fewest && time.Now().After(until)) {
					mu.Unlock()
					return
				}
				seed := seeds[next]
				next++
				mu.Unlock()
				r, err := Run(seed, opt)
				mu.Lock()
				if err != nil {
					t.Errorf("seed %d: %v", seed, err)
				} else {
					each(r)
				}
				mu.Unlock()
			}
		})
	}
	group.Wait()
}

func seedsFrom(first uint64, n int) []uint64 {
	out := make([]uint64, n)
	for i := range out {
		out[i] = first + uint64(i)
	}
	return out
}

// moreSeeds is how often a campaign goes on with as many seeds if they have not led to all that it wants.
const moreSeeds = 3

// campaignFor runs a campaign of n seeds, and goes on if one of the situations was not reached.
func campaignFor(t *testing.T, opt Options, n int, situations []string, total Counts, each func(*Report)) (ran int) {
	t.Helper()
	missing := func() []string {
		return slices.DeleteFunc(slices.Clone(situations), func(what string) bool { return total[what] > 0 })
	}
	first := number(t, "PERDURE_SIM_BASE", base)
	for range moreSeeds {
		campaign(t, opt, seedsFrom(first+uint64(ran), n), time.Now().Add(24*time.Hour), func(r *Report) {
			total.Add(r.Counts)
			each(r)
		})
		if ran += n; len(missing()) == 0 || t.Failed() {
			break
		}
	}
	for _, what := range missing() {
		t.Errorf("situation %q was not reached in %d seeds, want it at least once", what, ran)
	}
	return ran
}

func TestSeeds(t *testing.T) {
	n := int(number(t, "PERDURE_SIM_SEEDS", 0))
	until := time.Now().Add(24 * time.Hour)
	if n == 0 {
		n = most
		until = time.Now().Add(limit)
		if testing.Short() {
			n = 20
		}
	}
	seeds := append(append([]uint64(nil), regressions...), seedsFrom(number(t, "PERDURE_SIM_BASE", base), n)...)
	total, met := make(Counts), make(meetingPoints)
	var again []*Report // one in twenty is run twice
	ran, steps, runs, quiet := 0, 0, 0, 0
	var simulated time.Duration
	begin := time.Now()
	campaign(t, Options{}, seeds, until, func(r *Report) {
		ran++
		steps += r.Steps
		runs += r.Runs
		simulated += r.Simulated
		total.Add(r.Counts)
		met.add(r.Pairs)
		if r.Counts.Faults() == 0 {
			quiet++
		}
		if r.Violation != nil {
			t.Error(explain(r))
		}
		if ran%20 == 1 {
			again = append(again, r)
		}
	})
	first := make(map[uint64]*Report, len(again))
	for _, r := range again {
		first[r.Seed] = r
	}
	campaign(t, Options{}, slices.Sorted(maps.Keys(first)), until, func(twin *Report) {
		if r := first[twin.Seed]; twin.Hash != r.Hash || twin.Steps != r.Steps {
			t.Errorf("seed %d: %d steps with hash %x, and the second time %d steps with hash %x, want the same", r.Seed,
				r.Steps, r.Hash, twin.Steps, twin.Hash)
		}
	})
	took := time.Since(begin)
	t.Logf("%d seeds in %s (%.1f/s): %d runs, %d steps, %.0f simulated hours, %d faults, %d seeds without one\n%s",
		ran, took.Round(time.Millisecond),
		float64(ran+len(again))/took.Seconds(), runs, steps, simulated.Hours(), total.Faults(), quiet, total)
	if quiet > 0 {
		t.Errorf("%d seeds injected no fault, want some in every seed", quiet)
	}
	if ran >= 150 {
		for _, what := range situations {
			if total[what] == 0 {
				t.Errorf("situation %q was not reached in %d seeds, want it at least once", what, ran)
			}
		}
		met.check(t, ran, func(p pairs.Pair) bool { return p.Then != pairs.Anew }) // see TestRunsGoOnAnew
	}
}

func TestSameSeedSameTrace(t *testing.T) {
	for _, seed := range seedsFrom(number(t, "PERDURE_SIM_BASE", base), 4) {
		a, err := Run(seed, Options{})
		if err != nil {
			t.Fatal(err)
		}
		b, err := Run(seed, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if a.Hash != b.Hash || a.Steps != b.Steps {
			t.Errorf("seed %d: %d steps with hash %x, and the second time %d steps with hash %x, want the same", seed,
				a.Steps, a.Hash, b.Steps, b.Hash)
		}
	}
}

func TestReplay(t *testing.T) {
	opt := Options{Trace: os.Stdout, Anew: os.Getenv(anewEnv) != "", Flow: os.Getenv(flowEnv) != ""}
	if os.Getenv("PERDURE_SIM_SEED") == "" {
		opt.Trace = io.Discard // without a given seed it only checks that a replay works
	}
	r, err := Run(number(t, "PERDURE_SIM_SEED", 1), opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("seed %d: %d runs, %d steps, %s simulated, trace %x\n%s", r.Seed, r.Runs, r.Steps, r.Simulated, r.Hash,
		r.Counts)
	if r.Violation != nil {
		t.Fatal(explain(r))
	}
}
