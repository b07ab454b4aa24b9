package httpd

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/connlimit"
	"github.com/perdure/perdure/internal/engine"
)

// seats bounds how many calls block, so that connections are left for calls that want an answer: streams, sockets
// and waits together, polls of workers by their own count, and all of them together.
type seats struct {
	limit    int64 // of streams, sockets and waits
	polls    int64 // of polls
	blocking int64 // of all together
	share    int64 // how many streams one tenant may have; a node that is called by one alone has them all for it
	fixed    bool  // also then
	pollsOf  int64 // how many polls one tenant may have
	pollsSet bool  // also if it is the only one
	taken    atomic.Int64
	by       [len(transports)]atomic.Int64

	mu sync.Mutex
	of map[perdure.TenantID]*seated

	first atomic.Pointer[perdure.TenantID] // who called
	many  atomic.Bool                      // others did, too
}

// seated counts the seats of a tenant. Streams are streams, sockets and waits together.
type seated struct{ streams, sockets, polls, cancels int64 }

// socketsOfTenant is how many sockets one tenant may have while others call: each remembers what it watches.
const socketsOfTenant = 64

// meet notes whose call this is.
func (s *seats) meet(t perdure.TenantID) {
	if s.many.Load() {
		return
	}
	if first := s.first.Load(); first == nil && s.first.CompareAndSwap(nil, &t) || first != nil && *first == t {
		return
	}
	s.many.Store(*s.first.Load() != t)
}

// How a caller is attached.
const (
	byStream = iota
	bySocket
	byWait
	byPoll
	byCancel // a cancel that waits: it has the bounds of polls, so that streams never keep it out
)

// transports are the names of these in metrics.
var transports = [...]string{byStream: "sse", bySocket: "websocket", byWait: "wait", byPoll: "poll", byCancel: "cancel"}

// Attached gives how many are attached to this node, by the way they are, and how many may be.
func (s *Server) Attached() (by map[string]int64, limit int64) {
	by = make(map[string]int64, len(transports))
	for i, name := range transports {
		by[name] = s.seats.by[i].Load()
	}
	return by, s.seats.limit
}

// newSeats divides what the descriptors allow.
func newSeats(opt *Options) *seats {
	if opt.Descriptors == 0 {
		opt.Descriptors = connlimit.Descriptors()
	}
	plan := connlimit.PlanFor(opt.Descriptors)
	s := &seats{limit: plan.Streams, polls: plan.Polls, blocking: plan.Blocking, of: make(map[perdure.TenantID]*seated)}
	if opt.Streams > 0 {
		s.limit = min(s.limit, int64(opt.Streams))
	}
	s.share, s.fixed = tenantShare(s.limit, opt.StreamsPerTenant), opt.StreamsPerTenant > 0
	s.pollsOf, s.pollsSet = tenantShare(s.polls, int(opt.Tenant.MaxPolls)), opt.Tenant.MaxPolls > 0
	return s
}

// tenantShare is how many streams one tenant may have: three quarters of those of the node, so that nobody takes all of them.
func tenantShare(limit int64, configured int) int64 {
	if configured > 0 {
		return min(limit, int64(configured))
	}
	return limit - limit/4
}

// take gives a seat, and what gives it back.
func (s *seats) take(how int, t perdure.TenantID) (leave func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	of := s.of[t]
	if of == nil {
		of = &seated{}
	}
	if err := s.full(how, of); err != nil {
		return nil, err
	}
	s.of[t] = of
	s.count(how, of, 1)
	return sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.count(how, of, -1); *of == (seated{}) {
			delete(s.of, t)
		}
	}), nil
}

// full says why there is no seat for one more, or nothing.
func (s *seats) full(how int, of *seated) error {
	many := s.many.Load()
	if s.taken.Load()+s.by[byPoll].Load()+s.by[byCancel].Load() >= s.blocking {
		if how == byPoll {
			return tooBusy("this node has %d calls that block, as many as it may", s.blocking)
		}
		return perdure.Errorf(api.CodeTooManyStreams, "this node has %d calls that block, as many as it may; come back later", s.blocking)
	}
	if how == byPoll || how == byCancel {
		own := of.polls
		if how == byCancel {
			own = of.cancels
		}
		switch {
		case own >= s.pollsOf && s.pollsOf < s.polls && (s.pollsSet || many):
			return tooBusy("this tenant has %d calls of this kind waiting on this node, as many as it may", s.pollsOf)
		case s.by[how].Load() >= s.polls:
			return tooBusy("this node has %d calls of this kind waiting, as many as it may", s.polls)
		}
		return nil
	}
	switch {
	case of.streams >= s.share && s.share < s.limit && (s.fixed || many):
		return perdure.Errorf(api.CodeTooManyStreams, "this tenant has %d streams open on this node, as many as it may; come back, or read the log by polling", s.share)
	case s.taken.Load() >= s.limit:
		return perdure.Errorf(api.CodeTooManyStreams, "this node has %d streams open, as many as it may; come back, or read the log by polling", s.limit)
	case how == bySocket && of.sockets >= socketsOfTenant && many:
		return perdure.Errorf(api.CodeTooManyStreams, "this tenant has %d sockets open on this node, as many as it may; come back, or use lists and streams", socketsOfTenant)
	}
	return nil
}

func (s *seats) count(how int, of *seated, n int64) {
	s.by[how].Add(n)
	switch how {
	case byPoll:
		of.polls += n
		return
	case byCancel:
		of.cancels += n
		return
	case bySocket:
		of.sockets += n
	}
	of.streams += n
	s.taken.Add(n)
}

// seat gives a call that is about to block a seat, and takes back its share of calls. A caller that gets none is
// told to close its connection, so that it does not stay open for nothing.
func (c *call) seat(how int) (leave func(), err error) {
	t := c.tenant()
	var own func()
	if l := c.s.shares.of(t); l != nil {
		gate, what := l.streams, "streams, sockets and waits"
		if how == byPoll {
			gate, what = l.polls, "polls"
		}
		if gate != nil {
			var ok bool
			if own, ok = gate.TryEnter(t, 1); !ok {
				err = tooBusy("this tenant has as many %s on this node as its limit allows", what)
			}
		}
	}
	if err == nil {
		leave, err = c.s.seats.take(how, t)
	}
	if err != nil {
		if own != nil {
			own()
		}
		if how == byStream || how == bySocket || how == byPoll {
			c.w.Header().Set("Connection", "close")
		}
		return nil, err
	}
	c.letGo()
	if own == nil {
		return leave, nil
	}
	return both(leave, own), nil
}

// A keyring knows the keys of the streams and of the calls that block, and ends these when their key is revoked or expires.
type keyring struct {
	engine *engine.Engine
	every  time.Duration // how often the keys are looked at

	mu   sync.Mutex
	keys map[string]*held
	some chan struct{} // there is one to look at
}

type held struct {
	users int
	valid context.Context
	end   context.CancelFunc
}

// keysEvery is how often the keys of whoever is attached are looked at where other nodes revoke them too. Where none can, a ring tells
// of what is revoked, and looking finds what expires.
const keysEvery = 500 * time.Millisecond

// watch gives a context that ends when a key is no longer valid.
func (k *keyring) watch(id string) (valid context.Context, forget func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	h := k.keys[id]
	if h == nil {
		h = &held{}
		h.valid, h.end = context.WithCancel(context.Background())
		k.keys[id] = h
		select {
		case k.some <- struct{}{}:
		default:
		}
	}
	h.users++
	return h.valid, func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		if h.users--; h.users == 0 && k.keys[id] == h {
			delete(k.keys, id)
		}
	}
}

// run looks until the context ends, when it is rung and as long as there is something to look at. A store that can't be
// read says nothing about a key.
func (k *keyring) run(ctx context.Context, rung <-chan struct{}) {
	var next <-chan time.Time // nil: nothing is open
	for {
		select {
		case <-ctx.Done():
			return
		case <-k.some:
			if next == nil {
				next = time.After(k.every)
			}
			continue
		case <-rung:
		case <-next:
		}
		k.mu.Lock()
		ids := make([]string, 0, len(k.keys))
		for id := range k.keys {
			ids = append(ids, id)
		}
		k.mu.Unlock()
		if next = nil; len(ids) == 0 {
			continue
		}
		next = time.After(k.every)
		gone, err := k.engine.InvalidKeys(ctx, ids)
		if err != nil {
			continue
		}
		k.mu.Lock()
		for _, id := range gone {
			if h := k.keys[id]; h != nil {
				h.end()
				delete(k.keys, id)
			}
		}
		k.mu.Unlock()
	}
}
