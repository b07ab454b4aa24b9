package vectors

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/worker"
)

// olderRuns has what each agent of testdata/journal/older knows after its wait. An empty text tells that it
// has more to do before.
var olderRuns = map[string]string{
	"announced": "!", "approval": "true", "approval-timeout": "false true", "callback": "paid", "child": "0!",
	"child-unusual": "38 2", "chosen-first-ok": "2 !", "chosen-join-all": "[0! 1!] !", "chosen-map": "[1! 2! 3!] !",
	"chosen-race": "0! !", "chosen-race-limit": "true !", "chosen-select": "1 !", "chosen-select-ok": "0! !",
	"chosen-timer": "1 !", "error-fact": "not today !", "first-ok": "", "goroutine-removed": "!",
	"history": "1 !", "input": "box !", "join-all": "[0! 1!]", "map": "", "message": "hello", "now-and-uuid": "true",
	"parallel": "[1 4 9] !", "race": "", "race-limit": "", "reports": "!", "retried": "", "saga-cancelled": "",
	"saga-fails": "", "saga-kept": "!", "saga-open": "", "saga-undone": "too far !", "select": "",
	"select-again": "", "select-ok": "", "select-timer": "", "settled": "[0! ] 1 1", "signal-early": "one early",
	"signal-large": "9000 !", "signal-late": "!", "signal-timeout": "timed out", "sleep": "slept",
	"sleep-twice": "slept", "until": "slept", "values": "Bern QUJD !", "version": "2 2",
}

// olderHeld has those that are held, and what the message says.
var olderHeld = map[string]string{
	"goroutine":           "begin the goroutine with agent.Go",
	"goroutine-to-branch": "the journal does not have this branch",
}

// Runs that a release from before this format has left asleep are continued, or held with a sentence.
func TestRunsOfAnOlderReleaseAreContinued(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(root, "older", "*.json"))
	if err != nil || len(files) != len(olderRuns)+len(olderHeld) {
		t.Fatalf("%d files (error %v), want one for each of %d agents", len(files), err, len(olderRuns)+len(olderHeld))
	}
	kinds := map[perdure.RunID]string{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		r, err := api.ParseReplay(text)
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		kinds[r.RunID] = r.Kind
	}
	var mu sync.Mutex
	knew := map[string]string{}
	o := &olderAgent{knows: func(run perdure.RunID, what string) {
		mu.Lock()
		defer mu.Unlock()
		knew[kinds[run]] = what
	}}
	w := worker.New(nil, worker.Options{})
	o.register(w)
	report, err := worker.Check(t.Context(), w, worker.CheckOptions{Files: files})
	if err != nil {
		t.Fatal(err)
	}
	if report.Runs != len(files) || report.Held != len(olderHeld) || report.Failed+report.Unknown > 0 {
		t.Errorf("report = %s\nwant all continued but %v", report, slices.Sorted(maps.Keys(olderHeld)))
	}
	for _, c := range report.Causes {
		if says := olderHeld[c.Kind]; says == "" || !strings.Contains(c.Message, says) {
			t.Errorf("%s is held with %q, want %q", c.Kind, c.Message, says)
		}
	}
	for kind, want := range olderRuns {
		if knew[kind] != want {
			t.Errorf("%s knows %q after its wait, want %q", kind, knew[kind], want)
		}
	}
}
