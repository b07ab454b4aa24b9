package agenttest

import (
	"fmt"
	"strings"

	"github.com/perdure/perdure"
)

// A boundary is a durable change of a run, by a commit or a grant. Crashes between the same two
// boundaries are equivalent.
type boundary struct {
	run   string // its name in the tree
	grant bool   // a grant, otherwise a commit
	n     int    // number among the grants or commits of the run, from 1
}

func (b boundary) String() string {
	if b.grant {
		return fmt.Sprintf("grant %d of %s", b.n, b.run)
	}
	return fmt.Sprintf("commit %d of %s", b.n, b.run)
}

// A point is a crash: of the worker or the server, before or after a boundary.
type point struct {
	boundary
	text   string // describes the commit
	server bool   // the server restarts, otherwise the worker dies
	after  bool   // the call was executed and its answer is lost, otherwise it does not arrive
}

func (p point) String() string {
	who := "the worker dies"
	if p.server {
		who = "the server restarts"
	}
	what := p.boundary.String()
	if p.text != "" {
		what += " (" + p.text + ")"
	}
	if p.after {
		return who + " after " + what + ", before its answer"
	}
	return who + " before " + what
}

// points returns the crashes at some boundaries. A crash before a grant is left out: nothing has
// changed since the commit before it.
func points(at []point, servers bool) []point {
	var out []point
	for _, p := range at {
		for _, server := range []bool{false, true} {
			for _, after := range []bool{false, true} {
				if server && !servers || p.grant && !after {
					continue
				}
				p.server, p.after = server, after
				out = append(out, p)
			}
		}
	}
	return out
}

// describe returns a few words about a commit.
func describe(c *perdure.Commit) string {
	var parts []string
	list := func(what string, names []string) {
		const few = 3
		if len(names) > few {
			names = append(names[:few:few], fmt.Sprintf("%d more", len(names)-few))
		}
		if len(names) > 0 {
			parts = append(parts, what+" "+strings.Join(names, ", "))
		}
	}
	names := func(n int, name func(int) string) (out []string) {
		for i := range n {
			out = append(out, name(i))
		}
		return out
	}
	var steps []string
	for _, e := range c.Journal {
		if step, ok := stepOf(e.Key); ok {
			steps = append(steps, step)
		}
	}
	list("records", steps)
	list("spawns", names(len(c.Children), func(i int) string { return c.Children[i].Key }))
	list("waits for", names(len(c.Waits), func(i int) string { return waitName(&c.Waits[i]) }))
	list("closes", c.Close)
	if n := len(c.Messages); n > 0 {
		parts = append(parts, fmt.Sprintf("%d to the thread", n))
	}
	if n := len(c.Events); n > 0 {
		parts = append(parts, fmt.Sprintf("%d to the log", n))
	}
	if n := len(c.Ack); n > 0 {
		parts = append(parts, fmt.Sprintf("takes %d from the inbox", n))
	}
	if c.Outcome != nil {
		parts = append(parts, outcomes[c.Outcome.Type])
	}
	if len(parts) == 0 {
		return "notes where it is"
	}
	return strings.Join(parts, "; ")
}

// outcomes describes the types of outcomes.
var outcomes = map[perdure.OutcomeType]string{
	perdure.OutcomeComplete:  "completes",
	perdure.OutcomeFail:      "fails",
	perdure.OutcomeCancelled: "is cancelled",
	perdure.OutcomeSuspend:   "suspends",
	perdure.OutcomeReject:    "rejects",
}

// waitName describes a wait.
func waitName(w *perdure.WaitSpec) string {
	switch w.Type {
	case perdure.WaitSignal:
		return "signal " + w.Name
	case perdure.WaitTimer:
		return "timer " + w.Timeout.String()
	case perdure.WaitChildren:
		return "children"
	}
	return string(w.Type)
}
