// Package waiting lets calls wait: for the end of a run, for a line of a log, for work.
//
// # How it works
//
// [Waits.Until] is the loop of a call that waits for something in the store. It listens to the
// doorbell, looks, and blocks until a ring. It listens before it looks, so that no change falls
// between. [Waits.Pause] is one blocking: it ends with a ring, when the time has passed, when the
// caller is gone, and when the server shuts down.
//
// [Waits.Run] waits for the end of a run. A timeout stops waiting, not working: the run goes on.
//
//  1. It reads the run. An ended run is answered at once.
//  2. If the run is in the foreground, the call becomes one of its [Waiters], which the store knows.
//  3. It waits until the run has ended. Most rings are answered from memory: the engine remembers
//     live runs and recent ends. Only after news of another node the run is read. Where many calls
//     wait for a run, one goroutine watches it for all of them (crowd.go), and they read nothing
//     before its end. Calls that read a run at the same time share the read (sharedread.go).
//  4. It stops being a waiter. The last waiter's leaving defers the run.
//
// # What it is not
//
// The package knows no routes, keys or limits. The [Caller] brings these: it is asked before it
// blocks and before a run is read.
//
// # Where to start reading
//
// Waits.Run in run.go. The files build on one another: waiters.go, sharedread.go, crowd.go,
// waits.go, run.go.
//
// # Invariants
//
//   - A change after a look wakes the call, or the fallback finds it.
//   - A run has a waiter's record of this node as long as a caller waits for it here, and none
//     afterwards.
//   - A turn that a member of a crowd was given is given back, also if the member was gone.
package waiting
