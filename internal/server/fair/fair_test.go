package fair

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/perdure/perdure"
)

// enter waits for units, and then sends its tenant and its leave function to the channels.
func enter(g *Gate, t perdure.TenantID, units int64, turns chan<- perdure.TenantID, leaves chan<- func()) {
	leave, err := g.Enter(context.Background(), t, units)
	if err == nil {
		turns <- t
		leaves <- leave
	}
}

func TestFreeUnitsGoRoundTheTenants(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewGate(Limits{Size: 1})
		first, _ := g.TryEnter("a", 1)
		turns, leaves := make(chan perdure.TenantID, 8), make(chan func(), 8)
		for range 4 {
			go enter(g, "a", 1, turns, leaves)
			synctest.Wait()
		}
		go enter(g, "b", 1, turns, leaves)
		synctest.Wait()
		first()
		var got []perdure.TenantID
		for range 5 {
			synctest.Wait()
			got = append(got, <-turns)
			(<-leaves)()
		}
		if want := "[a b a a a]"; fmt.Sprint(got) != want {
			t.Errorf("turns = %v, want %s", got, want)
		}
		if g.Used() != 0 || len(g.tenants) != 0 {
			t.Errorf("after all left: %d units used, %d tenants known, want none", g.Used(), len(g.tenants))
		}
	})
}

func TestShareLimitsWhileOthersAreActive(t *testing.T) {
	g := NewGate(Limits{Size: 4, Share: 2})
	var held []func()
	for i := range 4 {
		leave, ok := g.TryEnter("a", 1)
		if !ok {
			t.Fatalf("a alone was refused unit %d of 4", i+1)
		}
		held = append(held, leave)
	}
	held[0]()
	if _, ok := g.TryEnter("b", 1); !ok {
		t.Error("b was refused the free unit")
	}
	held[1]()
	if _, ok := g.TryEnter("a", 1); ok {
		t.Error("a got a third unit although b is here and its share is 2")
	}
	if free := g.Free("b"); free != 1 {
		t.Errorf("free for b = %d, want 1", free)
	}
}

func TestStrictShareLimitsAlways(t *testing.T) {
	g := NewGate(Limits{Size: 4, Share: 3, Strict: true})
	for range 3 {
		if _, ok := g.TryEnter("a", 1); !ok {
			t.Fatal("a was refused within its share")
		}
	}
	if _, ok := g.TryEnter("a", 1); ok {
		t.Error("a got a fourth unit with a strict share of 3")
	}
	if _, ok := g.TryEnter("b", 1); !ok {
		t.Error("b was refused the unit that is kept from a")
	}
}

func TestWaiterThatGivesUpBlocksNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewGate(Limits{Size: 2})
		one, _ := g.TryEnter("a", 1)
		ctx, cancel := context.WithCancel(context.Background())
		gone := make(chan error, 1)
		go func() {
			_, err := g.Enter(ctx, "b", 2) // units are saved up for it
			gone <- err
		}()
		synctest.Wait()
		turns, leaves := make(chan perdure.TenantID, 1), make(chan func(), 1)
		go enter(g, "c", 1, turns, leaves)
		synctest.Wait()
		if len(turns) != 0 {
			t.Error("c overtook b, for which units are saved up")
		}
		cancel()
		if err := <-gone; !errors.Is(err, context.Canceled) {
			t.Errorf("error of the waiter that gave up = %v, want %v", err, context.Canceled)
		}
		synctest.Wait()
		if len(turns) != 1 {
			t.Error("c still waits although b gave up")
		}
		one()
	})
}

func TestManyTenantsAtOnceNeverExceedTheGate(t *testing.T) {
	g := NewGate(Limits{Size: 3, Share: 2})
	var wg sync.WaitGroup
	for i := range 200 {
		wg.Go(func() {
			leave, err := g.Enter(context.Background(), perdure.TenantID(fmt.Sprint(i%7)), int64(1+i%3))
			if err != nil {
				t.Errorf("entering: %v", err)
				return
			}
			if used := g.Used(); used > 3 {
				t.Errorf("units used = %d, want at most 3", used)
			}
			leave()
		})
	}
	wg.Wait()
	if g.Used() != 0 || len(g.round) != 0 {
		t.Errorf("after all left: %d units used, %d tenants wait, want none", g.Used(), len(g.round))
	}
}
