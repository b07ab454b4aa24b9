package httpd

import (
	"context"
	"sync"

	"github.com/perdure/perdure/internal/engine"
)

// sharedReads lets calls that wait for the same run share reads of the store. A ring wakes all of
// them at once: eight thousand joins of one run would read it eight thousand times, one after the
// other, while other tenants wait for a reader.
//
// A call never gets the result of a read that began before the call asked: that read may be older
// than the ring. It takes part in the next one.
type sharedReads[T any] struct {
	mu    sync.Mutex
	of    map[engine.Ref]*readsOfRun[T]
	calls map[engine.Ref]int // that wait for a run
}

// crowd is the number of calls from which on they share reads. A few read for themselves, because that
// takes one read where the run has ended, instead of two.
const crowd = 8

// enter counts a call that waits for a run, until leave is called.
func (s *sharedReads[T]) enter(ref engine.Ref) (leave func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.calls == nil {
		s.calls = make(map[engine.Ref]int)
	}
	s.calls[ref]++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.calls[ref]--; s.calls[ref] == 0 {
			delete(s.calls, ref)
		}
	}
}

// crowded tells whether so many calls wait for a run that they share reads.
func (s *sharedReads[T]) crowded(ref engine.Ref) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls[ref] >= crowd
}

// readsOfRun has the reads of one run: one is under way.
type readsOfRun[T any] struct {
	next *sharedRead[T] // begins when the one that is under way has ended; nil if nobody wants it
}

type sharedRead[T any] struct {
	begin chan struct{} // closed when it may begin
	done  chan struct{} // closed when the fields below are set
	value T
	err   error
}

// get reads a run, or takes part in a read of another call. A read goes on if the call that began it
// is gone, because others wait for it.
func (s *sharedReads[T]) get(ctx context.Context, ref engine.Ref, read func(context.Context) (T, error)) (T, error) {
	s.mu.Lock()
	under, ok := s.of[ref]
	if !ok {
		if s.of == nil {
			s.of = make(map[engine.Ref]*readsOfRun[T])
		}
		s.of[ref] = new(readsOfRun[T])
		s.mu.Unlock()
		defer s.pass(ref)
		return read(ctx)
	}
	mine := under.next
	leads := mine == nil
	if leads {
		mine = &sharedRead[T]{begin: make(chan struct{}), done: make(chan struct{})}
		under.next = mine
	}
	s.mu.Unlock()
	if leads {
		<-mine.begin
		defer s.pass(ref)
		defer close(mine.done)
		mine.value, mine.err = read(context.WithoutCancel(ctx))
		return mine.value, mine.err
	}
	select {
	case <-mine.done:
		return mine.value, mine.err
	case <-ctx.Done():
		var none T
		return none, ctx.Err()
	}
}

// pass ends a read, and lets the next one begin.
func (s *sharedReads[T]) pass(ref engine.Ref) {
	s.mu.Lock()
	defer s.mu.Unlock()
	under := s.of[ref]
	if under.next == nil {
		delete(s.of, ref)
		return
	}
	close(under.next.begin)
	under.next = nil
}
