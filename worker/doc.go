// Package worker executes runs. A program registers a function for each kind of run that it knows, and Run
// leases runs from the server, calls the functions and delivers what they return:
//
//	w := worker.New(c, worker.Options{Queues: []string{"default"}, Slots: 20})
//	worker.Handle(w, "check-disk", func(ctx context.Context, in Input) (Output, error) { … })
//	worker.Agent(w, "supervisor", func(ctx *agent.Context, in Task) (Answer, error) { … })
//	err := w.Run(ctx)
//
// It imports the domain, the wire contract, the client and package agent, and nothing of the server. Whether the
// server is elsewhere or in the same process is decided by the client's transport alone.
//
// # Tasks and agents
//
// [Handle] registers a task: a function that does something and returns. [Agent] registers one that thinks in
// recorded steps and waits for others, for hours if need be; package agent is about those. Each has slots of its
// own, so that neither keeps the other from being executed, and an agent that waits holds none: with a single
// slot a tree of agents of any depth comes to its end.
//
// A worker asks for runs only as long as it has a free slot, by a call that waits half a minute for one. That is
// all that an idle worker does: four calls a minute, if it has both.
//
// # What a handler can count on
//
// A handler is called at least once for each run, and the first result that the server takes is the run's
// result. Between the two stands the lease: the server's word that nobody else has this run, given for a
// minute, kept by heartbeats that this package sends from a goroutine of its own, all of them in one call,
// however busy the handlers are.
//
// The handler's context ends when it should stop, and [context.Cause] says why: [ErrCancelled] when somebody
// asked the run to stop, [ErrLeaseLost] when the server has given the run to somebody else or ended it,
// [ErrShutdown] when this worker drains and the time for that is over. It does not end because the server is
// away: see below.
//
// What a handler returns decides what becomes of the run:
//
//   - a value: the run is completed with it, also when it was asked to stop meanwhile. Finished work counts,
//     and what comes after the lease was lost is kept beside the run as a late result;
//   - an error: the attempt failed. The server tries again, after a pause, while attempts are left;
//   - an error made with [Permanent]: trying again would not help, the run has failed;
//   - an error after a cancel: the run is cancelled;
//   - a panic: the attempt failed, and its stack is the message. The process goes on. A handler that ends its
//     goroutine, as [runtime.Goexit] does, fails likewise, with the code "goexit".
//
// [Fail], or an error with a method FailureCode, gives the failure a code that callers can act on. An input that
// is not what the handler takes fails the run at once, with [CodeInput], and the handler is not called.
//
// # What a handler can say
//
// [Heartbeat] says what it is doing, [Progress] how far it got, [Delta] streams text as a model writes it, [Emit]
// writes a line of any other kind into the run's log, [Info] tells which run this is, and [Logger] logs for the
// people who run the worker. They never wait for the server, but for Delta and Emit when a thousand lines are
// undelivered. [PutArtifact] leaves a file beside the result, and returns when the server has it.
//
// # Around all of them
//
// A [Middleware] stands around every execution of every kind: [Worker.Use] adds it. Metrics, traces and
// deadlines belong there.
//
// # When the server is away
//
// Handlers work on. Their results are kept and sent again, each under the commit_id that it had the first time,
// until the server takes or refuses them, so that a result counts once however many answers were lost.
// Heartbeats fail quietly. A server that comes back waits one lease before it takes a run from anybody. So a
// restart, or an hour's absence, costs no attempt.
//
// What the server has against a single run holds up no other: an agent whose children find no room under the tenant's
// quota waits for it, and a cancel or its deadline ends that; a defect of the server that one run meets is waited out
// for some seconds, and is then the run's failure.
//
// A worker that is cut off from a server that lives is another matter: its runs go to others when their leases
// end, and it learns of that when it is back. Two of them may be at the same work for that long. For work that
// can't bear it, Options.SelfFence names kinds whose context ends, with [ErrLeaseLost], before another worker can
// have the run.
//
// # Coming down
//
// When its context ends, Run leases nothing more, lets the handlers finish for DrainTimeout, then ends their
// contexts, hands back what is still unfinished, which costs no attempt either, and returns.
package worker
