package httpd

import (
	"cmp"
	"context"
	"runtime"
	"sync"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/rules"
	"github.com/perdure/perdure/internal/server/fair"
	"github.com/perdure/perdure/internal/server/httpd/stream"
)

// Shares limit what one tenant takes of this node. Five resources are divided by gates (package
// fair), which serve the tenants in rounds:
//
//   - calls under way;
//   - bytes of request bodies in memory;
//   - bytes of answers in memory;
//   - turns, for work that keeps a processor busy: decoding a large body, and reading and encoding
//     a large answer;
//   - calls that go on when a run ends for which a crowd waits (package waiting): thousands of them at
//     once would keep the processors busy for as long as it takes to answer all.
//
// Turns keep processors free for the short calls of other tenants. A tenant has turns for half of
// the processors. A turn is held for longer than its work: for a rest of turnRest times the work,
// at most maxTurnRest. Large calls of one tenant thus use a part of those processors only. A tenant
// that calls alone needs no turns.
//
// A call that gets no unit of a gate waits for ShareWait (for memory of an answer and for a turn:
// AnswerTime). It is then refused with 429, before it has changed anything. A call that has changed
// something is answered even without its units. A call that blocks gives its units back, and is
// counted by the limiter instead. share.go has what one call holds.
//
// Bytes of bodies per hour are limited by a token bucket for each tenant.
//
// The limits that operators set for tenants are cached here. On a store that nodes share they are
// read again every Poll. On other stores they change only through this server.

const (
	// maxCalls bounds the calls under way. A tenant has three quarters of them.
	maxCalls = 2048
	// maxBodies and maxAnswers bound the bytes of bodies and of answers in memory. A tenant has
	// half of them.
	maxBodies  = 64 << 20
	maxAnswers = 64 << 20
	// maxChunkWrites bounds the chunks of uploads that are written at once. They share a transaction,
	// which has to stay short. A tenant has half of them.
	maxChunkWrites = 4
	// smallBody and smallAnswer are sizes up to which no memory is reserved: maxCalls bounds those.
	smallBody   = 64 << 10
	smallAnswer = 64 << 10

	// largePage and largeRun are reserved for an answer with a page or a run, before it is read.
	largePage = 8 << 20
	largeRun  = 2 << 20
	// A poll reserves one part in pollAnswerPart of the free memory, and at least minPollAnswer.
	// Many polls at once thus get less each.
	minPollAnswer  = 256 << 10
	pollAnswerPart = 16

	defaultShareWait = time.Second
	// otherCallers is how long a tenant counts as a caller after its last call, for the bytes per
	// hour.
	otherCallers = time.Minute

	// turnRest and maxTurnRest bound the rest after a turn. A tenant needs turns while another one
	// has called within turnCallers.
	turnRest    = 2
	maxTurnRest = 300 * time.Millisecond
	turnCallers = time.Second
)

// DefaultBytesPerHour is the number of bytes of bodies that a node accepts from one tenant while
// others call.
const DefaultBytesPerHour = 64 << 30

type shares struct {
	calls, bodies, answers *fair.Gate
	turns, woken           *fair.Gate
	// chunks divides the writes of uploaded chunks.
	chunks *fair.Gate
	// limiter limits the calls that block.
	limiter *stream.Limiter
	// wait is how long a call waits for its place and for memory for its body, and answerWait for
	// memory for its answer and for a turn.
	wait, answerWait time.Duration
	// bytesPerHour is the limit of a tenant without one of its own.
	bytesPerHour int64

	mu      sync.Mutex
	limited map[perdure.TenantID]*limited
	changed int64 // number of calls of set
	buckets map[perdure.TenantID]*bucket
	// recent has the two tenants that called last. Two are enough to tell whether another one
	// calls.
	recent [2]caller
}

// limited has the limits that are set for a tenant, and their gates. A gate is nil where no limit
// is set.
type limited struct {
	perdure.TenantLimits
	calls, streams, polls *fair.Gate
}

type caller struct {
	tenant perdure.TenantID
	at     time.Time
}

func newShares(opt *Options) *shares {
	share := int64(maxCalls - maxCalls/4)
	if n := opt.Tenant.MaxCalls; n > 0 {
		share = min(n, maxCalls)
	}
	s := &shares{wait: cmp.Or(opt.ShareWait, defaultShareWait), answerWait: cmp.Or(opt.AnswerTime, defaultAnswerTime),
		bytesPerHour: cmp.Or(opt.Tenant.MaxBytesPerHour, DefaultBytesPerHour),
		buckets:      make(map[perdure.TenantID]*bucket)}
	s.limiter = stream.NewLimiter(stream.Limits{Descriptors: opt.Descriptors, Streams: opt.Streams,
		StreamsPerTenant: opt.StreamsPerTenant, PollsPerTenant: int(opt.Tenant.MaxPolls)})
	// The gates are strict: they keep a tenant to its share even while nobody else asks. A client
	// that sends or reads slowly holds its units for long, so they could not be taken back in time.
	s.calls = fair.NewGate(fair.Limits{Size: maxCalls, Share: share, Strict: true})
	s.bodies = fair.NewGate(fair.Limits{Size: maxBodies, Share: maxBodies / 2, Strict: true})
	s.answers = fair.NewGate(fair.Limits{Size: maxAnswers, Share: maxAnswers / 2, Strict: true})
	s.chunks = fair.NewGate(fair.Limits{Size: maxChunkWrites, Share: maxChunkWrites / 2, Strict: true})
	processors := max(2, int64(runtime.GOMAXPROCS(0)))
	s.turns = fair.NewGate(fair.Limits{Size: (1 + turnRest) * processors, Share: processors / 2, Strict: true})
	s.woken = fair.NewGate(fair.Limits{Size: 2 * processors, Share: processors, Strict: true})
	return s
}

// called records that a tenant has called.
func (s *shares) called(t perdure.TenantID, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := 0
	if s.recent[1].tenant == t || s.recent[0].tenant != t && s.recent[1].at.Before(s.recent[0].at) {
		i = 1
	}
	s.recent[i] = caller{t, now}
}

// othersCalled tells whether another tenant has called within a time. The caller holds s.mu.
func (s *shares) othersCalled(t perdure.TenantID, now time.Time, lately time.Duration) bool {
	for _, c := range s.recent {
		if !c.at.IsZero() && c.tenant != t && now.Sub(c.at) < lately {
			return true
		}
	}
	return false
}

// alone tells whether no other tenant has called within turnCallers.
func (s *shares) alone(t perdure.TenantID, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.othersCalled(t, now, turnCallers)
}

// of returns the limits that are set for a tenant, or nil.
func (s *shares) of(t perdure.TenantID) *limited {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.limited[t]
}

// changes counts the calls of set.
func (s *shares) changes() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}

// setAll replaces the limits of all tenants by rows that were read after so many changes. Rows from
// before a later change are left: they are read again soon.
func (s *shares) setAll(rows []rules.TenantRow, changes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.changed != changes {
		return
	}
	next := make(map[perdure.TenantID]*limited, len(rows))
	for i := range rows {
		next[rows[i].ID] = s.entry(rows[i].ID, rows[i].Limits)
	}
	s.limited = next
}

// set replaces the limits of one tenant.
func (s *shares) set(t perdure.TenantID, l perdure.TenantLimits) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changed++
	if s.limited == nil {
		s.limited = make(map[perdure.TenantID]*limited)
	}
	if l.IsZero() {
		delete(s.limited, t)
		return
	}
	s.limited[t] = s.entry(t, l)
}

// entry returns the entry of a tenant with these limits. If the limits are unchanged it is the old
// one, whose gates have counted the calls under way. The caller holds s.mu.
func (s *shares) entry(t perdure.TenantID, l perdure.TenantLimits) *limited {
	if x := s.limited[t]; x != nil && x.TenantLimits == l {
		return x
	}
	gate := func(n int64) *fair.Gate {
		if n == 0 {
			return nil
		}
		return fair.NewGate(fair.Limits{Size: n})
	}
	return &limited{TenantLimits: l, calls: gate(l.MaxCalls), streams: gate(l.MaxStreams), polls: gate(l.MaxPolls)}
}

// enter takes units of a gate, and waits for them at most for a time. The refusal begins with what.
func (s *shares) enter(ctx context.Context, g *fair.Gate, t perdure.TenantID, units int64,
	wait time.Duration, what string) (func(), error) {
	if leave, ok := g.TryEnter(t, units); ok {
		return leave, nil
	}
	brief, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	leave, err := g.Enter(brief, t, units)
	switch {
	case err == nil:
		return leave, nil
	case ctx.Err() != nil:
		return nil, ctx.Err()
	}
	return nil, tooBusy("%s; nothing was changed, try again", what)
}

// enterCall takes a unit for a call: of the tenant's own limit, if it has one, and of the node's.
func (s *shares) enterCall(ctx context.Context, t perdure.TenantID) (leave func(), err error) {
	s.called(t, time.Now())
	var own func()
	if l := s.of(t); l != nil && l.calls != nil {
		own, err = s.enter(ctx, l.calls, t, 1, s.wait, "this tenant has as many calls under way as its limit allows")
		if err != nil {
			return nil, err
		}
	}
	leave, err = s.enter(ctx, s.calls, t, 1, s.wait,
		"this tenant has as many calls under way on this node as its share allows")
	switch {
	case own == nil:
		return leave, err
	case err != nil:
		own()
		return nil, err
	}
	return both(leave, own), nil
}

// enterBlocked takes a unit for a call that blocks: of the tenant's own limit, if an operator has set
// one, and of the node's limiter.
func (s *shares) enterBlocked(how stream.Transport, t perdure.TenantID) (leave func(), err error) {
	var own func()
	if l := s.of(t); l != nil {
		gate, what := l.streams, "streams, sockets and waits"
		if how == stream.Poll {
			gate, what = l.polls, "polls"
		}
		if gate != nil {
			var ok bool
			if own, ok = gate.TryEnter(t, 1); !ok {
				return nil, tooBusy("this tenant has as many %s on this node as its limit allows", what)
			}
		}
	}
	leave, err = s.limiter.Acquire(how, t)
	switch {
	case own == nil:
		return leave, err
	case err != nil:
		own()
		return nil, err
	}
	return both(leave, own), nil
}

// wakeOne waits for the turn of a tenant's call that a crowd lets go on. A turn that does not come in
// time is not waited for: an earlier call takes too long.
func (s *shares) wakeOne(ctx context.Context, t perdure.TenantID) (leave func()) {
	leave, err := s.enter(ctx, s.woken, t, 1, s.wait, "")
	if err != nil {
		return func() {}
	}
	return leave
}

// both returns a function that calls two others.
func both(a, b func()) func() {
	return func() {
		a()
		b()
	}
}

func tooBusy(format string, args ...any) error {
	return perdure.Errorf(perdure.CodeTooMany, format, args...)
}

// ---- bytes an hour

// A bucket holds the bytes that a tenant may still send. An empty one refills in an hour.
type bucket struct {
	left float64
	at   time.Time
}

func (b *bucket) refill(limit int64, now time.Time) {
	b.left = min(float64(limit), b.left+float64(limit)*now.Sub(b.at).Hours())
	b.at = now
}

// maxBuckets is the number of buckets from which full ones are dropped.
const maxBuckets = 4096

// byteWait returns how long a tenant has to wait before it may send bytes. Zero means that it may
// send now.
func (s *shares) byteWait(t perdure.TenantID, now time.Time) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	limit, set := s.byteLimit(t)
	b := s.buckets[t]
	if b == nil || !set && !s.othersCalled(t, now, otherCallers) {
		return 0
	}
	if b.refill(limit, now); b.left > 0 {
		return 0
	}
	return time.Duration((1 - b.left) / float64(limit) * float64(time.Hour))
}

// spendBytes takes bytes out of a tenant's bucket. A body is accepted while the bucket is not
// empty, so the balance may become negative.
func (s *shares) spendBytes(t perdure.TenantID, n int64, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	limit, _ := s.byteLimit(t)
	b := s.buckets[t]
	if b == nil {
		if len(s.buckets) >= maxBuckets {
			s.dropFull(now)
		}
		b = &bucket{float64(limit), now}
		s.buckets[t] = b
	}
	b.refill(limit, now)
	b.left -= float64(n)
}

// byteLimit returns a tenant's bytes per hour, and whether the limit is set for it. The caller
// holds s.mu.
func (s *shares) byteLimit(t perdure.TenantID) (limit int64, set bool) {
	if l := s.limited[t]; l != nil && l.MaxBytesPerHour > 0 {
		return l.MaxBytesPerHour, true
	}
	return s.bytesPerHour, false
}

// dropFull removes the buckets that are full again. The caller holds s.mu.
func (s *shares) dropFull(now time.Time) {
	for t, b := range s.buckets {
		limit, _ := s.byteLimit(t)
		if b.refill(limit, now); b.left >= float64(limit) {
			delete(s.buckets, t)
		}
	}
}
