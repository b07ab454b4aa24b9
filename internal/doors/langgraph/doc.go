// Package langgraph is the door for clients of the LangGraph Platform, such as its SDK and deepagents.
//
// # How it works
//
// A kind is an assistant: graph_id is its name, and assistant_id the UUIDv5 of the name. A thread is a
// thread. An id that the caller chose for it is a name of the thread, which begins with "langgraph:". A
// run is a run.
//
// Package frames translates the lines of a log to frames, and makes no calls. A stream ends with the run, or
// where the run waits for a person and the log has no more lines. So the status of a run and the end of its
// stream agree: clients attach again as long as the status is pending or running.
//
// A command with a resume decides what is open (package start). The answer is a run id of its own: a name of
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
//   - package start: starting runs and answering interrupts. Package runs: runs that there are.
//   - package threads: threads, their state and its history. Package assistants: kinds.
//   - package frames: the translation of a log, which is pure.
//   - package follow: the stream of a thread, one run after another.
//   - package shape: the small things that these share.
package langgraph
