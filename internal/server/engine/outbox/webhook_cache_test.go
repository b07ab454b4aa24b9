package outbox

import (
	"fmt"
	"testing"

	"github.com/perdure/perdure"
)

// Routes find the same endpoints as asking each of them does.
func TestRoutesFindTheEndpointsThatWantALine(t *testing.T) {
	lists := [][]string{nil, {"*"}, {"run:*"}, {"x:*"}, {"x:a"}, {"x:a*"}, {"x:a", "x:*", "x:a"},
		{"run:completed", "run:*"}, {"run:heartbeat"}, {"run:heartbeat", "*"}, {"step:*", "run:failed"}}
	var hooks []perdure.Webhook
	for i, events := range lists {
		for _, thread := range []perdure.ThreadID{"", "here", "there"} {
			hooks = append(hooks, perdure.Webhook{ID: perdure.WebhookID(fmt.Sprint("wh_", i, thread)), ThreadID: thread,
				Events: events})
		}
	}
	r := newRoutes(hooks)
	for _, line := range append([]perdure.LineType{"x:", "x:a", "x:ab", "x:b:c", "y"}, perdure.LineTypes...) {
		for _, thread := range []perdure.ThreadID{"", "here"} {
			var want []int
			for i := range hooks {
				if hooks[i].Wants(thread, line) {
					want = append(want, i)
				}
			}
			if got := r.match(thread, line); fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("%s on thread %q goes to %v, want %v", line, thread, got, want)
			}
		}
	}
}
