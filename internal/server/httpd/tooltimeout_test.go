package httpd

import (
	"testing"
	"time"
)

// A wait for a tool lasts as long as its definition says, and at least as long as any wait does by default.
func TestWaitForToolHasLargerTimeout(t *testing.T) {
	w := newWorld(t, setup{})
	for _, x := range []struct {
		name, wait string
		lasts      time.Duration
	}{
		{"no tool", `{"id":"w","type":"callback"}`, 10 * time.Minute},
		{"larger suspend_timeout", `{"id":"w","type":"callback","tool":{"suspend_timeout":"20m"}}`, 20 * time.Minute},
		{"smaller suspend_timeout", `{"id":"w","type":"callback","tool":{"suspend_timeout":"20s"}}`, 10 * time.Minute},
		{"larger timeout of the tool", `{"id":"w","type":"callback","tool":{"timeout":"1h"}}`, time.Hour},
		{"smaller timeout of the tool", `{"id":"w","type":"callback","tool":{"timeout":"1m"}}`, 10 * time.Minute},
		{"suspend_timeout goes before timeout",
			`{"id":"w","type":"callback","tool":{"suspend_timeout":"15m","timeout":"1h"}}`, 15 * time.Minute},
		{"a tool that says nothing", `{"id":"w","type":"callback","tool":{}}`, 10 * time.Minute},
		{"a name with a default", `{"id":"w","type":"signal","name":"start_task","tool":{"timeout":"6m"}}`,
			6 * time.Minute},
		{"a name with a larger default", `{"id":"w","type":"signal","name":"start_task","tool":{"timeout":"4m"}}`,
			5 * time.Minute},
		{"timeout of the wait is exact", `{"id":"w","type":"callback","timeout":"3s","tool":{"suspend_timeout":"20m"}}`,
			3 * time.Second},
	} {
		g, _ := w.sleeping(`{"kind":"job","class":"agent"}`, x.wait)
		id := g["run_id"].(string)
		opened := w.lineOf(id, "wait:opened")
		at, until := w.instant(opened["at"]), w.instant(opened["data"].(obj)["timeout_at"])
		if got := until.Sub(at); got != x.lasts {
			t.Errorf("%s: wait of run %s lasts %s, want %s", x.name, id, got, x.lasts)
		}
	}
	g, _ := w.sleeping(`{"kind":"job","class":"agent"}`,
		`{"id":"w","type":"signal","name":"x","timeout":"never","tool":{"timeout":"1h"}}`)
	if until, ok := w.lineOf(g["run_id"].(string), "wait:opened")["data"].(obj)["timeout_at"]; ok {
		t.Errorf("a wait without an end, for a tool with a timeout, ends at %v, want never", until)
	}
}

// lineOf is the only line of a type in a run's log.
func (w *world) lineOf(id, typ string) (line obj) {
	w.t.Helper()
	for _, e := range w.events(id) {
		if e["type"] == typ {
			if line != nil {
				w.t.Fatalf("log of run %s: more than one %s", id, typ)
			}
			line = e
		}
	}
	if line == nil {
		w.t.Fatalf("log of run %s: types %v, want one %s", id, w.types(id), typ)
	}
	return line
}

// instant reads an instant of an answer.
func (w *world) instant(v any) time.Time {
	w.t.Helper()
	text, _ := v.(string)
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		w.t.Fatalf("instant of an answer = %v: %v", v, err)
	}
	return at
}
