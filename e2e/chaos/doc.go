// Package chaos tests a fleet of real processes under overlapping faults, and checks the history of all calls
// afterwards. It contains tests only.
//
// # How it works
//
// A fleet is three nodes on a PostgreSQL of its own, with NATS or without it, and worker processes
// on the SDK (fleet_test.go). Clients, workers and nodes reach each other and PostgreSQL over lines
// that can be cut, delayed and silent (internal/testkit/tcpline). A plan, which a seed decides,
// says what is broken when (plan_test.go, faults_test.go). Clients submit, signal, cancel, read and
// follow streams meanwhile (load_test.go).
//
// Every call and its answer is an Op with its instants on the monotonic clock of the machine, which
// all processes share (history_test.go). Workers record theirs in files that survive a kill
// (worker_test.go). An Op without an answer may or may not have happened. After the faults the
// fleet is mended, every run ends, and the store is read (stored_test.go).
//
// The rules (rules_test.go) compare the history with the store: what was acknowledged is there,
// what is there was asked for, streams have neither gaps nor repetitions, deadlines are kept,
// effects happen once. The porcupine library checks each run's leases (lease_test.go): the run's
// log is the order of grants, expiries and ends, and every answer that a worker got has to fit into
// it. Hand-made histories with one fault each show that every rule finds its fault (planted_test.go).
//
// # What it is not
//
// It does not break disks (e2e/power_test.go) and does not lose commits of PostgreSQL: a failover
// to an asynchronous standby has tests of its own.
//
// # How to run it
//
// A plain "go test" runs a short plan. PERDURE_CHAOS=30m makes it longer, PERDURE_SEED repeats a
// plan; "make campaign CHAOS=30m SEED=7" sets both. With PERDURE_PLANT=guard-without-version the
// server has a fault (internal/server/plant), and the test fails.
package chaos
