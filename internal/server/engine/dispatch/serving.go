package dispatch

import (
	"crypto/sha256"
	"slices"
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/store"
)

// Which kinds are served.
//
// A worker's row has its recent polls: the queues and kinds of each. A kind is served if a worker
// that is not offline has such a poll. A worker whose slots are all taken does not poll, but sends
// heartbeats, so a poll counts for pollMemory as long as its worker is live.

const (
	// pollMemory is how long a poll counts that the worker does not repeat.
	pollMemory = time.Hour
	// maxPollBytes bounds the names that are stored of a poll. A poll with more counts for all
	// kinds.
	maxPollBytes = 16 << 10
	// maxServing bounds the workers that are read. If a tenant has more, no kind is said to be
	// unserved.
	maxServing = 1000
	// servingTTL is how long the workers of a tenant are used without reading them again.
	servingTTL = time.Second
)

// recentPolls has the polls that were recorded a short time ago. A row that another node removes is
// written again a little later.
var recentPolls = kernel.NewPart(func(e *kernel.Engine) *kernel.Cache[[sha256.Size]byte, struct{}] {
	return &kernel.Cache[[sha256.Size]byte, struct{}]{TTL: e.Policy().WorkerOffline / 2}
})

// cachedServing has the polls of a tenant's workers, for people: no grant depends on it.
var cachedServing = kernel.NewPart(func(*kernel.Engine) *kernel.Cache[perdure.TenantID, *Serving] {
	return &kernel.Cache[perdure.TenantID, *Serving]{TTL: servingTTL, Most: maxServing}
})

// recordPoll writes what a worker polls for, and that it was seen. An unchanged poll is written at
// most every half of WorkerOffline, unless the worker's row is due anyway.
func recordPoll(
	tx *kernel.Tx, t perdure.TenantID, worker, release string, slots int, poll perdure.WorkerPoll,
) error {
	size := 0
	for _, k := range poll.Kinds {
		size += len(k) + 3
	}
	if size > maxPollBytes {
		poll.Kinds = nil
	}
	poll.At = tx.Now
	key := pollKey(t, worker, &poll)
	_, recent := recentPolls.Of(tx.Engine).Peek(kernel.Look{Now: tx.Now}, key)
	if recent && life.SeenRecently(tx, t, worker) {
		return nil
	}
	return life.TryWorkerRow(tx, func() error {
		w, _, err := tx.DB.Workers.Get(t, worker)
		if err != nil {
			return err
		}
		w.Tenant, w.ID, w.SeenAt, w.Offline = t, worker, tx.Now, false
		w.Queues, w.Slots, w.Release = life.JsonList(poll.Queues), slots, release
		w.Polls = addPoll(w.Polls, poll)
		tx.DB.Workers.Put(w)
		tx.DB.After(func() {
			life.RememberSeen(tx, t, worker)
			recentPolls.Of(tx.Engine).Put(tx.Now, key, struct{}{})
			cachedServing.Of(tx.Engine).Forget()
		})
		return nil
	})
}

// addPoll adds a poll, in place of an equal one, and drops those that no longer count.
func addPoll(polls []perdure.WorkerPoll, p perdure.WorkerPoll) []perdure.WorkerPoll {
	out := make([]perdure.WorkerPoll, 0, perdure.MaxWorkerPolls)
	for _, x := range polls {
		if p.At.Sub(x.At) < pollMemory && (x.AllTenants != p.AllTenants || !slices.Equal(x.Queues, p.Queues) ||
			!slices.Equal(x.Kinds, p.Kinds)) {
			out = append(out, x)
		}
	}
	out = append(out, p)
	return out[max(0, len(out)-perdure.MaxWorkerPolls):]
}

// pollKey identifies a worker's poll in memory.
func pollKey(t perdure.TenantID, worker string, p *perdure.WorkerPoll) [sha256.Size]byte {
	var b strings.Builder
	b.WriteString(string(t) + "\x00" + worker + "\x00")
	if p.AllTenants {
		b.WriteByte('*')
	}
	for _, q := range p.Queues {
		b.WriteString(q + "\x00")
	}
	b.WriteByte('\x01')
	for _, k := range p.Kinds {
		b.WriteString(k + "\x00")
	}
	return sha256.Sum256([]byte(b.String()))
}

// Serving has the queues and kinds that the workers of a tenant, and those of all tenants, poll for.
type Serving struct {
	polls []servedPoll
	// unsure is set if there may be workers that are not in polls.
	Unsure bool
}

// A servedPoll is a poll of a worker that was last seen at an instant.
type servedPoll struct {
	perdure.WorkerPoll
	live bool
	seen perdure.Instant
}

// ServingNow reads the queues and kinds that are served.
func ServingNow(r *store.Records, p *perdure.Policy, t perdure.TenantID, now perdure.Instant) (*Serving, error) {
	list, err := r.Workers.Serving(t, maxServing)
	if err != nil {
		return nil, err
	}
	out := &Serving{Unsure: len(list) >= maxServing}
	for i := range list {
		w := &list[i]
		live := !w.Offline && now.Sub(w.SeenAt) < p.WorkerOffline
		if live && len(w.Polls) == 0 { // a row of an older server
			out.Unsure = true
		}
		for _, x := range w.Polls {
			if w.Tenant == t || x.AllTenants {
				out.polls = append(out.polls, servedPoll{x, live, w.SeenAt})
			}
		}
	}
	return out, nil
}

// Look tells whether a live worker serves a kind on a queue, and when one that did was last seen.
// An empty queue means any.
func (s *Serving) Look(kind, queue string) (live bool, last perdure.Instant) {
	for i := range s.polls {
		if p := &s.polls[i]; p.Serves(kind, queue) {
			live, last = live || p.live, max(last, p.seen)
		}
	}
	return live, last
}

// Unserved describes a claimable run that nobody polls for. It is nil if somebody does, or may.
func (s *Serving) Unserved(r *perdure.Run) *perdure.Unserved {
	live, last := s.Look(r.Kind, r.Queue)
	if live || s.Unsure {
		return nil
	}
	return &perdure.Unserved{Queue: r.Queue, LastPolledAt: last}
}

// servingOf gives the queues and kinds that are served in a tenant.
func servingOf(e *kernel.Engine, db *store.Records, at kernel.Look, t perdure.TenantID) (*Serving, error) {
	return cachedServing.Of(e).Get(at, t, func() (*Serving, error) { return ServingNow(db, e.Policy(), t, db.Now) })
}
