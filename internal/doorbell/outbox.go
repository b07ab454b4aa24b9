package doorbell

import "sync"

// maxRings bounds how many different rings wait to be sent. More become one: look at everything.
const maxRings = 8192

// An outbox gathers rings while the last ones are under way. It never blocks who rings and never grows past
// its bound: equal rings are one ring, of queues with the sum of their runs.
type outbox struct {
	mu    sync.Mutex
	rings map[key]ring
	spare map[key]ring // the other one of two that take turns
	flags byte         // what else is to be said; with flagAll the rings don't matter

	once sync.Once
	more chan struct{} // signalled when there is something to send
}

func (o *outbox) waiting() chan struct{} {
	o.once.Do(func() { o.more = make(chan struct{}, 1) })
	return o.more
}

func (o *outbox) put(r ring) {
	o.mu.Lock()
	if o.flags&flagAll == 0 {
		if o.rings == nil {
			o.rings = make(map[key]ring)
		}
		r.n += o.rings[r.key].n
		o.rings[r.key] = r
		if len(o.rings) > maxRings {
			o.flags |= flagAll
			o.rings = nil
		}
	}
	o.mu.Unlock()
	o.signal()
}

// mark has something said beside the rings.
func (o *outbox) mark(flags byte) {
	o.mu.Lock()
	o.flags |= flags
	if o.flags&flagAll != 0 {
		o.rings = nil
	}
	o.mu.Unlock()
	o.signal()
}

func (o *outbox) signal() {
	select {
	case o.waiting() <- struct{}{}:
	default:
	}
}

// take empties the box. What it gives is good until the next call.
func (o *outbox) take() (rings map[key]ring, flags byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	rings, flags = o.rings, o.flags
	o.rings, o.flags = o.spare, 0
	if len(rings) > maxRings/8 { // a map that was large once is slow to walk for ever
		o.spare = nil
	} else {
		o.spare = rings
	}
	clear(o.rings)
	return rings, flags
}
