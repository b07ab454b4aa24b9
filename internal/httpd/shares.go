package httpd

import (
	"context"
	"errors"
	"math"
	"net/http"
	"runtime"
	"strconv"
	"sync"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/engine"
	"github.com/perdure/perdure/internal/fair"
)

// Shares bound what one tenant takes of this node. Four things are divided by gates that go round the tenants:
// calls under way, bytes of request bodies, bytes of answers, and turns. A turn is for work that takes a processor
// for long: reading a large body, and finding and writing a large answer. A tenant has half of the processors for
// such work, so that the short calls of others find one free. A turn lasts longer than its work: the tenant rests
// turnRest times as long as it worked, so that such work takes a part of those processors only. A tenant that calls
// alone needs no turns. A call that finds no unit waits a moment and is then refused with 429, before it has changed
// anything. A call that blocks gives its units back and has a seat instead (see seats.go).
//
// Limits that an operator has set for a tenant are kept here as well. A store that other nodes share is asked for
// them every Poll; on a store of one node they change only through this server.

const (
	// maxCalls is how many calls are under way at once. A tenant has three quarters of them.
	maxCalls = 2048
	// maxBodies and maxAnswers are how many bytes of bodies and of answers are in memory at once. A tenant has
	// half of them at most.
	maxBodies  = 64 << 20
	maxAnswers = 64 << 20
	// smallBody and smallAnswer are sizes up to which nothing is reserved: the number of calls bounds them.
	smallBody   = 64 << 10
	smallAnswer = 64 << 10

	// Sizes that are reserved for an answer before anything is read for it.
	largePage = 8 << 20
	largeRun  = 2 << 20
	// A poll reserves a part of what is free: many polls at once get less each.
	leastRoom = 256 << 10
	roomPart  = 16

	defaultShareWait = time.Second
	// otherCallers is how long a tenant counts as one that asks after its last call.
	otherCallers = time.Minute

	// A rest is turnRest times as long as the work before it, and maxTurnRest at most. A tenant rests for those
	// that have called within turnCallers.
	turnRest    = 2
	maxTurnRest = 300 * time.Millisecond
	turnCallers = time.Second
)

// DefaultBytesPerHour is how many bytes of bodies a node accepts from one tenant while others call.
const DefaultBytesPerHour = 64 << 30

type shares struct {
	calls, bodies, answers *fair.Gate
	turns                  *fair.Gate
	wait                   time.Duration
	bytesPerHour           int64 // of a tenant without a limit of its own

	mu      sync.Mutex
	limited map[perdure.TenantID]*limited
	buckets map[perdure.TenantID]*bucket
	recent  [2]caller // the two tenants that called last
}

// limited is a tenant with limits of its own, and gates for them. A gate is nil where no limit is set.
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
	s := &shares{wait: opt.ShareWait, bytesPerHour: opt.Tenant.MaxBytesPerHour, buckets: make(map[perdure.TenantID]*bucket)}
	// Shares are strict: a caller that sends its body slowly, or does not read its answer, holds its units for long.
	s.calls = fair.NewGate(fair.Limits{Size: maxCalls, Share: share, Strict: true})
	s.bodies = fair.NewGate(fair.Limits{Size: maxBodies, Share: maxBodies / 2, Strict: true})
	s.answers = fair.NewGate(fair.Limits{Size: maxAnswers, Share: maxAnswers / 2, Strict: true})
	processors := max(2, int64(runtime.GOMAXPROCS(0)))
	s.turns = fair.NewGate(fair.Limits{Size: (1 + turnRest) * processors, Share: processors / 2, Strict: true})
	if s.wait == 0 {
		s.wait = defaultShareWait
	}
	if s.bytesPerHour == 0 {
		s.bytesPerHour = DefaultBytesPerHour
	}
	return s
}

// meet notes that a tenant called.
func (s *shares) meet(t perdure.TenantID, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := 0
	if s.recent[1].tenant == t || s.recent[0].tenant != t && s.recent[1].at.Before(s.recent[0].at) {
		i = 1
	}
	s.recent[i] = caller{t, now}
}

// others tells whether another tenant has called lately. It is called with the lock held.
func (s *shares) others(t perdure.TenantID, now time.Time, lately time.Duration) bool {
	for _, c := range s.recent {
		if !c.at.IsZero() && c.tenant != t && now.Sub(c.at) < lately {
			return true
		}
	}
	return false
}

// alone tells whether no other tenant calls at this time.
func (s *shares) alone(t perdure.TenantID, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.others(t, now, turnCallers)
}

// of gives the limits that are set for a tenant, or nil.
func (s *shares) of(t perdure.TenantID) *limited {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.limited[t]
}

// replace takes over the limits of all tenants that have some.
func (s *shares) replace(rows []engine.TenantRow) {
	s.mu.Lock()
	defer s.mu.Unlock()
	next := make(map[perdure.TenantID]*limited, len(rows))
	for i := range rows {
		next[rows[i].ID] = s.keepOrMake(rows[i].ID, rows[i].Limits)
	}
	s.limited = next
}

// change takes over the limits of one tenant.
func (s *shares) change(t perdure.TenantID, l perdure.TenantLimits) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.limited == nil {
		s.limited = make(map[perdure.TenantID]*limited)
	}
	if l.IsZero() {
		delete(s.limited, t)
		return
	}
	s.limited[t] = s.keepOrMake(t, l)
}

// keepOrMake gives the entry of a tenant. One whose limits are the same keeps its gates, and what they count.
func (s *shares) keepOrMake(t perdure.TenantID, l perdure.TenantLimits) *limited {
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

// enter takes units of a gate. It waits for them, but not for long.
func (s *shares) enter(ctx context.Context, g *fair.Gate, t perdure.TenantID, units int64, wait time.Duration, what string) (func(), error) {
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

// enterCall counts a call that begins.
func (s *shares) enterCall(ctx context.Context, t perdure.TenantID) (leave func(), err error) {
	s.meet(t, time.Now())
	var own func()
	if l := s.of(t); l != nil && l.calls != nil {
		if own, err = s.enter(ctx, l.calls, t, 1, s.wait, "this tenant has as many calls under way as its limit allows"); err != nil {
			return nil, err
		}
	}
	leave, err = s.enter(ctx, s.calls, t, 1, s.wait, "this tenant has as many calls under way on this node as its share allows")
	switch {
	case own == nil:
		return leave, err
	case err != nil:
		own()
		return nil, err
	}
	return both(leave, own), nil
}

// both does two things.
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

// A bucket holds the bytes that a tenant may still send. It refills in an hour.
type bucket struct {
	left float64
	at   time.Time
}

func (b *bucket) refill(limit int64, now time.Time) {
	b.left = min(float64(limit), b.left+float64(limit)*now.Sub(b.at).Hours())
	b.at = now
}

// maxBuckets is how many buckets are kept before full ones are dropped.
const maxBuckets = 4096

// maySend tells how long a tenant has to wait before it may send bytes; zero: it may now.
func (s *shares) maySend(t perdure.TenantID, now time.Time) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	limit, set := s.byteLimit(t)
	b := s.buckets[t]
	if b == nil || !set && !s.others(t, now, otherCallers) {
		return 0
	}
	if b.refill(limit, now); b.left > 0 {
		return 0
	}
	return time.Duration((1 - b.left) / float64(limit) * float64(time.Hour))
}

// sent takes bytes out of a tenant's bucket. The last body before it is empty may be larger than what is left.
func (s *shares) sent(t perdure.TenantID, n int64, now time.Time) {
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

func (s *shares) byteLimit(t perdure.TenantID) (limit int64, set bool) {
	if l := s.limited[t]; l != nil && l.MaxBytesPerHour > 0 {
		return l.MaxBytesPerHour, true
	}
	return s.bytesPerHour, false
}

// dropFull forgets tenants that have not sent anything for so long that their buckets are full.
func (s *shares) dropFull(now time.Time) {
	for t, b := range s.buckets {
		limit, _ := s.byteLimit(t)
		if b.refill(limit, now); b.left >= float64(limit) {
			delete(s.buckets, t)
		}
	}
}

// ---- of one call

// mayUpload refuses a call whose tenant has sent as many bytes as it may.
func (c *call) mayUpload() error {
	if c.key.ID == "" {
		return nil
	}
	wait := c.s.shares.maySend(c.tenant(), time.Now())
	if wait == 0 {
		return nil
	}
	c.w.Header().Set("Connection", "close") // the body is not read
	c.w.Header().Set("Retry-After", strconv.FormatInt(int64(math.Ceil(min(wait, 10*time.Minute).Seconds())), 10))
	return tooBusy("this tenant has sent as many bytes in an hour as it may; nothing was changed")
}

// uploaded counts bytes that were accepted.
func (c *call) uploaded(n int) {
	if c.key.ID != "" && n > 0 {
		c.s.shares.sent(c.tenant(), int64(n), time.Now())
	}
}

// reserveBody waits for memory for a body of so many bytes. It is given back when the call is answered, or blocks.
func (c *call) reserveBody(n int64) error {
	if n <= smallBody {
		return nil
	}
	leave, err := c.s.shares.enter(c.Context(), c.s.shares.bodies, c.tenant(), n, c.s.shares.wait, "too many bytes of bodies are in memory")
	if err != nil {
		c.w.Header().Set("Connection", "close") // the body is not read
		return err
	}
	c.leaveBody = leave
	return nil
}

// room waits for memory for the answer, before anything is read for it. Calling it again changes nothing. A call
// that may have changed something is answered in any case.
func (c *call) room(size int64) error {
	if c.leaveRoom != nil || size <= smallAnswer {
		return nil
	}
	leave, err := c.s.shares.enter(c.Context(), c.s.shares.answers, c.tenant(), size, c.s.opt.AnswerTime, "too many bytes of answers are in memory")
	var busy *perdure.Error
	if errors.As(err, &busy) && c.changed {
		return nil
	}
	c.leaveRoom = leave
	return err
}

// turn waits until the tenant may work on so many bytes. The function that it returns ends the work, and is never nil.
// The turn ends after the tenant's rest.
func (c *call) turn(size int64) (end func(), err error) {
	if size <= smallBody || c.s.shares.alone(c.tenant(), time.Now()) {
		return func() {}, nil
	}
	leave, err := c.s.shares.enter(c.Context(), c.s.shares.turns, c.tenant(), 1, c.s.opt.AnswerTime,
		"this tenant has too many large calls under way")
	if err != nil {
		return func() {}, err
	}
	begin := time.Now()
	return func() { time.AfterFunc(min(maxTurnRest, turnRest*time.Since(begin)), leave) }, nil
}

// pollRoom reserves memory for what a poll may lease, and tells how many bytes that is.
func (c *call) pollRoom() (int64, error) {
	size := min(largePage, max(leastRoom, c.s.shares.answers.Free(c.tenant())/roomPart))
	return size, c.room(size)
}

// letGo gives back what the call holds: before it blocks, and when it is answered.
func (c *call) letGo() {
	for _, leave := range []*func(){&c.endTurn, &c.leaveRoom, &c.leaveBody, &c.leaveCall} {
		if *leave != nil {
			(*leave)()
			*leave = nil
		}
	}
}

func (c *call) leaveAnswer() {
	if c.leaveRoom != nil {
		c.leaveRoom()
		c.leaveRoom = nil
	}
}

// reads tells whether a call changes nothing.
func (c *call) reads() bool { return c.Method == http.MethodGet || c.Method == http.MethodHead }
