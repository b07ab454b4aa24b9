// Command docgen prints the pages of docs/ that say what the code does: the lifecycle, the watchdog's
// rules, the settings, the invariants, the metrics, the pairs of features, and the edits and misuses of agents.
// They are printed from the
// tables that the program decides by, so that they can't drift. Run it with "make docs"; "make check" fails
// when a page is not what it would print.
package main

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/perdure/perdure/internal/tools/prose"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// A page is a file of docs/ and what stands in it. A part is printed between two comments of a page that is
// written by hand.
type page struct {
	name  string
	print func(w *strings.Builder)
	part  string
}

var pages = []page{
	{"lifecycle.md", lifecycle, ""},
	{"watchdog.md", safetyNet, ""},
	{"configuration.md", configuration, ""},
	{"invariants.md", invariants, ""},
	{"metrics.md", metricsPage, ""},
	{"symptoms.md", symptomsPage, ""},
	{"pairs.md", pairsPage, ""},
	{"agents.md", editTables, "edits"},
	{"misuses.md", misusesPage, ""},
}

func run(args []string, stdout, stderr io.Writer) int {
	f := flag.NewFlagSet("docgen", flag.ContinueOnError)
	f.SetOutput(stderr)
	dir := f.String("dir", "docs", "the folder of the pages")
	check := f.Bool("check", false, "compare with what is there instead of writing")
	if err := f.Parse(args); err != nil {
		return 2
	}
	stale := 0
	for _, p := range pages {
		path := filepath.Join(*dir, p.name)
		have, err := os.ReadFile(path)
		want := text(p, string(have))
		switch {
		case err != nil && !os.IsNotExist(err):
			fmt.Fprintln(stderr, "docgen:", err)
			return 1
		case err == nil && bytes.Equal(have, want):
			continue
		case *check:
			stale++
			fmt.Fprintf(stderr, "docgen: %s is not what the code says: run make docs\n%s", path,
				firstDifference(string(have), string(want)))
		default:
			if err := os.WriteFile(path, want, 0o644); err != nil {
				fmt.Fprintln(stderr, "docgen:", err)
				return 1
			}
			fmt.Fprintln(stdout, "wrote", path)
		}
	}
	if stale > 0 {
		return 1
	}
	return 0
}

// text is a page as it is to be.
func text(p page, have string) []byte {
	var b strings.Builder
	p.print(&b)
	printed := prose.Wrap(b.String())
	if p.part == "" {
		return []byte(printed)
	}
	begin, end := "<!-- begin of "+p.part, "<!-- end of "+p.part+" -->\n"
	comment := begin + ": printed from internal/testkit/agentcases by internal/tools/docgen; change that, then run " +
		"\"make docs\" -->\n"
	before, rest, _ := strings.Cut(have, begin)
	_, after, _ := strings.Cut(rest, end)
	return []byte(before + comment + "\n" + strings.TrimSpace(printed) + "\n\n" + end + after)
}

// firstDifference shows where two texts part.
func firstDifference(have, want string) string {
	a, b := strings.Split(have, "\n"), strings.Split(want, "\n")
	for i := 0; i < len(a) || i < len(b); i++ {
		if x, y := lineOf(a, i), lineOf(b, i); x != y {
			return fmt.Sprintf("  line %d\n  - %s\n  + %s\n", i+1, x, y)
		}
	}
	return ""
}

func lineOf(lines []string, i int) string {
	if i < len(lines) {
		return lines[i]
	}
	return "(the end)"
}

// row writes one row of a table, with what Markdown would take for a border escaped.
func row(w *strings.Builder, cells ...string) {
	for _, c := range cells {
		w.WriteString("| " + strings.ReplaceAll(c, "|", `\|`) + " ")
	}
	w.WriteString("|\n")
}

// header begins a table.
func header(w *strings.Builder, names ...string) {
	row(w, names...)
	w.WriteString(strings.Repeat("| --- ", len(names)) + "|\n")
}

// code sets a name in type.
func code(s string) string { return "`" + s + "`" }
