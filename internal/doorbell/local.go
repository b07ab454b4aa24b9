package doorbell

import (
	"container/list"
	"context"
	"sync"
	"time"
)

// Local is a bell within the process. A ring of a queue wakes one listener, not all: one run needs one
// worker. A ring of a run wakes everybody who listens for it.
type Local struct {
	space string // set before the first use

	mu      sync.Mutex
	rooms   map[key]*room
	herd    time.Time // when everybody was last woken
	herding bool      // everybody will be
}

// A room is where the listeners of a topic sit, the one who came first in front.
type room struct {
	queue bool
	seats list.List // of *listener
}

type listener struct {
	c     chan struct{}
	seats []seat
}

type seat struct {
	key key
	at  *list.Element
}

// herdPause is the least time between two occasions at which everybody is woken: whoever can make this
// happen can't keep all of them busy.
const herdPause = time.Second

// Listen listens.
func (l *Local) Listen(topics ...Topic) (<-chan struct{}, func()) {
	li := &listener{c: make(chan struct{}, 1), seats: make([]seat, 0, len(topics))}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.rooms == nil {
		l.rooms = make(map[key]*room)
	}
	for _, t := range topics {
		k := keyOf(l.space, t)
		r := l.rooms[k]
		if r == nil {
			r = &room{queue: t.Queue != ""}
			l.rooms[k] = r
		}
		li.seats = append(li.seats, seat{k, r.seats.PushBack(li)})
	}
	return li.c, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.leave(li)
	}
}

func (l *Local) leave(li *listener) {
	for _, s := range li.seats {
		r := l.rooms[s.key]
		r.seats.Remove(s.at)
		if r.seats.Len() == 0 {
			delete(l.rooms, s.key)
		}
	}
	li.seats = nil
}

// Ring wakes whoever listens.
func (l *Local) Ring(t Topic) { l.wake(ringOf(l.space, t)) }

// Run has nothing to do.
func (l *Local) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

// Stats are all zero.
func (l *Local) Stats() Stats { return Stats{} }

// wake wakes those whom a ring concerns, and says how many of a queue's runs somebody was woken for.
func (l *Local) wake(r ring) (woken int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r.n == 0 {
		l.empty(r.key)
		return 0
	}
	for ; woken < r.n; woken++ {
		x := l.rooms[r.key]
		for _, k := range r.or {
			if x == nil {
				x = l.rooms[k]
			}
		}
		if x == nil {
			break
		}
		l.call(x.seats.Front().Value.(*listener), x)
	}
	return woken
}

// wakeRoom wakes everybody who listens for a topic.
func (l *Local) wakeRoom(k key) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.empty(k)
}

// wakeAll wakes everybody: something may have been missed.
func (l *Local) wakeAll() {
	l.mu.Lock()
	defer l.mu.Unlock()
	wait := time.Until(l.herd.Add(herdPause))
	if wait <= 0 {
		l.stampede()
	} else if !l.herding {
		l.herding = true
		time.AfterFunc(wait, func() {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.herding = false
			l.stampede()
		})
	}
}

func (l *Local) stampede() {
	l.herd = time.Now()
	for k := range l.rooms {
		l.empty(k)
	}
}

func (l *Local) empty(k key) {
	r := l.rooms[k]
	if r == nil {
		return
	}
	for r.queue && r.seats.Len() > 0 {
		l.call(r.seats.Front().Value.(*listener), r)
	}
	for e := r.seats.Front(); e != nil; e = e.Next() {
		l.call(e.Value.(*listener), r)
	}
}

func (l *Local) call(li *listener, r *room) {
	select {
	case li.c <- struct{}{}:
	default:
	}
	if r.queue {
		l.leave(li)
	}
}

// listens tells whether anybody listens for a topic.
func (l *Local) listens(k key) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.rooms[k] != nil
}
