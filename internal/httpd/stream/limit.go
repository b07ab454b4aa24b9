package stream

import (
	"sync"
	"sync/atomic"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/connlimit"
)

// A Limiter bounds how many calls block, so that connections are left for calls that want an answer: streams, sockets
// and waits together, polls of workers by their own count, and all of them together.
type Limiter struct {
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

// Meet notes whose call this is.
func (s *Limiter) Meet(t perdure.TenantID) {
	if s.many.Load() {
		return
	}
	if first := s.first.Load(); first == nil && s.first.CompareAndSwap(nil, &t) || first != nil && *first == t {
		return
	}
	s.many.Store(*s.first.Load() != t)
}

// A Transport is how a caller is attached.
type Transport int

const (
	SSE Transport = iota
	Socket
	Wait
	Poll
	Cancel // a cancel that waits: it has the bounds of polls, so that streams never keep it out
)

// transports are the names of these in metrics.
var transports = [...]string{SSE: "sse", Socket: "websocket", Wait: "wait", Poll: "poll", Cancel: "cancel"}

// Attached gives how many are attached, by the way they are, and how many streams, sockets and
// waits may be.
func (s *Limiter) Attached() (by map[string]int64, limit int64) {
	by = make(map[string]int64, len(transports))
	for i, name := range transports {
		by[name] = s.by[i].Load()
	}
	return by, s.limit
}

// Limits say how many calls may block. What is zero follows from the descriptors.
type Limits struct {
	Descriptors      int64 // how many files and sockets the process may open; default: what the system says
	Streams          int   // streams, sockets and waits
	StreamsPerTenant int
	PollsPerTenant   int
}

// NewLimiter divides what the descriptors allow.
func NewLimiter(l Limits) *Limiter {
	if l.Descriptors == 0 {
		l.Descriptors = connlimit.Descriptors()
	}
	plan := connlimit.PlanFor(l.Descriptors)
	s := &Limiter{limit: plan.Streams, polls: plan.Polls, blocking: plan.Blocking, of: make(map[perdure.TenantID]*seated)}
	if l.Streams > 0 {
		s.limit = min(s.limit, int64(l.Streams))
	}
	s.share, s.fixed = tenantShare(s.limit, l.StreamsPerTenant), l.StreamsPerTenant > 0
	s.pollsOf, s.pollsSet = tenantShare(s.polls, l.PollsPerTenant), l.PollsPerTenant > 0
	return s
}

// tenantShare is how many streams one tenant may have: three quarters of those of the node, so that nobody takes all of them.
func tenantShare(limit int64, configured int) int64 {
	if configured > 0 {
		return min(limit, int64(configured))
	}
	return limit - limit/4
}

// Take gives a seat, and what gives it back.
func (s *Limiter) Take(how Transport, t perdure.TenantID) (leave func(), err error) {
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
func (s *Limiter) full(how Transport, of *seated) error {
	many := s.many.Load()
	if s.taken.Load()+s.by[Poll].Load()+s.by[Cancel].Load() >= s.blocking {
		if how == Poll {
			return perdure.Errorf(perdure.CodeTooMany, "this node has %d calls that block, as many as it may", s.blocking)
		}
		return perdure.Errorf(api.CodeTooManyStreams, "this node has %d calls that block, as many as it may; come back later", s.blocking)
	}
	if how == Poll || how == Cancel {
		own := of.polls
		if how == Cancel {
			own = of.cancels
		}
		switch {
		case own >= s.pollsOf && s.pollsOf < s.polls && (s.pollsSet || many):
			return perdure.Errorf(perdure.CodeTooMany, "this tenant has %d calls of this kind waiting on this node, as many as it may", s.pollsOf)
		case s.by[how].Load() >= s.polls:
			return perdure.Errorf(perdure.CodeTooMany, "this node has %d calls of this kind waiting, as many as it may", s.polls)
		}
		return nil
	}
	switch {
	case of.streams >= s.share && s.share < s.limit && (s.fixed || many):
		return perdure.Errorf(api.CodeTooManyStreams, "this tenant has %d streams open on this node, as many as it may; come back, or read the log by polling", s.share)
	case s.taken.Load() >= s.limit:
		return perdure.Errorf(api.CodeTooManyStreams, "this node has %d streams open, as many as it may; come back, or read the log by polling", s.limit)
	case how == Socket && of.sockets >= socketsOfTenant && many:
		return perdure.Errorf(api.CodeTooManyStreams, "this tenant has %d sockets open on this node, as many as it may; come back, or use lists and streams", socketsOfTenant)
	}
	return nil
}

func (s *Limiter) count(how Transport, of *seated, n int64) {
	s.by[how].Add(n)
	switch how {
	case Poll:
		of.polls += n
		return
	case Cancel:
		of.cancels += n
		return
	case Socket:
		of.sockets += n
	}
	of.streams += n
	s.taken.Add(n)
}
