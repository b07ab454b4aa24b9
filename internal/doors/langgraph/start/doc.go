// Package start answers the calls that start runs, or answer what a run asks.
//
// # How it works
//
// start.go makes a submission of the body: fields that can't be honoured are named in the run's metadata. A
// command with a resume starts nothing: resume.go finds what is open, and decides it. The answer is a run id of
// its own, a name of the same run, from the line of the decision on.
package start
