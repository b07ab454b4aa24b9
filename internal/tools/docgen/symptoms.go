package main

import (
	"strings"

	"github.com/perdure/perdure/internal/tools/symptoms"
)

const symptomsIntro = `# Symptoms, causes, actions

<!-- printed from internal/tools/symptoms by internal/tools/docgen; change that, then run "make docs" -->

A row for every alert of [alerts.yml](../deploy/alerts.yml), and for every line that is logged at level error. Search
this page for the text of the line. Two commands come first, whatever it is:

` + "```sh" + `
perdure doctor            # what is wrong, and what would help
curl -s $PERDURE_URL/readyz
` + "```" + `

[Operations](operations.md) has the routines that the actions name.
`

// symptomsPage prints what an operator sees, why, and what to do.
func symptomsPage(w *strings.Builder) {
	w.WriteString(symptomsIntro)
	w.WriteString("\n## Alerts\n\n")
	header(w, "alert", "cause", "action")
	for _, a := range symptoms.Alerts {
		row(w, code(a.Sign), a.Cause, a.Action)
	}
	for _, by := range []struct {
		program symptoms.Program
		title   string
	}{
		{symptoms.Server, "Lines of the server's log"},
		{symptoms.Worker, "Lines of a worker's log"},
		{symptoms.Runner, "Lines of a runner's log"},
	} {
		w.WriteString("\n## " + by.title + "\n\n")
		header(w, "line", "cause", "action")
		for _, l := range symptoms.Lines {
			if l.By == by.program {
				row(w, code(l.Sign), l.Cause, l.Action)
			}
		}
	}
}
