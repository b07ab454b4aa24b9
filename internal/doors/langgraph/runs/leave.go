package runs

import (
	"slices"
	"sync"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/doors"
	"github.com/perdure/perdure/internal/doors/langgraph/frames"
	"github.com/perdure/perdure/internal/doors/langgraph/threads"
)

// A caller can ask that a run be cancelled when it disconnects: with on_disconnect as it starts the run, or
// with cancel_on_disconnect as it joins. Pages in browsers ask for it without anybody having decided so, and
// a connection may break at any time. So that is honoured only if the operator says so, and never at once.
//
// The runs of the door are then in the foreground: the server defers such a run when it has had no reader for
// a while, on any node. The node whose caller has hung up looks at the run from then on, and cancels it once
// it is deferred. If that node dies or shuts down meanwhile, the run goes on.

// A Disconnects knows the runs whose callers have just left, and until when each is looked at.
type Disconnects struct {
	after time.Duration

	mu      sync.Mutex
	watched map[perdure.RunID]time.Time
}

// NewDisconnects makes the watch of runs. After is how long a run has no reader before it is cancelled: it has
// to be detach_grace of the policy. Zero means that no disconnect cancels a run.
func NewDisconnects(after time.Duration) *Disconnects { return &Disconnects{after: after} }

// Honoured tells whether disconnects count.
func (d *Disconnects) Honoured() bool { return d.after > 0 }

// maxWatched bounds the runs that a node looks at after their callers have left. More go on.
const maxWatched = 10_000

// Asks tells whether a field or a parameter asks for a cancel. It is false where none is honoured.
func (d *Disconnects) Asks(c *doors.Call, what string) (bool, error) {
	if d.after == 0 || what != "cancel" {
		return false, nil
	}
	s, err := c.API.Session(c.Context())
	return err == nil && slices.Contains(s.Scopes, perdure.ScopeControl), err
}

// joining tells whether a call that follows a run asks for a cancel, or the one that has started it did.
func (d *Disconnects) joining(c *doors.Call, p *Part) bool {
	switch c.Query("cancel_on_disconnect") {
	case "1", "true":
		return true
	}
	return p.Metadata[frames.OnDisconnectKey] == "cancel"
}

// During calls a function while which a caller reads the answer of a run. If it hangs up before the end, and
// has asked for it, the run is cancelled unless somebody reads it soon.
func (d *Disconnects) During(c *doors.Call, p *Part, cancels bool, read func() error) error {
	err := read()
	if err != nil && cancels && d.after > 0 && c.HungUp() && d.start(p.RunID) {
		c.Afterwards(func(c *doors.Call) { d.watch(c, p.RunID) })
	}
	return err
}

// start extends the watch of a run. It returns true if there was none and the caller has to watch the run.
// The deferral comes with the first sweep of the server after d.after.
func (d *Disconnects) start(id perdure.RunID) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, on := d.watched[id]
	if !on && len(d.watched) >= maxWatched {
		return false
	}
	if d.watched == nil {
		d.watched = make(map[perdure.RunID]time.Time)
	}
	d.watched[id] = time.Now().Add(3 * max(d.after, 10*time.Second))
	return !on
}

// over ends the watch of a run if its time has passed, or at once.
func (d *Disconnects) over(id perdure.RunID, atOnce bool) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !atOnce && time.Now().Before(d.watched[id]) {
		return false
	}
	delete(d.watched, id)
	return true
}

// watch cancels a run once it is deferred. Its time passes where a reader is there.
func (d *Disconnects) watch(c *doors.Call, id perdure.RunID) {
	defer d.over(id, true)
	t := time.NewTimer(d.after)
	defer t.Stop()
	for !d.over(id, false) {
		select {
		case <-t.C:
		case <-c.Context().Done():
			return
		}
		if d.look(c, id) {
			return
		}
		t.Reset(max(d.after/10, 100*time.Millisecond))
	}
}

// look cancels a run that is deferred. It returns true if there is nothing more to do. A run that waits for a
// person has ended the streams of its readers, so it is not cancelled.
func (d *Disconnects) look(c *doors.Call, id perdure.RunID) (done bool) {
	r, err := c.API.Get(c.Context(), id)
	if doors.Missing(err) || err == nil && r.State.Terminal() {
		return true
	}
	if err != nil || r.DeferredAt == nil {
		return false
	}
	asks, err := threads.Asked(c, r)
	if err == nil && len(asks) == 0 {
		_, err = c.API.Cancel(c.Context(), id, "disconnect", 0)
	}
	return err == nil
}
