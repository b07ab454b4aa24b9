package main

import (
	"fmt"
	"strings"

	"github.com/perdure/perdure/internal/agentcases"
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
