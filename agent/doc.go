// Package agent is what an agent's code is written with: steps whose results are kept, children that work at the same time,
// waits that hold nothing, and a way back when something fails. An agent is a function; package worker executes it:
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
// It pulls in nothing of the server, and starts nothing by itself: the worker calls the function, and the server decides when.
//
// # How an agent lasts
//
// The function is called again from its first line whenever its run is leased: after a crash, after a failed attempt, and after each wait.
// What makes that the continuation of one life is the journal, which the server keeps for the run. Every function of this package looks
// there first. A [Step] that is recorded returns what it returned then, and its function is not called. A [Spawn] finds its child.
// A wait that is over returns how it ended. So the function runs quickly through what has happened, comes to the first thing
// that has not, and goes on. That is called a replay, though the agent's code can't tell it from the first time.
//
// An agent that waits does not exist anywhere but on the server's disk. [Sleep], [Signal], [Approve], [JoinAll] and the rest end the goroutine
// that calls them, when there is something to wait for. What is deferred runs; nothing else does. A slot of the worker is free
// from then on, and any worker may have the run next.
//
// # What a step is
//
// Whatever touches the world, costs something, or may come out differently is a step: a call of a model, of a service, of a
// database; dice; the time. Its result is written as JSON, and on the server's disk when Step returns. Its name, together with
// how often the name was used, is its key: the second "search" is "search#2". Keys are names and not positions, so that a
// step that a new release adds somewhere shifts nothing.
//
// A step is recorded once. Its function is called at least once: when a worker dies between the end of the function and the
// record of it, nobody knows what the function did, and it is called again. [IdempotencyKey] is the same both times. A step's
// error is not recorded, and the next attempt tries again, unless it is [Permanent].
//
// # Five rules
//
//   - Between two calls of this package the code decides by its input and by what those calls returned, and by nothing else: no clock
//     ([Now]), no dice ([UUID]), no environment, no order of a map, no global variable that changes.
//   - What has an effect is in a step.
//   - Waits are between steps, not within one, and on the agent's own goroutine.
//   - What a step returns survives JSON: unexported fields, channels and functions don't.
//   - Code that runs in flight may stumble over is changed behind a [Version].
//
// An agent that breaks the first rule may be contradicted by its journal: another input for a child, another type of a step's
// result, another action to approve fail the attempt with the code nondeterminism and say at which key.
// What is recorded and no longer asked for is passed over, so that a step may be removed.
//
// # Children
//
// [Spawn] starts a run of another kind and returns at once. It is committed, with whatever else is new, before the next step begins, and
// 50 ms later at the latest. [JoinAll] wants all results, [JoinAllSettled] to know what became of each, [Select] the first that ends,
// [SelectOK] the first that succeeds, [Race] the first before a time is over. Which one was the first is a fact of the journal, the same
// in each replay. A child has a deadline of its own ([Timeout]), kept by the server, never later than its parent's; running out of it is an answer,
// [ErrTaskTimedOut], and not tried again. Children end with their parent, unless they are spawned with Options.Outlive or left to [Continue].
//
// # The world outside
//
// [Signal] waits for a named message to the run, [Approve] for a person's decision about an exact action, [Callback] for
// whoever was given its token. Each has a timeout, and that it passes is a result to act on. [Message] and
// [Context.History] are the conversation that the run belongs to; [Delta], [Progress], [Emit] and [Heartbeat] are for those who watch.
//
// # Ends
//
// What the function returns decides, as with any handler: a value completes the run; an error fails the attempt, and the server tries again
// while attempts are left; a [Permanent] error fails the run at once, and so do the errors of this package, since a replay would only find
// them again. [ErrTimeout] and [ErrSignalTimeout] end it as timed out. When somebody asks the run to stop, its context ends, whatever it begins or waits
// for returns [ErrCancelled], and the run is cancelled once the function has returned. What must not be left half done is in a [Saga]: its steps are
// undone in reverse, each [Undo] a recorded step of its own.
package agent
