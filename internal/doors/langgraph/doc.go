// Package langgraph is the door for clients of the LangGraph Platform, such as its SDK and deepagents.
//
// # How it works
//
// A kind is an assistant: graph_id is its name, and assistant_id the UUIDv5 of the name. A thread is a
// thread. An id that the caller chose for it is a name of the thread, which begins with "langgraph:". A
// run is a run.
//
// frames.go translates the lines of a log to frames. A stream ends with the run, or where the run waits
// for a person and the log has no more lines. So the status of a run and the end of its stream agree:
// clients attach again as long as the status is pending or running.
//
// A command with a resume decides what is open (resume.go). The answer is a run id of its own: a name of
// the same run, from the line of the decision on.
//
// # What it is not
//
// The door has no state, but for the runs whose readers have just left. Nothing of a run's values is kept:
// they are the messages of the thread, and the fields of the result.
//
// # Where to start reading
//
//   - door.go: the routes and the refusals.
//   - runs.go: starting, waiting for and following runs.
//   - frames.go: the translation of a log, which is pure.
//   - follow.go: the stream of a thread, one run after another.
//   - leave.go: what a disconnect does, where the operator lets it cancel.
package langgraph
