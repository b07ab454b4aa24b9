package perdure

import (
	"reflect"
	"slices"
)

// This file has the table of transitions and Apply, the only function that changes a run.

// An Event is something that happens to a run. Transitions decides in which states it may happen
// and which state follows. The event's apply changes the other fields of the run.
type Event interface {
	apply(p *Policy, r *Run, now Instant, log *history)
}

// A Transition is one row of the table: in state From, the event On leads to state To. A pair of
// state and event without a row is refused.
type Transition struct {
	From State
	On   string
	To   State
	Who  string // the cause of it: worker, watchdog, server or person
	Note string
}

// Transitions has all rows of the table. The rows of everyLive, everyEnd and everyState are appended
// to it when the package is initialized. docs/lifecycle.md is printed from it.
var Transitions = []Transition{
	{Queued, "Accepted", Queued, "person, worker, server", "a new run: the first line of its log"},
	{Queued, "Granted", Dispatched, "worker", "a poll takes it"},
	{Queued, "GrantedStarted", Running, "worker", "a poll with start:true takes and starts it in one write"},
	{Queued, "Due", Queued, "watchdog", "its delay or backoff is over: claimable"},
	{Queued, "JournalCopied", Queued, "person, watchdog",
		"a part of the original's journal is copied to a retry; with the last part it is claimable"},
	{Queued, "Debounced", Queued, "person", "another submission under its key: a new input, and a later begin"},
	{Queued, "TurnCame", Queued, "server", "the thread is free: it becomes the active run"},
	{Queued, "Slow", Queued, "watchdog", "claimable for too long, or on hold: an alert, never a kill"},
	{Queued, "NeverClaimed", TimedOut, "watchdog", "only its own runner may take it, and does not"},
	{Queued, "ProcessRestored", Queued, "person", processRestoredNote},
	{Queued, "ProcessFound", Running, "server", processFoundNote},
	{Queued, "LimitReached", Queued, "server", "it waits at a limit without room: not claimable"},
	{Queued, "LimitOffered", Queued, "server, watchdog", "its limits have room: claimable"},
	{Queued, "HoldReleased", Queued, "person", "its hold is over: any build may claim it now"},
	{Queued, "HoldExpired", Failed, "watchdog", "on hold for too long: a dead letter with the defect's code"},
	{Queued, "HoldAbandoned", Failed, "person", abandonedNote},

	{Dispatched, "Granted", Dispatched, "worker", "granted again after a lost dispatch"},
	{Dispatched, "GrantedStarted", Running, "worker", "granted again, and started"},
	{Dispatched, "Regrantable", Dispatched, "watchdog", "not heard from: any poll may take it again"},
	{Dispatched, "GrantLost", Queued, "watchdog", "not heard from for too long: back to the queue, no attempt spent"},
	{Dispatched, "NeverStarted", TimedOut, "watchdog", "ten deliveries and nobody was heard from"},
	{Dispatched, "Started", Running, "worker", ""},
	{Dispatched, "Heartbeat", Running, "worker", "a heartbeat of the current epoch starts it"},
	{Dispatched, "Released", Queued, "worker", "handed back; no attempt spent"},
	{Dispatched, "CleanupAgain", Queued, "worker, watchdog", cleanupNote},
	{Dispatched, "Restored", Queued, "person", "the store was restored from a backup; no attempt spent"},
	{Dispatched, "Rejected", Failed, "worker, server",
		"refused before the start, or not handed over: its signature is not valid"},
	{Dispatched, "ItemsHandedOver", Dispatched, "worker", "its holder reads more of its inbox"},
	{Dispatched, "GaveUp", Failed, "watchdog", "a single attempt that may have begun, and was lost: a dead letter"},
	{Dispatched, "HoldAbandoned", Failed, "person", abandonedNote},

	{Running, "Granted", Running, "worker", "granted again: the first holder was never heard from"},
	{Running, "GrantedStarted", Running, "worker", "the same, with start:true"},
	{Running, "Regrantable", Running, "watchdog", "granted with start:true and not heard from"},
	{Running, "GrantLost", Queued, "watchdog", "granted with start:true and not heard from for too long"},
	{Running, "NeverStarted", TimedOut, "watchdog", "ten deliveries and nobody was heard from"},
	{Running, "Started", Running, "worker", "said again"},
	{Running, "Heartbeat", Running, "worker", ""},
	{Running, "SentinelMoved", Running, "server", "the server has read the sign of life of a process from its file"},
	{Running, "ProcessWatched", Running, "server", "a process that may have outlived the server is not given up yet"},
	{Running, "ProcessRestored", Running, "person", processRestoredNote},
	{Running, "ProcessFound", Running, "server", processFoundNote},
	{Running, "Committed", Running, "worker", "journal, children, waits, messages, events"},
	{Running, "WaitOpened", Running, "worker", "a commit opens a wait"},
	{Running, "WaitWithdrawn", Running, "worker", "a commit closes a wait"},
	{Running, "ItemsHandedOver", Running, "worker", "its holder reads more of its inbox"},
	{Running, "WentToSleep", Suspended, "worker", "suspend: the worker is free"},
	{Running, "Retried", Queued, "worker, watchdog", "lost or failed with attempts left"},
	{Running, "GaveUp", Failed, "worker, watchdog", "lost or failed with none left: a dead letter"},
	{Running, "HoldBegun", Queued, "worker", "a defect of the code: backoff, no attempt spent"},
	{Running, "HoldAbandoned", Failed, "person", abandonedNote},
	{Running, "Released", Queued, "worker", "handed back; no attempt spent"},
	{Running, "CleanupAgain", Queued, "worker, watchdog", cleanupNote},
	{Running, "Restored", Queued, "person", "the store was restored from a backup; no attempt spent"},
	{Running, "StepAdmitted", Running, "worker", "a step takes slots of its limits"},
	{Running, "StepsLeft", Running, "worker", "steps give their slots back"},
	{Running, "Done", Completed, "worker", ""},
	{Running, "FailedForGood", Failed, "worker", "not retryable, or under a cancel request"},
	{Running, "WaitFailed", TimedOut, "worker", "a wait timed out and the agent did not handle it"},
	{Running, "Rejected", Failed, "worker", "refused after the start"},
	{Running, "CancelConfirmed", Cancelled, "worker", "the holder stopped"},
	{Running, "Reaped", Failed, "watchdog", "no sign of life: the net under the lease"},
	{Running, "Slow", Running, "watchdog", "silent, or no progress: an alert, never a kill"},
	{Running, "WentStale", Running, "watchdog", "silent for longer: an alert, never a kill"},

	{Suspended, "Woken", Queued, "server, watchdog", "a wait is over: resuming is queueing"},
	{Suspended, "LimitReached", Suspended, "worker, server", "a step waits at a limit without room"},
	{Suspended, "ProcessRestored", Suspended, "person", processRestoredNote},
	{Suspended, "WaitClockReset", Suspended, "server, watchdog", "the first timeout of its open waits is another one"},

	{Failed, "FindingsListed", Failed, "server", findingsNote},
	{TimedOut, "FindingsListed", TimedOut, "server", findingsNote},
	{Cancelled, "FindingsListed", Cancelled, "server", findingsNote},
}

const processFoundNote = "restored from a backup, and its process lives: it is the holder again"

const processRestoredNote = "a process, restored from a backup: it may live on, and is looked for first"

const abandonedNote = "on hold, and given up: a dead letter with the defect's code"

const cleanupNote = "lost or handed back while it is being cancelled, and a saga has steps to undo"

const findingsNote = "its fallback lists its artifacts, its last text and the steps that were not undone"

// everyLive has the rows that hold in every live state. An empty To means that the state stays the
// same.
var everyLive = []Transition{
	{"", "DeadlinePassed", TimedOut, "watchdog", "the deadline; not retried"},
	{"", "Orphaned", Failed, "watchdog", "its queue, thread, tenant or parent is gone"},
	{"", "Corrupted", Failed, "server, watchdog", "its stored row can't be read: a dead letter"},
	{"", "CancelEnforced", Cancelled, "watchdog, person",
		"nothing has started, or the grace is over, or the holder is lost"},
	{"", "Adopted", Completed, "person", "a late result is taken"},
	{"", "CancelAsked", "", "person", "a request; the holder is told"},
	{"", "WentDeferred", "", "server", "nobody waits any more; the work goes on"},
	{"", "Reattached", "", "person", "somebody waits again"},
	{"", "Renumbered", "", "person", "the store was restored from a backup: older epochs never hold again"},
	{"", "ClockSetBack", "", "person",
		"the store's clock was ahead and was set back: its instants that lie in the future are moved back"},
	{"", "Rearmed", "", "watchdog", "nothing to do now; look again strictly later"},
	{"", "AlarmRepaired", "", "watchdog", "its alarm was missing or too late, and is set anew"},
	{"", "WaitEnded", "", "person, server, watchdog", "a wait is satisfied, timed out, stalled or orphaned"},
	{"", "WaitsClosed", "", "server", "it is about to end: all of its open waits are closed"},
	{"", "ItemArrived", "", "person, server, watchdog", "its inbox has one more item"},
	{"", "ItemReclaimed", "", "watchdog", "an inbox item of an epoch that it never had is pending again"},
	{"", "ItemsContinued", "", "server",
		"it is about to end: a continuation takes over the outside work in its inbox"},
	{"", "ChildStarted", "", "worker", "a child has started"},
	{"", "ChildEnded", "", "server", "a child has ended: an inbox item and a line of its log"},
	{"", "QuestionsBelow", "", "person, server, watchdog, worker",
		"a run below it asks a person, or no longer does"},
	{"", "Gathered", "", "person, worker", "a chord or a group counts it"},
	{"", "WaiterAttached", "", "person", "one more node has a caller that waits for it"},
	{"", "WaiterLeft", "", "person", "a node has no such caller any more, and others have"},
}

// everyEnd has the rows that hold in every terminal state.
var everyEnd = []Transition{
	{"", "CascadeAdvanced", "", "server, watchdog", "some of its live children have been asked to stop"},
	{"", "ItemExpired", "", "watchdog", "an inbox item that nobody will read is skipped"},
	{"", "LateResultAdopted", "", "person", "a late result replaces its deliverable"},
	{"", "OutputKept", "", "server", "output that its process had written is copied from a file"},
}

// everyState has the rows that hold in every state, live or terminal.
var everyState = []Transition{
	{"", "MessagesAppended", "", "server", "its thread has messages of it"},
	{"", "Continued", "", "server", "a continuation of it was made on its thread"},
	{"", "LateResultKept", "", "worker, server", "a result that came too late is kept beside it"},
	{"", "LateResultDiscarded", "", "person", "a late result is discarded"},
	{"", "Repeated", "", "person", "a new run has its input: a retry, or a dead letter that is redriven"},
	{"", "CallbackRefused", "", "person", "a callback came after its wait was over: its log keeps it"},
}

// table indexes Transitions by state and event.
var table = func() map[State]map[string]State {
	t := make(map[State]map[string]State)
	for _, s := range States {
		t[s] = make(map[string]State)
		own := everyEnd
		if s.Live() {
			own = everyLive
		}
		for _, row := range slices.Concat(own, everyState) {
			row.From = s
			if row.To == "" {
				row.To = s
			}
			Transitions = append(Transitions, row)
		}
	}
	for _, row := range Transitions {
		t[row.From][row.On] = row.To
	}
	return t
}()

// deeds say in a refusal what an event would have done to a run. Events have names of their own for readers of the
// code.
var deeds = map[string]string{
	"Granted": "leased", "GrantedStarted": "leased and started", "Due": "made claimable",
	"TurnCame": "made its thread's active run",
	"Slow":     "called slow", "Regrantable": "leased again", "GrantLost": "put back into its queue",
	"NeverStarted": "given up", "NeverClaimed": "given up", "ProcessRestored": "given a new epoch",
	"ProcessFound": "found alive",
	"Started":      "started", "Heartbeat": "kept alive by a heartbeat",
	"Released": "handed back", "Restored": "restored",
	"Rejected": "rejected", "Committed": "committed to", "WentToSleep": "suspended", "Retried": "retried",
	"GaveUp": "given up",
	"Done":   "completed", "FailedForGood": "failed", "WaitFailed": "timed out by a wait",
	"CancelConfirmed": "cancelled by its worker",
	"Reaped":          "ended for its silence", "WentStale": "called stale", "Woken": "resumed",
	"DeadlinePassed": "timed out",
	"Orphaned":       "orphaned", "Corrupted": "ended for its damage", "CancelEnforced": "cancelled",
	"Adopted":     "completed by a late result",
	"CancelAsked": "asked to stop", "WentDeferred": "deferred", "Reattached": "attached to",
	"Renumbered": "given a new epoch", "ClockSetBack": "set back in time", "Rearmed": "looked at later",
	"Accepted": "accepted", "AlarmRepaired": "given a new alarm", "WaitOpened": "given a wait",
	"WaitWithdrawn": "relieved of a wait", "WaitsClosed": "relieved of its waits",
	"WaitEnded":      "told of the end of a wait",
	"WaitClockReset": "given another time to wake", "CallbackRefused": "sent a callback too late",
	"ItemArrived": "sent an inbox item", "ItemsHandedOver": "asked for its inbox",
	"ItemReclaimed": "given back an inbox item", "ItemsContinued": "continued for its inbox",
	"ItemExpired": "relieved of an inbox item", "ChildStarted": "told of the start of a child",
	"ChildEnded": "told of the end of a child", "QuestionsBelow": "told of questions below it",
	"CascadeAdvanced": "followed by its children",
	"Gathered":        "counted by a group", "MessagesAppended": "given messages", "Continued": "continued",
	"LateResultKept": "given a late result", "LateResultDiscarded": "relieved of a late result",
	"LateResultAdopted": "given a late result as its deliverable", "FindingsListed": "given a list of its findings",
	"LimitReached": "blocked by a limit", "LimitOffered": "let through by its limits",
	"StepAdmitted": "given slots for a step", "StepsLeft": "relieved of the slots of a step",
	"HoldBegun": "held", "HoldReleased": "released from a hold", "HoldExpired": "ended for its hold",
	"CleanupAgain":  "queued for its clean-up",
	"HoldAbandoned": "given up for a hold", "WaiterAttached": "waited for", "WaiterLeft": "left by a waiter",
	"Repeated": "repeated", "OutputKept": "given output",
	"JournalCopied": "given a journal", "Debounced": "given another input",
	"SentinelMoved": "kept alive by a sentinel", "ProcessWatched": "watched",
}

// EventName returns the name of an event in the table.
func EventName(e Event) string {
	if g, ok := e.(Granted); ok && g.Start {
		return "GrantedStarted"
	}
	return reflect.TypeOf(e).Name()
}

// fenced events come from the holder of a lease and carry its epoch. An epoch of zero means that
// the server itself is the source, and is not checked.
type fenced interface{ presents() int64 }

// guarded events have a condition on the run beyond its state.
type guarded interface {
	allowed(p *Policy, r *Run, now Instant) bool
}

// Apply applies an event to a run. It returns the run after the event and the new lines of its log,
// or an error and the run unchanged. Apply is pure. It is the only function that changes a run, and
// every write of a run's row goes through it.
func (p *Policy) Apply(r Run, e Event, now Instant) (Run, []Line, error) {
	lines, err := p.Change(&r, e, now)
	return r, lines, err
}

// Change is Apply without a copy: it changes the run that it is given. A run is more than a kilobyte,
// and a server applies several events in every life. If there is an error, the run is unchanged.
func (p *Policy) Change(r *Run, e Event, now Instant) ([]Line, error) {
	name := EventName(e)
	if f, ok := e.(fenced); ok {
		if epoch := f.presents(); epoch != 0 && (epoch != r.Epoch || r.State.Terminal() || r.Damage != nil) {
			return nil, Errorf(CodeStaleEpoch,
				"epoch %d does not hold this run (any more): it is %s", epoch, r.State)
		}
	}
	to, ok := table[r.State][name]
	if !ok {
		return nil, Errorf(CodeWrongState, "a run that is %s can't be %s", r.State, deeds[name])
	}
	if g, ok := e.(guarded); ok && !g.allowed(p, r, now) {
		return nil, Errorf(CodeWrongState, "this run can't be %s now", deeds[name])
	}
	log := history{run: r, now: now}
	from := r.State
	e.apply(p, r, now, &log)
	r.State = to
	r.Limited = r.followLimits(to)
	r.Version++
	if to.Terminal() && from.Live() {
		r.FinishedAt = now
		r.LeaseUntil, r.WaitAt, r.ReadyAt, r.FirstGrantAt, r.GrantedAt = 0, 0, 0, 0, 0
		r.Ready, r.HolderSeen, r.Spent, r.DeferredAt = false, false, false, 0
		r.Turn = TurnNone
		r.Hold, r.Wants = nil, nil
		r.WatchUntil, r.Former = 0, 0
		r.Damage = nil // the row is written anew, and is readable from now on
		if r.Cancel.RequestedAt != 0 {
			r.Cancel.StoppedAt = now
		}
	}
	if rearmed, ok := e.(Rearmed); ok {
		r.AlarmAt = rearmed.Until
	} else {
		r.AlarmAt = p.Alarm(r)
	}
	return log.lines, nil
}

// raiseEpoch fences out the holder of a run. Below the floor, epochs may have been granted by commits
// that are lost: the next one is above.
func (p *Policy) raiseEpoch(r *Run) { r.Epoch = max(r.Epoch+1, p.EpochFloor) }

// history collects the lines that an event adds to the log.
type history struct {
	run   *Run
	now   Instant
	lines []Line
}

func (h *history) add(typ LineType, data Value) {
	h.run.Seq++
	h.lines = append(h.lines, Line{
		Seq: h.run.Seq, Type: typ, At: h.now, Attempt: h.run.Attempt, Epoch: h.run.Epoch, Data: data,
	})
}

func (h *history) addAll(lines []Line) {
	for _, l := range lines {
		h.add(l.Type, l.Data)
	}
}
