// Package symptoms has what an operator sees when something is wrong, with its cause and what to do: a row for
// every alert of deploy/alerts.yml and for every line that the program logs at level error. docs/symptoms.md is
// printed from it. A test of internal/tools/archtest finds alerts and lines without a row, and rows without
// either.
package symptoms

// A Row says what one alert or one line of the log means.
type Row struct {
	// Sign is the name of an alert, or the message of a line of the log.
	Sign   string
	Cause  string
	Action string
}

// A Program is the program that writes a line to its log.
type Program string

const (
	Server Program = "server"
	Worker Program = "worker"
	Runner Program = "runner"
)

// A Line is a line at level error.
type Line struct {
	By Program
	Row
}
