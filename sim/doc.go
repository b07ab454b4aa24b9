// Package sim drives the real engine, watchdog and store through hours of trouble, in one goroutine and a
// fraction of a second.
//
// A simulation is a 64-bit seed. From it come the workload, the faults, the ids and the dice, each from a
// stream of its own, so that a new kind of fault does not shift the workload. Time is a number: a heap of
// events says what happens next, and nothing ever waits. Two nodes, each with its own store, engine and
// watchdog, work on one SQLite database in memory, as two servers work on one database. What is not real is
// the network, the clients, the workers and what they execute. The database can also be PostgreSQL: a story that is
// told evenly, without faults that depend on how many statements something takes, is the same on both.
//
// The way through the package: sim.go has the heap and the loop, config.go what a seed draws, node.go a
// server that batches, sweeps and crashes, session.go a database connection that fails, network.go messages
// that get lost, client.go and worker.go who sends them, program.go what a worker executes. model.go keeps
// what was promised, check.go holds every committed batch against it, judge.go every answer, and live.go asks
// for an end of everything once the faults have stopped.
//
// A seed gives the same trace every time: no map is walked in its own order, no clock is read, no goroutine
// has a say. A failing seed is its own reproduction:
//
//	make sim SEED=42
package sim
