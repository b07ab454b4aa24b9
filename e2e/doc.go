// Package e2e tests the whole program with real processes, real files, real databases and kill -9.
// It contains tests only.
//
// # What it is for
//
// The simulator tests the engine and the store in one process. These tests cover the rest: the
// program as it is built, HTTP, disks that fail, PostgreSQL, NATS, browsers, and the SDK in
// processes of its own.
//
// # How it works
//
// A node is "perdure serve" as a process, which a test kills and starts again on the same data and
// address (server_test.go). A fleet is several nodes on one PostgreSQL (load_test.go). Most tests
// follow one pattern. Clients write down what was acknowledged to them, and something is killed or
// cut at random points. At the end the store has to contain exactly what was acknowledged. Files on
// a file system that forgets unsynced data (internal/testkit/lossfs) test power losses.
//
// The test binary is also the program of workers and attackers: TestMain looks at the environment.
//
// # What it is not
//
// The tests do not measure performance, except that a hostile tenant must not slow down another
// (noisy_test.go). Environment variables such as PERDURE_KILLS, PERDURE_POWER_LOSSES and
// PERDURE_TEST_FULL make them longer: see "make campaign".
//
// # Where to start reading
//
//   - server_test.go: a node, and the kill under load.
//   - postmortem_test.go: the story of one caller, from the question to the answer.
//   - power_test.go, full_test.go: disks that fail. noisy_test.go and attacks_test.go: hostile
//     tenants.
package e2e
