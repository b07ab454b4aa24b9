package agentcases

import (
	"slices"
	"strings"
)

// An Edit is a change of an agent's code, under runs that are in the middle of it. It is a line of the
// page.
type Edit struct {
	Area string
	// Edit says what is changed. Early says what runs do that have not come there, and Past what those do
	// that were past it.
	Edit, Early, Past string
	Cases             []Case
}

// A Case is an edit of one agent. A run that is past it waits at "wait" while the build changes.
type Case struct {
	Name          string
	Before, After string // scripts
	// Held has words of the text with which the run is held that is past it. Without any it goes on.
	Held []string
	// Gives is its result, if that is not the one of a run that begins under the new build.
	Gives string
	// Said is what is said in the end, in each way in which something is: messages, lines and text.
	Said string
	// Input is the input of the runs. Reads and ReadsAfter name the types that the builds read it with. A
	// run reads its input when it begins, so one that has not come there has not begun.
	Input, Reads, ReadsAfter string
	// Signals has the data of signals that the scripts wait for, by name.
	Signals map[string]string
	// Unseen tells that "perdure builds check" holds the edit for one that would be held: it does not see
	// what comes behind the wait.
	Unseen bool
}

// Areas returns the areas of the edits, in their order.
func Areas() (out []string) {
	for _, e := range Edits {
		if !slices.Contains(out, e.Area) {
			out = append(out, e.Area)
		}
	}
	return out
}

// CountCases returns the number of cases of all edits.
func CountCases() (n int) {
	for _, e := range Edits {
		n += len(e.Cases)
	}
	return n
}

// Talks tells whether the agents of the case need a thread.
func (c *Case) Talks() bool {
	return strings.Contains(c.Before+c.After, "say:") || strings.Contains(c.Before+c.After, "history") ||
		strings.Contains(c.Before+c.After, "newest")
}

func says(words ...string) []string { return words }

// Edits has all rows, by area.
var Edits = slices.Concat(stepEdits, valueEdits, childEdits, sagaEdits, branchEdits, namedEdits, sayingEdits)
