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
	taken atomic.Int64
	by    [len(transports)]atomic.Int64
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

// take gives a seat, and what gives it back.
func (s *seats) take(how int) (leave func(), err error) {
	if s.taken.Add(1) > s.limit {
		s.taken.Add(-1)
		return nil, perdure.Errorf(api.CodeTooManyStreams, "this node has %d streams open, as many as it may; come back, or read the log by polling", s.limit)
	}
	s.by[how].Add(1)
	return func() {
		s.by[how].Add(-1)
		s.taken.Add(-1)
	}, nil
}

// A keyring knows the keys of the streams that are open, and closes these when their key is revoked or expires.
type keyring struct {
	engine *engine.Engine

	mu   sync.Mutex
	keys map[string]*held
	some chan struct{} // there is one to look at
}

type held struct {
	streams int
	revoked chan struct{}
}

// keysEvery is how often the keys of open streams are looked at.
const keysEvery = 500 * time.Millisecond

// watch gives a channel that is closed when a key is no longer valid.
func (k *keyring) watch(id string) (revoked <-chan struct{}, forget func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	h := k.keys[id]
	if h == nil {
		h = &held{revoked: make(chan struct{})}
		k.keys[id] = h
		select {
		case k.some <- struct{}{}:
		default:
		}
	}
	h.streams++
	return h.revoked, func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		if h.streams--; h.streams == 0 && k.keys[id] == h {
			delete(k.keys, id)
		}
	}
}

// run looks until the context ends, as long as there is something to look at. A store that can't be read says
// nothing about a key.
func (k *keyring) run(ctx context.Context) {
	var next <-chan time.Time // nil: nothing is open
	for {
		select {
		case <-ctx.Done():
			return
		case <-k.some:
			if next == nil {
				next = time.After(keysEvery)
			}
			continue
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
		next = time.After(keysEvery)
		gone, err := k.engine.InvalidKeys(ctx, ids)
		if err != nil {
			continue
		}
		k.mu.Lock()
		for _, id := range gone {
			if h := k.keys[id]; h != nil {
				close(h.revoked)
				delete(k.keys, id)
			}
		}
		k.mu.Unlock()
	}
}
