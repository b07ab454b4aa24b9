// Package doorbell carries hints that there may be work. A ring may be lost, doubled, forged or late
// without any effect but latency: whoever is woken looks into the store, and looks from time to time
// anyway. Nothing is ever decided by a ring, and no ring says more than "look now". It is not a queue and
// not a bus. The engine rings; the API listens.
//
// Local is a bell within one process. Postgres and NATS carry rings to other nodes: they wake who listens
// here first, and what nobody here has use for goes out, from a goroutine of its own. Ring and Listen never
// wait for a network.
package doorbell

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"sync/atomic"

	"github.com/perdure/perdure"
)

// A Topic is what a ring is about: something to claim in a queue, or news of a run, a group, what a worker has, or keys.
type Topic struct {
	Tenant perdure.TenantID
	Queue  string // set for queues
	Kind   string // of what is in the queue; empty: any
	ID     string // set for runs, groups and workers
}

// Queue is the topic of a queue; with no tenant, that of the queue of any tenant.
func Queue(t perdure.TenantID, name string) Topic { return Topic{Tenant: t, Queue: name} }

// Of is the topic of a queue's runs of one kind. Its rings wake those who listen for the kind, or for the whole
// queue; who takes other kinds sleeps on.
func (t Topic) Of(kind string) Topic {
	t.Kind = kind
	return t
}

// Run is the topic of a run, a thread or a group.
func Run(t perdure.TenantID, id string) Topic { return Topic{Tenant: t, ID: id} }

// Worker is the topic of the runs that a worker has; with no tenant, of one that has runs of any tenant.
func Worker(t perdure.TenantID, id string) Topic { return Topic{Tenant: t, ID: "worker " + id} }

// Keys is the topic of keys that are revoked, of whatever tenant.
func Keys() Topic { return Topic{ID: "keys"} }

// A Ringer rings.
type Ringer interface{ Ring(Topic) }

// A Bell rings and is heard.
type Bell interface {
	Ringer

	// Listen gives a channel that is signalled when one of the topics rings, and a function that ends this.
	// Whoever listens looks into the store afterwards. A listener of a queue is woken once and must listen
	// again, so that a ring is not spent on one who is busy with the last.
	Listen(...Topic) (<-chan struct{}, func())

	// Run carries rings between nodes until the context ends. A medium that is away is waited for.
	Run(context.Context) error

	Stats() Stats
}

// Silent is a ringer that nobody hears.
type Silent struct{}

// Ring does nothing.
func (Silent) Ring(Topic) {}

// Stats are the counters of a bell since its start. A bell within the process has none.
type Stats struct {
	Connected bool  // whether other nodes can be heard right now
	Connects  int64 // how often a connection was made
	Sent      int64 // messages sent
	Lost      int64 // messages that could not be sent, or came faster than they were read
	Received  int64 // messages of other nodes
	Ignored   int64 // messages that made no sense
}

type counters struct {
	connected                                atomic.Bool
	connects, sent, lost, received, nonsense atomic.Int64
}

// Stats gives the counters.
func (c *counters) Stats() Stats {
	return Stats{c.connected.Load(), c.connects.Load(), c.sent.Load(), c.lost.Load(), c.received.Load(), c.nonsense.Load()}
}

// A key stands for a topic on the wire and in the lists of listeners. Names don't leave the process: they
// may hold anything, and are nobody's business. Two topics with one key would share their rings.
type key uint64

// keyOf hashes a topic within a space; nodes of another space have other keys.
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

// A ring is what travels: of a run (n is 0), or of a queue in which n runs became claimable. Where nobody waits
// for the kind in the tenant's queue, it goes to those who wait for the first that somebody waits for: any kind
// in that queue, the kind in any tenant's, any kind in any tenant's.
type ring struct {
	key key
	or  [3]key
	n   int
}

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
