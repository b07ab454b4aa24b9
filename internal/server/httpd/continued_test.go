package httpd

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/perdure/perdure/api"
)

// After a stream has ended, a webhook and a WebSocket tell of the continuation and its run.
func TestContinuationIsSentByWebhookAndWebSocket(t *testing.T) {
	w := delivering(t, setup{})
	byDefault, byName, ofRun := newSink(t, nil), newSink(t, nil), newSink(t, nil)
	w.hook(fmt.Sprintf(`"url":%q`, byDefault.at))
	w.hook(fmt.Sprintf(`"url":%q,"events":["run:continued"]`, byName.at))
	thread := w.thread()
	onThread, _ := w.watch("?thread_id=" + thread)
	w.do("POST", "/api/v1/threads/"+thread+"/runs", `{"kind":"boss","webhook":"%s","webhook_events":["run:continued"]}`,
		ofRun.at).is(201)
	g := w.take("boss")
	boss := g["run_id"].(string)
	w.commits(g, `"children":[{"key":"k","kind":"kid"}],"outcome":{"type":"complete","result":"later",`+
		`"continue_on":["k"]}`)
	w.commits(w.take("kid"), complete)
	next, _ := w.run(boss)["continued_by_run_id"].(string)
	if next == "" {
		t.Fatalf("run %s: continued by nothing, want a continuation", boss)
	}

	told, begun := 0, false
	onThread.until(func(c api.Change) bool {
		for _, e := range c.Events {
			var data struct {
				By string `json:"continued_by_run_id"`
			}
			if e.Type == "run:continued" {
				told++
				if err := json.Unmarshal(e.Data, &data); err != nil || string(c.RunID) != boss || data.By != next ||
					string(c.Run.ContinuedByRunID) != next {
					t.Errorf("WebSocket: run %s was told of %s, want run %s continued by %s", c.RunID, e.Data,
						boss, next)
				}
			}
		}
		begun = begun || string(c.RunID) == next
		return told > 0 && begun
	})
	if told != 1 {
		t.Errorf("WebSocket: told %d times of the continuation of run %s, want once", told, boss)
	}

	// By default there are also the ends of the run and of its child.
	for name, x := range map[string]struct {
		s *sink
		n int
	}{"by default": {byDefault, 3}, "by name": {byName, 1}, "of the run": {ofRun, 1}} {
		told := 0
		for _, l := range x.s.waits(x.n) {
			if m := l.json(t); m.Type == "run:continued" {
				told++
				if m.Data.RunID != boss || !strings.Contains(string(m.Data.Event), `"continued_by_run_id":"`+next+`"`) {
					t.Errorf("webhook %s: told %+v, want run %s continued by %s", name, m.Data, boss, next)
				}
			}
		}
		if told != 1 {
			t.Errorf("webhook %s: told %d times of the continuation of run %s, want once", name, told, boss)
		}
	}
}
