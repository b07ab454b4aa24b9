// Package agenttest tells the story of a run, again and again, and lets something die at a different place each time. It
// is to agents what net/http/httptest is to handlers: the real server, in memory, without a socket; the real worker; and a
// clock that does not wait.
//
//	func TestTrip(t *testing.T) {
//		trip := agenttest.Scenario{
//			Setup: func(s *agenttest.Session) func(*worker.Worker) {
//				return func(w *worker.Worker) {
//					worker.Agent(w, "trip", trip)
//					worker.Handle(w, "book", book)
//				}
//			},
//			Start: perdure.Submission{Kind: "trip", Class: perdure.Agent, Input: client.JSON("Lisbon")},
//			Script: func(s *agenttest.Session) {
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
// [Scenario.Run] tells it once and gives the [End]: the run, its children, what each step recorded, its thread and its log.
// [Scenario.CrashEverywhere] tells it once undisturbed, and then once for each crash there can be.
//
// # Where it crashes
//
// Between two things that become durable a crash makes no difference, so that there are only so many places: every commit
// of every run of the tree (a step recorded, a child spawned, a wait opened, the end), and every grant, which is when a
// worker is given a run. At each of them
//
//   - the worker dies before the call arrives: whatever it did since its last commit is gone;
//   - the worker dies after the call was executed, and never hears the answer;
//   - the server is started again before the call arrives, and the worker goes on;
//   - the server is started again after the call was executed, and the worker has to ask what became of it.
//
// Nobody is told of a dead worker: its connection is cut in the middle, it is dropped, and another one is born. The server
// finds out by its own clocks, as it does in life, only that it takes no time.
//
// A crash is a subtest, and its name is what happens: "the worker dies after commit 4 of trip (records charge#1), before its
// answer". go test -run repeats one.
//
// # What has to be the same
//
// The state, result and error of every run of the tree, what the run hands over, the result of every step, the messages of the
// thread, and which things were noted with [Session.Note]; the store's own invariants are checked as well. What is no
// decision of the agent is left out or made equal: ids, instants, how many attempts it took, the log. [Scenario.Scrub]
// is for what else may differ.
//
// A step is recorded once, which the server sees to. What a step does to the world may still be done twice, when a worker
// dies between doing it and the record of it. No library can change that; a test sees it in [End.Notes], where it then
// has a count of 2, and can see that whoever is called looks at agent.IdempotencyKey.
//
// # Time
//
// Server, workers, handlers and script live in a bubble of package testing/synctest, which begins at midnight of
// 2000-01-01 UTC. Its clock goes on when everybody waits: a sleep of a day is over in about a second, and a lease that runs
// out in no time. Three things follow. A function that waits for a socket, a process or a channel from outside of the bubble
// stops the clock, so that models and services are functions here, or handlers called in process. A handler ends when its
// context does, or the bubble can't; one that does not is named. And what a telling keeps, such as a bank that is none, is made within the bubble, by Setup.
//
// With a store in [Scenario.Server] the same scenario runs on a PostgreSQL, in real time: the workers die there, and
// the server stays up. Give it a policy with a short lease.
//
// # What it is not
//
// It does not search: it takes the path that the scenario takes, and crashes once on it. Disorder beyond that, such as lost and
// doubled calls, jumping clocks and failing disks, is what the server's own simulator is for. The package imports the
// server; programs import it in their tests alone.
package agenttest
