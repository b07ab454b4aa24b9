package main

import (
	"fmt"
	"strings"

	"github.com/perdure/perdure/internal/testkit/agentcases"
)

// editTables prints the edits of docs/agents.md.
func editTables(w *strings.Builder) {
	fmt.Fprintf(w, "A test executes %d edits. Each is tried under a run that has not come there, which has to "+
		"go on as a "+
		"new run does, and under one that is past it. A run that is held goes on under the build before, and "+
		"has to end as if "+
		"nothing had been. The last column counts the edits that were tried for a line.\n\n", agentcases.CountCases())
	for _, area := range agentcases.Areas() {
		fmt.Fprintf(w, "**%s**\n\n", area)
		header(w, "the edit", "runs that have not come there", "runs that were past it", "tried")
		for _, e := range agentcases.Edits {
			if e.Area == area {
				row(w, e.Edit, e.Early, e.Past, fmt.Sprint(len(e.Cases)))
			}
		}
		w.WriteString("\n")
	}
}

const misusesIntro = `# Misuses of agents

<!-- printed from internal/testkit/agentcases by internal/tools/docgen; change that, then run "make docs" -->

What becomes of an agent that does something that it must not do, or something odd. A test executes each row,
%d in all, with an agent that returns the error and with one that ignores it. None is silent: the run is right,
or it is [held](agents.md#a-defect-of-the-code-holds-the-run) before its next step with a text that says what to
do, or the error has a code. What no execution can find by itself, [perdurevet](vet.md) reports or [the test
kit](testing.md) finds, and the test executes these, too.

`

// misusesPage prints docs/misuses.md.
func misusesPage(w *strings.Builder) {
	fmt.Fprintf(w, misusesIntro, agentcases.CountMisuses())
	for _, area := range agentcases.Misuses {
		fmt.Fprintf(w, "## %s\n\n%s\n\n", area.Name, area.Instead)
		header(w, "the agent", "becomes")
		for _, m := range area.Rows {
			row(w, m.Name, becomes(&m))
		}
		w.WriteString("\n")
	}
}

// becomes says what becomes of a misuse.
func becomes(m *agentcases.Misuse) string {
	var out []string
	switch {
	case m.AtEnd:
		out = append(out, "held when it completes, "+code(string(m.Held)))
	case m.Held != "":
		out = append(out, "held, "+code(string(m.Held)))
	case m.Fails != "":
		out = append(out, "fails, "+code(string(m.Fails)))
	case m.Error != "":
		out = append(out, "an error that it may handle, "+code(string(m.Error)))
	case m.Right != "":
		out = append(out, "right")
	}
	if m.Vet != "" {
		out = append(out, "reported by "+code(m.Vet))
	}
	if m.Kit {
		out = append(out, "found by the test kit")
	}
	if m.Note != "" {
		out = append(out, m.Note)
	}
	return strings.Join(out, "; ")
}
