package langgraph_test

import (
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/embedded"
	"github.com/perdure/perdure/internal/testkit/servertest"
)

// A disconnect cancels a run only where the operator has said so, the caller has asked for it, and nobody reads
// the run for ten seconds.
func TestDisconnectCancelsAsAsked(t *testing.T) {
	type leaving struct {
		name   string
		kind   string
		path   string // below the thread; empty: of a run that is started there first
		field  string
		query  string
		does   string // beside hanging up
		cancel bool
	}
	for setting, cases := range map[string][]leaving{
		embedded.DisconnectAsAsked: {
			{name: "a stream", path: "stream", field: "cancel", cancel: true},
			{name: "a wait", path: "wait", field: "cancel", cancel: true},
			{name: "a stream without a wish", path: "stream"},
			{name: "a stream that asks to go on", path: "stream", field: "continue"},
			{name: "a stream that is read again", path: "stream", field: "cancel", does: "returns"},
			{name: "a stream that is read again, and left", path: "stream", field: "cancel", does: "returns and leaves",
				cancel: true},
			{name: "a stream that a key without control began", path: "stream", field: "cancel", does: "weak"},
			{name: "a run that asks a person", path: "stream", field: "cancel", kind: "asks later"},
			{name: "a joined stream", query: "/stream?cancel_on_disconnect=1", cancel: true},
			{name: "a joined wait", query: "/join?cancel_on_disconnect=true", cancel: true},
			{name: "a joined stream without a wish", query: "/stream?cancel_on_disconnect=0"},
		},
		embedded.DisconnectContinues: {
			{name: "a stream", path: "stream", field: "cancel"},
			{name: "a joined stream", query: "/stream?cancel_on_disconnect=1"},
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newVirtualWorld(t, setting)
			weak := w.tenantKey(perdure.ScopeCreate, perdure.ScopeRead)
			runs := make([]string, len(cases))
			for i, x := range cases {
				th := w.thread()
				kind := x.kind
				if kind == "" {
					kind = "sleeper"
				}
				strong := w.key
				if x.does == "weak" {
					w.key = weak
				}
				var res *http.Response
				if x.path != "" {
					res = w.open("POST", "/threads/"+th+"/runs/"+x.path, `{"assistant_id":"`+kind+`","on_disconnect":"`+
						x.field+`"}`)
				} else {
					run := w.get("POST", "/threads/"+th+"/runs", hello(kind))["run_id"].(string)
					res = w.open("GET", "/threads/"+th+"/runs/"+run+x.query, "")
				}
				if res.StatusCode != 200 {
					t.Fatalf("%s: %s = %d %s", setting, x.name, res.StatusCode, w.read(res))
				}
				at := res.Header.Get("Content-Location")
				runs[i] = at[strings.LastIndex(at, "/")+1:]
				time.Sleep(time.Second)
				res.Body.Close()
				if strings.HasPrefix(x.does, "returns") {
					again := w.open("GET", at+"/stream", "")
					if x.does == "returns" {
						defer again.Body.Close()
					} else {
						time.Sleep(time.Second)
						again.Body.Close()
					}
				}
				w.key = strong
			}
			check := func(after string, cancelled bool) {
				t.Helper()
				for i, x := range cases {
					r, err := w.C.Get(w.Ctx, perdure.RunID(runs[i]))
					if err != nil {
						t.Fatal(err)
					}
					want := perdure.State("live")
					got := want
					if x.cancel && cancelled {
						want = perdure.Cancelled
					}
					if r.State.Terminal() {
						got = r.State
					}
					if got != want {
						t.Errorf("%s: %s %s = %s, want %s", setting, x.name, after, got, want)
					}
					if got == perdure.Cancelled && r.Cancel.Reason != "disconnect" {
						t.Errorf("%s: %s was cancelled for %q, want disconnect", setting, x.name, r.Cancel.Reason)
					}
					ignored := x.field == "cancel" && (x.does == "weak" || setting != embedded.DisconnectAsAsked)
					if (r.Metadata["door.ignored"] == "on_disconnect") != ignored {
						t.Errorf("%s: %s has metadata %v, want on_disconnect ignored: %t", setting, x.name, r.Metadata,
							ignored)
					}
				}
			}
			time.Sleep(40 * time.Second)
			check("after a while", true)
		})
	}
}

// newVirtualWorld is a world by the clock of a bubble, without a socket.
func newVirtualWorld(t *testing.T, onDisconnect string) *world {
	t.Helper()
	w := &world{Server: servertest.Open(t, embedded.Options{Clock: time.Now, Doors: []string{"langgraph"},
		LangGraphOnDisconnect: onDisconnect}), url: "http://perdure"}
	w.http, w.key = &http.Client{Transport: w.Wire}, w.Live().Key()
	w.work()
	synctest.Wait() // the worker has announced its kinds
	return w
}
