package pairs

import "slices"

// A Cell says how two features are tried together, or why they can't meet.
type Cell struct {
	// Simulated and Conformed tell whether the simulator and the conformance suite reach the pair.
	Simulated, Conformed bool
	// Why says why the two can't meet.
	Why string
	// Code is that of the refusal that keeps them apart. It is empty where no call asks for both.
	Code string
}

// Tried tells whether something tries both at once.
func (c Cell) Tried() bool { return c.Simulated || c.Conformed }

// apart has the pairs that can't meet on one run.
var apart = func() map[Pair]Cell {
	out := make(map[Pair]Cell)
	add := func(f Feature, why, code string, others ...Feature) {
		for _, g := range others {
			out[Pair{f, g}.Sorted()] = Cell{Why: why, Code: code}
		}
	}
	add(Retry, "a run is made by one of them; a run without a dead letter is not redriven", "not_found", Redrive)
	for _, f := range []Feature{Retry, Redrive} {
		add(f, "a repetition has no `run_at`: the call takes none", "invalid", Delay)
		add(f, "a repetition has no parent", "", Child)
		add(f, "a repetition continues nothing, and no chord counts it", "", Chord)
	}
	add(Delay, "the run has not been leased: there is nothing to resume, stop, hold or lose", "", Resume, Cancel,
		Cleanup, Hold, LostLease, StandingPoll)
	add(Delay, "the run has not been leased: a commit is refused", "stale_epoch", Suspend, Parent, Saga, Artifact, View,
		LateResult, Approval, Callback)
	add(Delay, "a conversation begins at once: the call takes no `run_at`", "invalid", Chat)
	for _, f := range []Feature{Pause, Delay, Suspend, Hold, Defer, Share, Tenant, KeyRevoked, Upgrade, Resume, Cancel,
		Cleanup, LostLease, StandingPoll, Retry, Redrive, Approval, Callback, Signal} {
		add(f, "only an ended run is removed, and this is about a live one", "wrong_state", Retention)
	}
	add(Suspend, "a run that is resumed is suspended no more", "", Resume)
	add(Suspend, "a run that is asked to stop may not suspend", "cancel_requested", Cancel, Cleanup)
	add(Suspend, "a held run is queued or leased; progress ends the hold", "", Hold)
	add(Suspend, "a process has no journal to wait with", "outcome_invalid", Process, Pool)
	add(Suspend, "a suspended run has no lease", "stale_epoch", StandingPoll)
	add(Chat, "a conversation has no parent", "", Child)
	add(Chat, "the call takes no webhook: a webhook of the thread or the tenant tells of it", "invalid", Webhook)
	add(Child, "a spawn has no webhook: one of the thread or the tenant tells of it", "invalid", Webhook)
	add(Anew, "the run is made by one of them: a repetition of it continues nothing", "", Retry, Redrive)
	add(Anew, "the run begins at once: `continue_with` takes no `run_at`", "", Delay)
	add(Anew, "the run has no parent, and a child that ends with its parent can't go on", "not_continuable", Child)
	add(Anew, "no chord counts the run, and what continues it is another run", "", Chord)
	add(OneAttempt, "losing the lease ends a run with one attempt", "attempts_exhausted", LostLease)
	add(LateResult, "only a new run is granted to a poll that stands by", "stale_epoch", StandingPoll)
	return out
}()

// Refused lists the pairs that a refusal keeps apart, in their order.
func Refused() (out []Pair) {
	for a := range count {
		for b := a + 1; b < count; b++ {
			if p := (Pair{a, b}); CellOf(p).Code != "" {
				out = append(out, p)
			}
		}
	}
	return out
}

// CellOf gives the cell of two features. A cell without an entry is empty, and a test fails.
func CellOf(p Pair) Cell {
	p = p.Sorted()
	c := Cell{Simulated: Simulated(p), Conformed: slices.Contains(conformed(), p)}
	if !c.Tried() {
		c.Why, c.Code = apart[p].Why, apart[p].Code
	}
	return c
}
