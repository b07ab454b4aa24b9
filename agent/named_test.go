package agent_test

import (
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/worker"
)

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
