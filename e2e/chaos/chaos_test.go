package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/client/admin"
	"github.com/perdure/perdure/internal/testkit/eventually"
	"github.com/perdure/perdure/internal/testkit/stage"
)

func TestMain(m *testing.M) {
	if spec := os.Getenv(workerVar); spec != "" {
		if err := runWorker(spec); err != nil {
			fmt.Fprintln(os.Stderr, "worker:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	code := m.Run()
	if builtIn != "" {
		os.RemoveAll(builtIn)
	}
	os.Exit(code)
}

// clientCount is how many clients play plots at once.
const clientCount = 14

// A fleet is disturbed by everything that a plan has, and its history is checked.
func TestChaos(t *testing.T) {
	stage.Long(t)
	stage.NoStore(t)
	length := time.Second // one round
	if text := os.Getenv("PERDURE_CHAOS"); text != "" {
		var err error
		if length, err = time.ParseDuration(text); err != nil {
			t.Fatalf("PERDURE_CHAOS: %v", err)
		}
	}
	seed := rand.Uint64() % 1_000_000
	if text := os.Getenv("PERDURE_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("PERDURE_SEED: %v", err)
		}
	}
	var broken []string
	defer func() { // last, where the excerpt of a long log ends
		for _, text := range broken {
			t.Log(text)
		}
	}()
	for _, x := range []struct {
		bell string
		nats bool
	}{{"NATS", true}, {"LISTEN and NOTIFY", false}} {
		t.Run(x.bell, func(t *testing.T) {
			c := &campaign{bell: x.bell, seed: seed, length: length,
				plan: newPlan(seed, length, nodeCount, workerCount, x.nats)}
			if os.Getenv("PERDURE_EVIDENCE") != "" {
				c.commit = describeCommit(t)
			}
			defer func() {
				if t.Failed() {
					broken = append(broken, c.summary())
				}
			}()
			c.run(t, x.nats)
			c.judge(t)
			c.writeEvidence(t)
		})
	}
}

// A campaign is a plan and what came of it.
type campaign struct {
	bell   string
	seed   uint64
	length time.Duration
	plan   []step
	commit string // that is tested, if a page is to be written

	did     []happening
	history *History
	missing []situation // that did not come up
	found   []violation
	load    *load
	fleet   *fleet
	busy    burden
	took    struct{ starting, plan, provoking, ending, checking time.Duration }
}

// run executes the plan under load, provokes what did not come up, mends everything, waits for all runs to end,
// and checks the history.
func (c *campaign) run(t *testing.T, nats bool) {
	program, err := build()
	if err != nil {
		t.Fatal(err)
	}
	lap := stopwatch()
	f := newFleet(t, program, c.seed, nats)
	l := newLoad(f)
	c.fleet, c.load, c.history = f, l, &History{Clocks: new(clocks), Policy: timing}
	f.work(l.serveEffects())
	watching, stop := make(chan struct{}), make(chan struct{})
	watched, sampled := f.watch(watching), c.history.Clocks.follow(watching, c.busy.take)
	ctx, cancel := context.WithTimeout(t.Context(), c.length+eventually.Left(t))
	defer cancel()
	var clients sync.WaitGroup
	for i := range clientCount {
		clients.Go(func() { l.client(ctx, stop, fmt.Sprintf("c%d", i), draw) })
	}
	n := &nemesis{fleet: f}
	c.took.starting = lap()
	n.run(c.plan)
	c.took.plan = lap()
	c.provoke(ctx, t, n, func() {
		clients.Go(func() { l.client(ctx, stop, "talker", func() plot { return talker }) })
	})
	c.took.provoking = lap()
	close(stop)
	for i := range f.nodes {
		f.ready(i)
	}
	clients.Wait() // each waits for its runs
	l.ends(ctx)
	l.followers.Wait()
	close(watching)
	watched.Wait()
	sampled.Wait()
	c.took.ending = lap()
	c.did, c.history.Up = n.did, n.up()
	c.collect(ctx, t)
	c.found = c.history.check()
	l.sound(ctx)
	l.quiet()
	for i, p := range f.nodes {
		if len(p.ended) > 0 {
			l.problem("%s ended by itself %d times (%s)", p.name, len(p.ended), p.ended[0])
		}
		if strings.Contains(tail(f.logOf(i), 1<<30), "panic") {
			l.problem("%s has panicked", p.name)
		}
	}
	c.took.checking = lap()
}

// stopwatch gives a function that tells how long it is since it was called last.
func stopwatch() func() time.Duration {
	last := time.Now()
	return func() time.Duration {
		took := time.Since(last)
		last = last.Add(took)
		return took
	}
}

// collect reads what was recorded and what is stored so far, and notes the situations that did not come up.
func (c *campaign) collect(ctx context.Context, t *testing.T) {
	t.Helper()
	h := c.history
	var err error
	if h.Stored, err = readStore(ctx, c.fleet.pg.URL("postgres")); err != nil {
		t.Fatal(err)
	}
	h.Ops = c.load.rec.all()
	c.fleet.mu.Lock()
	paths := slices.Clone(c.fleet.histories)
	c.fleet.mu.Unlock()
	for _, path := range paths {
		ops, err := readHistory(path)
		if err != nil {
			t.Fatal(err)
		}
		h.Ops = append(h.Ops, ops...)
	}
	c.missing = nil
	for _, s := range situations {
		if s.count(c) == 0 {
			c.missing = append(c.missing, s)
		}
	}
}

// provocations is how often a situation is provoked at most.
const provocations = 20

// provoke brings about the situations that the plan did not lead to: each is provoked by faults of its own while
// nothing else is broken, until it comes up. Talk starts a client that is nearly always within a call, so that some
// fault meets one.
func (c *campaign) provoke(ctx context.Context, t *testing.T, n *nemesis, talk func()) {
	t.Helper()
	for round := range provocations {
		// A situation may be about to come up: a call without an answer is repeated, a lease expires.
		wait := time.Second
		if round > 0 {
			wait = timing.lease + 2*time.Second
		}
		tick := time.NewTicker(250 * time.Millisecond)
		for begun := time.Now(); ; <-tick.C {
			if c.collect(ctx, t); len(c.missing) == 0 || time.Since(begun) > wait {
				break
			}
		}
		tick.Stop()
		var again [][]step
		for _, s := range c.missing {
			again = append(again, s.by(round))
		}
		c.did = n.did
		for name, times := range c.faults() { // its process was not there
			if i := slices.IndexFunc(c.plan, func(s step) bool { return s.Fault == name }); times == 0 {
				once := c.plan[i]
				once.At = 0
				again = append(again, []step{once})
			}
		}
		if len(again) == 0 {
			return
		}
		if round == 0 {
			talk()
		}
		done := make(map[string]bool)
		for _, steps := range again {
			if name := fmt.Sprint(steps); !done[name] {
				done[name] = true
				c.plan = append(c.plan, n.more(steps)...)
			}
		}
	}
}

// ends waits until no run is live.
func (l *load) ends(ctx context.Context) {
	l.t.Helper()
	eventually.True(l.t, "every run has ended", func() bool {
		page, err := l.clients[0].List(ctx, client.Filter{Status: "queued,dispatched,running,suspended", Limit: 1})
		return err == nil && len(page.Runs) == 0 || ctx.Err() != nil
	})
}

// sound asks every node whether the store keeps its invariants.
func (l *load) sound(ctx context.Context) {
	for i := range l.nodes {
		patient := client.New("http://"+l.addrs[i], l.key, client.Options{Timeout: 5 * time.Minute})
		check, err := admin.New(patient).Invariants(ctx)
		patient.Close()
		if err != nil || len(check.Violations) > 0 || check.PastDeadline > 0 {
			l.problem("invariants by node %d: %+v, %v", i, check, err)
		}
	}
}

// judge fails the test for every violation, and if a fault or a situation did not come up. The broken promises
// come first, each with the part of the history that shows it, then the seed and the plan.
func (c *campaign) judge(t *testing.T) {
	told := make(map[string]int)
	for _, v := range c.found {
		if told[v.Rule]++; told[v.Rule] <= 2 { // the report counts the others
			t.Errorf("a broken promise: %s", v)
		}
	}
	for _, text := range c.failures() {
		t.Error(text)
	}
	t.Log("\n" + c.report())
	if !t.Failed() {
		return
	}
	for i := range c.fleet.nodes {
		t.Logf("the end of the log of node %d:\n%s", i, tail(c.fleet.logOf(i), 2000))
	}
	var b strings.Builder
	for _, s := range c.plan {
		fmt.Fprintf(&b, "  %s\n", s)
	}
	t.Logf("the plan of seed %d; PERDURE_SEED=%d PERDURE_CHAOS=%s repeats it:\n%s", c.seed, c.seed, c.length, &b)
}

// failures are the reasons to fail beside broken rules.
func (c *campaign) failures() (out []string) {
	if c.load == nil {
		return nil
	}
	for _, p := range c.load.problems {
		out = append(out, "something that should not happen: "+p)
	}
	for _, d := range c.did {
		if d.err != nil && d.err != errGone {
			out = append(out, fmt.Sprintf("%s: %v", d.step, d.err))
		}
	}
	for name, n := range c.faults() {
		if n == 0 {
			out = append(out, fmt.Sprintf("the fault %q did not come up", name))
		}
	}
	for _, s := range c.missing {
		out = append(out, fmt.Sprintf("the situation %q did not come up", s.name))
	}
	return out
}

// summary says in a few lines what was broken, and how to repeat it.
func (c *campaign) summary() string {
	var list []string
	for _, v := range c.found {
		list = append(list, fmt.Sprintf("a broken promise: %s: run %s: %s", v.Rule, v.Run, v.Text))
	}
	if list = append(list, c.failures()...); len(list) == 0 {
		list = []string{"the test itself has failed: see above"}
	}
	text := fmt.Sprintf("%s, seed %d (PERDURE_SEED=%d PERDURE_CHAOS=%s repeats its plan):", c.bell, c.seed, c.seed,
		c.length)
	for _, line := range list[:min(len(list), 6)] {
		first, _, _ := strings.Cut(line, "\n")
		text += "\n  " + first[:min(len(first), 300)]
	}
	return text
}

// faults counts the faults that were there.
func (c *campaign) faults() map[fault]int {
	n := make(map[fault]int)
	for _, s := range c.plan {
		if s.Fault != nothing {
			n[s.Fault] += 0
		}
	}
	for _, d := range c.did {
		if d.err == nil && d.Fault != nothing {
			n[d.Fault]++
		}
	}
	return n
}

// A situation is something that has to come up, or the campaign has shown nothing.
type situation struct {
	name  string
	by    func(round int) []step // faults that lead to it
	count func(*campaign) int
}

// ops counts operations.
func ops(is func(c *campaign, o Op) bool) func(*campaign) int {
	return func(c *campaign) (n int) {
		for _, o := range c.history.Ops {
			if is(c, o) {
				n++
			}
		}
		return n
	}
}

// lines counts lines of logs.
func lines(is func(r *StoredRun, i int) bool) func(*campaign) int {
	return func(c *campaign) (n int) {
		for _, r := range c.history.Stored.Runs {
			for i := range r.Lines {
				if is(r, i) {
					n++
				}
			}
		}
		return n
	}
}

func typed(t perdure.LineType, part string) func(*campaign) int {
	return lines(func(r *StoredRun, i int) bool {
		return r.Lines[i].Type == t && strings.Contains(r.Lines[i].Data, part)
	})
}

// answeredLater counts operations that had no answer and were made again with one, under the same key.
func answeredLater(kind call) func(*campaign) int {
	return func(c *campaign) (n int) {
		lost := make(map[string]bool)
		for _, o := range c.history.Ops {
			at := o.Run + " " + o.Key
			if kind == submit {
				at = o.Key
			}
			switch {
			case o.Call != kind:
			case o.Answer == unknown:
				lost[at] = true
			case o.Answer == ok && lost[at]:
				n++
				delete(lost, at)
			}
		}
		return n
	}
}

var situations = []situation{
	{"a lease was lost", frozenWorker, typed(perdure.LineReclaimed, `"lease_lost"`)},
	{"a write of a lost lease was refused", frozenWorker, ops(func(_ *campaign, o Op) bool {
		return (o.Call == commit || o.Call == beat) && o.Answer == refused && o.Code == string(perdure.CodeStaleEpoch)
	})},
	{"a late result was kept", frozenWorker, func(c *campaign) (n int) {
		for _, r := range c.history.Stored.Runs {
			n += r.Late
		}
		return n
	}},
	{"a grant whose answer was lost was repeated", lostAnswers("workers"), lines(func(r *StoredRun, i int) bool {
		last := func(l Line) bool { return slices.Contains(leaseLines, l.Type) }
		before := i - 1
		for before >= 0 && !last(r.Lines[before]) {
			before--
		}
		again := r.Lines[i].Type == perdure.LineDispatched
		return again && before >= 0 && r.Lines[before].Type == perdure.LineDispatched
	})},
	{"a submit without an answer was repeated", lostAnswers("clients"), answeredLater(submit)},
	{"a commit without an answer was repeated", lostAnswers("workers"), answeredLater(commit)},
	{"a signal without an answer was repeated", lostAnswers("clients"), answeredLater(signal)},
	{"a run ended by its deadline", calm, typed(perdure.LineTimedOut, "deadline")},
	{"a run was cancelled", calm, typed(perdure.LineCancelled, "")},
	{"a suspended run was resumed", calm, typed(perdure.LineResumed, "")},
	{"a run with one attempt was lost", frozenWorker, lines(func(r *StoredRun, i int) bool {
		return r.Kind == "once" && r.Lines[i].Type == perdure.LineDeadLettered
	})},
	{"a step with an effect was recorded", calm, func(c *campaign) (n int) {
		steps := make(map[string]bool)
		for _, o := range c.history.Ops {
			if o.Call == effect {
				steps[o.Run+" "+o.State] = true
			}
		}
		for _, o := range c.history.Ops {
			for _, key := range o.Keys {
				if o.Answer == ok && steps[o.Run+" "+key] {
					n++
				}
			}
		}
		return n
	}},
	{"an effect was repeated with its key", killedInStep, ops(func(_ *campaign, o Op) bool {
		return o.Call == effect && !o.Applied
	})},
	{"a worker with a wrong clock completed a run", calm, ops(func(c *campaign, o Op) bool {
		return o.Call == commit && o.Answer == ok && o.State == "complete" && c.fleet.wrong[o.By]
	})},
	{"a stream went on at another node", lostAnswers("clients"), func(c *campaign) (n int) {
		at := make(map[string]string)
		for _, o := range c.history.Ops {
			if o.Call == frame {
				if before := at[o.Key]; before != "" && before != o.At {
					n++
				}
				at[o.Key] = o.At
			}
		}
		return n
	}},
	{"a node refused work for a while", noDatabase, func(c *campaign) int { return c.load.refusals }},
}
