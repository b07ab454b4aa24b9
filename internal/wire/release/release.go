// Package release says which release this program is: its version, and the commit that it was built
// from. The command line prints both, PostgreSQL lists the version beside a node's connections, and
// the metrics have it as a label.
//
// A version is a constant of the source and not set by the linker, so that a program built with
// plain "go build" or "go install" has it as well. Between two releases it is the next one with
// "-dev" appended.
package release

import (
	"runtime/debug"
	"strconv"
	"strings"
)

// Version is the release that this program is.
const Version = "0.2.0-dev"

// Commit gives the commit that the program was built from, and whether files were changed after it.
// It is empty where the build had no history.
func Commit() (commit string, modified bool) {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "", false
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			commit = s.Value
		case "vcs.modified":
			modified = s.Value == "true"
		}
	}
	return commit, modified
}

// Older tells whether a release comes before another one. A suffix after "-" does
// not count: "0.2.0-dev" is 0.2.0. A text that is no version is older than every release.
func Older(a, b string) bool {
	x, y := numbers(a), numbers(b)
	for i := range x {
		if x[i] != y[i] {
			return x[i] < y[i]
		}
	}
	return false
}

// numbers gives the three numbers of a version. A part that is no number is -1.
func numbers(version string) (out [3]int) {
	version, _, _ = strings.Cut(version, "-")
	parts := strings.Split(version, ".")
	for i := range out {
		out[i] = -1
		if i < len(parts) {
			if n, err := strconv.Atoi(parts[i]); err == nil && n >= 0 {
				out[i] = n
			}
		}
	}
	return out
}
