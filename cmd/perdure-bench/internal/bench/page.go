package bench

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/perdure/perdure/internal/tools/prose"
)

// This file prints the tables of docs/results.md from recorded measurements, so that what the page says
// about goals is what was measured. A record is a file of docs/evidence/measured: the output of
// "perdure-bench --json", or of "make peers" with -json. The text between the tables is written by
// hand. "perdure-bench --results docs" prints the page, and a test compares it with the records.

// A record is one measurement that is kept.
type record struct {
	Report
	// Note says what is not as perdure-bench would have written it.
	Note string `json:"note"`
	// ByHand is set for figures that no scenario measures. Their goals are not in projectGoals.
	ByHand bool `json:"by_hand"`
	// Lines are those of "make peers", which has no Figures.
	Lines []peerLine `json:"lines"`
}

// A peerLine is a system at a comparison. bench/peers writes it.
type peerLine struct {
	Work   string  `json:"work"`
	System string  `json:"system"`
	Unit   string  `json:"unit"`
	Median float64 `json:"median"`
	Ratio  float64 `json:"ratio"` // to the last peer
	Goal   float64 `json:"goal"`
	Met    bool    `json:"met"`
}

// pageParts are the parts of the page that are printed, each from its records.
var pageParts = []struct {
	name  string
	files []string
}{
	{"goals", nil}, // from all records
	{"peers", []string{"peers-1", "peers-2"}},
	{"runs", []string{"runs", "alarms", "wake"}},
	{"limits", []string{"limits", "schedules", "schedules-postgres"}},
	{"doors", []string{"doors"}},
	{"streams", []string{"streams"}},
	{"feed", []string{"feed"}},
	{"agents", []string{"agents", "children", "conversation"}},
}

// ResultsPage is the name of the page, and measuredDir that of the folder with its records, in the folder of
// the pages.
const (
	ResultsPage = "results.md"
	measuredDir = "evidence/measured"
)

// Results returns the page of a folder with its tables printed anew from the folder's records.
func Results(docs string) (string, error) {
	page, err := os.ReadFile(filepath.Join(docs, ResultsPage))
	if err != nil {
		return "", err
	}
	records, err := readRecords(filepath.Join(docs, measuredDir))
	if err != nil {
		return "", err
	}
	return printResults(string(page), records)
}

// readRecords reads all records of a folder, by the names of their files.
func readRecords(dir string) (map[string]*record, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		return nil, err
	}
	out := make(map[string]*record)
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			return nil, err
		}
		r := new(record)
		if err := json.Unmarshal(text, r); err != nil {
			return nil, fmt.Errorf("%s: %w", f, err)
		}
		out[strings.TrimSuffix(filepath.Base(f), ".json")] = r
	}
	return out, nil
}

// printResults returns the page with its printed parts made anew.
func printResults(page string, records map[string]*record) (string, error) {
	for _, p := range pageParts {
		begin, end := "<!-- begin of "+p.name, "<!-- end of "+p.name+" -->"
		before, rest, ok := strings.Cut(page, begin)
		_, after, ended := strings.Cut(rest, end)
		if !ok || !ended {
			return "", fmt.Errorf("the page has no part %q", p.name)
		}
		var b strings.Builder
		switch p.name {
		case "goals":
			printGoals(&b, records)
		case "peers":
			for _, f := range p.files {
				printPeers(&b, records[f])
			}
		default:
			var of []*record
			for _, f := range p.files {
				if records[f] == nil {
					return "", fmt.Errorf("there is no record %s.json", f)
				}
				of = append(of, records[f])
			}
			printFigures(&b, of)
		}
		page = before + begin + ": printed from docs/evidence/measured by \"make docs\" -->\n\n" +
			prose.Wrap(strings.TrimSpace(b.String())) + "\n\n" + end + after
	}
	return page, nil
}

// A comparison is a figure with a goal.
type comparison struct {
	what, place, figure, goal, commit string
	met                               bool
	far                               float64 // how far from its goal: over 1 if it is missed
}

// compared returns the comparisons of all records.
func compared(records map[string]*record) (out []comparison) {
	for _, name := range slices.Sorted(maps.Keys(records)) {
		r := records[name]
		for _, f := range r.Figures {
			for _, v := range f.Goals {
				far := v.Ratio
				if v.Least {
					far = 1 / v.Ratio
				}
				out = append(out, comparison{named(f.Scenario, f.What), placeName(f.Store, f.Target),
					f.measured(v.Metric), v.bound(), r.commit(), v.Met, far})
			}
		}
		for _, l := range r.Lines {
			if l.Goal == 0 {
				continue
			}
			sign, far := "≥", l.Goal/l.Ratio
			if l.Unit == "ms" {
				sign, far = "≤", l.Ratio/l.Goal
			}
			out = append(out, comparison{l.Work + ", beside the other", strings.TrimPrefix(l.System, "Perdure, "),
				"ratio " + number(l.Ratio), sign + " " + number(l.Goal), r.commit(), l.Met, far})
		}
	}
	slices.SortStableFunc(out, func(a, b comparison) int { return cmp.Compare(b.far, a.far) })
	return out
}

// closest is how many of the goals that are met are listed.
const closest = 8

// printGoals prints which goals are met and which are not.
func printGoals(b *strings.Builder, records map[string]*record) {
	var met, missed []comparison
	for _, c := range compared(records) {
		if c.met {
			met = append(met, c)
		} else {
			missed = append(missed, c)
		}
	}
	n := len(met) + len(missed)
	if len(missed) == 0 {
		fmt.Fprintf(b, "**All %d measurements that have a goal meet it.**\n", n)
	} else {
		fmt.Fprintf(b, "**Of %d measurements that have a goal %d meet it, and %d do not.** A goal that was measured "+
			"on two stores, or twice, counts as often. Those that miss theirs, the furthest first:\n\n",
			n, len(met), len(missed))
		printComparisons(b, missed)
	}
	if len(met) > 0 {
		met = met[:min(closest, len(met))]
		fmt.Fprintf(b, "\nThe %d that are closest to missing theirs:\n\n", len(met))
		printComparisons(b, met)
	}
	if open := unmeasured(records); len(open) > 0 {
		fmt.Fprintf(b, "\nThese goals have no recorded figure: %s.\n", strings.Join(open, "; "))
	}
	var machines []string
	for _, name := range slices.Sorted(maps.Keys(records)) {
		m := &records[name].Machine
		machines = addNew(machines, fmt.Sprintf("%d cores, %s, %s, Linux %s, %s, %s", m.Cores, m.CPU, m.Memory,
			m.Kernel, m.FileSystem, m.Go))
	}
	fmt.Fprintf(b, "\nMeasured on %s.\n", strings.Join(machines, "; and on "))
}

func printComparisons(b *strings.Builder, list []comparison) {
	b.WriteString("| | where | figure | goal | commit |\n| --- | --- | --- | --- | --- |\n")
	for _, c := range list {
		fmt.Fprintf(b, "| %s | %s | %s | %s | %s |\n", c.what, c.place, c.figure, c.goal, c.commit)
	}
}

// unmeasured returns the goals of the project that no record is compared with.
func unmeasured(records map[string]*record) (out []string) {
	for _, g := range projectGoals {
		found := false
		for _, r := range records {
			for _, f := range r.Figures {
				found = found || slices.ContainsFunc(f.Goals, func(v verdict) bool { return g.fits(&f, v) })
			}
		}
		if !found {
			v := verdict{Metric: g.metric, Least: g.least, Bound: g.bound}
			out = append(out, strings.TrimSuffix(fmt.Sprintf("%s %s, %s", named(g.scenario, g.what), v.bound(),
				placeName(g.store, g.target)), ", "))
		}
	}
	return out
}

// fits tells whether a recorded verdict is about this goal, with the bound that it has today.
func (g *goal) fits(f *Figure, v verdict) bool {
	return g.scenario == f.Scenario && g.what == f.What && (g.store == "" || g.store == f.Store) &&
		(g.target == "" || g.target == f.Target) && g.metric == v.Metric && g.least == v.Least && g.bound == v.Bound
}

// printFigures prints the figures of records as a table: a line for what was measured, a column for each
// store and target.
func printFigures(b *strings.Builder, records []*record) {
	type line struct {
		what    string
		cells   map[string]string
		goals   []string
		commits []string
	}
	var lines []*line
	var columns []string
	for _, r := range records {
		for _, f := range r.Figures {
			what := named(f.Scenario, f.What)
			i := slices.IndexFunc(lines, func(l *line) bool { return l.what == what })
			if i < 0 {
				lines, i = append(lines, &line{what: what, cells: make(map[string]string)}), len(lines)
			}
			l, cell := lines[i], f.measured("")
			for _, v := range f.Goals {
				l.goals = addNew(l.goals, v.bound())
				if !v.Met {
					cell = "**" + cell + "**"
				}
			}
			l.commits = addNew(l.commits, r.commit())
			place := placeName(f.Store, f.Target)
			l.cells[place] = cell
			columns = addNew(columns, place)
		}
	}
	slices.Sort(columns)
	slices.Reverse(columns) // SQLite first
	head := append(append([]string{""}, columns...), "goal", "commit")
	fmt.Fprintf(b, "| %s |\n%s|\n", strings.Join(head, " | "), strings.Repeat("| --- ", len(head)))
	for _, l := range lines {
		row := []string{l.what}
		for _, c := range columns {
			row = append(row, l.cells[c])
		}
		row = append(row, strings.Join(l.goals, ", "), strings.Join(l.commits, ", "))
		fmt.Fprintf(b, "| %s |\n", strings.Join(row, " | "))
	}
	b.WriteString("\nA **bold** figure misses its goal.\n")
}

// printPeers prints the comparisons of "make peers": a line for each work, a column for each system.
func printPeers(b *strings.Builder, r *record) {
	if r == nil {
		return
	}
	var works, systems []string
	for _, l := range r.Lines {
		works = addNew(works, l.Work)
		if strings.HasPrefix(l.System, "Perdure, ") {
			systems = addNew(systems, strings.TrimPrefix(l.System, "Perdure, "))
		}
	}
	fmt.Fprintf(b, "Commit %s:\n\n| | %s | the other |\n| --- %s| --- |\n", r.commit(), strings.Join(systems, " | "),
		strings.Repeat("| --- ", len(systems)))
	for _, w := range works {
		cells, others := make([]string, len(systems)), []string(nil)
		for _, l := range r.Lines {
			if l.Work != w {
				continue
			}
			var text string
			if l.Median > 0 {
				text = withUnit(l.Median, l.Unit)
			}
			own, ours := strings.CutPrefix(l.System, "Perdure, ")
			if !ours {
				others = append(others, l.System+" "+text)
				continue
			}
			if l.Goal > 0 {
				sign, ratio := "≥", number(l.Ratio)
				if l.Unit == "ms" {
					sign = "≤"
				}
				if !l.Met {
					ratio = "**" + ratio + "**"
				}
				text = strings.TrimPrefix(fmt.Sprintf("%s; %s (%s %s)", text, ratio, sign, number(l.Goal)), "; ")
			}
			cells[slices.Index(systems, own)] = text
		}
		fmt.Fprintf(b, "| %s | %s | %s |\n", w, strings.Join(cells, " | "), strings.Join(others, ", "))
	}
	b.WriteString("\n")
}

// commit returns the commit of a record, as the page shows it.
func (r *record) commit() string {
	if r.Machine.Commit == "" {
		return "not recorded"
	}
	commit, changed, _ := strings.Cut(r.Machine.Commit, " ")
	return strings.TrimSpace("`" + commit[:min(7, len(commit))] + "` " + changed)
}

// measured returns the figure for people: a metric of its latencies, or all that it has.
func (f *Figure) measured(metric string) string {
	var parts []string
	if f.Unit != "" && metric == "" {
		parts = append(parts, withUnit(f.Value, f.Unit))
	}
	if l := f.Latency; l != nil {
		if l.P50 > 0 && metric != "p99" {
			parts = append(parts, "p50 "+withUnit(l.P50, "ms"))
		}
		if l.P99 > 0 && metric != "p50" {
			parts = append(parts, "p99 "+withUnit(l.P99, "ms"))
		}
	}
	return strings.Join(parts, ", ")
}

// bound returns the goal for people.
func (v verdict) bound() string {
	sign := "≤ "
	if v.Least {
		sign = "≥ "
	}
	return strings.TrimSpace(v.Metric + " " + sign + withUnit(v.Bound, v.Unit))
}

// placeName returns where something was measured.
func placeName(store, target string) string {
	name := map[string]string{storeSQLite: "SQLite", storePostgres: "PostgreSQL"}[store]
	where := map[string]string{targetProcess: "in process", targetHTTP: "HTTP"}[target]
	return strings.TrimPrefix(strings.TrimSuffix(name+", "+where, ", "), ", ")
}

func withUnit(v float64, unit string) string {
	switch unit {
	case unitRate, unitTimes:
		return number(v) + unit
	case "":
		return number(v)
	}
	return number(v) + " " + unit
}

// number writes a number with three digits at least, and blanks between thousands.
func number(v float64) string {
	text := strconv.FormatFloat(v, 'f', -1, 64)
	if v >= 100 {
		text = strconv.FormatFloat(v, 'f', 0, 64)
	} else if len(text) > 5 {
		text = strconv.FormatFloat(v, 'g', 3, 64)
	}
	for i := len(text) - 3; v >= 1000 && i > 0; i -= 3 {
		text = text[:i] + " " + text[i:]
	}
	return text
}

func addNew(list []string, s string) []string {
	if slices.Contains(list, s) {
		return list
	}
	return append(list, s)
}
