// Package life has the life of a run, from its submission to its end.
//
// Everything that a caller, a worker or another run can do to a run is here, a file for each:
// submit, start, commit, wait, signal, cancel, retry, end, and what runs have in common: threads,
// groups, children. How a run finds its worker is not: that is dispatch.
//
// # Where to start reading
//
// submit.go accepts a run. start.go begins it, heartbeat.go keeps it, commit.go takes the worker's
// progress and outcome. wait.go suspends it and wakes it again. end.go ends it, and follow.go stops
// its children. Keep the transition table of the root package open (docs/lifecycle.md shows it).
//
// The files build on one another: one uses names of those before it, and hardly of those after it.
//
//   - held_back.go, answer.go, epoch.go, token.go, view.go, text_tail.go: small things that many use.
//   - lease.go, journal.go, ask.go, questions.go: leases, the journal, questions to people.
//   - name.go, thread.go, notice.go, inbox.go, message.go: names, a thread, notices in it, a run's inbox, and the
//     messages that waits take from the thread.
//   - cancel.go, turn.go, follow.go: requests to stop, the turns of a thread's runs, the
//     consequences of an end.
//   - limit_room.go, limit_next.go, limit_use.go: counts of limits, who is next, limits of a new run.
//   - defer.go, start.go, process.go, heartbeat.go, artifact.go: while a run executes.
//   - limit_step.go: limits of steps.
//   - unique.go: keys of unique and debounced runs.
//   - submit.go, child.go, continuation.go, anew.go: new runs, from callers and from runs.
//   - gathering.go, group.go, chat.go: chords and groups, conversations.
//   - firing.go: a schedule starts a run.
//   - late.go, wait.go, end.go, damage.go: late results, waits, ends.
//   - release.go, retry.go, hold.go: a run that is queued again.
//   - schedule.go, limit.go: schedules and limits as tenants set them.
//   - approval.go, signal.go, commit.go, weight.go, renew.go: the operations of people and workers, and their
//     costs.
package life
