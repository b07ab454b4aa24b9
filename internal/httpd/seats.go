package httpd

import (
	"context"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/engine"
)

// seats bounds how many streams, sockets and waits there are, so that file descriptors are left for those that want an
// answer. Polls of workers are not counted: whoever works is let in.
type seats struct {
	limit int64
	share int64 // how many of them one tenant may have; a node that is called by one alone has them all for it
	fixed bool  // also then
	taken atomic.Int64
	by    [len(transports)]atomic.Int64

	mu sync.Mutex
	of map[perdure.TenantID]int64

	first atomic.Pointer[perdure.TenantID] // who called
	many  atomic.Bool                      // others did, too
}

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
)

// transports are the names of these in metrics.
var transports = [...]string{byStream: "sse", bySocket: "websocket", byWait: "wait"}

// Attached gives how many are attached to this node, by the way they are, and how many may be.
func (s *Server) Attached() (by map[string]int64, limit int64) {
	by = make(map[string]int64, len(transports))
	for i, name := range transports {
		by[name] = s.seats.by[i].Load()
	}
	return by, s.seats.limit
}

// reserve is how many file descriptors are kept for everything but streams.
const reserve = 512

// streamLimit is how many streams there may be: three quarters of what the process may open, and never so many that
// the reserve is touched.
func streamLimit(configured int) int64 {
	limit := int64(math.MaxInt64)
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &r); err == nil && r.Cur < math.MaxInt64 {
		limit = max(1, min(int64(r.Cur)*3/4, int64(r.Cur)-reserve))
	}
	if configured > 0 {
		limit = min(limit, int64(configured))
	}
	return limit
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
	if s.of[t] >= s.share && s.share < s.limit && (s.fixed || s.many.Load()) {
		return nil, perdure.Errorf(api.CodeTooManyStreams, "this tenant has %d streams open on this node, as many as it may; come back, or read the log by polling", s.share)
	}
	if s.taken.Add(1) > s.limit {
		s.taken.Add(-1)
		return nil, perdure.Errorf(api.CodeTooManyStreams, "this node has %d streams open, as many as it may; come back, or read the log by polling", s.limit)
	}
	s.by[how].Add(1)
	if s.of == nil {
		s.of = make(map[perdure.TenantID]int64)
	}
	s.of[t]++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.of[t]--; s.of[t] == 0 {
			delete(s.of, t)
		}
		s.by[how].Add(-1)
		s.taken.Add(-1)
	}, nil
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
