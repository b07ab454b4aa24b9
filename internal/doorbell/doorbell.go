// Package doorbell carries hints that there may be work. A ring may be lost, doubled, forged or late
// without any effect but latency: whoever is woken looks into the store, and looks from time to time
// anyway. Nothing is ever decided by a ring.
package doorbell

import (
	"sync"

	"github.com/perdure/perdure"
)

// A Topic is what a ring is about: something to claim in a queue, or news of a run or a group.
type Topic struct {
	Tenant perdure.TenantID
	Queue  string // set for queues
	ID     string // set for runs and groups
}

// Queue is the topic of a queue; with no tenant, that of the queue of any tenant.
func Queue(t perdure.TenantID, name string) Topic { return Topic{Tenant: t, Queue: name} }

// Run is the topic of a run, a thread or a group.
func Run(t perdure.TenantID, id string) Topic { return Topic{Tenant: t, ID: id} }

// A Bell rings.
type Bell interface{ Ring(Topic) }

// Silent is a bell that nobody hears.
type Silent struct{}

// Ring does nothing.
func (Silent) Ring(Topic) {}

// Local is a bell within the process. A ring of a queue wakes one listener, not all: one run needs one
// worker. A ring of a run wakes everybody who listens for it.
type Local struct {
	mu        sync.Mutex
	listeners map[Topic][]*listener
}

type listener struct {
	c      chan struct{}
	topics []Topic
}

// Listen gives a channel that is signalled when one of the topics rings, and a function that ends this.
// A listener of a queue is woken once and must listen again, so that a ring is not spent on one who is
// busy with the last.
func (l *Local) Listen(topics ...Topic) (<-chan struct{}, func()) {
	li := &listener{make(chan struct{}, 1), topics}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.listeners == nil {
		l.listeners = make(map[Topic][]*listener)
	}
	for _, t := range topics {
		l.listeners[t] = append(l.listeners[t], li)
	}
	return li.c, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.remove(li)
	}
}

func (l *Local) remove(li *listener) {
	for _, t := range li.topics {
		list := l.listeners[t]
		for i, x := range list {
			if x == li {
				list = append(list[:i:i], list[i+1:]...)
				break
			}
		}
		if len(list) == 0 {
			delete(l.listeners, t)
		} else {
			l.listeners[t] = list
		}
	}
	li.topics = nil
}

// Ring wakes whoever listens. A ring of a tenant's queue that nobody of that tenant waits for goes to one
// who waits for any tenant's.
func (l *Local) Ring(t Topic) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if t.Queue != "" && len(l.listeners[t]) == 0 {
		t.Tenant = ""
	}
	for _, li := range append([]*listener(nil), l.listeners[t]...) {
		select {
		case li.c <- struct{}{}:
		default:
		}
		if t.Queue != "" {
			l.remove(li)
			return
		}
	}
}
