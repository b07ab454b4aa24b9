package main

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agenttest"
	"github.com/perdure/perdure/worker"
)

// scenario returns a scenario of a program in virtual time.
func scenario(t *testing.T, p Program, day time.Duration) agenttest.Scenario {
	sc := agenttest.Scenario{
		Setup: func(s *agenttest.Trial) func(*worker.Worker) {
			world := World{Day: day, Do: func(ctx context.Context, _, what string) error {
				s.Note(ctx, what)
				return nil
			}}
			return func(w *worker.Worker) { p.Register(w, world) }
		},
		Start:    p.submission(),
		Patience: 31 * day,
	}
	if p.OnThread {
		sc.Start.ThreadID = "new"
	}
	if p.Meanwhile != nil {
		sc.Script = func(s *agenttest.Trial) {
			if err := p.Meanwhile(s.Context(), s.Client(), s.RunID(), day); err != nil {
				t.Errorf("%s: what happens meanwhile: %v", p.Name, err)
			}
		}
	}
	return sc
}

// ends has how each program ends, and what it has done outside.
var ends = map[string]struct {
	state perdure.State
	// result is the result, or the text of the error.
	result string
	notes  []string
}{
	"research": {perdure.Completed, `"the atlas knows whales, the diary knows whales, the paper knows whales"`, nil},
	"chat":     {perdure.Completed, `2`, nil},
	"payment": {perdure.Failed, `a piano is too heavy`,
		[]string{"reserve piano", "charge for piano", "refund charge for piano", "release reserve piano"}},
	"library":  {perdure.Completed, `{"Books":49,"Words":49432,"Unreadable":1}`, nil},
	"approval": {perdure.Completed, `"buy a desk"`, []string{"buy a desk"}},
	"reminder": {perdure.Completed, `"paid by card"`, []string{"reminder 1 for Ada", "reminder 2 for Ada"}},
	"survey":   {perdure.Completed, `"9 acres, 1 late"`, nil},
}

func TestProgramsEndAsExpected(t *testing.T) {
	for _, p := range programs {
		t.Run(p.Name, func(t *testing.T) {
			check(t, p, scenario(t, p, time.Hour).Run(t))
		})
	}
}

// check compares the end of a program with the one that is expected.
func check(t *testing.T, p Program, end *agenttest.End) {
	t.Helper()
	want, got := ends[p.Name], string(end.Run.Result)
	if end.Run.Error != nil {
		got = end.Run.Error.Message
	}
	if end.Run.State != want.state || got != want.result {
		t.Errorf("%s ended as %s with %s, want %s with %s", p.Name, end.Run.State, got, want.state, want.result)
	}
	if len(end.Notes) != len(want.notes) {
		t.Errorf("%s has done %v, want %q", p.Name, end.Notes, want.notes)
	}
	for _, what := range want.notes {
		if end.Notes[what] == 0 {
			t.Errorf("%s has done %v, want also %s", p.Name, end.Notes, what)
		}
	}
}

// The same against a server in real time, with short days.
func TestProgramsRunAgainstAServer(t *testing.T) {
	t.Setenv("PERDURE_URL", "")
	var out strings.Builder
	if err := run(t.Context(), &out, 200*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	for _, p := range programs {
		want := ends[p.Name]
		if line := "  " + string(want.state) + ": " + want.result + "\n"; !strings.Contains(out.String(), line) {
			t.Errorf("%s printed no line %q:\n%s", p.Name, line, out.String())
		}
	}
}
