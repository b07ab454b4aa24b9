package e2e

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"testing"

	"github.com/coder/websocket"

	"github.com/perdure/perdure/internal/testkit/browser"
	"github.com/perdure/perdure/internal/testkit/eventually"
)

// mute passes everything on to a node but its sockets: those are accepted and read, and nothing is said.
func mute(t *testing.T, n *node, read func(message []byte)) string {
	t.Helper()
	to, err := url.Parse("http://" + n.addr)
	if err != nil {
		t.Fatal(err)
	}
	pass := httputil.NewSingleHostReverseProxy(to)
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/api/v1/ws" {
			pass.ServeHTTP(w, r)
			return
		}
		c, err := websocket.Accept(w, r, nil)
		if err != nil {
			return
		}
		for {
			_, message, err := c.Read(r.Context())
			if err != nil {
				return
			}
			read(message)
		}
	}))
	t.Cleanup(front.Close)
	return front.URL
}

// The page polls while its socket says nothing. The parts share one server.
func TestDashboardWithASilentSocket(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	t.Run("is watched before its first message", func(t *testing.T) { watchesBeforeTheFirstMessage(t, n) })
	t.Run("is given up", func(t *testing.T) { pollsWhenItsSocketIsSilent(t, n) })
}

// pollsWhenItsSocketIsSilent looks at a live connection that says nothing: the page asks instead, and says so.
func pollsWhenItsSocketIsSilent(t *testing.T, n *node) {
	front := mute(t, n, func([]byte) {})
	d := &dashboard{browser.Open(t, front+"/ui/?silence=1500#login="+n.key), t, n}
	d.sees("h1", "Home")
	d.goes("#/runs")
	d.sees(".banner", "The live connection was silent")
	r := n.submit(obj{"kind": "meanwhile"})
	d.sees("tbody", "meanwhile")
	// Of the runs of a group, it knows then what the group says of them.
	var group struct {
		ID string `json:"group_id"`
	}
	n.insist("POST", "/api/v1/groups", "", obj{"run_ids": []string{r.RunID}}, &group)
	d.goes("#/groups/" + group.ID)
	d.sees("[aria-label='Runs of the group'] .state", "not ended")
	n.insist("POST", "/api/v1/runs/"+r.RunID+"/cancel", "", obj{}, nil)
	d.sees("[aria-label='Runs of the group'] .state", "Cancelled")
	d.sees(".facts .state", "Satisfied")
}

// watchesBeforeTheFirstMessage opens a view after the socket has opened, and before it has said anything: it is watched
// all the same. Such a view would be polled once and then stay as it is, below a page that says that it is live.
func watchesBeforeTheFirstMessage(t *testing.T, n *node) {
	watched := make(chan string, 100)
	front := mute(t, n, func(message []byte) {
		var m struct {
			Of string `json:"of"`
		}
		if json.Unmarshal(message, &m) == nil {
			select {
			case watched <- m.Of:
			default:
			}
		}
	})
	d := &dashboard{browser.Open(t, front+"/ui/#login="+n.key), t, n}
	wait := func(of string) {
		eventually.True(t, "the socket is told to watch "+of, func() bool {
			select {
			case got := <-watched:
				return got == of
			default:
				return false
			}
		})
	}
	wait("counts")
	d.sees("h1", "Home")
	d.goes("#/workers")
	wait("workers")
	n.insist("POST", "/api/v1/webhooks", "", obj{"url": "https://hooks.example.com/x"}, nil)
	d.goes("#/webhooks")
	wait("webhooks")
	d.sees("tbody", "hooks.example.com") // polled, because the socket says nothing
	wait("deliveries")
}
