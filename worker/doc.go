// Package worker executes runs. A program registers a function for each kind of run that it knows.
// Run leases runs from the server, calls the functions, and delivers their results:
//
//	w := worker.New(c, worker.Options{Queues: []string{"default"}, Slots: 20})
//	worker.Handle(w, "check-disk", func(ctx context.Context, in Input) (Output, error) { … })
//	worker.Agent(w, "supervisor", func(ctx *agent.Context, in Task) (Answer, error) { … })
//	err := w.Run(ctx)
//
// The package imports the domain, the wire contract, the client and package agent, but nothing of
// the server. The client's transport decides whether the server is remote or in the same process.
//
// # Tasks and agents
//
// [Handle] registers a task: a function that does something and returns. [Agent] registers an
// agent: a function of recorded steps that can wait for hours; package agent describes those. Tasks
// and agents have separate slots, so that neither blocks the other. An agent that waits holds no
// slot, so a tree of agents of any depth completes with a single slot.
//
// A worker polls only while it has a free slot, with a call that waits half a minute. An idle
// worker with tasks and agents makes four calls a minute.
//
// # Kinds
//
// When Run starts, it announces all kinds to the server's registry: their class, the JSON Schemas of
// their input and result, and what a [Kind] says about them. Submissions take their class, timeout
// and retries from there. The first poll waits for the answers, because a run that was submitted before
// its kind was known takes its class from them. Announcements are retried while the server is away,
// and a refusal delays no poll.
//
// # Guarantees for a handler
//
// A handler is called at least once for each run. The first result that the server accepts is the
// run's result. A lease says that no other worker has the run. It lasts a minute and is renewed by
// heartbeats, which this package sends from its own goroutine, for all runs in one call.
//
// The handler's context ends when the handler should stop. [context.Cause] says why:
//
//   - [ErrCancelled]: the run has a cancel request;
//   - [ErrLeaseLost]: the server has granted the run to another worker, or has ended it;
//   - [ErrShutdown]: the worker drains, and DrainTimeout is over.
//
// It does not end because the server is away; see below.
//
// The handler's return value decides the outcome of the run:
//
//   - a value: the run completes with it, even after a cancel request. If the lease was lost, the
//     server keeps the value beside the run as a late result;
//   - an error: the attempt has failed. The server retries it after a backoff while attempts are
//     left;
//   - an error made with [perdure.Permanent]: the run fails without a retry;
//   - an error after a cancel request: the run is cancelled;
//   - a panic: the attempt has failed, with the stack as its message. The process continues. A
//     handler that ends its goroutine with [runtime.Goexit] fails likewise, with the code "goexit".
//
// [Fail], or an error with a method FailureCode, gives the failure a code that callers can act on.
// If the input does not fit the handler's type, the run fails at once with [CodeInput] and the
// handler is not called.
//
// # Reporting from a handler
//
//   - [Heartbeat] reports an activity, [Progress] how far the run is.
//   - [Delta] streams text of a model, [Emit] writes any other line to the run's log.
//   - [Info] describes the run, and [Logger] logs for the operators of the worker.
//   - [PutArtifact] stores a file beside the result, and returns when the server has it.
//
// Except for PutArtifact they do not wait for the server. Delta and Emit wait if a thousand lines
// are undelivered.
//
// # Middleware
//
// A [Middleware] wraps every execution of every kind. [Worker.Use] adds it. Metrics, traces and
// deadlines belong there.
//
// # While the server is away
//
// Handlers continue. Their results are kept and sent again, each with its first commit_id, until
// the server accepts or refuses them. A result therefore counts once, however many answers were
// lost. Failed heartbeats are ignored. A server that comes back waits one lease before it takes a
// run from a worker. So a restart, or an hour's absence, costs no attempt.
//
// A refusal of one run does not delay the others. An agent whose children exceed the tenant's quota
// waits until there is room, a cancel request, or its deadline. An internal error of the server is
// retried for some seconds, and then fails the run.
//
// A worker that is cut off from a running server is different: its runs are granted to other
// workers when their leases expire, and it learns of that later. Until then two workers may execute
// the same run. For kinds that must not be executed twice, Options.SelfFence ends the handler's
// context with [ErrLeaseLost] before another worker can get the run.
//
// # Shutdown
//
// When its context ends, Run leases no more runs and lets the handlers finish for DrainTimeout.
// Then it ends their contexts, hands back unfinished runs, which costs no attempt, and returns.
//
// # Where to start reading
//
// worker.go has the options, Run and the drain. kind.go announces kinds. poll.go leases runs, run.go executes one.
// beat.go, news.go and commit.go are the three loops beside the polls: heartbeats, cancel requests and commits.
// answer.go handles the server's answers to commits. later.go hands a run back that could not be begun.
//
// # Invariants
//
//   - A run has at most one commit in flight, and a commit never changes after it has an id.
//   - A run is in the table of held runs from its grant until its outcome is answered or it is
//     handed back. After a lost lease it stays until its handler has returned. Its slot is taken
//     for that time.
//   - Only the commit loop sends commits, and only the heartbeat loop renews leases.
package worker
