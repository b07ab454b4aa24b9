package conformance

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/access"
	"github.com/perdure/perdure/internal/server/engine/dispatch"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/engine/outbox"
	"github.com/perdure/perdure/internal/server/engine/rules"
	"github.com/perdure/perdure/internal/server/engine/upkeep"
	"github.com/perdure/perdure/internal/server/store"
	"github.com/perdure/perdure/internal/testkit/pairs"
	"github.com/perdure/perdure/internal/testkit/storetest"
)

// Every two features on one run.
//
// A feature has a move that brings it into force: it shapes the submission, makes the run, or does
// something to the live run. For every two features a run gets both, in both orders where that is
// possible. The detector of package pairs says whether both were in force at once. Then the run is
// brought to its end, and what holds for every end is checked.
//
// The pairs that were reached are compared with internal/testkit/pairs/conformance.txt. With
// PERDURE_PAIRS_WRITE the list is written instead.

// errNotNow says that a move is not possible in the state that the run is in.
var errNotNow = errors.New("not possible in this state")

// A move brings a feature into force on a run.
type move struct {
	// shape changes the submission.
	shape func(x *subject)
	// make makes the run.
	make func(x *subject) error
	// again says that it makes the run of another one.
	again bool
	// do acts on the live run.
	do func(x *subject) error
}

// A subject is a run that gets two features.
type subject struct {
	*World
	name     string // in messages
	queue    string
	pooled   bool // a process of a pool
	sub      perdure.Submission
	id       perdure.RunID
	parent   perdure.RunID
	original func(x *subject) error
	grant    *dispatch.Grant
	poll     *dispatch.Standby
	restart  bool
	revoked  bool
	nodes    int
	stoodBy  int64
	limited  bool
	removed  bool
	last     perdure.Run
	asked    perdure.Instant

	history pairs.History
	met     map[pairs.Pair]bool
}

// subject prepares a run.
func (w *World) subject(name string) *subject {
	w.n++
	x := &subject{World: w, name: name, queue: fmt.Sprintf("q%d", w.n), nodes: 1, met: make(map[pairs.Pair]bool)}
	x.sub = perdure.Submission{Kind: fmt.Sprintf("kind%d", w.n), Class: perdure.Agent, Queue: x.queue,
		Input: json.RawMessage(`{"n":1}`), Timeout: minutes(540)}
	return x
}

// try runs an operation that may be refused. A refusal has a code that a caller can act on.
func (x *subject) try(op kernel.Op) error {
	x.t.Helper()
	err := x.E.Step(x.Now, op)[0]
	if code := perdure.CodeOf(err); code == perdure.CodeInternal || err != nil && code == "" {
		x.t.Fatalf("%s: %T: %v", x.name, op, err)
	}
	return err
}

// run reads the run.
func (x *subject) run() perdure.Run {
	x.t.Helper()
	if x.removed {
		return x.last
	}
	x.last = x.get(x.id).Run
	return x.last
}

// look notes which features are in force.
func (x *subject) look() pairs.Set {
	x.t.Helper()
	if x.id == "" {
		return 0
	}
	r := x.run()
	var f pairs.Facts
	x.view(func(v *store.View) (err error) {
		if f, err = pairs.Read(v, &r); err != nil {
			return err
		}
		p, ok, err := v.Pauses.Get(tenant, r.Queue)
		f.Paused = ok && p.Holds(x.Now)
		return err
	})
	f.Restarted, f.KeyRevoked, f.Nodes, f.Removed = x.restart, x.revoked, x.nodes, x.removed
	f.StoodBy = x.stoodBy != 0 && x.stoodBy == r.Epoch
	s := pairs.Detect(&f)
	for _, p := range x.history.Observe(s) {
		x.met[p] = true
	}
	return s
}

// create makes the run.
func (x *subject) create(a, b move) error {
	for _, m := range []move{a, b} {
		if m.shape != nil {
			m.shape(x)
		}
	}
	x.original = func(x *subject) error {
		op := &life.Submit{Tenant: tenant, Submission: x.sub}
		err := x.try(op)
		x.id = op.Run.ID
		return err
	}
	make := x.original
	for _, m := range []move{a, b} {
		switch {
		case m.make == nil:
		case m.again:
			make = m.make
		default:
			if x.original = m.make; !a.again && !b.again {
				make = m.make
			}
		}
	}
	if err := make(x); err != nil {
		x.id = ""
		return err
	}
	if x.poll != nil {
		if grants := x.poll.End(); len(grants) == 1 && grants[0].Run.ID == x.id {
			x.grant, x.stoodBy = &grants[0], grants[0].Run.Epoch
		}
		x.poll = nil
	}
	return nil
}

// claim leases the run if a poll gets it.
func (x *subject) claim() bool {
	x.t.Helper()
	x.n++
	op := &dispatch.Claim{Tenant: tenant, Worker: "w-" + x.queue, Queues: []string{x.queue}, Slots: 1, Start: true,
		Build: fmt.Sprintf("build%d", x.n)}
	if x.queue == localQueue {
		op.Queues, op.Runs = nil, []perdure.RunID{x.id}
	}
	x.do(op)
	if len(op.Grants) == 0 {
		return false
	}
	x.check(op.Grants[0].Run.ID == x.id, "%s: the poll of queue %s got another run", x.name, x.queue)
	x.grant = &op.Grants[0]
	return true
}

const localQueue = perdure.LocalQueue

// leased has the run leased.
func (x *subject) leased() (dispatch.Grant, error) {
	x.t.Helper()
	r := x.run()
	switch {
	case r.State.Leased() && x.grant != nil && x.grant.Run.Epoch == r.Epoch:
	case r.State != perdure.Queued || !x.claim():
		return dispatch.Grant{}, errNotNow
	}
	x.beat(*x.grant)
	return *x.grant, nil
}

// commits sends a commit of the leased run.
func (x *subject) commits(c perdure.Commit) error {
	x.t.Helper()
	g, err := x.leased()
	if err != nil {
		return err
	}
	op := x.commitOf(g, c)
	if err := x.try(op); err != nil {
		return err
	}
	if op.Refused != nil {
		return op.Refused
	}
	return nil
}

// sleeps suspends the run on a signal.
func (x *subject) sleeps() error {
	if x.run().State == perdure.Suspended {
		return nil
	}
	return x.commits(perdure.Commit{Waits: []perdure.WaitSpec{{ID: "wake", Type: perdure.WaitSignal, Name: "wake",
		Timeout: perdure.Never}}, Outcome: suspend})
}

// opens opens a wait.
func opens(w perdure.WaitSpec) func(x *subject) error {
	return func(x *subject) error { return x.commits(perdure.Commit{Waits: []perdure.WaitSpec{w}}) }
}

// fails ends a run with an error that makes a dead letter if it was the last attempt.
func (x *subject) fails() error { return x.commits(perdure.Commit{Outcome: failed("broken")}) }

// repeats makes the run by a repetition of another one.
func repeats(again func(x *subject, id perdure.RunID) (perdure.Run, error)) func(x *subject) error {
	return func(x *subject) error {
		if err := x.original(x); err != nil {
			return err
		}
		// A poll that stands by is for the repetition.
		poll := x.poll
		x.poll = nil
		if poll != nil {
			for _, g := range poll.End() {
				x.grant = &g
			}
		}
		if err := x.fails(); err != nil {
			return err
		}
		for x.run().State == perdure.Queued { // a retryable failure with attempts left
			x.pass(time.Minute)
			if err := x.fails(); err != nil {
				return err
			}
		}
		if poll != nil {
			x.standBy()
		}
		x.grant = nil
		made, err := again(x, x.id)
		x.id, x.queue = made.ID, made.Queue
		return err
	}
}

// standBy has a poll stand by for the queue.
func (x *subject) standBy() {
	claim := &dispatch.Claim{Tenant: tenant, Worker: "w-" + x.queue, Queues: []string{x.queue}, Slots: 1, Start: true}
	x.do(claim)
	x.poll = x.E.StandBy(claim)
}

// moves has the move of every feature that is brought into force on a run of a living store.
var moves = map[pairs.Feature]move{
	pairs.Retry: {again: true, make: repeats(func(x *subject, id perdure.RunID) (perdure.Run, error) {
		op := &life.Retry{Tenant: tenant, RunID: id, Local: x.queue == localQueue}
		err := x.try(op)
		return op.Run, err
	})},
	pairs.Redrive: {shape: func(x *subject) {
		x.sub.MaxAttempts = max(x.sub.MaxAttempts, 2)
		x.pooled = true // nobody may take a redriven run of perdure exec
		if x.queue == localQueue {
			x.queue, x.sub.Queue = "pool", "pool"
		}
	}, again: true,
		make: repeats(func(x *subject, id perdure.RunID) (perdure.Run, error) {
			op := &upkeep.Redrive{Tenant: tenant, RunID: id}
			err := x.try(op)
			return op.Run, err
		})},
	pairs.Resume: {do: func(x *subject) error {
		if err := x.sleeps(); err != nil {
			return err
		}
		return x.try(&life.Signal{Tenant: tenant, RunID: x.id, Name: "wake"})
	}},
	pairs.Cancel: {do: func(x *subject) error {
		if x.run().StartedAt == 0 {
			if _, err := x.leased(); err != nil {
				return err
			}
		}
		return x.cancels()
	}},
	pairs.Cleanup: {do: func(x *subject) error {
		if x.run().Cancel.RequestedAt != 0 || x.run().Options.Process || x.sleeps() != nil {
			// It can't sleep: the holder acknowledges the request.
			g, err := x.leased()
			if err != nil {
				return err
			}
			if err := x.cancels(); err != nil {
				return err
			}
			return x.try(&life.Heartbeat{Tenant: tenant, Worker: g.Run.Worker,
				Beats: []life.BeatOf{{Lease: lease(g), CancelAck: true}}})
		}
		if err := x.cancels(); err != nil {
			return err
		}
		x.check(x.claim() && x.grant.Cancel, "%s: a run that is asked to stop is not granted for its clean-up", x.name)
		return nil
	}},
	pairs.Pause: {do: func(x *subject) error {
		return x.try(&rules.PauseQueue{Tenant: tenant, Queue: x.run().Queue})
	}},
	pairs.Hold: {do: func(x *subject) error { return x.commits(perdure.Commit{Outcome: defect("panic")}) }},
	pairs.Deadline: {do: func(x *subject) error {
		if x.run().State.Terminal() {
			return errNotNow
		}
		if x.last.OnHold() { // otherwise the end of the hold is the end of the run
			x.claim()
		}
		x.look()
		x.Now = max(x.Now, x.run().DeadlineAt)
		x.sweep()
		x.pass(x.E.Policy().GapSpare + time.Second)
		return nil
	}},
	pairs.Delay: {shape: func(x *subject) { x.sub.Delay = perdure.Duration(time.Hour) }},
	pairs.Defer: {shape: func(x *subject) { x.sub.Foreground = true }, do: func(x *subject) error {
		return x.try(&life.Defer{Tenant: tenant, RunID: x.id, Reason: "detached"})
	}},
	pairs.Suspend: {do: func(x *subject) error {
		return x.commits(perdure.Commit{Waits: []perdure.WaitSpec{{ID: "later", Type: perdure.WaitTimer,
			Timeout: minutes(20)}}, Outcome: suspend})
	}},
	pairs.Thread: {shape: func(x *subject) { x.sub.ThreadID = x.thread() }},
	pairs.Chat: {shape: func(x *subject) { x.sub.ThreadID = x.thread() }, make: func(x *subject) error {
		if x.sub.Class == perdure.Process || x.sub.MaxAttempts > 0 { // a conversation takes these from its kind
			x.announce(x.sub.Kind, "1", perdure.KindDef{Class: x.sub.Class,
				Retry: &perdure.KindRetry{MaxAttempts: x.sub.MaxAttempts}})
		}
		op := &life.Chat{Tenant: tenant, ThreadID: x.sub.ThreadID, Kind: x.sub.Kind, Timeout: x.sub.Timeout,
			Foreground: x.sub.Foreground, Message: user("hello")[0]}
		err := x.try(op)
		x.id, x.queue = op.Run.ID, op.Run.Queue
		return err
	}},
	pairs.Group: {do: func(x *subject) error {
		return x.try(&life.CreateGroup{Tenant: tenant, Mode: perdure.ModeAll, RunIDs: []perdure.RunID{x.id}})
	}},
	pairs.Chord: {shape: func(x *subject) {
		if x.sub.ThreadID == "" {
			x.sub.ThreadID = x.thread()
		}
		x.pooled = true // nobody may take the continuation of a run of perdure exec
		if x.queue == localQueue {
			x.queue, x.sub.Queue = "pool", "pool"
		}
	}, make: func(x *subject) error {
		op := &life.Submit{Tenant: tenant, Submission: x.sub}
		if err := x.try(op); err != nil {
			return err
		}
		x.id = op.Run.ID
		if x.poll != nil {
			for _, g := range x.poll.End() {
				x.grant = &g
			}
		}
		if err := x.commits(perdure.Commit{Outcome: done(`"later"`)}); err != nil {
			return err
		}
		if x.poll != nil {
			x.standBy()
		}
		x.grant = nil
		more := &life.Continue{Tenant: tenant, RunID: x.id, Trigger: "ci", JobID: "job"}
		err := x.try(more)
		x.id = more.Made
		return err
	}},
	pairs.Child: {make: func(x *subject) error {
		r := x.submit(perdure.Submission{Kind: "parent", Queue: "parents" + x.queue, Class: perdure.Agent,
			Timeout: minutes(600)})
		claim := &dispatch.Claim{Tenant: tenant, Worker: "p", Queues: []string{"parents" + x.queue}, Slots: 1,
			Start: true}
		x.do(claim)
		x.check(len(claim.Grants) == 1 && claim.Grants[0].Run.ID == r.ID, "%s: the parent", x.name)
		x.parent = r.ID
		if x.sub.Webhook != "" || x.sub.Foreground {
			return perdure.Errorf(perdure.CodeInvalid, "a spawn has no such field")
		}
		spawn := perdure.Spawn{Key: "kid", Kind: x.sub.Kind, Class: x.sub.Class, Queue: x.sub.Queue,
			ThreadID: x.sub.ThreadID, Timeout: x.sub.Timeout, Delay: x.sub.Delay, MaxAttempts: x.sub.MaxAttempts,
			Input: x.sub.Input}
		ans := x.commit(claim.Grants[0], perdure.Commit{Children: []perdure.Spawn{spawn}})
		x.id = ans.Children[0].RunID
		x.commit(claim.Grants[0], perdure.Commit{Waits: []perdure.WaitSpec{{ID: "kid", Type: perdure.WaitChildren,
			Keys: []string{"kid"}, Timeout: perdure.Never}}, Outcome: suspend})
		return nil
	}},
	pairs.Parent: {do: func(x *subject) error {
		return x.commits(perdure.Commit{Children: []perdure.Spawn{{Key: "own", Kind: "own", Queue: "own",
			Timeout: minutes(5)}}})
	}},
	pairs.Saga: {do: func(x *subject) error { return x.commits(perdure.Commit{Journal: steps("pay#1")}) }},
	pairs.Process: {shape: func(x *subject) {
		x.sub.Class = perdure.Process
		if x.sub.MaxAttempts == 0 {
			x.sub.MaxAttempts = 2
		}
		if !x.pooled {
			x.queue, x.sub.Queue = localQueue, localQueue
		}
	}},
	pairs.Pool: {shape: func(x *subject) {
		x.sub.Class = perdure.Process
		if x.sub.MaxAttempts == 0 {
			x.sub.MaxAttempts = 2
		}
	}},
	pairs.OneAttempt: {shape: func(x *subject) { x.sub.MaxAttempts = 1 }},
	pairs.LostLease: {do: func(x *subject) error {
		if _, err := x.leased(); err != nil {
			return err
		}
		for range 30 {
			x.pass(time.Minute)
			if !x.run().State.Leased() {
				break
			}
		}
		x.grant = nil
		if x.run().State.Terminal() {
			return errNotNow
		}
		return nil
	}},
	pairs.Signature: {},
	pairs.Artifact: {do: func(x *subject) error {
		g, err := x.leased()
		if err == nil {
			x.put(g, "left.txt", []byte("left"))
		}
		return err
	}},
	pairs.View: {do: func(x *subject) error {
		return x.commits(perdure.Commit{Views: []perdure.View{{Name: "plan", Value: json.RawMessage(`1`)}}})
	}},
	pairs.Webhook: {shape: func(x *subject) { x.sub.Webhook = "https://1.1.1.1/" }},
	pairs.Retention: {do: func(x *subject) error {
		if r := x.run(); r.State.Live() {
			before := x.fingerprint()
			err := x.try(&upkeep.DeleteRun{Tenant: tenant, RunID: x.id})
			x.check(perdure.CodeOf(err) == perdure.CodeWrongState && x.fingerprint() == before,
				"%s: a live run was to be deleted: %v", x.name, err)
			x.finish()
		}
		x.run()
		if h := perdure.WebhookID(x.last.Options.Webhook); h != "" {
			x.do(&outbox.DeleteWebhook{Tenant: tenant, ID: h})
			x.do(&outbox.Deliver{Want: []outbox.Want{{Tenant: tenant, Webhook: h}}})
		}
		x.passRetention()
		x.sweep()
		x.retire()
		x.check(!x.exists(x.id), "%s: the run is not removed after its retention", x.name)
		x.removed = true
		return nil
	}},
	pairs.Share: {do: func(x *subject) error {
		var n int64
		x.view(func(v *store.View) error {
			return v.Rows("SELECT count(*) FROM runs WHERE tenant=? AND alarm_at IS NOT NULL", []any{string(tenant)},
				func(scan func(...any) error) error { return scan(&n) })
		})
		x.quota(max(1, n))
		x.limited = true
		return nil
	}},
	pairs.Tenant: {do: func(x *subject) error {
		return x.try(&life.Submit{Tenant: "theirs", Submission: perdure.Submission{Kind: "other",
			Queue: x.run().Queue, Timeout: minutes(1)}})
	}},
	pairs.KeyRevoked: {do: func(x *subject) error {
		key := &access.CreateKey{Tenant: tenant, Name: "caller", Scopes: perdure.TenantScopes}
		x.do(key)
		x.do(&access.RevokeKey{Tenant: tenant, ID: key.Key.ID})
		x.revoked = true
		return nil
	}},
	pairs.Upgrade: {do: func(x *subject) error {
		x.World.restart()
		x.restart = true
		return nil
	}},
	pairs.SecondNode: {do: func(x *subject) error {
		if x.Other == nil {
			return errNotNow
		}
		x.E, x.W, x.Other.E, x.Other.W = x.Other.E, x.Other.W, x.E, x.W
		x.nodes = 2
		return x.try(&life.Attach{Tenant: tenant, Node: "other", RunIDs: []perdure.RunID{x.id}})
	}},
	pairs.LateResult: {do: func(x *subject) error {
		g, err := x.leased()
		if err != nil {
			return err
		}
		x.do(&life.Release{Tenant: tenant, Worker: g.Run.Worker, Leases: []life.Lease{lease(g)}})
		x.grant = nil
		return x.try(x.commitOf(g, perdure.Commit{Outcome: done(`"late"`)}))
	}},
	pairs.Signal: {do: func(x *subject) error {
		return x.try(&life.Signal{Tenant: tenant, RunID: x.id, Name: "other"})
	}},
	pairs.Approval: {do: opens(perdure.WaitSpec{ID: "ok", Type: perdure.WaitApproval, Name: "approve_it",
		Timeout: minutes(10), Approval: &perdure.ApprovalSpec{Title: "Go on?", Action: json.RawMessage(`{"a":1}`)}})},
	pairs.Callback:     {do: opens(perdure.WaitSpec{ID: "cb", Type: perdure.WaitCallback, Timeout: minutes(10)})},
	pairs.StandingPoll: {shape: func(x *subject) { x.standBy() }},
	// It goes on for a run that the other feature may have made.
	pairs.Anew: {again: true, shape: func(x *subject) {
		x.pooled = true // a run of perdure exec does not go on
		if x.queue == localQueue {
			x.queue, x.sub.Queue = "pool", "pool"
		}
	}, make: func(x *subject) error {
		if err := x.original(x); err != nil {
			return err
		}
		poll := x.poll
		if poll != nil {
			for _, g := range poll.End() {
				x.grant = &g
			}
			x.poll = nil
		}
		g, err := x.leased()
		if err != nil {
			return err
		}
		if poll != nil {
			x.standBy()
		}
		if err := x.answer(g, perdure.Commit{Outcome: anew(`1`, `{"n":2}`)}); err != nil {
			return err
		}
		x.id, x.grant = x.get(x.id).ContinuedBy, nil
		return nil
	}},
	pairs.Kind: {shape: func(x *subject) {
		x.announce(x.sub.Kind, "1", perdure.KindDef{Description: "of a pair"})
	}},
}

// cancels asks the run to stop.
func (x *subject) cancels() error {
	x.asked = x.Now
	return x.try(&life.Cancel{Tenant: tenant, RunID: x.id, Reason: "no longer needed"})
}

// finish brings the run to its end and checks what holds for every end.
func (x *subject) finish() {
	x.t.Helper()
	if x.limited {
		x.quota(0)
	}
	for step := 0; !x.run().State.Terminal(); step++ {
		r := x.last
		x.check(step < 400 && x.Now < r.DeadlineAt.Add(time.Hour), "%s: the run does not end, and is %s (%+v)", x.name,
			r.State, r)
		switch {
		case r.State == perdure.Suspended:
			x.answerWaits(&r)
			if x.run().State == perdure.Suspended {
				x.pass(time.Minute)
			}
		case r.State.Leased() && x.grant != nil && x.grant.Run.Epoch == r.Epoch:
			x.end(&r)
		case r.State == perdure.Queued && x.claim():
			x.look()
		case r.State == perdure.Queued && r.Cancel.RequestedAt == 0 && x.paused(&r):
			x.World.resume(r.Queue)
		default:
			x.pass(20 * time.Second)
		}
	}
	x.checkEnd()
}

// end has the holder of the run end it: it undoes what is to be undone, and stops or completes.
func (x *subject) end(r *perdure.Run) {
	c := perdure.Commit{Outcome: done(`"done"`)}
	if r.Cancel.RequestedAt != 0 {
		c.Outcome = stopped
		x.view(func(v *store.View) error {
			journal, err := v.Journal.After(tenant, x.id, 0, 1000)
			for _, j := range journal {
				if key, ok := strings.CutPrefix(j.Key, perdure.UndoPrefix); ok {
					c.Journal = append(c.Journal, entry(perdure.UndonePrefix+key))
				}
			}
			return err
		})
	}
	op := x.commitOf(*x.grant, c)
	err := x.try(op)
	x.check(err == nil && op.Refused == nil, "%s: the holder can't end the run: %v, %v", x.name, err, op.Refused)
}

// answerWaits answers what the run waits for.
func (x *subject) answerWaits(r *perdure.Run) {
	_ = x.try(&life.Signal{Tenant: tenant, RunID: r.ID, Name: "wake"})
	if x.get(r.ID).State == perdure.Suspended {
		x.pass(20 * time.Minute)
	}
}

func (x *subject) paused(r *perdure.Run) (yes bool) {
	x.view(func(v *store.View) error {
		p, ok, err := v.Pauses.Get(tenant, r.Queue)
		yes = ok && p.Holds(x.Now)
		return err
	})
	return yes
}

// checkEnd checks what holds for every end.
func (x *subject) checkEnd() {
	x.t.Helper()
	r := x.run()
	log := x.lines(x.id)
	ends := 0
	for _, l := range log {
		for _, s := range perdure.States {
			if s.Terminal() && l.Type == perdure.TerminalLine(s) {
				ends++
			}
		}
	}
	state, ok := perdure.Fold(log)
	x.check(ok && state == r.State, "%s: the run is %s, and its log says %s", x.name, r.State, state)
	x.check(ends == 1, "%s: %d ends in the log %v", x.name, ends, x.types(x.id))
	x.check(r.WaitsOpen == 0, "%s: %d waits are open after the end", x.name, r.WaitsOpen)
	x.check(r.MaxAttempts != 1 || r.Attempt == 1, "%s: attempt %d of one", x.name, r.Attempt)
	if r.State == perdure.Cancelled && r.Failure != nil {
		undone := fallback(x.World, r.Fallback).NotUndone
		x.check(len(undone) == 0, "%s: the clean-up left %v", x.name, undone)
	}
	if r.Options.Webhook != "" {
		notes := slices.DeleteFunc(x.notes(x.id, ""), func(n perdure.Notification) bool {
			return n.Type != perdure.TerminalLine(r.State)
		})
		x.check(len(notes) == 1, "%s: %d notifications of its end", x.name, len(notes))
	}
	if r.ParentID != "" {
		told := 0
		for _, i := range x.items(r.ParentID) {
			if i.Type == perdure.ItemChild && i.From == x.id {
				told++
			}
		}
		x.check(told == 1, "%s: its parent was told %d times of its end", x.name, told)
	}
	if r.Late > 0 && r.RetryOf == "" {
		x.check(len(x.lates(x.id)) == r.Late, "%s: %d late results, want %d", x.name, len(x.lates(x.id)), r.Late)
	}
	if r.ThreadID != "" {
		th, _, err := x.E.Threads.Get(x.ctx(), tenant, r.ThreadID, 0, 1)
		x.check(err == nil && th.Active != x.id, "%s: its thread is still busy with it: %v", x.name, err)
	}
}

// outcomes is what a pair came to.
type outcomes struct {
	met    map[pairs.Pair]bool         // in force together, by order
	apart  map[pairs.Pair]perdure.Code // refused, by order
	wanted map[pairs.Pair]bool         // those of the list
}

// newOutcomes knows what is to be reached on a store. On PostgreSQL, which takes much longer, that is
// what is tried with the named features, and with PERDURE_TEST_FULL all of the list.
func newOutcomes(at store.Options) outcomes {
	o := outcomes{met: make(map[pairs.Pair]bool), apart: make(map[pairs.Pair]perdure.Code),
		wanted: make(map[pairs.Pair]bool)}
	for _, p := range pairs.Conformed() {
		o.wanted[p] = at.URL == "" || os.Getenv("PERDURE_TEST_FULL") != "" || named.Has(p.First) ||
			named.Has(p.Then) || p.First == pairs.Restore || p.Then == pairs.Restore
	}
	return o
}

// together brings two features into force on one run, the first one first.
func (w *World) together(a, b pairs.Feature, out *outcomes) {
	w.t.Helper()
	x := w.subject(a.String() + " then " + b.String())
	x.look()
	refused := func(err error) {
		if code := perdure.CodeOf(err); !errors.Is(err, errNotNow) {
			out.apart[pairs.Pair{First: a, Then: b}] = code
		}
	}
	if err := x.create(moves[a], moves[b]); err != nil {
		refused(err)
		return
	}
	x.look()
	for _, f := range []pairs.Feature{a, b} {
		if m := moves[f]; m.do != nil {
			if err := m.do(x); err != nil {
				refused(err)
			}
		}
		x.look()
	}
	for p := range x.met {
		out.met[p] = true
	}
	if !x.removed {
		x.finish()
	}
	if x.parent != "" {
		w.cancel(x.parent)
	}
	if p, ok := moves[pairs.SecondNode], x.nodes == 2; ok && p.do != nil {
		x.E, x.W, x.Other.E, x.Other.W = x.Other.E, x.Other.W, x.E, x.W
	}
}

// pairsEnv makes the test write the list of what was reached instead of comparing with it.
const pairsEnv = "PERDURE_PAIRS_WRITE"

// named are the features that are tried with every other one here, whatever the simulator reaches.
var named = pairs.Of(pairs.OneAttempt, pairs.Process, pairs.Cleanup, pairs.Share)

// tried tells whether a pair is tried here: the simulator does not reach it, or one of the two is named.
func tried(a, b pairs.Feature) bool {
	return a != b && (named.Has(a) || named.Has(b) || !pairs.Simulated(pairs.Pair{First: a, Then: b}))
}

// pairsWorld is a world of two nodes in which gaps of the watchdog play no part: then few sweeps are
// enough.
func pairsWorld(t *testing.T, at store.Options) *World {
	t.Helper()
	w := node(t, at)
	w.Other = node(t, at)
	w.widenGap()
	w.Other.widenGap()
	return w
}

func TestPairs(t *testing.T) {
	storetest.OnBoth(t, func(t *testing.T, at store.Options) {
		all := newOutcomes(at)
		for a := range pairs.Feature(pairs.Count) {
			t.Run(a.String(), func(t *testing.T) {
				w := pairsWorld(t, at)
				if a == pairs.Signature {
					w.signWith("a")
					w.widenGap()
				}
				for b := range pairs.Feature(pairs.Count) {
					if b == pairs.Signature || a == pairs.Restore || b == pairs.Restore || !tried(a, b) {
						continue // a signature is there from the start, and a restore is for all at once
					}
					if p := (pairs.Pair{First: b, Then: a}); at.URL != "" && (all.met[p] || !all.wanted[p.Sorted()]) {
						continue // one order is enough on the slower store
					}
					t.Run(b.String(), func(t *testing.T) {
						w.t = t
						w.together(a, b, &all)
					})
				}
				w.t = t
				w.pass(time.Minute) // what a gap has postponed
				w.fsck()
			})
		}
		t.Run(pairs.Restore.String(), func(t *testing.T) { restoreAll(t, at, &all) })
		all.compare(t)
	})
}

// restoreAll brings every feature into force, restores the store from a backup, and ends all runs.
// Each feature is once in force before the restore, and once after it.
func restoreAll(t *testing.T, at store.Options, all *outcomes) {
	w := pairsWorld(t, at)
	w.signWith("a")
	w.widenGap()
	var before, after []*subject
	for f := range pairs.Feature(pairs.Count) {
		m, ok := moves[f]
		if !ok || f == pairs.Deadline || f == pairs.Retention {
			m = move{}
		}
		x := w.subject(f.String() + " then restore")
		x.look()
		if err := x.create(m, move{}); err != nil {
			t.Fatalf("%s: %v", x.name, err)
		}
		x.look()
		if m.do != nil {
			if err := m.do(x); err != nil {
				t.Fatalf("%s: %v", x.name, err)
			}
		}
		x.look()
		before = append(before, x)
		if x.nodes == 2 {
			x.E, x.W, x.Other.E, x.Other.W = x.Other.E, x.Other.W, x.E, x.W
		}
		if x.limited { // the others are to be made
			x.quota(0)
		}
		x = w.subject("restore then " + f.String())
		x.look()
		if err := x.create(move{}, move{}); err != nil {
			t.Fatalf("%s: %v", x.name, err)
		}
		after = append(after, x)
	}
	before[pairs.Share].do(setQuota{1})
	to := store.Options{Memory: storetest.Memory(t)}
	if at.URL != "" {
		to = store.Options{URL: storetest.Postgres(t)}
	}
	to.Hooks.Clock = func() perdure.Instant { return dawn }
	v := restored(t, backup(t, w.S), to)
	v.Now = max(v.Now, w.Now)
	v.Signer = w.Signer
	v.restart()
	v.widenGap()
	for _, x := range slices.Concat(before, after) {
		x.World, x.grant, x.restart = v, nil, true
		x.look()
	}
	v.quota(0)
	last := after[pairs.Deadline]
	after = append(slices.Delete(after, int(pairs.Deadline), int(pairs.Deadline)+1), last)
	for _, x := range after { // the deadline last: it takes long
		f, ok := featureOf(strings.TrimPrefix(x.name, "restore then "))
		if m := moves[f]; ok && m.do != nil && f != pairs.SecondNode && f != pairs.Retention {
			if err := m.do(x); err != nil {
				t.Fatalf("%s: %v", x.name, err)
			}
		}
		x.look()
		x.finish()
	}
	for _, x := range before {
		x.finish()
	}
	for _, x := range before { // all that has ended is removed
		if x.exists(x.id) {
			if err := moves[pairs.Retention].do(x); err != nil {
				t.Fatalf("%s, then its retention: %v", x.name, err)
			}
			x.look()
		} else {
			x.removed = true
			x.look()
		}
	}
	for _, x := range slices.Concat(before, after) {
		for p := range x.met {
			if p.First == pairs.Restore || p.Then == pairs.Restore {
				all.met[p] = true
			}
		}
	}
	v.fsck()
}

func featureOf(name string) (pairs.Feature, bool) {
	for f := range pairs.Feature(pairs.Count) {
		if f.String() == name {
			return f, true
		}
	}
	return 0, false
}

// compare fails if a pair of the list was not reached. With pairsEnv it writes the list.
func (o *outcomes) compare(t *testing.T) {
	t.Helper()
	path := os.Getenv(pairsEnv)
	if path == "" {
		for _, p := range pairs.Conformed() {
			if o.wanted[p] && !o.met[p] && !o.met[pairs.Pair{First: p.Then, Then: p.First}] {
				t.Errorf("%s were not in force on one run, want it: the page says so", p)
			}
		}
		return
	}
	var reached, missing []string
	for a := range pairs.Feature(pairs.Count) {
		for b := a + 1; b < pairs.Feature(pairs.Count); b++ {
			p := pairs.Pair{First: a, Then: b}
			switch {
			case !tried(a, b) && a != pairs.Restore && b != pairs.Restore:
			case o.met[p] || o.met[pairs.Pair{First: b, Then: a}]:
				reached = append(reached, p.String())
			default:
				other := o.apart[pairs.Pair{First: b, Then: a}]
				missing = append(missing, fmt.Sprintf("%s: %s %s", p, o.apart[p], other))
			}
		}
	}
	if err := os.WriteFile(path, []byte(strings.Join(reached, "\n")+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d pairs are reached, %d are not:\n%s", len(reached), len(missing), strings.Join(missing, "\n"))
}
