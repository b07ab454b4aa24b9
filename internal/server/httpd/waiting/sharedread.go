package waiting

import (
	"context"
	"sync"

	"github.com/perdure/perdure/internal/server/engine/kernel"
)

// sharedReads lets calls that ask for the same run at the same time share reads of the store.
// Thousands of joins of a run that has just ended would read it as often, while other tenants wait for
// a reader.
//
// A call never gets the result of a read that began before the call asked: that read may be older
// than the ring. It takes part in the next one.
type sharedReads[T any] struct {
	mu sync.Mutex
	of map[kernel.Ref]*readsOfRun[T]
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
func (s *sharedReads[T]) get(ctx context.Context, ref kernel.Ref, read func(context.Context) (T, error)) (T, error) {
	s.mu.Lock()
	under, ok := s.of[ref]
	if !ok {
		if s.of == nil {
			s.of = make(map[kernel.Ref]*readsOfRun[T])
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
func (s *sharedReads[T]) pass(ref kernel.Ref) {
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
