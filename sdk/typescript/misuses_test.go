package typescript

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"testing"

	"github.com/perdure/perdure/internal/testkit/agentcases"
)

// A misused is what has become of an agent that does a misuse.
type misused struct {
	// Told is how it ends, Code and Message are those of its error. Error is the code that it has ignored.
	Told, Code, Message, Error string
	// Goes tells that the step after it was executed.
	Goes bool
}

// Each misuse of docs/misuses.md, in TypeScript: none is silent.
func TestMisusesOfTheTable(t *testing.T) {
	t.Parallel()
	var rows []agentcases.Misuse
	type ask struct {
		Name            string
		OnThread, Wakes bool
	}
	var asked []ask
	for _, area := range agentcases.Misuses {
		for _, row := range area.Rows {
			rows = append(rows, row)
			asked = append(asked, ask{row.Name, row.OnThread, row.Wakes})
		}
	}
	in, err := json.Marshal(asked)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), node(t, runtimes[0]), "dist/test/misuses.js", string(in))
	var complaint bytes.Buffer
	cmd.Stderr = &complaint
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, &complaint)
	}
	var got struct {
		Results map[string]struct{ Run, Ignores misused }
		Names   []string
	}
	if err := json.Unmarshal(out, &got); err != nil {
		t.Fatal(err)
	}
	for _, name := range got.Names {
		if _, ok := got.Results[name]; !ok {
			t.Errorf("there is no row %q", name)
		}
	}
	for n := range rows {
		row := &rows[n]
		result, ok := got.Results[row.Name]
		switch why := missing[row.Name]; {
		case ok && why != "":
			t.Errorf("%s: the row is there, and has a reason why not", row.Name)
		case !ok && why == "":
			t.Errorf("%s: the row is not there, and has no reason why not", row.Name)
		case ok:
			row := *row
			if other, ok := instead[row.Name]; ok {
				row.Held, row.Fails, row.Error, row.Right = other.Held, other.Fails, other.Error, other.Right
			}
			if caught[row.Name] {
				result.Ignores = result.Run // who catches the error has handled it
			}
			checkMisuse(t, &row, &result.Run, &result.Ignores)
		}
	}
}

func checkMisuse(t *testing.T, row *agentcases.Misuse, run, ignores *misused) {
	t.Helper()
	switch {
	case row.Held != "":
		for _, m := range []*misused{run, ignores} {
			if m.Told != "held" || m.Code != string(row.Held) || m.Message == "" || m.Goes && !row.AtEnd {
				t.Errorf("%s: %+v, want it held with %s before the next step", row.Name, m, row.Held)
			}
		}
	case row.Fails != "" || row.Error != "":
		want := string(row.Fails) + string(row.Error)
		if run.Code != want || run.Told == "held" {
			t.Errorf("%s: %.300v, want the code %s", row.Name, run, want)
		}
		if row.Error != "" && (ignores.Error != want || ignores.Told != "complete ignored") {
			t.Errorf("%s, ignored: %.300v, want the code %s, and that the agent goes on", row.Name, ignores, want)
		}
	default:
		if run.Told != "complete done" {
			t.Errorf("%s: %+v, want it right", row.Name, run)
		}
	}
}
