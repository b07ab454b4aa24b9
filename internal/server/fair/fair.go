// Package fair shares a limited resource between tenants: readers of the store, places in a queue,
// bytes of memory. A [Gate] is a weighted semaphore with round-robin between tenants: it has a
// fixed number of units, and a caller that finds none free waits. Units that become free go to the
// waiting tenants in turn. A tenant with a thousand callers therefore gets no more turns than one
// with a single caller.
//
// The algorithm has three rules:
//
//   - A tenant may hold more than its share only while no other tenant holds or wants units. With
//     Strict it never may.
//   - Within a tenant, waiters are served in the order in which they came.
//   - If the next tenant is within its share but its request does not fit yet, free units are saved
//     up for it. Otherwise small requests could delay a large one for ever. A tenant that has its
//     share is skipped.
//
// The tenant of a call is in its context: [With] sets it, and [Tenant] reads it.
package fair

import (
	"context"
	"sync"

	"github.com/perdure/perdure"
)

type tenantKey struct{}

// With returns a context with the tenant on whose behalf a call is made.
func With(ctx context.Context, t perdure.TenantID) context.Context {
	return context.WithValue(ctx, tenantKey{}, t)
}

// Tenant returns the tenant on whose behalf a call is made. It is empty for work of the server
// itself.
func Tenant(ctx context.Context) perdure.TenantID {
	t, _ := ctx.Value(tenantKey{}).(perdure.TenantID)
	return t
}

// Limits of a gate. A Share of zero means Size: one tenant may hold all units.
type Limits struct {
	// Size is the number of units.
	Size int64
	// Share limits the units of one tenant while another tenant holds or wants some.
	Share int64
	// Strict limits a tenant to its share even while it is alone. It is for units that are held so
	// long that a newcomer could not wait for one.
	Strict bool
}

// A Gate shares a fixed number of units between tenants. It is safe for concurrent use.
type Gate struct {
	lim Limits

	mu      sync.Mutex
	used    int64
	tenants map[perdure.TenantID]*tenant
	round   []perdure.TenantID // tenants with waiters; the next one is first
}

type tenant struct {
	used    int64
	waiting []*waiter
}

type waiter struct {
	units int64
	in    chan struct{} // closed when the waiter has got its units
}

// NewGate makes a gate.
func NewGate(lim Limits) *Gate {
	if lim.Share <= 0 || lim.Share > lim.Size {
		lim.Share = lim.Size
	}
	return &Gate{lim: lim, tenants: make(map[perdure.TenantID]*tenant)}
}

// Enter takes units for a tenant. It waits until they are free or the context ends. leave returns
// them, and may be called more than once. A request for more than the share is reduced to the
// share.
func (g *Gate) Enter(ctx context.Context, t perdure.TenantID, units int64) (leave func(), err error) {
	units = g.clamp(units)
	g.mu.Lock()
	if of := g.of(t); len(of.waiting) == 0 && !g.saving() && g.fits(of, units) {
		g.take(of, units)
		g.mu.Unlock()
		return g.leaver(t, units), nil
	}
	w := &waiter{units, make(chan struct{})}
	g.join(t, w)
	g.mu.Unlock()
	select {
	case <-w.in:
		return g.leaver(t, units), nil
	case <-ctx.Done():
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case <-w.in: // granted at the same moment: return the units
		g.release(t, units)
	default:
		g.withdraw(t, w)
	}
	return nil, ctx.Err()
}

// TryEnter takes units if they are free now and no other caller of the tenant waits.
func (g *Gate) TryEnter(t perdure.TenantID, units int64) (leave func(), ok bool) {
	units = g.clamp(units)
	g.mu.Lock()
	defer g.mu.Unlock()
	of := g.of(t)
	if len(of.waiting) > 0 || g.saving() || !g.fits(of, units) {
		g.forget(t)
		return nil, false
	}
	g.take(of, units)
	return g.leaver(t, units), true
}

// Free returns the units that a tenant could take now.
func (g *Gate) Free(t perdure.TenantID) int64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	of := g.of(t)
	defer g.forget(t)
	free := g.lim.Size - g.used
	if g.lim.Strict || g.others(of) {
		free = min(free, g.lim.Share-of.used)
	}
	return max(0, free)
}

// Used returns the units that are held.
func (g *Gate) Used() int64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.used
}

func (g *Gate) clamp(units int64) int64 { return max(1, min(units, g.lim.Share)) }

// of returns the state of a tenant, and creates it if needed.
func (g *Gate) of(t perdure.TenantID) *tenant {
	of := g.tenants[t]
	if of == nil {
		of = &tenant{}
		g.tenants[t] = of
	}
	return of
}

// others tells whether another tenant holds or wants units.
func (g *Gate) others(of *tenant) bool {
	if g.used > of.used {
		return true
	}
	waiting := len(g.round)
	if len(of.waiting) > 0 {
		waiting--
	}
	return waiting > 0
}

// fits tells whether a tenant may take units now.
func (g *Gate) fits(of *tenant, units int64) bool {
	if g.used+units > g.lim.Size {
		return false
	}
	return of.used+units <= g.lim.Share || !g.lim.Strict && !g.others(of)
}

// saving tells whether free units are saved up for a waiter whose tenant is within its share.
func (g *Gate) saving() bool {
	for _, t := range g.round {
		if of := g.tenants[t]; of.used+of.waiting[0].units <= g.lim.Share {
			return true
		}
	}
	return false
}

func (g *Gate) take(of *tenant, units int64) {
	of.used += units
	g.used += units
}

func (g *Gate) join(t perdure.TenantID, w *waiter) {
	of := g.of(t)
	if len(of.waiting) == 0 {
		g.round = append(g.round, t)
	}
	of.waiting = append(of.waiting, w)
}

// withdraw removes a waiter that has given up.
func (g *Gate) withdraw(t perdure.TenantID, w *waiter) {
	of := g.of(t)
	for i := range of.waiting {
		if of.waiting[i] == w {
			of.waiting = append(of.waiting[:i], of.waiting[i+1:]...)
			break
		}
	}
	if len(of.waiting) == 0 {
		g.leaveRound(t)
	}
	g.forget(t)
	g.admit() // units may have been saved up for this waiter
}

func (g *Gate) leaveRound(t perdure.TenantID) {
	for i := range g.round {
		if g.round[i] == t {
			g.round = append(g.round[:i], g.round[i+1:]...)
			return
		}
	}
}

func (g *Gate) leaver(t perdure.TenantID, units int64) func() {
	left := false
	return func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		if !left {
			left = true
			g.release(t, units)
		}
	}
}

func (g *Gate) release(t perdure.TenantID, units int64) {
	g.used -= units
	g.of(t).used -= units
	g.forget(t)
	g.admit()
}

// forget removes the state of a tenant that neither holds nor wants units.
func (g *Gate) forget(t perdure.TenantID) {
	if of := g.tenants[t]; of != nil && of.used == 0 && len(of.waiting) == 0 {
		delete(g.tenants, t)
	}
}

// admit grants free units to waiters, one waiter of each tenant in turn. A tenant whose next waiter
// does not fit is skipped if it has its share already. Otherwise admit stops, and the units are
// saved up for it.
func (g *Gate) admit() {
	for passed := 0; passed < len(g.round); {
		t := g.round[0]
		of := g.of(t)
		w := of.waiting[0]
		if !g.fits(of, w.units) {
			if of.used+w.units <= g.lim.Share {
				return
			}
			g.round = append(g.round[1:], t)
			passed++
			continue
		}
		g.take(of, w.units)
		close(w.in)
		of.waiting[0] = nil
		of.waiting = of.waiting[1:]
		if g.round = g.round[1:]; len(of.waiting) > 0 {
			g.round = append(g.round, t)
		}
		passed = 0
	}
}
