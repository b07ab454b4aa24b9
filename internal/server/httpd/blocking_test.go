package httpd

import (
	"strings"
	"testing"

	"github.com/perdure/perdure/internal/testkit/eventually"
)

func TestTenantLeavesStreamsForOthers(t *testing.T) {
	w := newWorld(t, setup{options: func(o *Options) { o.Streams = 4 }})
	id := w.start(`{"kind":"job"}`)
	other := w.as(w.newKey("b", nil))
	theirs := other.start(`{"kind":"job"}`)
	same := w.as(w.newKey("a", nil)) // another key is the same tenant
	first := w.attach(id, "")
	first.next("stream:attached")
	w.attach(id, "").next("stream:attached")
	same.attach(id, "").next("stream:attached")
	for _, w := range []*world{w, same} {
		if p := w.get(runs+"/"+id+"/stream").refuses(503, "too_many_streams"); !strings.Contains(p["detail"].(string),
			"this tenant has 3") {
			t.Errorf("problem = %v, want a detail that this tenant has 3", p)
		}
		w.get(runs + "/" + id + "/join?timeout=60s").is(202)
	}
	other.attach(theirs, "").next("stream:attached")
	if p := other.get(runs+"/"+theirs+"/stream").refuses(503,
		"too_many_streams"); !strings.Contains(p["detail"].(string), "this node has 4") {
		t.Errorf("problem = %v, want a detail that this node has 4", p)
	}
	first.stop()
	eventually.True(t, "there is room", func() bool { return w.streams() == 3 })
	w.attach(id, "").next("stream:attached")
}

// A node that is called by one tenant alone has all its streams for that one, unless it is said otherwise.
func TestOnlyTenantHasAllStreams(t *testing.T) {
	for _, c := range []struct{ configured, fit int }{{0, 4}, {2, 2}} {
		w := newWorld(t, setup{options: func(o *Options) { o.Streams, o.StreamsPerTenant = 4, c.configured }})
		id := w.start(`{"kind":"job"}`)
		for range c.fit {
			w.attach(id, "").next("stream:attached")
		}
		w.get(runs+"/"+id+"/stream").refuses(503, "too_many_streams")
	}
}
