package main

import (
	"fmt"
	"strings"

	"github.com/perdure/perdure/internal/testkit/pairs"
)

const pairsIntro = `# Pairs of features

<!-- printed from internal/testkit/pairs by internal/tools/docgen; change that, then run "make docs" -->

A feature that is right alone can be wrong beside another one. This page has a cell for every two
features of a run: it names what tries both at once, or says why they can't meet.

Package [internal/testkit/pairs](../internal/testkit/pairs/doc.go) decides which features are in force on a run. The
simulator and the conformance suite ask it after every step, so that a cell says what was reached, not
what was meant. Every event, watchdog rule, wait, field of a submission and route belongs to a feature
or to none; a test fails for one that is not listed, and for a pair without an entry.

| mark | what tries both on one run |
| --- | --- |
| s | the simulator: ` + "`make sim`" + ` fails if its campaign does not reach the pair |
| c | the conformance suite: ` + "`TestPairs/<store>/<row>/<column>`" + ` and ` +
	"`TestPairs/<store>/restore`" + `; on PostgreSQL all pairs of one attempt, process, clean-up grant, ` +
	`tenant at its share and restore, and with ` + "`PERDURE_TEST_FULL=1`" + ` the others too |
| b | both of them |
| – | nothing: the two can't meet, see [below](#pairs-that-cant-meet) |

`

// pairsPage prints docs/pairs.md.
func pairsPage(w *strings.Builder) {
	w.WriteString(pairsIntro)
	n := pairs.Feature(pairs.Count)
	var cells, simulated, conformed, tried int
	for a := range n {
		for b := a + 1; b < n; b++ {
			c := pairs.CellOf(pairs.Pair{First: a, Then: b})
			cells++
			simulated += count(c.Simulated)
			conformed += count(c.Conformed)
			tried += count(c.Tried())
		}
	}
	fmt.Fprintf(w, "Of %d pairs %d are tried: %d by the simulator, %d by the conformance suite. %d can't meet.\n\n",
		cells, tried, simulated, conformed, cells-tried)
	w.WriteString("## Features\n\n")
	header(w, "", "feature", "in force on a run when")
	for f := range n {
		row(w, fmt.Sprint(int(f)+1), f.String(), f.What())
	}
	w.WriteString("\n## The table\n\nThe numbers of the columns are those of the features above.\n\n")
	names := []string{"", "feature"}
	for f := range n {
		names = append(names, fmt.Sprint(int(f)+1))
	}
	header(w, names...)
	for a := range n {
		line := []string{fmt.Sprint(int(a) + 1), a.String()}
		for b := range n {
			line = append(line, mark(a, b))
		}
		row(w, line...)
	}
	w.WriteString("\n## Pairs that can't meet\n\n")
	header(w, "pair", "why", "refused with")
	for a := range n {
		for b := a + 1; b < n; b++ {
			p := pairs.Pair{First: a, Then: b}
			c := pairs.CellOf(p)
			if c.Tried() {
				continue
			}
			refusal := "no call asks for both"
			if c.Code != "" {
				refusal = code(c.Code)
			}
			row(w, p.String(), c.Why, refusal)
		}
	}
}

// mark is the cell of two features in the table.
func mark(a, b pairs.Feature) string {
	if a == b {
		return ""
	}
	switch c := pairs.CellOf(pairs.Pair{First: a, Then: b}); {
	case c.Simulated && c.Conformed:
		return "b"
	case c.Simulated:
		return "s"
	case c.Conformed:
		return "c"
	}
	return "–"
}

func count(yes bool) int {
	if yes {
		return 1
	}
	return 0
}
