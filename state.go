package perdure

import "slices"

// A State is the state of a run. Four states are live and four are terminal. A terminal state is
// never left.
type State string

const (
	Queued     State = "queued"     // waits for a worker
	Dispatched State = "dispatched" // granted to a worker that has not started it yet
	Running    State = "running"    // executed under a lease
	Suspended  State = "suspended"  // waits for children, a signal, a timer, a callback or an approval; has no worker

	Completed State = "completed"
	Failed    State = "failed"
	TimedOut  State = "timeout"
	Cancelled State = "cancelled"
)

// States lists all states, live ones first.
var States = []State{Queued, Dispatched, Running, Suspended, Completed, Failed, TimedOut, Cancelled}

// Terminal tells whether the run has ended.
func (s State) Terminal() bool {
	return s == Completed || s == Failed || s == TimedOut || s == Cancelled
}

// Live tells whether the run has not ended.
func (s State) Live() bool {
	return s == Queued || s == Dispatched || s == Running || s == Suspended
}

// Leased tells whether a worker holds the run in this state.
func (s State) Leased() bool { return s == Dispatched || s == Running }

// StatusDeferred is the status that the API shows while a run is live and no caller waits for it
// any more. It is not a State, because it does not affect the execution.
const StatusDeferred = "deferred"

// A Class selects the default and the maximum timeout of a run.
type Class string

const (
	Task    Class = "task"
	Agent   Class = "agent"
	Process Class = "process"
)

// Open is the class that the API shows for a run whose kind was not known when the run was accepted.
// The first worker that leases the run decides about its class; see Settlement. It is never stored
// in Run.Class, and no request can ask for it.
const Open Class = "open"

// Classes are those that a run can be given.
var Classes = []Class{Task, Agent, Process}

// Valid tells whether c is one of the classes.
func (c Class) Valid() bool { return slices.Contains(Classes, c) }
