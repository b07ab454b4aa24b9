package typescript

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/perdure/perdure/internal/testkit/agentcases"
)

// An edited is what has become of a run under an edit.
type edited struct {
	First, Past, Fresh, Error string
	Effects, Said             []string
	// Back has what a held execution has written and done, how the release before has ended it, how a run ends that
	// was never held, and the effects of both.
	Back []json.RawMessage
}

// otherwise are the rows of docs/agents.md that the language has otherwise, with the reason.
var otherwise = map[string]string{
	"a step's type gains a field, or is another one that reads the same: a field is new": "" +
		"a schema fills in nothing: the field is undefined",
}

// Each edit of docs/agents.md under running agents, in TypeScript: right, or held and named before an effect.
func TestEditsOfTheTable(t *testing.T) {
	t.Parallel()
	var cases []agentcases.Case
	var names []string
	for _, e := range agentcases.Edits {
		for _, c := range e.Cases {
			cases, names = append(cases, c), append(names, e.Edit+": "+c.Name)
		}
	}
	in, err := json.Marshal(cases)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), node(t, runtimes[0]), "dist/test/edits.js")
	cmd.Stdin = bytes.NewReader(in)
	var complaint bytes.Buffer
	cmd.Stderr = &complaint
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, &complaint)
	}
	var got []edited
	if err := json.Unmarshal(out, &got); err != nil || len(got) != len(cases) {
		t.Fatalf("%d results for %d cases: %v", len(got), len(cases), err)
	}
	for n := range got {
		if otherwise[names[n]] == "" {
			got[n].check(t, &cases[n], names[n])
		}
	}
	for name := range otherwise {
		if !slices.Contains(names, name) {
			t.Errorf("there is no row %q", name)
		}
	}
}

func (e *edited) check(t *testing.T, c *agentcases.Case, name string) {
	t.Helper()
	if e.Error != "" {
		t.Errorf("%s: %s", name, e.Error)
		return
	}
	if text, held := strings.CutPrefix(e.Past, "held: "); held != (c.Held != nil) {
		t.Errorf("%s: %q → %q: the run that is past it is %q, want held: %v", name, c.Before, c.After, e.Past,
			c.Held != nil)
		return
	} else if held {
		e.checkHeld(t, c, name, text)
		return
	}
	want := e.Fresh
	if c.Gives != "" {
		want = "complete " + c.Gives
	}
	if e.Past != want {
		t.Errorf("%s: %q → %q: the run that is past it is %q, want %q", name, c.Before, c.After, e.Past, want)
	}
	for n, what := range e.Effects {
		if slices.Contains(e.Effects[:n], what) && strings.Count(c.Before+c.After, strings.Fields(what)[0]) < 3 &&
			!strings.HasPrefix(what, "undo ") {
			t.Errorf("%s: %q → %q: the run has done %s twice: %q", name, c.Before, c.After, what, e.Effects)
		}
	}
	for _, said := range e.Said {
		if c.Said != "" && said != c.Said {
			t.Errorf("%s: %q → %q: the run has said %q, want %q", name, c.Before, c.After, said, c.Said)
		}
	}
}

func (e *edited) checkHeld(t *testing.T, c *agentcases.Case, name, text string) {
	t.Helper()
	var keys []string // other words are each library's own
	for _, word := range c.Held {
		if n := strings.Index(word, "#"); n >= 0 {
			key := strings.ToLower(word[strings.LastIndex(word[:n], " ")+1:])
			keys = append(keys, strings.Replace(key, "newestmessages", "newest", 1))
		}
	}
	named := func(key string) bool { return strings.Contains(strings.ToLower(text), key) }
	if len(keys) > 0 && !slices.ContainsFunc(keys, named) {
		t.Errorf("%s: %q → %q: the run is held with %q, want one of %q in it", name, c.Before, c.After, text, keys)
	}
	if string(e.Back[0]) != "[]" || string(e.Back[1]) != "[]" {
		t.Errorf("%s: %q → %q: a held execution has written %s and done %s", name, c.Before, c.After, e.Back[0],
			e.Back[1])
	}
	if string(e.Back[2]) != string(e.Back[3]) || string(e.Back[4]) != string(e.Back[5]) {
		t.Errorf("%s: %q: the release before ends the run with %s and %s, want %s and %s", name, c.Before, e.Back[2],
			e.Back[4], e.Back[3], e.Back[5])
	}
}
