package worker

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
)

// granted returns a run of a worker that nobody asks for anything.
func granted(w *Worker, id string, epoch int64) *run {
	return newRun(w, context.Background(), &api.Grant{RunID: perdure.RunID(id), Epoch: epoch, LeaseMS: 60_000},
		time.Now())
}

// A new lease of a run ends those that the worker has of it, in whatever order they are dropped.
func TestNewLeaseEndsEarlierOnes(t *testing.T) {
	const leases = 4
	for _, drops := range [][]int{{0, 1, 2, 3}, {3, 2, 1, 0}, {1, 3, 0, 2}, {2, 0, 3, 1}} {
		w := New(client.New("http://nobody", "", client.Options{}), Options{})
		free := w.tasks.free
		other := granted(w, "another", 1)
		w.hold(other)
		var held []*run
		for epoch := range leases {
			held = append(held, granted(w, "run", int64(epoch+1)))
			w.hold(held[epoch])
			for i, r := range held {
				if want := i < epoch; r.gone != want {
					t.Errorf("with epoch %d granted, epoch %d is lost: %v, want %v", epoch+1, i+1, r.gone, want)
				}
			}
		}
		for n, i := range drops {
			w.drop(held[i].lease)
			if w.holds(held[i]) || len(w.held) != leases-n {
				t.Errorf("epochs dropped in the order %v: %d leases are held after %d, want %d", drops, len(w.held),
					n+1, leases-n)
			}
		}
		next := granted(w, "run", leases+1)
		w.hold(next)
		if next.earlier != nil || len(w.newest) != 2 {
			t.Errorf("after the drops %v: the next lease follows one of %d runs, want none of 2", drops, len(w.newest))
		}
		w.drop(next.lease)
		w.drop(other.lease)
		if len(w.newest) != 0 || w.tasks.free != free || other.gone {
			t.Errorf("after all drops: %d runs and %d free slots, the other run is lost: %v; want 0, %d, false",
				len(w.newest), w.tasks.free, other.gone, free)
		}
	}
}

// A lease that is granted twice ends the first one, and nothing of it stays.
func TestSameLeaseEndsTheEarlierOne(t *testing.T) {
	w := New(client.New("http://nobody", "", client.Options{}), Options{})
	first, second := granted(w, "run", 1), granted(w, "run", 1)
	w.hold(first)
	w.hold(second)
	if !first.gone || second.gone || second.earlier != nil || !w.holds(second) {
		t.Errorf("lost: %v and %v, want the first alone", first.gone, second.gone)
	}
	w.drop(second.lease)
	if len(w.held)+len(w.newest) != 0 {
		t.Errorf("%d leases of %d runs are left, want none", len(w.held), len(w.newest))
	}
}

// BenchmarkHold measures a grant and its end beside other runs that the worker has.
func BenchmarkHold(b *testing.B) {
	for _, others := range []int{1, 100, 1000} {
		b.Run(fmt.Sprint(others), func(b *testing.B) {
			w := New(client.New("http://nobody", "", client.Options{}), Options{})
			for i := range others {
				w.hold(granted(w, fmt.Sprint(i), 1))
			}
			r := granted(w, "run", 1)
			b.ReportAllocs()
			for b.Loop() {
				w.hold(r)
				w.drop(r.lease)
			}
		})
	}
}
