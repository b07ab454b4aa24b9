// Package perdure is the domain of a durable runtime for agent runs: its vocabulary, the states of
// a run, and the rules that change them. It is pure. It has no I/O, no goroutines and no clock, and
// it imports the standard library only. The server, the SDK and the simulator all share it.
//
// # What it is for
//
// A [Run] is a piece of work that a worker executes under a lease and that ends by its deadline.
// Runs are submitted by callers ([Submission]) or spawned by other runs ([Spawn]). A run can belong
// to a [Thread], and leave files beside its result ([Artifact]). It can wait for its children, a
// signal, a timer, a callback or an approval ([Wait], [Approval]). This package answers one
// question about it: given a run, an event and the time, what is the run afterwards, and what is
// written to its log?
//
// # How it works
//
// [State]: four states are live (queued, dispatched, running, suspended) and four are terminal
// (completed, failed, timeout, cancelled). A terminal state is final.
//
// [Event]: an event is a Go type such as [Granted], [Heartbeat], [Committed] or [DeadlinePassed]. Its
// apply method changes fields of the run and adds lines to its log. event.go has the events that
// keep a run live, end.go those that end it, and fact.go those that leave its state as it is.
//
// [Transitions]: the table says in which states an event may happen and to which state it leads. A
// pair of state and event that has no row is refused. docs/lifecycle.md is printed from the table.
//
// [Policy.Apply] is the only function that changes a run. It checks, in this order:
//
//  1. the epoch, if the event comes from a worker: an older epoch is refused with stale_epoch;
//  2. the table: a missing row is refused with wrong_state;
//  3. the event's guard, for example that the deadline has really passed.
//
// It then applies the event, sets the new state, raises the version and computes the next alarm. A
// refusal changes nothing.
//
// Two counters protect a run. Version rises with every change of the row, and the store writes a
// row only if its version is the one that was read. Epoch rises when the run is granted to a worker
// or taken from one; a worker presents it with every call. A cancel request therefore raises the
// version but not the epoch, and the worker that holds the run can still finish it.
//
// [Clocks]: a clock is a reason why a live run may need attention at some instant. The end of a
// lease and the timeout of a wait are examples. The alarm of a run (AlarmAt) is the earliest of its
// clocks. The watchdog selects runs whose alarm is due and applies the rule that the clock names.
// The deadline is a clock in every live state, so every live run has an alarm.
//
// [Policy] holds every duration and limit that a decision depends on, with [DefaultPolicy] and a
// Validate that refuses values under which a run might not end. [Policy.AfterLoss] resolves a lost
// or failed execution into a retry or an end before the table is asked.
//
// [Line]: the log of a run is a list of lines, numbered from 1 without gaps. The API calls them
// events. [Fold] computes the state that a log leads to; it must equal the state in the row.
//
// # What it is not
//
// It does not store, lock, send or wait. internal/server/store writes rows, internal/server/engine combines a
// decision with its write, internal/server/watchdog runs the clocks, and api describes the JSON of the
// HTTP interface. Checks of input here cover shape and size (Validate, [CheckName], [CheckValue]);
// checks that need stored data, such as quotas, are in internal/server/engine.
//
// # Where to start reading
//
//   - state.go and run.go: the states, and the fields of a run.
//   - transition.go: the table, and Apply.
//   - event.go, restored.go, end.go and fact.go: the effect of each event.
//   - alarm.go and policy.go: clocks, alarms, and the durations behind them.
//   - commit.go: the body of a submission and of a worker's commit, and their limits.
//   - transition_test.go: the same rules as properties, over every pair of state and event.
//
// # Invariants
//
//   - Only Apply changes a run, and every write of a run's row goes through it.
//   - A terminal state is never left, and the last line of a change into one is the line of that
//     state.
//   - Every live run has an alarm that is not after its deadline, unless [Rearmed] moved it. An
//     ended run has none.
//   - Nothing extends a deadline.
//   - The epoch never falls, and an event that presents an old epoch changes nothing.
//   - Log lines are numbered without gaps, and the log folds to the state in the row.
//   - Every forceful action of the watchdog lowers [Run.Rank], so every run ends.
//   - The same arguments give the same result: time, randomness and ids are arguments.
package perdure
