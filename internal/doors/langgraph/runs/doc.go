// Package runs answers the calls about runs that there are: showing, listing, following, joining, cancelling
// and removing them.
//
// # How it works
//
// A [Part] is a run, or the part of one that follows an answer to an interrupt. read.go has the two answers that
// stay open. A stream ends with the run, or where the run waits for a person and the log has no more lines.
// [Disconnects] knows the runs whose readers have just left, where the operator lets that cancel them.
package runs
