package agent

import "github.com/perdure/perdure/agent/internal/journal"

// A record belongs to the step with its key, which is a name and a number. Where the number alone
// does not say what a step is about, its record has a digest of that: of its item in a Parallel, of
// the value that the code gives with For. A replay that asks for the same key with another digest is
// held, instead of being handed the result of something else.

// An about is the subject of a step.
type about struct {
	// digest is that of the value, or empty if the code does not say.
	digest string
	// says completes "its record is ", in the error of a replay that asks for another digest.
	says string
	// err tells why the value has no digest.
	err error
}

// given tells whether the code says what the step is about.
func (a *about) given() bool { return a.says != "" }

const aboutValue = "about something else than the value that the agent gives with For now; a loop over steps of one " +
	"name keeps its order and its values; announce what was added, removed or swapped with Version"

const aboutItem = "that of another item than the one for which the agent asks now; items of a Parallel keep " +
	"their order and their values: they come from the input or from steps, and not from the order of a map; " +
	"announce other items with Version"

// check returns an error if a record is about something else. A record without a digest was written
// by code that did not say what its step is about. It is taken as it is.
func (a *about) check(key string, rec *journal.Step) error {
	if a.digest == "" || rec.Of == "" || a.digest == rec.Of {
		return nil
	}
	return nondeterminism(key, "its record is %s", a.says)
}
