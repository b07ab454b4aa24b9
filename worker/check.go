package worker

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
)

// A check replays live runs with this worker's agents, before the worker is released. A run whose journal
// this code contradicts would be held. Reading a run takes a key with runs:read, and a replay calls no
// function of a step and writes nothing: see session.Check.
//
// Runs are read and replayed one at a time by each of a few goroutines, so the memory does not grow with
// their number. Findings are grouped by cause, and a cause keeps the ids of some of its runs.

// CheckOptions are the options of a [Check]. The zero value checks all live runs of the worker's agents.
type CheckOptions struct {
	// Client reads the runs. The default is the worker's. It takes a key with runs:read.
	Client *client.Client
	// Files are exported runs, of perdure journal RUN --export FILE. They are checked in place of the live
	// ones.
	Files []string
	// Sample is how many live runs of each kind are checked, chosen at random. Zero means all.
	Sample int
	// AtOnce is how many runs are replayed at the same time. The default is four for each processor.
	AtOnce int
	// Timeout limits one replay, because a function may wait for something that a step would have done.
	// The default is 30 s.
	Timeout time.Duration
	// Progress is called now and then, with the runs so far and those that would be held.
	Progress func(done, held int)
}

// A CheckReport tells which runs this build would hold.
type CheckReport struct {
	Build string   `json:"build,omitempty"`
	Kinds []string `json:"kinds"`
	// Runs counts the runs that were replayed.
	Runs int `json:"runs"`
	// Held counts those that would be held, and Failed those that sleep and would fail when they wake.
	// Unknown counts those that could not be replayed.
	Held    int `json:"held"`
	Failed  int `json:"failed,omitempty"`
	Unknown int `json:"unknown,omitempty"`
	// Causes has the reasons, the most frequent first, at most 1000.
	Causes []CheckCause `json:"causes"`
	// MS is how long the check took, in milliseconds.
	MS int64 `json:"ms"`
}

// Verdicts of a check.
const (
	VerdictHeld    = "held"    // the run would be held, until a build comes that fits its journal
	VerdictFails   = "fails"   // the run sleeps, and would fail when it wakes
	VerdictUnknown = "unknown" // the run could not be read, or its replay did not end
)

// A CheckCause is a reason why runs would be held.
type CheckCause struct {
	Verdict string       `json:"verdict"`
	Kind    string       `json:"kind"`
	Code    perdure.Code `json:"code"`
	// Where is the step, child or wait at which it was found. It is empty if there is none.
	Where string `json:"where,omitempty"`
	// Message is that of the first run. Those of the others differ in numbers alone.
	Message string `json:"message"`
	Count   int    `json:"count"`
	// Runs has the ids of the first of them, at most 100.
	Runs []perdure.RunID `json:"runs"`
}

const (
	maxCauses    = 1000
	maxCauseRuns = 100
	checkPage    = 200
	checkTimeout = 30 * time.Second
)

// OK tells whether every run can be continued.
func (r *CheckReport) OK() bool { return r.Held+r.Failed+r.Unknown == 0 }

// String returns the report for people.
func (r *CheckReport) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d runs replayed", r.Runs)
	if r.OK() {
		b.WriteString(", and this build continues all of them")
	} else {
		fmt.Fprintf(&b, ": %d would be held", r.Held)
		if r.Failed > 0 {
			fmt.Fprintf(&b, ", %d would fail", r.Failed)
		}
		if r.Unknown > 0 {
			fmt.Fprintf(&b, ", %d could not be checked", r.Unknown)
		}
	}
	b.WriteString("\n")
	for i := range r.Causes {
		c := &r.Causes[i]
		few := c.Runs[:min(len(c.Runs), 3)]
		ids := make([]string, len(few))
		for n, id := range few {
			ids[n] = string(id)
		}
		if c.Count > len(few) {
			ids = append(ids, "…")
		}
		fmt.Fprintf(&b, "\n%d %s, %s, %s at %s\n  %s\n  %s\n", c.Count, c.Kind, c.Verdict, c.Code,
			cmp.Or(c.Where, "its beginning"), strings.ReplaceAll(c.Message, "\n", "\n  "), strings.Join(ids, " "))
	}
	return b.String()
}

// Check replays live runs with the worker's agents, each up to where it stands, and reports which of them
// this build would hold. It executes no steps and writes nothing. The agents' functions and the
// middleware are called as in every execution. An error means that the check could not be made.
//
//	report, err := worker.Check(ctx, w, worker.CheckOptions{Files: files})
//	if err != nil || !report.OK() {
//		t.Fatal(report, err)
//	}
func Check(ctx context.Context, w *Worker, opt CheckOptions) (*CheckReport, error) {
	w.mu.Lock()
	misuse := errors.Join(w.misuse...)
	w.mu.Unlock()
	if misuse != nil {
		return nil, misuse
	}
	opt.Client = cmp.Or(opt.Client, w.c)
	opt.Timeout = cmp.Or(opt.Timeout, checkTimeout)
	if opt.AtOnce <= 0 {
		opt.AtOnce = 4 * runtime.GOMAXPROCS(0)
	}
	k := &check{w: w, opt: opt, began: time.Now(), causes: make(map[string]*CheckCause),
		report: CheckReport{Build: w.opt.Build, Kinds: slices.Sorted(slices.Values(w.agents.kinds)),
			Causes: []CheckCause{}}}
	if err := k.all(ctx); err != nil {
		return nil, err
	}
	return k.end(), nil
}

// A check is one call of Check.
type check struct {
	w     *Worker
	opt   CheckOptions
	began time.Time

	mu     sync.Mutex
	report CheckReport
	causes map[string]*CheckCause
}

// all checks the runs of the files, or the live ones.
func (k *check) all(ctx context.Context) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	fail := func(err error) {
		if err != nil {
			stop(err)
		}
	}
	todo := make(chan func(context.Context) error)
	var workers sync.WaitGroup
	for range k.opt.AtOnce {
		workers.Go(func() {
			for f := range todo {
				fail(f(ctx))
			}
		})
	}
	hand := func(f func(context.Context) error) bool {
		select {
		case todo <- f:
			return true
		case <-ctx.Done():
			return false
		}
	}
	if len(k.opt.Files) > 0 {
		for _, file := range k.opt.Files {
			hand(func(ctx context.Context) error { return k.file(ctx, file) })
		}
	} else {
		fail(k.live(ctx, func(id perdure.RunID) bool {
			return hand(func(ctx context.Context) error { return k.run(ctx, id) })
		}))
	}
	close(todo)
	workers.Wait()
	return context.Cause(ctx)
}

// live calls a function with the live runs of the worker's agents, or with a sample of them.
func (k *check) live(ctx context.Context, check func(perdure.RunID) bool) error {
	if k.opt.Client == nil {
		return errors.New("worker: a check of live runs needs a client")
	}
	live := strings.Join([]string{string(perdure.Queued), string(perdure.Dispatched), string(perdure.Running),
		string(perdure.Suspended), perdure.StatusDeferred}, ",")
	for _, kind := range k.report.Kinds {
		var sample []perdure.RunID
		seen := 0
		for r, err := range k.opt.Client.All(ctx, client.Filter{Kind: kind, Status: live, Limit: checkPage}) {
			if err != nil {
				return fmt.Errorf("list the live runs of %s: %w", kind, err)
			}
			if k.opt.Sample <= 0 {
				if !check(r.RunID) {
					return nil
				}
				continue
			}
			// Each run of the list has the same chance to be in the sample.
			seen++
			if len(sample) < k.opt.Sample {
				sample = append(sample, r.RunID)
			} else if n := rand.IntN(seen); n < len(sample) {
				sample[n] = r.RunID
			}
		}
		for _, id := range sample {
			if !check(id) {
				return nil
			}
		}
	}
	return nil
}

// file checks an exported run.
func (k *check) file(ctx context.Context, name string) error {
	text, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	r, err := api.ParseReplay(text)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if k.w.handlers[r.Kind].replay == nil {
		return fmt.Errorf("%s: it is a run of the kind %q, and this worker has no such agent: it has %s", name, r.Kind,
			cmp.Or(strings.Join(k.report.Kinds, ", "), "none"))
	}
	k.judge(ctx, r)
	return nil
}

// run reads a live run and checks it. A run that has ended meanwhile is left out.
func (k *check) run(ctx context.Context, id perdure.RunID) error {
	r, err := k.opt.Client.Replay(ctx, id)
	switch code := client.CodeOf(err); {
	case err == nil && r.State.Terminal():
	case err == nil:
		k.judge(ctx, r)
	case ctx.Err() != nil:
	case code == perdure.CodeNotFound:
		if _, err := k.opt.Client.Get(ctx, id); err == nil {
			return errors.New("the server is older than this worker: it can't be asked for what a replay needs")
		}
	case code == perdure.CodeDamaged || code == perdure.CodeWrongState:
		k.add(VerdictUnknown, &api.Replay{RunID: id}, perdure.Failure{Code: code, Message: err.Error()})
	default:
		return fmt.Errorf("read run %s: %w", id, err)
	}
	return nil
}

// judge replays a run and adds the verdict.
func (k *check) judge(ctx context.Context, r *api.Replay) {
	s := newCheckRun(ctx, k.w, r)
	done := make(chan *perdure.Outcome, 1)
	go func() { done <- k.w.handlers[r.Kind].replay(s.r.ctx, s) }()
	late := time.NewTimer(k.opt.Timeout)
	defer late.Stop()
	var out *perdure.Outcome
	select {
	case out = <-done:
	case <-ctx.Done():
		return
	case <-late.C:
		s.r.endLease(errDone)
		k.add(VerdictUnknown, r, perdure.Failure{Code: perdure.CodeWaitTimeout, Message: fmt.Sprintf(
			"its replay did not end in %s: does the function wait for something that a step does?", k.opt.Timeout)})
		return
	}
	s.r.endLease(errDone)
	switch {
	case out == nil || out.Error == nil || s.looked.Load():
		k.add("", r, perdure.Failure{})
	case out.Defect:
		k.add(VerdictHeld, r, *out.Error)
	case r.State == perdure.Suspended && !r.Cancel:
		k.add(VerdictFails, r, *out.Error)
	default:
		k.add("", r, perdure.Failure{}) // its journal says that it fails
	}
}

// add counts a run, and its cause if it has one.
func (k *check) add(verdict string, r *api.Replay, why perdure.Failure) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.report.Runs++
	switch verdict {
	case VerdictHeld:
		k.report.Held++
	case VerdictFails:
		k.report.Failed++
	case VerdictUnknown:
		k.report.Unknown++
	}
	if verdict != "" {
		k.addCause(verdict, r, why)
	}
	if k.opt.Progress != nil && k.report.Runs%100 == 0 {
		k.opt.Progress(k.report.Runs, k.report.Held+k.report.Failed)
	}
}

// varying matches the parts of a message that differ between runs with the same cause: numbers, ids, positions.
var varying = regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9]+`)

// addCause counts a cause. The caller holds k.mu.
func (k *check) addCause(verdict string, r *api.Replay, why perdure.Failure) {
	text, _, _ := strings.Cut(why.Message, "\n") // the stack of a panic differs
	key := strings.Join([]string{verdict, r.Kind, string(why.Code), varying.ReplaceAllString(text, "#")}, "\n")
	c := k.causes[key]
	if c == nil && len(k.causes) >= maxCauses {
		return
	}
	if c == nil {
		c = &CheckCause{Verdict: verdict, Kind: r.Kind, Code: why.Code, Message: why.Message}
		if why.Code == perdure.CodeNondeterminism {
			if where, rest, ok := strings.Cut(why.Message, ": "); ok {
				c.Where, c.Message = where, rest
			}
		}
		k.causes[key] = c
	}
	c.Count++
	if len(c.Runs) < maxCauseRuns {
		c.Runs = append(c.Runs, r.RunID)
	}
}

// end returns the report.
func (k *check) end() *CheckReport {
	for _, c := range k.causes {
		slices.Sort(c.Runs)
		k.report.Causes = append(k.report.Causes, *c)
	}
	slices.SortFunc(k.report.Causes, func(a, b CheckCause) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Message, b.Message))
	})
	k.report.MS = time.Since(k.began).Milliseconds()
	return &k.report
}

// A checkRun is the session of a check. It implements session.Check: nothing is sent.
type checkRun struct {
	agentRun
	p *api.Replay
	// looked tells that the agent has looked at what a check does not have, and decides by it.
	looked atomic.Bool
}

func newCheckRun(ctx context.Context, w *Worker, p *api.Replay) *checkRun {
	g := &api.Grant{RunID: p.RunID, Epoch: p.Epoch, Attempt: p.Attempt, MaxAttempts: p.MaxAttempts, Kind: p.Kind,
		Class: p.Class, Queue: p.Queue, ThreadID: p.ThreadID, ParentRunID: p.ParentRunID, RootRunID: p.RootRunID,
		State: p.State, Input: p.Input, DeadlineAt: p.DeadlineAt, OriginRunID: p.OriginRunID, FirstEpoch: p.FirstEpoch,
		Journal: p.Journal, Inbox: p.Inbox, Cancel: p.Cancel}
	if g.Class == perdure.Open {
		g.Class = perdure.Agent // as the grant to this worker would settle it
	}
	r := newRun(w, ctx, g, time.Now())
	if p.Cancel {
		r.stop(ErrCancelled)
	}
	return &checkRun{agentRun: agentRun{r}, p: p}
}

// Asleep implements session.Check.
func (s *checkRun) Asleep() (ids []string) {
	for _, w := range s.p.Waits {
		if w.Asleep {
			ids = append(ids, w.ID)
		}
	}
	return ids
}

// Journal and Inbox have no more: the grant has all.
func (s *checkRun) Journal(context.Context, int64) (*api.JournalPage, error) {
	return &api.JournalPage{}, nil
}
func (s *checkRun) Inbox(context.Context, int64) (*api.InboxPage, error) {
	return &api.InboxPage{}, nil
}

// Messages returns the messages after a number. The run has read no later ones than the check has.
func (s *checkRun) Messages(_ context.Context, after int64) (*api.Messages, error) {
	out := &api.Messages{NextAfter: after}
	for _, m := range s.p.Messages {
		if m.Seq > after {
			out.Messages, out.NextAfter = append(out.Messages, m), m.Seq
		}
	}
	return out, nil
}

// MessagesBackwards returns the messages between two numbers, the newest first.
func (s *checkRun) MessagesBackwards(_ context.Context, after, before int64) (*api.Messages, error) {
	out := &api.Messages{NextBefore: new(int64)}
	for _, m := range slices.Backward(s.p.Messages) {
		if m.Seq > after && (before <= 0 || m.Seq < before) {
			out.Messages = append(out.Messages, m)
		}
	}
	return out, nil
}

// Run ends the check: the activity of a child is not recorded, so the agent does not decide by it.
func (s *checkRun) Run(context.Context, perdure.RunID) (*api.Run, error) {
	s.looked.Store(true)
	s.r.endLease(errDone)
	return nil, context.Canceled
}

// Nothing of a check is sent.
func (s *checkRun) Commit(bool)                                                {}
func (s *checkRun) Heartbeat(string)                                           {}
func (s *checkRun) Progress(json.RawMessage)                                   {}
func (s *checkRun) Emit(context.Context, perdure.LineType, any) error          { return nil }
func (s *checkRun) Delta(context.Context, string, string, int64, string) error { return nil }
