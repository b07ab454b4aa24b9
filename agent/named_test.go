package agent_test

import (
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/worker"
)

// A time or an id belongs to its name. An edit around it is found as one around a step is, and none
// gets the value of another.
func TestEditsAroundTimesAndUUIDsAreFound(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name, before, after string
		says                []string
	}{
		{"an id above another", "uuid:order charge wait ship", "uuid:trace uuid:order charge wait ship",
			[]string{"trace#1", "does not have this UUID", "the UUID order#1"}},
		{"an id before a step", "charge wait ship", "uuid:trace charge wait ship",
			[]string{"trace#1", "does not have this UUID", "the step charge#1"}},
		{"an id before a wait", "wait ship", "uuid:trace wait ship", []string{"trace#1", "the wait signal:go on#1"}},
		{"an id is renamed", "uuid:order wait ship", "uuid:purchase wait ship", []string{"purchase#1",
			"the UUID order#1"}},
		{"an id is removed", "uuid:order wait ship", "wait ship", []string{"ship#1", "the UUID order#1"}},
		{"an id is removed and nothing new", "uuid:order wait", "wait", []string{"order#1", "returns"}},
		{"one of two namesakes is removed", "uuid:id uuid:id wait ship", "uuid:id wait ship",
			[]string{"ship#1", "the UUID id#2"}},
		{"a time above another", "now:began wait ship", "now:first now:began wait ship",
			[]string{"first#1", "does not have this time", "the time began#1"}},
		{"a time is removed", "now:began wait ship", "wait ship", []string{"ship#1", "the time began#1"}},
		{"a time instead of an id", "uuid:a wait ship", "now:a wait ship", []string{"this time", "the UUID a#1"}},
		{"a step before an id", "uuid:order wait ship", "new uuid:order wait ship", []string{"new#1",
			"the UUID order#1"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			w := open(t)
			var done tally
			id := changes(w, talk(&done, strings.Fields(row.before)...), talk(&done, strings.Fields(row.after)...))
			message := w.defect(id, perdure.CodeNondeterminism)
			for _, says := range row.says {
				if !strings.Contains(message, says) {
					t.Errorf("message = %q, want it to contain %q", message, says)
				}
			}
			for _, what := range []string{"ship", "new"} {
				if done.of(what) > 0 {
					t.Errorf("%q was executed, want the run to be held before", what)
				}
			}
		})
	}
}

// Names find their values wherever the code asks for them.
func TestTimesAndUUIDsAreFoundByName(t *testing.T) {
	t.Parallel()
	for _, row := range []struct{ name, before, after, removed string }{
		{"swapped", "uuid:a uuid:b now:c wait", "now:c uuid:b uuid:a wait", ""},
		{"after the wait", "uuid:a uuid:b now:c wait", "wait uuid:a uuid:b now:c", ""},
		{"one more after the wait", "uuid:a uuid:b now:c wait", "uuid:a uuid:b now:c wait uuid:new", ""},
		{"one is declared as removed", "uuid:a uuid:b now:c uuid:gone wait", "uuid:a uuid:b now:c wait", "gone"},
		{"a namesake of another kind", "uuid:a uuid:b now:c wait", "uuid:a uuid:b now:c wait now:a", ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			w := open(t)
			var done tally
			values := make(chan string, 1)
			before := talk(&done, strings.Fields(strings.TrimSuffix(row.before, " wait"))...)
			after := talk(&done, strings.Fields(row.after)...)
			id := changes(w, func(ctx *agent.Context, in int) (string, error) {
				out, err := before(ctx, in)
				if err == nil {
					values <- out
					err = wait(ctx)
				}
				return out, err
			}, func(ctx *agent.Context, in int) (string, error) {
				if row.removed != "" {
					agent.Removed(ctx, row.removed)
				}
				return after(ctx, in)
			})
			if row.name == "after the wait" {
				delete(w.foreseen, id) // a check does not see behind the wait at which the run stands
			}
			run := w.end(id)
			reached(t, run, perdure.Completed)
			for _, value := range strings.Split(next(w, values), ", ") {
				if !strings.HasPrefix(value, "gone ") && !strings.Contains(string(run.Result), value) {
					t.Errorf("result = %s, want %q in it, as before the edit", run.Result, value)
				}
			}
		})
	}
}

// A time or an id needs a name, as a step does.
func TestTimeAndUUIDNeedAName(t *testing.T) {
	t.Parallel()
	w := open(t)
	for name, says := range map[string]string{"uuid:": "a UUID needs a name", "now:": "a time needs a name",
		"uuid:_a": "does not begin with _"} {
		kind := strings.ReplaceAll(name, ":", " ") + "x"
		w.work(func(wk *worker.Worker) { worker.Agent(wk, kind, talk(new(tally), name)) })
		id := w.start(perdure.Submission{Kind: kind})
		if message := w.defect(id, agent.CodeMisuse); !strings.Contains(message, says) {
			t.Errorf("%s: message = %q, want %q in it", name, message, says)
		}
	}
}
