// Package fair divides something scarce between tenants: readers of the store, places in a queue, bytes of
// memory. A Gate lets a fixed number of units through at once. Whoever finds no unit free waits, and the
// units that come free go round the tenants that wait, so that a tenant with a thousand callers and one with
// a single caller get their turns alike.
//
// The tenant of a call travels in its context: With puts it there, Tenant reads it.
package fair

import (
	"context"
	"sync"

	"github.com/perdure/perdure"
)

type tenantKey struct{}

// With notes in a context on whose behalf a call is made.
func With(ctx context.Context, t perdure.TenantID) context.Context {
	return context.WithValue(ctx, tenantKey{}, t)
}

// Tenant says on whose behalf a call is made. Work of the server itself has no tenant.
func Tenant(ctx context.Context) perdure.TenantID {
	t, _ := ctx.Value(tenantKey{}).(perdure.TenantID)
	return t
}

// Limits of a gate. Share zero means Size: a tenant may have everything.
type Limits struct {
	// Size is how many units are let through at once.
	Size int64
	// Share is how many of them one tenant may hold while another tenant holds or wants some.
	Share int64
	// Strict holds a tenant to its share even when nobody else asks. It is for units that are held for so
	// long that a newcomer could not wait until one comes free.
	Strict bool
}

// A Gate lets a bounded number of units through at once, and goes round the tenants. It is safe for
// concurrent use.
type Gate struct {
	lim Limits

	mu      sync.Mutex
	used    int64
	tenants map[perdure.TenantID]*tenant
	round   []perdure.TenantID // tenants that wait, the next one first
}

type tenant struct {
	used    int64
	waiting []*waiter
}

type waiter struct {
	units int64
	in    chan struct{} // closed when the units are the waiter's
}

// NewGate makes a gate.
func NewGate(lim Limits) *Gate {
	if lim.Share <= 0 || lim.Share > lim.Size {
		lim.Share = lim.Size
	}
	return &Gate{lim: lim, tenants: make(map[perdure.TenantID]*tenant)}
}

// Enter waits until units are free for a tenant, or the context ends. What it gives returns them; it may be
// called more than once. More units than the tenant could ever have count as that many.
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
	case <-w.in: // in the same moment: the units go to whoever is next
		g.release(t, units)
	default:
		g.withdraw(t, w)
	}
	return nil, ctx.Err()
}

// TryEnter takes units if they are free now and nobody of the tenant waits for some.
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

// Free is how many units a tenant could take now.
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

// Used is how many units are held.
func (g *Gate) Used() int64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.used
}

func (g *Gate) clamp(units int64) int64 { return max(1, min(units, g.lim.Share)) }

func (g *Gate) of(t perdure.TenantID) *tenant {
	of := g.tenants[t]
	if of == nil {
		of = &tenant{}
		g.tenants[t] = of
	}
	return of
}

// others tells whether anybody but this tenant holds or wants something.
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

func (g *Gate) fits(of *tenant, units int64) bool {
	if g.used+units > g.lim.Size {
		return false
	}
	return of.used+units <= g.lim.Share || !g.lim.Strict && !g.others(of)
}

// saving tells whether free units are saved up for a waiter that may have them.
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
	g.admit() // the one who left may have been what the others waited behind
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
	var once sync.Once
	return func() {
		once.Do(func() {
			g.mu.Lock()
			defer g.mu.Unlock()
			g.release(t, units)
		})
	}
}

func (g *Gate) release(t perdure.TenantID, units int64) {
	g.used -= units
	g.of(t).used -= units
	g.forget(t)
	g.admit()
}

// forget drops what is known of a tenant that neither holds nor wants anything.
func (g *Gate) forget(t perdure.TenantID) {
	if of := g.tenants[t]; of != nil && of.used == 0 && len(of.waiting) == 0 {
		delete(g.tenants, t)
	}
}

// admit lets in whoever fits, one waiter of a tenant at a time, round the tenants. A tenant whose next waiter
// does not fit is passed over if it has its share already; otherwise the units are saved up for it, so that a
// large request is not overtaken for ever by small ones.
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
