package doorbell

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"hash/maphash"
	"sync/atomic"

	"github.com/perdure/perdure"
)

// A Topic is the subject of a ring: a queue with claimable runs, a run, a group, a worker's runs,
// or the keys.
type Topic struct {
	Tenant perdure.TenantID
	Queue  string // set for queues
	Kind   string // with Queue: the kind of the runs; empty for any
	ID     string // set for runs, groups, workers and keys
}

// Queue returns the topic of a queue. Without a tenant it is the queue of that name of any tenant.
func Queue(t perdure.TenantID, name string) Topic { return Topic{Tenant: t, Queue: name} }

// Of returns the topic of a queue's runs of one kind. Its rings wake listeners of that kind and of
// the whole queue, but not listeners of other kinds.
func (t Topic) Of(kind string) Topic {
	t.Kind = kind
	return t
}

// Run returns the topic of a run, a thread or a group.
func Run(t perdure.TenantID, id string) Topic { return Topic{Tenant: t, ID: id} }

// Worker returns the topic of a worker's runs. Without a tenant it is a worker for all tenants.
func Worker(t perdure.TenantID, id string) Topic { return Topic{Tenant: t, ID: "worker " + id} }

// Keys returns the topic of revoked keys, of all tenants.
func Keys() Topic { return Topic{ID: "keys"} }

// A Ringer rings.
type Ringer interface{ Ring(Topic) }

// A Bell rings and can be listened to.
type Bell interface {
	Ringer

	// Listen returns a channel that is signalled when one of the topics rings, and a function that
	// stops listening. A caller reads the store after Listen, not before. A listener of a queue is
	// woken once and must listen again. Otherwise rings would go to listeners that are still busy
	// with the last one.
	Listen(...Topic) (<-chan struct{}, func())

	// Run carries rings between nodes until the context ends. It reconnects when the medium is
	// away.
	Run(context.Context) error

	Stats() Stats
}

// Silent is a Ringer without listeners.
type Silent struct{}

// Ring does nothing.
func (Silent) Ring(Topic) {}

// Stats are the counters of a bell since its start. Those of Local are zero.
type Stats struct {
	Connected bool  // rings of other nodes can arrive now
	Connects  int64 // connections made
	Sent      int64 // messages sent
	Lost      int64 // messages that could not be sent, or overflowed the inbox
	Received  int64 // messages of other nodes
	Ignored   int64 // invalid messages
}

type counters struct {
	connected                               atomic.Bool
	connects, sent, lost, received, invalid atomic.Int64
}

// Stats returns the counters.
func (c *counters) Stats() Stats {
	return Stats{
		Connected: c.connected.Load(), Connects: c.connects.Load(), Sent: c.sent.Load(),
		Lost: c.lost.Load(), Received: c.received.Load(), Ignored: c.invalid.Load(),
	}
}

// A key is the hash of a topic, used on the wire and in the lists of listeners. Names do not leave
// the process, because they may contain confidential text. Two topics with the same key would only
// share their rings.
type key uint64

// keyOf hashes a topic within a space. Nodes of another space have other keys.
func keyOf(space string, t Topic) key {
	var room [256]byte
	b := append(room[:0], space...)
	name := t.ID
	if t.Queue != "" {
		b, name = append(b, 'q'), t.Queue
	} else {
		b = append(b, 'r')
	}
	b = binary.AppendUvarint(b, uint64(len(t.Tenant)))
	b = append(b, t.Tenant...)
	b = binary.AppendUvarint(b, uint64(len(t.Kind)))
	b = append(b, t.Kind...)
	b = append(b, name...)
	sum := sha256.Sum256(b)
	return key(binary.BigEndian.Uint64(sum[:]))
}

// A ring is a wake-up on its way. n is 0 for a run, and for a queue the number of runs that became
// claimable. If a queue's ring finds no listener for its key, the keys in or are tried in order:
// any kind in the tenant's queue, the kind in the queue of any tenant, any kind in the queue of any
// tenant.
type ring struct {
	key key
	or  [3]key
	n   int
}

// A memo keeps the rings of queues that rang lately. A queue rings once for each of its runs, and a
// ring takes four hashes. The zero value is empty. Its size is bounded: two queues with the same
// place in it replace each other.
type memo [64]atomic.Pointer[remembered]

type remembered struct {
	topic Topic
	ring  ring
}

var memoSeed = maphash.MakeSeed()

// of returns the ring of a topic. The space of a memo is always the same.
func (m *memo) of(space string, t Topic) ring {
	if t.Queue == "" && len(t.ID) > 1 { // it will hardly ring again, unlike the id "*" of any run
		return ringOf(space, t)
	}
	at := &m[maphash.Comparable(memoSeed, t)%uint64(len(m))]
	if known := at.Load(); known != nil && known.topic == t {
		return known.ring
	}
	r := ringOf(space, t)
	at.Store(&remembered{t, r})
	return r
}

// ringOf returns the ring of a topic.
func ringOf(space string, t Topic) ring {
	r := ring{key: keyOf(space, t)}
	if t.Queue != "" {
		r.n = 1
		r.or[0] = r.key
		if t.Kind != "" {
			r.or[0] = keyOf(space, Topic{Tenant: t.Tenant, Queue: t.Queue})
		}
		r.or[1] = keyOf(space, Topic{Queue: t.Queue, Kind: t.Kind})
		r.or[2] = r.or[1]
		if t.Kind != "" {
			r.or[2] = keyOf(space, Topic{Queue: t.Queue})
		}
	}
	return r
}
