package bench

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const docsDir = "../../../../docs"

func TestResultsPageIsPrintedFromMeasurements(t *testing.T) {
	want, err := Results(docsDir)
	if err != nil {
		t.Fatal(err)
	}
	have, err := os.ReadFile(filepath.Join(docsDir, ResultsPage))
	if err != nil {
		t.Fatal(err)
	}
	if string(have) != want {
		t.Errorf("docs/%s is not what docs/%s says: run make docs", ResultsPage, measuredDir)
	}
}

// A record's verdict is about a goal that the project has, and its figure agrees with it. A ratio that
// was rounded to its goal may be on either side.
func TestRecordedVerdictsAreTrue(t *testing.T) {
	records, err := readRecords(filepath.Join(docsDir, measuredDir))
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for name, r := range records {
		for _, f := range r.Figures {
			what := fmt.Sprintf("%s: %s, %s", name, named(f.Scenario, f.What), placeName(f.Store, f.Target))
			for _, v := range f.Goals {
				n++
				value := f.Value
				if v.Metric != "" {
					value = map[string]float64{"p50": f.Latency.P50, "p99": f.Latency.P99}[v.Metric]
				}
				met := v.Ratio == 1 || (v.Ratio < 1) != v.Least
				if math.Abs(v.Ratio-value/v.Bound) > .001 || v.Met != met {
					t.Errorf("%s: %g against %s has the ratio %g and met = %v", what, value, v.bound(), v.Ratio, v.Met)
				}
				if !r.ByHand && !slices.ContainsFunc(projectGoals, func(g goal) bool { return g.fits(&f, v) }) {
					t.Errorf("%s: %s is no goal of the project", what, v.bound())
				}
			}
		}
		for _, l := range r.Lines {
			if l.Goal == 0 {
				continue
			}
			n++
			more := l.Ratio - l.Goal
			if met := (more > 0) != (l.Unit == "ms"); math.Abs(more) > .005 && l.Met != met {
				t.Errorf("%s: %s, %s: ratio %g against %g has met = %v", name, l.Work, l.System, l.Ratio, l.Goal, l.Met)
			}
		}
	}
	if n < 50 {
		t.Errorf("the records have %d verdicts: this test looks at too little", n)
	}
}

// The sentence about goals counts them.
func TestSentenceAboutGoalsIsComputed(t *testing.T) {
	for _, c := range []struct {
		about string
		met   []bool
		want  string
	}{
		{"all are met", []bool{true, true}, "**All 2 measurements that have a goal meet it.**"},
		{"one is missed", []bool{true, false, true}, "**Of 3 measurements that have a goal 2 meet it, and 1 do not.**"},
		{"none is met", []bool{false}, "**Of 1 measurements that have a goal 0 meet it, and 1 do not.**"},
	} {
		r := new(record)
		for _, met := range c.met {
			v := verdict{Bound: 10, Unit: unitSeconds, Ratio: .5, Met: true}
			if !met {
				v.Ratio, v.Met = 1.5, false
			}
			r.Figures = append(r.Figures, Figure{Scenario: "made-up", Value: 10 * v.Ratio, Unit: unitSeconds,
				Goals: []verdict{v}})
		}
		var b strings.Builder
		printGoals(&b, map[string]*record{"a": r})
		if !strings.HasPrefix(b.String(), c.want) {
			t.Errorf("%s: the page says\n%s\nwant it to begin with\n%s", c.about, b.String(), c.want)
		}
		if got := strings.Count(b.String(), "| made-up | "); got != len(c.met) {
			t.Errorf("%s: %d rows, want %d", c.about, got, len(c.met))
		}
	}
}
