package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"regexp"
	"syscall"
	"testing"

	"github.com/perdure/perdure/internal/testkit/browser"
	"github.com/perdure/perdure/internal/testkit/eventually"
)

// page follows a run in a browser in both ways that the documentation shows.
const page = `<!doctype html>
<meta charset="utf-8"><title>following a run</title>
<style>body { font: 14px/1.5 monospace; display: grid; grid-template-columns: 1fr 1fr; gap: 2em; margin: 2em } h2 {
font-size: 14px }</style>
<section><h2>EventSource</h2><div id="source"></div></section>
<section><h2>fetch</h2><div id="fetched"></div></section>
<script>
%s
const told = { source: [], fetched: [] }, state = { errors: 0, fetch: 'open' };
function tell(where, event) {
  told[where].push({ id: event.id, type: event.type, data: event.data ?? null });
  document.getElementById(where).append(event.id + ' ' + event.type, document.createElement('br'));
}
const at = new URLSearchParams(location.search);
const source = watch(at.get('server'), at.get('run'), at.get('key'), event => tell('source', event));
source.addEventListener('error', () => state.errors++);
(async () => {
  for await (const event of follow(at.get('server'), at.get('run'), at.get('key'))) tell('fetched', event);
  state.fetch = 'ended';
})().catch(e => state.fetch = String(e));
</script>`

// scripts returns the programs in docs/streaming.md.
func scripts(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("../docs/streaming.md")
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	for _, m := range regexp.MustCompile("(?s)```js\n(.*?)```").FindAllSubmatch(b, -1) {
		out.Write(m[1])
	}
	return out.String()
}

// A told is an event that a client in the page received.
type told struct {
	ID   int             `json:"id"`
	Type string          `json:"type"`
	Data json.RawMessage `json:"data"`
}

func TestBrowserFollowsRunThroughServerKill(t *testing.T) {
	t.Parallel()
	text := fmt.Sprintf(page, scripts(t))
	site := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		w.Write([]byte(text))
	}))
	t.Cleanup(site.Close)
	n := newNode(t, "--origins", site.URL)
	s := scribble(t, n.insister())
	var key struct {
		Secret string `json:"secret"`
	}
	if status := n.insist("POST", "/api/v1/keys", "", obj{"name": "page", "scopes": []string{"runs:read"}},
		&key); status != 201 {
		t.Fatalf("the key: %d", status)
	}
	at := url.Values{"server": {"http://" + n.addr}, "run": {s.run.RunID}, "key": {key.Secret}}
	p := browser.Open(t, site.URL+"/?"+at.Encode())
	both := func(seq int) {
		t.Helper()
		for _, where := range []string{"source", "fetched"} {
			eventually.True(t, fmt.Sprintf("%s has line %d", where, seq), func() bool {
				return browser.Eval[int](p, "told."+where+".at(-1)?.id ?? 0") >= seq
			})
		}
	}
	for range 5 {
		s.write()
	}
	both(s.seq)
	n.kill(syscall.SIGKILL)
	eventually.True(t, "the EventSource has noticed", func() bool { return browser.Eval[int](p, "state.errors") > 0 })
	n.start()
	s.write()
	both(s.seq) // after the restart, and before the end
	for range 5 {
		s.write()
	}
	s.end()
	eventually.True(t, "the fetch client has ended", func() bool {
		return browser.Eval[string](p, "state.fetch") == "ended"
	})
	// The EventSource reconnects once more and gets 204. Then it is closed, and does not reconnect
	// for ever.
	eventually.True(t, "the EventSource has ended", func() bool {
		return browser.Eval[bool](p, "source.readyState === EventSource.CLOSED")
	})
	want := s.log(n)
	for _, where := range []string{"source", "fetched"} {
		got := browser.Eval[[]told](p, "told."+where)
		attached := 0
		var lines []told
		for i, e := range got {
			switch {
			case e.Type == "stream:attached":
				attached++
			case e.Type == "stream:end":
				if i != len(got)-1 {
					t.Errorf("%s: events after the end = %+v, want none", where, got[i:])
				}
			default:
				lines = append(lines, e)
			}
		}
		if len(got) == 0 || got[len(got)-1].Type != "stream:end" || attached < 2 {
			t.Errorf("%s: attached %d times, last event %+v; want at least 2, and the end", where, attached,
				got[max(0, len(got)-1):])
		}
		if fmt.Sprint(types(lines)) != fmt.Sprint(types(want)) || !sameData(lines, want) {
			t.Errorf("%s received\n%v\nwant the log\n%v", where, types(lines), types(want))
		}
	}
}

// log returns the log of the scribe's run, read by polling.
func (s *scribe) log(n *node) (out []told) {
	s.t.Helper()
	var page struct {
		Events []struct {
			Seq  int             `json:"seq"`
			Type string          `json:"type"`
			Data json.RawMessage `json:"data"`
		} `json:"events"`
	}
	if status := n.insist("GET", "/api/v1/runs/"+s.run.RunID+"/events?limit=1000", "", nil, &page); status != 200 {
		s.t.Fatalf("events: %d", status)
	}
	for _, e := range page.Events {
		out = append(out, told{e.Seq, e.Type, e.Data})
	}
	return out
}

func types(lines []told) (out []string) {
	for _, e := range lines {
		out = append(out, fmt.Sprint(e.ID, " ", e.Type))
	}
	return out
}

// sameData compares events, with their data as JSON, because a browser formats it differently.
func sameData(a, b []told) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		var x, y any
		if json.Unmarshal(a[i].Data, &x) != nil || json.Unmarshal(b[i].Data, &y) != nil ||
			fmt.Sprint(x) != fmt.Sprint(y) {
			return false
		}
	}
	return true
}
