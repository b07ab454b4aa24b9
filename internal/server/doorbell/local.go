package doorbell

import (
	"container/list"
	"context"
	"sync"
	"time"
)

// Local is a bell within the process. A ring of a queue wakes one listener, because one run needs
// one worker. A ring of a run wakes all its listeners.
type Local struct {
	space string // set before the first use
	rings memo

	mu             sync.Mutex
	topics         map[key]*waitList
	allWokenAt     time.Time // when all listeners were last woken
	wakeAllPending bool      // a timer will wake all listeners
}

// A waitList has the listeners of a topic, in the order in which they came.
type waitList struct {
	queue     bool
	listeners list.List // of *listener
}

// A listener is one call of Listen, with its positions in the lists of its topics.
type listener struct {
	c         chan struct{}
	positions []position
}

type position struct {
	key key
	at  *list.Element
}

// wakeAllPause is the least time between two wake-ups of all listeners. It limits the load that a
// faulty or malicious sender can cause.
const wakeAllPause = time.Second

// Listen implements Bell.
func (l *Local) Listen(topics ...Topic) (<-chan struct{}, func()) {
	li := &listener{c: make(chan struct{}, 1), positions: make([]position, 0, len(topics))}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.topics == nil {
		l.topics = make(map[key]*waitList)
	}
	for _, t := range topics {
		k := keyOf(l.space, t)
		r := l.topics[k]
		if r == nil {
			r = &waitList{queue: t.Queue != ""}
			l.topics[k] = r
		}
		li.positions = append(li.positions, position{k, r.listeners.PushBack(li)})
	}
	return li.c, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.leave(li)
	}
}

// leave removes a listener from all its lists. The caller holds l.mu.
func (l *Local) leave(li *listener) {
	for _, s := range li.positions {
		r := l.topics[s.key]
		r.listeners.Remove(s.at)
		if r.listeners.Len() == 0 {
			delete(l.topics, s.key)
		}
	}
	li.positions = nil
}

// Ring wakes listeners of the topic.
func (l *Local) Ring(t Topic) { l.wake(l.rings.of(l.space, t)) }

// Run waits for the end of the context.
func (l *Local) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

// Stats returns zeros.
func (l *Local) Stats() Stats { return Stats{} }

// wake delivers a ring. For a queue it returns how many of its runs have woken a listener.
func (l *Local) wake(r ring) (woken int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r.n == 0 {
		l.wakeListeners(r.key)
		return 0
	}
	for ; woken < r.n; woken++ {
		x := l.topics[r.key]
		for _, k := range r.or {
			if x == nil {
				x = l.topics[k]
			}
		}
		if x == nil {
			break
		}
		l.signal(x.listeners.Front().Value.(*listener), x)
	}
	return woken
}

// wakeTopic wakes all listeners of a topic.
func (l *Local) wakeTopic(k key) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.wakeListeners(k)
}

// wakeAll wakes all listeners, because rings may have been missed. Within wakeAllPause of the last
// time, it waits for the rest of the pause.
func (l *Local) wakeAll() {
	l.mu.Lock()
	defer l.mu.Unlock()
	wait := time.Until(l.allWokenAt.Add(wakeAllPause))
	if wait <= 0 {
		l.wakeAllNow()
	} else if !l.wakeAllPending {
		l.wakeAllPending = true
		time.AfterFunc(wait, func() {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.wakeAllPending = false
			l.wakeAllNow()
		})
	}
}

// wakeAllNow wakes all listeners. The caller holds l.mu.
func (l *Local) wakeAllNow() {
	l.allWokenAt = time.Now()
	for k := range l.topics {
		l.wakeListeners(k)
	}
}

// wakeListeners wakes all listeners of a topic. The caller holds l.mu.
func (l *Local) wakeListeners(k key) {
	r := l.topics[k]
	if r == nil {
		return
	}
	for r.queue && r.listeners.Len() > 0 {
		l.signal(r.listeners.Front().Value.(*listener), r)
	}
	for e := r.listeners.Front(); e != nil; e = e.Next() {
		l.signal(e.Value.(*listener), r)
	}
}

// signal wakes a listener. One of a queue is removed from its lists. The caller holds l.mu.
func (l *Local) signal(li *listener, r *waitList) {
	select {
	case li.c <- struct{}{}:
	default:
	}
	if r.queue {
		l.leave(li)
	}
}

// listens tells whether a topic has listeners.
func (l *Local) listens(k key) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.topics[k] != nil
}
