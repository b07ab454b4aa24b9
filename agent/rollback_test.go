package agent_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/worker"
)

// release runs a worker of a build until the test ends or stop is called.
func (w *scene) release(build string, f code) (stop func()) {
	return w.workAt(w.nodes[0].Transport(), worker.Options{Build: build}, func(wk *worker.Worker) {
		worker.Agent(wk, "changes", f)
	})
}

// openHeld opens a scene in which a build that has held a run does not try it again within the test. So
// it has not just taken the run when it is stopped.
func openHeld(t *testing.T) *scene {
	t.Helper()
	p := steady()
	p.BackoffBase, p.BackoffMax = time.Hour, time.Hour
	return openUnder(t, p, 1)
}

// rollsBack starts a run with one version of the code and continues it, after its first wait, with
// another one, which is held. Then the first version comes back. rollsBack returns the message of the
// hold, and the run's end.
func (w *scene) rollsBack(before, after code) (message string, end *api.Run) {
	w.t.Helper()
	stop := w.release("good", before)
	id := w.start(perdure.Submission{Kind: "changes"})
	w.waits(id, "signal:go on#1")
	stop()
	w.foresee(id, after)
	stop = w.release("bad", after)
	w.signal(id, "go on", nil)
	message = w.defect(id, perdure.CodeNondeterminism)
	stop()
	w.release("good", before)
	return message, w.end(id)
}

// contains checks that a message has all of these texts.
func contains(t *testing.T, message string, says ...string) {
	t.Helper()
	for _, text := range says {
		if !strings.Contains(message, text) {
			t.Errorf("message = %q, want it to contain %q", message, text)
		}
	}
}

// An olderLibrary is a connection over which the journal is written as a library did that did not know
// some of its entries. change returns an entry as that library wrote it, or nil.
type olderLibrary struct {
	http.RoundTripper
	change func(key string, value json.RawMessage) json.RawMessage
}

func (o olderLibrary) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Body == nil || !strings.HasSuffix(r.URL.Path, "/commit") {
		return o.RoundTripper.RoundTrip(r)
	}
	var call api.Commits
	if err := json.NewDecoder(r.Body).Decode(&call); err != nil {
		return nil, err
	}
	for n := range call.Commits {
		var kept []perdure.JournalEntry
		for _, e := range call.Commits[n].Journal {
			if e.Value = o.change(e.Key, e.Value); e.Value != nil {
				kept = append(kept, e)
			}
		}
		call.Commits[n].Journal = kept
	}
	body, err := json.Marshal(call)
	if err != nil {
		return nil, err
	}
	r = r.Clone(r.Context())
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	r.GetBody = nil
	return o.RoundTripper.RoundTrip(r)
}

// changesSince starts a run under an older library, and continues it under this one.
func (w *scene) changesSince(older func(key string, value json.RawMessage) json.RawMessage, before, after code,
) perdure.RunID {
	w.t.Helper()
	wire := olderLibrary{w.nodes[0].Transport(), older}
	stop := w.workAt(wire, worker.Options{Build: "old"}, func(wk *worker.Worker) {
		worker.Agent(wk, "changes", before)
	})
	id := w.start(perdure.Submission{Kind: "changes"})
	w.waits(id, "signal:go on#1")
	stop()
	w.release("new", after)
	w.signal(id, "go on", nil)
	return id
}
