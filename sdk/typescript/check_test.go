package typescript

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/wire/session"
	"github.com/perdure/perdure/worker"
)

// check has a worker replay the live runs, as perdure builds check does.
func (w world) check(env ...string) worker.CheckReport {
	w.T.Helper()
	file := filepath.Join(w.T.TempDir(), "report")
	touch(w.T, file)
	ask, err := json.Marshal(session.CheckRequest{Report: file, URL: w.URL, Key: w.Key()})
	if err != nil {
		w.T.Fatal(err)
	}
	if err := w.worker(append(env, session.CheckVariable+"="+string(ask))...).Wait(); err != nil {
		w.T.Fatal(err)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		w.T.Fatal(err)
	}
	var last session.CheckLine
	for _, line := range bytes.Split(bytes.TrimSpace(text), []byte("\n")) {
		last = session.CheckLine{}
		if err := json.Unmarshal(line, &last); err != nil {
			w.T.Fatal(err)
		}
	}
	var report worker.CheckReport
	if err := json.Unmarshal(last.Report, &report); err != nil || last.Error != "" {
		w.T.Fatalf("the check was not made: %v, %s", err, last.Error)
	}
	return report
}

func TestBuildsAreCheckedAgainstLiveRuns(t *testing.T) {
	t.Parallel()
	w := open(t, time.Minute)
	w.worker()
	id := w.order()
	w.until(id, "it sleeps on the signal", func(r *api.Run) bool {
		waits := 0
		if replay, err := w.C.Replay(w.Ctx, id); err == nil {
			for _, wait := range replay.Waits {
				if wait.ID == "signal:paid#1" && wait.Asleep {
					waits++
				}
			}
		}
		return r.State == perdure.Suspended && waits == 1
	})
	before := len(w.lines())
	for _, c := range []struct {
		edit  string
		held  int
		where string
	}{
		{"NOTHING=1", 0, ""},
		{"EXTRA=1", 0, ""},
		{"BOOK=reserve", 1, "reserve#1"},
		{"PAID=payment", 1, "signal:paid#1"},
	} {
		got := w.check(c.edit)
		if got.Runs != 1 || got.Held != c.held || got.Failed+got.Unknown != 0 {
			t.Errorf("with %s: %+v, want one run, %d of them held", c.edit, got, c.held)
		}
		if c.held > 0 && (len(got.Causes) != 1 || got.Causes[0].Where != c.where || got.Causes[0].Runs[0] != id) {
			t.Errorf("with %s, causes are %+v, want one at %s", c.edit, got.Causes, c.where)
		}
	}
	if got := w.lines(); len(got) != before {
		t.Errorf("checks have executed steps: %q", got[before:])
	}
	w.paid(id)
	w.completes(id)
}
