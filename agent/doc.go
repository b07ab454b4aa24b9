// Package agent is the library for the code of an agent. It has steps whose results are recorded,
// children that work at the same time, waits that occupy no worker, and sagas that undo. An agent
// is a function. Package worker executes it:
//
//	worker.Agent(w, "trip", func(ctx *agent.Context, city string) (Trip, error) {
//		plan, err := agent.Step(ctx, "plan", func(ctx context.Context) (Plan, error) { return model.Plan(ctx, city) })
//		if err != nil {
//			return Trip{}, err
//		}
//		hotel := agent.Spawn[Hotel](ctx, "find-hotel", plan.Nights, agent.Timeout(time.Minute))
//		flight := agent.Spawn[Flight](ctx, "find-flight", plan.Day, agent.Timeout(time.Minute))
//		…
//	})
//
// # How an agent survives crashes
//
// The function is called again from its first line whenever its run is leased: after a crash, after
// a failed attempt, and after each wait. The server keeps a journal for the run, and every function
// of this package looks there first. A [Step] that is recorded returns its recorded result, and its
// function is not called. A [Spawn] finds its child. A wait that is over returns how it ended. So
// the function runs quickly through everything that has happened, comes to the first thing that has
// not, and continues. That is called a replay. The agent's code can't tell it from the first
// execution.
//
// An agent that waits exists only on the server's disk. [Sleep], [Signal], [Approve], [JoinAll] and
// the other waits end the goroutine that calls them, if there is something to wait for. Deferred
// functions run, and nothing else does. The worker's slot is free from then on, and any worker may
// get the run next.
//
// # What belongs in a step
//
// Put into a step everything that has an effect outside, costs something, or may have another
// result the next time. Examples are calls of models, services and databases, random numbers, and
// the time. The result is written as JSON, and it is on the server's disk when Step returns. The
// key of a step is its name with the number of its use: the second "search" is "search#2". Keys are
// names and not positions, so a step that a new release adds elsewhere shifts no keys.
//
// A step is recorded once. Its function is called at least once. If a worker dies after the
// function has returned and before the result is recorded, the function is called again, with the
// same [IdempotencyKey].
//
// An error that the agent acts on is a fact. A step's error is recorded when the goroutine that got
// it goes on: with Step, Spawn, a wait, Go, Version, Now or UUID. A replay then gets the same error, and
// decides in the same way. An error that the agent returns is not recorded, and the next attempt
// calls the function again. A [perdure.Permanent] error is recorded at once. An agent that returns a
// recorded error fails without another attempt.
//
// # Five rules
//
//   - Between two calls of this package the code decides only by its input and by the results of
//     those calls. It uses no clock ([Now]), no random numbers ([UUID]), no environment, no order
//     of a map, no global variable that changes.
//   - Everything that has an effect is in a step.
//   - Waits are between steps, not within one, and in no goroutine but that of a branch.
//   - The result of a step survives JSON. Unexported fields, channels and functions don't.
//   - A change of code that contradicts the journals of live runs is announced by [Version] or
//     [Removed].
//
// The journal contradicts an agent that breaks the first rule, or whose code was changed. Examples
// are another input for a child, a recorded result that does not fit the step's type, and a new step
// while recorded ones have not been asked for: one was renamed, removed, or comes later now. That is
// a defect with the code nondeterminism, which names the key, what is recorded and what was asked. It
// ends the execution before anything is done twice. The server holds the run until a release fits its
// journal. docs/agents.md has a table of edits and what happens.
//
// A call where it can't be made, such as a wait inside of a step, is a defect too, with the code
// agent_misuse. Its error is never forgotten: if the code ignores it, the next call ends the
// execution, and the step in which it happened is not recorded.
//
// # Branches
//
// [Go] begins a branch: a function in a goroutine of its own, with a name. It does everything that the
// agent does, and [Branch.Join] waits for it. Its records have the branch's name in their keys and an
// order of their own, so edits in it are found as they are elsewhere. A run is suspended when all its
// branches wait. Any other goroutine has no place in a replay: a step, a wait, a child or a message in
// it is a misuse. [Delta], [Progress], [Emit] and [Heartbeat] may be in any.
//
// # Children
//
// [Spawn] starts a run of another kind and returns at once. It is committed before the next step
// begins, and after 50 ms at the latest. These functions wait for children:
//
//   - [JoinAll]: for all results, or the first error.
//   - [JoinAllSettled]: until all have ended, with or without a result.
//   - [Select]: for the first that ends, among children and other futures.
//   - [SelectOK]: for the first that succeeds, and [FirstOK] for the first few.
//   - [Race]: for the first that ends within a time limit.
//   - [Map]: for a child for each of many items, a limited number at the same time.
//
// The journal has the order in which children ended, so it is the same in each replay. A child has
// a deadline of its own ([Timeout]), which is never later than its parent's. The server enforces
// it. A child that exceeds it is not retried, and its join returns [ErrTaskTimedOut]. Children end
// with their parent, unless they are spawned with Options.Outlive or passed to [Continue]. An agent
// may cancel one ([Future.Cancel]) and look at it ([Future.Peek]).
//
// # Futures
//
// Everything that can be waited for is a [Future]: a child, a callback, an approval ([OnApproval]), a
// signal ([OnSignal]), a message of the user ([OnMessage]), a time ([After]). [Select] takes any
// mixture of them and returns the index of the first that ended. The choice is written to the
// journal, so it is the same in each replay.
//
// A child, a callback and an approval that lose go on. A signal, a message and a timer are waited for
// only during the call: what comes for one that lost stays in the inbox. All can be selected again.
//
// # People and other systems
//
// [Signal] waits for a named message to the run. [Approve] waits for a person's decision about an
// exact action. [Callback] waits for one call with a secret token. Each has a timeout, which is a
// result to act on. [Message] and [Context.History] write and read the run's thread. [Delta],
// [Progress], [Emit] and [Heartbeat] tell callers what the run is doing.
//
// A message or a line outside of steps is recognized by its content and by the step or wait after which
// it is written. A replay leaves out reports that were written there, and writes new ones. So an agent that
// says something after an error, and something else when the next attempt succeeds, says both.
//
// # How a run ends
//
//   - A value completes the run.
//   - An error fails the attempt, and the server retries while attempts are left.
//   - A [perdure.Permanent] error fails the run at once. So do the errors of this package and recorded
//     errors of steps, because a replay would get them again.
//   - A defect of the code (nondeterminism, agent_misuse, a panic outside of steps) holds the run, and
//     a fixed release goes on with it.
//   - [ErrTimeout] and [ErrSignalTimeout] end the run as timed out.
//   - When the run is asked to stop, its context ends. Every new step and wait returns
//     [ErrCancelled], and the run is cancelled when the function returns.
//
// Work that must not be left half done belongs in a [Saga]. Its steps are undone in reverse order,
// each [Undo] as a recorded step of its own. If it succeeds, they are kept, and that is recorded too.
//
// # What it is not
//
// The package contains nothing of the server and starts no goroutines in the background. The worker
// calls the function, and the server decides when. It has no scheduler and no state outside the
// journal.
//
// # Where to start reading
//
// example_test.go has each function in use. The files build on one another: one uses names of those
// before it, and hardly of those after it.
//
//   - errors.go, values.go, bytes.go, about.go, options.go: errors, recorded values and their types,
//     options.
//   - execution.go, context.go, check.go, commit.go: one execution, from the grant to its end, and how new entries
//     are committed. internal/journal has the journal that it replays, the cursor, the inbox, the
//     writer, and the rules for all of them.
//   - edits.go, causes.go, points.go, pending.go: how edits of the code are found, which entry caused a
//     failure, where reports belong, how errors become facts.
//   - undo.go, patience.go, limit.go, step.go, named.go: steps, with their undos, their time, their
//     limits and their tries.
//   - suspend.go, branch.go, future.go, wait.go, join.go, select.go, map.go, parallel.go, child.go,
//     approve.go, withdraw.go, anew.go: waits, futures and continuations, one idea each.
//   - saga.go, newest.go, say.go: sagas, the thread, and reports to callers.
//   - input.go, execute.go: the input of the agent, and the entry for package worker.
//
// # Invariants
//
//   - A step that returned is durable.
//   - The same journal leads to the same calls and results, or to a defect that says why not.
//   - A decision that the agent made after an error is never durable without the error.
//   - An execution that has lost its lease records nothing and undoes nothing.
//   - A refused commit ends the execution: nothing is built on it.
package agent
