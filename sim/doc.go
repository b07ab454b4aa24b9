// Package sim tests the real engine, watchdog and store under hours of simulated faults, in one
// goroutine and a fraction of a second.
//
// # What it is for
//
// Faults that come together are hard to reproduce: a crash between two statements, a lost answer, a
// clock that jumps. A simulation is a 64-bit seed, and the same seed always gives the same trace. A
// failing seed is its own reproduction:
//
//	make sim SEED=42
//
// # How it works
//
// The workload, the faults, the ids and the retries each have a random stream of their own. A new
// kind of fault therefore does not change the workload. Time is a number. A heap of events
// determines what happens next, and nothing ever waits.
//
// Two nodes, each with its own store, engine and watchdog, work on one SQLite database in memory,
// like two servers on one database. The network, the clients, the workers and what they execute are
// simulated. The database can also be PostgreSQL. With Options.Even a seed has only faults that do
// not depend on the number of statements, and then its trace is the same on both.
//
// Every committed batch is compared with a model: what was promised, and what each run was before.
// After a while the faults stop. Then everything has to come to an end within its bounds.
//
// # What it is not
//
// It does not simulate HTTP, files or power losses: see e2e. It finds no data races, because it has
// one goroutine.
//
// # Where to start reading
//
//   - sim.go: the heap and the loop. config.go: what a seed draws.
//   - node.go: a server that batches, sweeps and crashes. session.go: a database connection that
//     fails.
//   - network.go: messages that get lost. client.go, worker.go: the senders. program.go: what a
//     worker executes. hostile.go: a tenant that makes expensive requests. pause.go: queues that are
//     paused and resumed. anew.go: agents that go on as a new run. flow.go: limits, unique and
//     debounced runs, schedules. beside.go: conversations, approvals, keys, limits, restores.
//     meet.go: which features meet on a run.
//   - model.go: what was promised. check.go: checks of every committed batch. judge.go: checks of
//     every answer. live.go: checks of progress after the faults have stopped. closing.go: checks
//     at the end.
//
// # Invariants
//
//   - A seed gives the same trace every time: no loop over a map in its own order, no real clock,
//     no other goroutine.
//   - Every random number comes from a named stream.
//   - A situation that a campaign never reaches fails it: see situations in sim_test.go. So
//     does a pair of features that docs/pairs.md says the simulator reaches.
package sim
