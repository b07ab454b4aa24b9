package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/internal/testkit/eventually"
	"github.com/perdure/perdure/internal/testkit/pgtest"
	"github.com/perdure/perdure/internal/testkit/stage"
	"github.com/perdure/perdure/worker"
)

const (
	// heldRuns are under a limit of heldSlots runs at once, and one of paceCount grants a second and one more.
	heldRuns  = 24
	heldSlots = 3
	paceCount = 6
	// clockSlack is how far two nodes may disagree about the order of two lines.
	clockSlack = 20 * time.Millisecond
)

// turns is the program of a worker whose runs take a moment.
func turns(urls, key string) error {
	w := worker.New(client.New(urls, key, client.Options{}), worker.Options{HeartbeatEvery: 500 * time.Millisecond})
	worker.Handle(w, "turn", func(ctx context.Context, ms int) (int, error) {
		select {
		case <-time.After(time.Duration(ms) * time.Millisecond):
			return ms, nil
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	})
	return w.Run(context.Background())
}

// turnsVar makes the test binary such a worker of these addresses.
const turnsVar = "PERDURE_TURNS"

// Limits and schedules are exact on three nodes, while workers that hold slots and all nodes are killed.
func TestFlowControlThroughKills(t *testing.T) {
	stage.Long(t)
	t.Parallel()
	kills := int(number("PERDURE_KILLS", 2))
	f := newFleet(t, 3, pgtest.New(t), leases...)
	var urls []string
	for _, n := range f.nodes {
		urls = append(urls, "http://"+n.addr)
	}
	all := strings.Join(urls, ",")
	c := client.New(all, f.key, client.Options{})
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), eventually.Left(t))
	defer cancel()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	_, err := c.PutLimit(ctx, "held", api.PutLimit{Concurrency: new(heldSlots)})
	must(err)
	_, err = c.PutLimit(ctx, "pace", api.PutLimit{Rate: &perdure.LimitRate{Count: paceCount,
		Per: perdure.Duration(time.Second)}})
	must(err)
	f.insist("PUT", "/api/v1/schedules/tick", "", obj{"every": "10s", "kind": "turn", "input": 1, "max_attempts": 100},
		nil)
	startTurns := func() *exec.Cmd {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), turnsVar+"="+all, turnsVar+"_KEY="+f.key)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { killWorker(cmd) })
		return cmd
	}
	workers := []*exec.Cmd{startTurns(), startTurns()}

	var ids []perdure.RunID
	for i := range heldRuns {
		r, err := c.Start(ctx, perdure.Submission{Kind: "turn", Input: []byte("300"), MaxAttempts: 100,
			Limits: []string{"held", "pace"}}, client.CallOptions{IdempotencyKey: fmt.Sprint("turn", i)})
		must(err)
		ids = append(ids, r.RunID)
	}
	for i := range kills {
		eventually.True(t, "runs hold all slots", func() bool {
			l, err := c.Limit(ctx, "held")
			return err == nil && (l.Leased == heldSlots || l.Waiting == 0)
		})
		if i%2 == 0 {
			killWorker(workers[i/2%2])
			workers[i/2%2] = startTurns()
			continue
		}
		for _, n := range f.nodes {
			n.kill(syscall.SIGKILL)
		}
		for _, n := range f.nodes {
			n.start()
		}
	}

	var log []grantLine
	for _, id := range ids {
		r, deferred, err := c.Join(ctx, id, time.Minute)
		if must(err); deferred {
			t.Fatalf("run %s has no end after a minute: it is %s", id, r.State)
		}
		if r.State != perdure.Completed {
			t.Errorf("run %s is %s, want completed", id, r.State)
		}
		log = append(log, grantsOf(t, f, id)...)
	}
	checkSlots(t, log)
	checkPace(t, log)
	eventually.True(t, "the schedule has fired twice or more", func() bool {
		s, err := c.Schedule(ctx, "tick")
		return err == nil && s.Fired >= 2
	})
	checkFirings(t, c, ctx)
	eventually.True(t, "no slot is held", func() bool {
		l, err := c.Limit(ctx, "held")
		return err == nil && l.Leased == 0 && l.Waiting == 0
	})
}

// A grantLine is when a run got a lease, or lost it.
type grantLine struct {
	at      time.Time
	run     perdure.RunID
	granted bool
	first   bool // the first line of this grant: a dispatch that is sent again takes nothing
}

// grantsOf reads the leases of a run from its log.
func grantsOf(t *testing.T, f *fleet, id perdure.RunID) (out []grantLine) {
	t.Helper()
	var page struct {
		Events []struct {
			Type perdure.LineType
			At   time.Time
			Data struct{ Epoch int64 }
		}
	}
	f.insist("GET", fmt.Sprintf("/api/v1/runs/%s/events?limit=1000", id), "", nil, &page)
	leased, epoch := false, int64(0)
	for _, e := range page.Events {
		switch e.Type {
		case perdure.LineDispatched:
			out = append(out, grantLine{e.At, id, true, e.Data.Epoch != epoch})
			leased, epoch = true, e.Data.Epoch
		case perdure.LineRetrying, perdure.LineReclaimed, perdure.LineCompleted, perdure.LineFailed,
			perdure.LineTimedOut:
			if leased {
				out = append(out, grantLine{at: e.At, run: id})
			}
			leased = false
		}
	}
	return out
}

// checkSlots checks that no more runs were leased at once than the limit allows.
func checkSlots(t *testing.T, log []grantLine) {
	t.Helper()
	for i := range log { // an end counts a little before its line, a grant a little after
		if log[i].granted {
			log[i].at = log[i].at.Add(clockSlack)
		}
	}
	slices.SortStableFunc(log, func(a, b grantLine) int { return a.at.Compare(b.at) })
	leased := make(map[perdure.RunID]bool)
	most := 0
	for _, l := range log {
		if l.granted {
			leased[l.run] = true
		} else {
			delete(leased, l.run)
		}
		most = max(most, len(leased))
	}
	if most != heldSlots {
		t.Errorf("%d runs were leased at once, want %d", most, heldSlots)
	}
}

// checkPace checks that no second has more grants than the rate allows.
func checkPace(t *testing.T, log []grantLine) {
	t.Helper()
	var at []time.Time
	for _, l := range log {
		if l.granted && l.first {
			at = append(at, l.at)
		}
	}
	slices.SortFunc(at, time.Time.Compare)
	for i := range at {
		n := 1
		for n < len(at)-i && at[i+n].Sub(at[i]) < time.Second-clockSlack {
			n++
		}
		if n > paceCount+1 {
			t.Errorf("%d grants within a second from %s on, want %d at most", n, at[i], paceCount+1)
			return
		}
	}
}

// checkFirings checks that each instant of the schedule has started one run, or is counted as missed by one.
func checkFirings(t *testing.T, c *client.Client, ctx context.Context) {
	t.Helper()
	s, err := c.Schedule(ctx, "tick")
	if err != nil {
		t.Fatal(err)
	}
	var at []perdure.Instant
	missed := 0
	for r, err := range c.All(ctx, client.Filter{Kind: "turn"}) {
		if err != nil {
			t.Fatal(err)
		}
		if r.ScheduledFor != nil && *r.ScheduledFor <= *s.LastAt {
			at = append(at, *r.ScheduledFor)
			missed += r.MissedCount
		}
	}
	slices.Sort(at)
	if all := len(slices.Compact(slices.Clone(at))); all != len(at) {
		t.Errorf("%d runs are for %d instants: one was fired twice", len(at), all)
	}
	if want := int(at[len(at)-1].Sub(at[0])/(10*time.Second)) + 1; len(at)+missed != want {
		t.Errorf("of %d instants %d were fired and %d missed: %v", want, len(at), missed, at)
	}
}
