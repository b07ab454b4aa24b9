package waiting

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/perdure/perdure/internal/server/engine/kernel"
)

// Calls that ask during a read share the next one: they never get what was read before they asked.
func TestReadsOfARunAreShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var reads sharedReads[int]
		ref := kernel.Ref{Tenant: "acme", Run: "r"}
		began, slow := 0, make(chan struct{})
		read := func(context.Context) (int, error) {
			began++
			n := began
			<-slow
			return n, nil
		}
		const callers = 1000
		got := make(chan int, callers+1)
		ask := func(ctx context.Context) {
			if n, err := reads.get(ctx, ref, read); err == nil {
				got <- n
			} else if !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		}
		go ask(t.Context())
		synctest.Wait() // the first read is under way
		gone, leave := context.WithCancel(t.Context())
		for i := range callers {
			ctx := t.Context()
			if i%10 == 3 {
				ctx = gone
			}
			go ask(ctx)
		}
		synctest.Wait()
		leave()
		synctest.Wait()
		if began != 1 {
			t.Errorf("%d reads began while one is under way, want 1", began)
		}
		slow <- struct{}{}
		synctest.Wait()
		slow <- struct{}{}
		synctest.Wait()
		if n := <-got; n != 1 {
			t.Errorf("the first call got read %d, want 1", n)
		}
		for range callers - callers/10 {
			if n := <-got; n != 2 {
				t.Fatalf("a call got read %d, want 2: that one began after it asked", n)
			}
		}
		if began != 2 || len(reads.of) != 0 {
			t.Errorf("%d reads for %d calls, and %d runs are remembered; want 2 and none", began, callers+1,
				len(reads.of))
		}
	})
}
