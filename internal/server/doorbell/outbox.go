package doorbell

import "sync"

// maxRings limits the different rings that wait to be sent. More are replaced by "look at
// everything".
const maxRings = 8192

// An outbox collects rings while the last batch is being sent. It never blocks the ringer and is
// bounded. Equal rings become one; for queues the numbers of their runs are added.
type outbox struct {
	mu    sync.Mutex
	rings map[key]ring
	spare map[key]ring // the second of two maps that are used in turns
	flags byte         // flags of the next message; with flagAll the rings are not needed

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

// mark adds flags to the next message.
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

// take empties the outbox. The returned map is valid until the next call.
func (o *outbox) take() (rings map[key]ring, flags byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	rings, flags = o.rings, o.flags
	o.rings, o.flags = o.spare, 0
	if len(rings) > maxRings/8 { // a map that was large stays slow to iterate: release it
		o.spare = nil
	} else {
		o.spare = rings
	}
	clear(o.rings)
	return rings, flags
}
