// Package agenttest tests that an agent survives crashes. It executes a scenario again and again,
// and crashes the worker or the server at a different point each time. It is to agents what
// net/http/httptest is to handlers. It uses the real server, in memory and without a socket, the
// real worker, and virtual time.
//
//	func TestTrip(t *testing.T) {
//		trip := agenttest.Scenario{
//			Setup: func(s *agenttest.Trial) func(*worker.Worker) {
//				return func(w *worker.Worker) {
//					worker.Agent(w, "trip", trip)
//					worker.Handle(w, "book", book)
//				}
//			},
//			Start: perdure.Submission{Kind: "trip", Class: perdure.Agent, Input: client.JSON("Lisbon")},
//			Script: func(s *agenttest.Trial) {
//				s.Sleep(time.Hour)
//				s.Signal("paid", "by card")
//			},
//		}
//		trip.CrashEverywhere(t, func(t *testing.T, end *agenttest.End) {
//			if end.Run.State != perdure.Completed {
//				t.Error(end.Run.State)
//			}
//		})
//	}
//
// One execution of a scenario is a trial. [Scenario.Run] makes one trial and returns its [End]: the
// run, its children, the result of each step, its thread and its log. [Scenario.CrashEverywhere]
// makes one trial without a crash, and then one for each possible crash.
//
// # Where it crashes
//
// Between two durable changes the time of a crash makes no difference, so the number of points is
// finite. They are every commit of every run of the tree, and every grant of a run to a worker. A
// commit records a step, spawns a child, opens a wait or ends the run. At each of them
//
//   - the worker dies before the call arrives: everything since its last commit is lost;
//   - the worker dies after the call was executed, and does not get the answer;
//   - the server restarts before the call arrives, and the worker goes on;
//   - the server restarts after the call was executed, and the worker has to send it again.
//
// The server is not told of a dead worker. The worker's connection is cut, and another worker
// starts. The server finds out by its leases, as in production, only in virtual time.
//
// Each crash is a subtest whose name describes it: "the worker dies after commit 4 of trip (records
// charge#1), before its answer". go test -run repeats one.
//
// # What has to be the same
//
// Every run of the tree has to end with the same state, result and error in every trial. The
// deliverable, the results of steps, the messages of the thread and the set of notes
// ([Trial.Note]) have to be the same, too. The invariants of the store are checked as well.
// Things that are not the agent's decision are left out or made equal: ids, instants, the number of
// attempts, the log. Use [Scenario.Scrub] for anything else that may differ. A child that its
// parent asked to stop may be cancelled or completed, and a run that fails in every attempt may end
// with the error of the crash.
//
// One more trial has no crash: the run stays awake on its waits, joins, selects and maps, and is not
// executed anew after them. An end that differs shows state that is kept in another way than by the journal: a
// variable that a step's function changes, a time that is taken before a wait.
//
// The server guarantees that a step is recorded once. The effect of a step may still happen twice,
// if a worker dies after the effect and before the record of it. No library can change that. A test
// sees it as a count of 2 in [End.Notes], and can check that the service that is called uses
// agent.IdempotencyKey.
//
// # Time
//
// Server, workers, handlers and script run in a bubble of package testing/synctest, which begins at
// midnight of 2000-01-01 UTC. Its clock advances when all goroutines wait: a sleep of a week takes
// a fraction of a second. Three things follow:
//
//   - A function that waits for a socket, a process or a channel from outside of the bubble stops
//     the clock. Replace models and services by functions, or by handlers that are called in
//     process.
//   - A handler has to end when its context does, because the bubble can't end before. The test
//     names a handler that does not.
//   - State of a trial, such as a fake bank, has to be made within the bubble, by Setup.
//
// With a store in [Scenario.Server] the same scenario runs on a PostgreSQL in real time. Then only
// workers die, and the server stays up. Give it a policy with a short lease.
//
// # What it is not
//
// It does not search. It follows the path of the scenario, and crashes once on it. Lost and doubled
// calls, jumping clocks and failing disks are tested by the server's own simulator. The package
// imports the server, so import it only in tests.
//
// # Where to start reading
//
//   - example_crash_test.go and example_test.go: tests as a user writes them.
//   - scenario.go: trials and their comparison. trial.go: one trial.
//   - wire.go: the transport of a worker, which observes its calls and crashes.
//   - boundary.go, observed.go: the points, with names that are the same in every trial.
//   - excuses.go: differences that are not the agent's decision. failures.go: the summary.
//   - clock.go: a clock that a mutex has stopped.
//
// # Invariants
//
//   - A crash happens at most once in a trial.
//   - A dead worker has no further effect: its calls fail, and its notes are not counted.
//   - A boundary has the same name in every trial, whatever the ids of its runs are.
package agenttest
