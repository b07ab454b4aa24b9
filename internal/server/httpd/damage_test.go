package httpd

import (
	"strings"
	"testing"

	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/store"
	"github.com/perdure/perdure/internal/testkit/storetest"
)

type breaks struct{ text string }

func (breaks) Needs() []store.Ref       { return nil }
func (b breaks) Do(tx *kernel.Tx) error { tx.DB.Stage(b.text); return nil }

// A run that something has happened to in the database is shown with what can be read of it, and the one behind it is
// granted.
func TestDamagedRunIsShownAndNotGranted(t *testing.T) {
	storetest.OnBoth(t, func(t *testing.T, at store.Options) {
		w := newWorld(t, setup{store: &at})
		var bad []string
		for range 2 {
			bad = append(bad, w.do("POST", runs, `{"kind":"job","input":{"n":1}}`).is(201)["run_id"].(string))
		}
		good := w.do("POST", runs, `{"kind":"job"}`).is(201)["run_id"].(string)
		for i, set := range []string{`rest='{"options":'`, `input='{"n":'`} {
			if err := w.e.Step(w.e.Store().Now(),
				breaks{"UPDATE runs SET " + set + ", version=version+1 WHERE id='" + bad[i] + "'"})[0]; err != nil {
				t.Fatal(err)
			}
		}
		if got := w.do("GET", runs, "").is(200)["runs"].([]any); len(got) != 3 {
			t.Errorf("%d runs are listed", len(got))
		}
		if got := w.do("GET", runs+"/"+bad[0], "").is(200); got["damaged"] != "rest can't be read" {
			t.Errorf("got = %v, want damaged = rest can't be read", got)
		}
		if got := w.do("GET", runs+"/"+bad[1], "").is(200); got["input"] != `{"n":` {
			t.Errorf("run = %v, want the damaged input as text", got)
		}
		got := w.do("POST", "/api/v1/workers/w/poll", `{"slots":3,"start":true}`).is(200)["runs"].([]any)
		if len(got) != 1 || got[0].(obj)["run_id"] != good {
			t.Errorf("granted: %v", got)
		}
		for _, id := range bad {
			got := w.do("GET", runs+"/"+id, "").is(200)
			why, _ := got["error"].(obj)
			if got["state"] != "failed" || why["code"] != "damaged" ||
				strings.Contains(why["message"].(string), "json:") {
				t.Errorf("run = %v, want failed/damaged without internal words", got)
			}
			w.do("GET", runs+"/"+id+"/deliverable", "").is(200)
			w.do("GET", "/api/v1/dlq/"+id, "").is(200)
		}
	})
}
