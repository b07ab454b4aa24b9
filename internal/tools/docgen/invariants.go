package main

import (
	"fmt"
	"strings"

	"github.com/perdure/perdure/internal/server/store"
)

const invariantsIntro = `# Invariants

<!-- printed from store.Invariants by internal/tools/docgen; change those, then run "make docs" -->

What holds at every committed moment of a store. Each is a query for the rows that break it, and has to find none.
` + "`View.Check`" + ` in [check.go](../internal/server/store/check.go) asks them all, over some runs or over
everything; the conformance suite does so after every scenario, and the [simulator](simulator.md) after its steps.
` + "`perdure fsck`" + ` asks them of a server or of its data, see
[metrics](metrics.md#invariants).

Beside them, two things are checked on every run that no query can say (S4): that its log, read from the first
line to the last, tells a
history that the [lifecycle](lifecycle.md) allows, and that the state it arrives at is the one in the run's row.
The index of metadata is read run by run as well (P18): every entry of a run's metadata has its row there. The counts
of limits are compared with the positions of runs (P20): slots with the leased runs and the steps that hold them, and
a limit that runs wait at with its room.

`

func invariants(w *strings.Builder) {
	w.WriteString(invariantsIntro)
	header(w, "id", "what holds")
	for _, i := range store.Invariants {
		row(w, i.ID, i.Statement)
	}
	row(w, store.P20.ID, store.P20.Statement)
	w.WriteString("\nIds that begin with S are those of the safety properties that any durable runtime owes its " +
		"users; those with P belong to\nthis implementation.\n" +
		"\n## The queries\n\n`{runs}` and `{events}` stand for the tables, narrowed to some runs when only those " +
		"are checked.\n")
	for _, i := range store.Invariants {
		fmt.Fprintf(w, "\n<details><summary>%s: %s</summary>\n\n```sql\n%s\n```\n\n</details>\n", i.ID, i.Statement,
			wrap(i.Query))
	}
}

// wrap breaks a query before the clauses of its outermost level, so that it can be read.
func wrap(q string) string {
	var b strings.Builder
	depth := 0
	for i := 0; i < len(q); i++ {
		switch q[i] {
		case '(':
			depth++
		case ')':
			depth--
		case ' ':
			if depth == 0 && beginsClause(q[i+1:]) {
				b.WriteString("\n ")
			}
		}
		b.WriteByte(q[i])
	}
	return b.String()
}

func beginsClause(q string) bool {
	for _, word := range []string{"FROM ", "WHERE ", "JOIN ", "GROUP BY ", "AND ", "OR "} {
		if strings.HasPrefix(q, word) {
			return true
		}
	}
	return false
}
