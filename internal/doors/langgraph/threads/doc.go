// Package threads answers the calls about threads: making, changing, searching and copying them, their state and
// its history.
//
// # How it works
//
// A thread is found by its id, or by the id that its caller chose, which is a name. Its values are its messages and
// the fields of the last result; its checkpoints are the runs that have ended. reads.go has what the packages
// of runs need as well: the messages and runs of a thread, and what people are asked.
package threads
