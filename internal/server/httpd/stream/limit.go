package stream

import (
	"sync"
	"sync/atomic"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/server/connlimit"
)

// A Limiter limits the calls that block, so that connections are left for calls that are answered
// at once. There are three limits for a node:
//
//   - streams: SSE streams, sockets and waits together;
//   - polls: polls of workers; cancels that wait have a limit of the same size of their own, so
//     that streams never keep them out;
//   - blocking: all of them together.
//
// A tenant has three quarters of the streams and of the polls. That limit is not applied while a
// single tenant calls, unless it is configured.
type Limiter struct {
	streams  int64
	polls    int64
	blocking int64

	// tenantStreams and tenantPolls are the limits of one tenant. They are fixed if they are
	// configured, and then also apply to the only tenant.
	tenantStreams      int64
	tenantStreamsFixed bool
	tenantPolls        int64
	tenantPollsFixed   bool

	// open counts the streams, sockets and waits, and by the calls of each transport.
	open atomic.Int64
	by   [len(transports)]atomic.Int64

	mu      sync.Mutex
	tenants map[perdure.TenantID]*tenantCount

	// first is the first tenant that called. several is set when another one has called too.
	first   atomic.Pointer[perdure.TenantID]
	several atomic.Bool
}

// tenantCount counts the blocked calls of a tenant. Streams includes sockets and waits.
type tenantCount struct{ streams, sockets, polls, cancels int64 }

// tenantSockets is the limit of sockets of one tenant while others call. Sockets have a limit of
// their own because each may hold a message of a megabyte while its client reads slowly.
const tenantSockets = 512

// Called records that a tenant has called this node.
func (s *Limiter) Called(t perdure.TenantID) {
	if s.several.Load() {
		return
	}
	if first := s.first.Load(); first == nil && s.first.CompareAndSwap(nil, &t) || first != nil && *first == t {
		return
	}
	s.several.Store(*s.first.Load() != t)
}

// A Transport is the kind of a call that blocks.
type Transport int

const (
	SSE Transport = iota
	Socket
	Wait
	Poll
	// Cancel is a cancel that waits for the run's end.
	Cancel
)

// transports has the names of the transports in metrics.
var transports = [...]string{SSE: "sse", Socket: "websocket", Wait: "wait", Poll: "poll", Cancel: "cancel"}

// Attached returns the number of blocked calls by transport, and the limit of streams, sockets and
// waits.
func (s *Limiter) Attached() (by map[string]int64, limit int64) {
	by = make(map[string]int64, len(transports))
	for i, name := range transports {
		by[name] = s.by[i].Load()
	}
	return by, s.streams
}

// Limits configures a Limiter. A field that is zero follows from the descriptors.
type Limits struct {
	// Descriptors is the number of files and sockets that the process may open. The default is the
	// limit of the operating system.
	Descriptors int64
	// Streams is the limit of streams, sockets and waits.
	Streams          int
	StreamsPerTenant int
	PollsPerTenant   int
}

// NewLimiter divides the descriptors among the kinds of calls; see [connlimit.PlanFor].
func NewLimiter(l Limits) *Limiter {
	if l.Descriptors == 0 {
		l.Descriptors = connlimit.Descriptors()
	}
	plan := connlimit.PlanFor(l.Descriptors)
	s := &Limiter{streams: plan.Streams, polls: plan.Polls, blocking: plan.Blocking,
		tenants: make(map[perdure.TenantID]*tenantCount)}
	if l.Streams > 0 {
		s.streams = min(s.streams, int64(l.Streams))
	}
	s.tenantStreams, s.tenantStreamsFixed = tenantShare(s.streams, l.StreamsPerTenant), l.StreamsPerTenant > 0
	s.tenantPolls, s.tenantPollsFixed = tenantShare(s.polls, l.PollsPerTenant), l.PollsPerTenant > 0
	return s
}

// tenantShare returns the limit of one tenant: the configured one, or three quarters of the node's.
func tenantShare(limit int64, configured int) int64 {
	if configured > 0 {
		return min(limit, int64(configured))
	}
	return limit - limit/4
}

// Acquire counts one more blocked call, or refuses it. The function release may be called more than
// once.
func (s *Limiter) Acquire(how Transport, t perdure.TenantID) (release func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	of := s.tenants[t]
	if of == nil {
		of = &tenantCount{}
	}
	if err := s.check(how, of); err != nil {
		return nil, err
	}
	s.tenants[t] = of
	s.count(how, of, 1)
	return sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.count(how, of, -1); *of == (tenantCount{}) {
			delete(s.tenants, t)
		}
	}), nil
}

// check refuses a call that would exceed a limit. The caller holds s.mu.
func (s *Limiter) check(how Transport, of *tenantCount) error {
	several := s.several.Load()
	if s.open.Load()+s.by[Poll].Load()+s.by[Cancel].Load() >= s.blocking {
		if how == Poll {
			return perdure.Errorf(perdure.CodeTooMany, "this node has %d calls that block, as many as it may",
				s.blocking)
		}
		return perdure.Errorf(api.CodeTooManyStreams,
			"this node has %d calls that block, as many as it may; come back later", s.blocking)
	}
	if how == Poll || how == Cancel {
		own := of.polls
		if how == Cancel {
			own = of.cancels
		}
		switch {
		case own >= s.tenantPolls && s.tenantPolls < s.polls && (s.tenantPollsFixed || several):
			return perdure.Errorf(perdure.CodeTooMany,
				"this tenant has %d calls of this kind waiting on this node, as many as it may", s.tenantPolls)
		case s.by[how].Load() >= s.polls:
			return perdure.Errorf(perdure.CodeTooMany,
				"this node has %d calls of this kind waiting, as many as it may", s.polls)
		}
		return nil
	}
	switch {
	case of.streams >= s.tenantStreams && s.tenantStreams < s.streams && (s.tenantStreamsFixed || several):
		return perdure.Errorf(api.CodeTooManyStreams, "this tenant has %d streams open on this node, "+
			"as many as it may; come back, or read the log by polling", s.tenantStreams)
	case s.open.Load() >= s.streams:
		return perdure.Errorf(api.CodeTooManyStreams,
			"this node has %d streams open, as many as it may; come back, or read the log by polling", s.streams)
	case how == Socket && of.sockets >= tenantSockets && several:
		return perdure.Errorf(api.CodeTooManyStreams, "this tenant has %d sockets open on this node, "+
			"as many as it may; come back, or use lists and streams", tenantSockets)
	}
	return nil
}

// count adds n calls. The caller holds s.mu.
func (s *Limiter) count(how Transport, of *tenantCount, n int64) {
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
	s.open.Add(n)
}
