// Package watchdog is the safety net of a server. It selects rows whose alarm is due and applies
// the rule that the alarm calls for. Every recovery is done here: after a crash, a lost worker or a
// missed wake-up, the next sweep continues the work. There is no separate recovery at start.
//
// # What it is for
//
// Every live run has an alarm: the earliest of its clocks (perdure.Clocks), such as its deadline or
// the end of its lease. Inbox items, groups and waiters have alarms of their own. A caller or a
// worker that disappears leaves an alarm behind, and the watchdog acts when it is due.
//
// # How it works
//
// [Rules] is the table: condition, action and bound of each rule. docs/watchdog.md is printed from
// it. A rule with a Clock is called for a run when that clock is due. The other rules belong to one
// of the other parts of a sweep.
//
// A [Sweep] is one operation of the engine. It goes through the parts in a fixed order: runs,
// cascades, items, groups, waiters, workers, expire and patrol. It stops when it has used the
// budget of an operation, and the next sweep begins with the part that was not reached.
//
// [Watchdog.Run] is the loop. It sweeps, then sleeps until the next alarm, and for
// watchdog_interval at most. An operation that sets an earlier alarm wakes it.
//
// Errors are confined to the row that causes them:
//
//   - A rule that refuses to act (a *perdure.Error) concerns one row. Its writes are discarded, the
//     row's alarm is moved, and the sweep continues.
//   - A sweep that can't be written is repeated part by part, down to one row. A row that fails alone
//     is set aside for a minute, in memory: see aside.go. While the store takes no writes at all, no
//     row is.
//   - A row that another session has locked is skipped and retried by a later sweep.
//   - A run that other operations keep changing is decided alone, in the lane of those operations.
//
// While no node sweeps, workers can't be heard either. The first sweep after such a gap postpones
// the rules that judge by silence: see gap.go.
//
// [Retire] removes data that is older than its retention. It runs beside the sweeps, in small
// steps, so that an alarm never waits for it.
//
// Each action becomes an entry of the watchdog's log, in the transaction of the action: see log.go.
//
// # What it is not
//
// It makes no decisions of its own about a run. Rules call the engine, which applies events through
// perdure.Apply like any other caller. It is not a scheduler: workers poll for runs, and the
// watchdog only makes a delayed run claimable. It is not elected: every node sweeps.
//
// # Where to start reading
//
//   - rules.go: the table.
//   - watchdog.go: the loop, and how long it sleeps.
//   - sweep.go: one sweep, its parts and its limits.
//   - runs.go: which rule acts on a run, and what happens when it can't.
//   - parts.go: the other rows, part by part. patrol.go: the walk through all live runs.
//   - internal/testkit/conformance/rules_test.go: every rule, on both stores, in time and after a gap.
//
// # Invariants
//
//   - Every clock has a rule.
//   - A sweep that is late or missing delays an action and never loses it.
//   - Nodes that sweep at once do each action once: all writes are guarded by the row's version.
//   - A row that can't be acted on never keeps the watchdog from another row.
//   - Every loop over rows has a bound.
//   - The texts of the log contain names and numbers, and no other text from callers or workers.
package watchdog
