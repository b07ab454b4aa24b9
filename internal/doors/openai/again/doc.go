// Package again starts the runs of calls, and finds the run of a call that is posted again.
package again
