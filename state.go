package perdure

import "slices"

// A State is where a run stands in its life. Four states are live, four are terminal; a terminal state is
// final.
type State string

const (
	Queued     State = "queued"     // waits for a worker
	Dispatched State = "dispatched" // granted to a worker that has not started it yet
	Running    State = "running"    // executed under a lease
	Suspended  State = "suspended"  // waits for children, a signal, a timer or a callback; holds no worker

	Completed State = "completed"
	Failed    State = "failed"
	TimedOut  State = "timeout"
	Cancelled State = "cancelled"
)

// States lists all states, live ones first.
var States = []State{Queued, Dispatched, Running, Suspended, Completed, Failed, TimedOut, Cancelled}

// Terminal tells whether the state is an end.
func (s State) Terminal() bool {
	return s == Completed || s == Failed || s == TimedOut || s == Cancelled
}

// Live tells whether the state is not an end.
func (s State) Live() bool {
	return s == Queued || s == Dispatched || s == Running || s == Suspended
}

// Leased tells whether a worker holds the run in this state.
func (s State) Leased() bool { return s == Dispatched || s == Running }

// Deferred is the status that people see while a run is live and nobody waits for it any more. It is not
// a State: a deferral is about attention and can't disturb the work.
const StatusDeferred = "deferred"

// A Class decides a run's default and greatest timeouts.
type Class string

const (
	Task    Class = "task"
	Agent   Class = "agent"
	Process Class = "process"
)

// Classes are all of them.
var Classes = []Class{Task, Agent, Process}

// Valid tells whether c is one of the classes.
func (c Class) Valid() bool { return slices.Contains(Classes, c) }
