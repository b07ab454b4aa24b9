package dispatch

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/store"
)

// The places that have held runs, as this node remembers them.
//
// A hold on this node adds its place. Once a second a poll or the server's background work reads a
// part of the places anew, and the next read continues where this one ended. So the reads go round
// the tenants. A tenant has a bounded number of places in each read and in the memory, so that one
// with very many does not hide those of others. The memory has a bounded number of tenants, and
// forgets the one that was not used for the longest time.

// Bounds of the memory of places.
const (
	// heldLookEvery is how often places are read.
	heldLookEvery = time.Second
	// maxHeldRead bounds the places of one read. The places of the last tenant may exceed it.
	maxHeldRead = 128
	// maxHeldPolled is the same for a read by a poll, which other callers wait for.
	maxHeldPolled = 16
	// maxHeldPlaces bounds the places of a tenant, and maxHeldTenants the tenants.
	maxHeldPlaces  = 64
	maxHeldTenants = 256
	// maxHeldBuilds bounds the builds of a place whose position is remembered.
	maxHeldBuilds = 64
)

// heldPlaces remembers the places that have held runs.
type heldPlaces struct {
	mu       sync.Mutex
	lookedAt perdure.Instant
	// after is the tenant behind which the next read begins.
	after   perdure.TenantID
	tenants []*heldTenant // by name
}

var knownHeld = kernel.NewPart(func(*kernel.Engine) *heldPlaces { return &heldPlaces{} })

// A heldTenant is a tenant with held runs.
type heldTenant struct {
	id     perdure.TenantID
	places []*heldPlace // in order
	// usedAt is when a poll last searched a place of the tenant, or a run was held there.
	usedAt perdure.Instant
}

// A heldPlace is a queue and kind of a tenant that has held runs.
type heldPlace struct {
	Ready
	builds map[string]heldCursor
}

// A heldCursor is the position of a build's search in a place.
type heldCursor struct {
	after perdure.RunID
	// restUntil is set when the build has seen all held runs of the place.
	restUntil perdure.Instant
}

// A heldSearch is a place that a poll searches, from behind a run.
type heldSearch struct {
	Ready
	after perdure.RunID
}

// tenant returns the index of a tenant, or where it belongs. The caller holds h.mu.
func (h *heldPlaces) tenant(t perdure.TenantID) (int, bool) {
	return slices.BinarySearchFunc(h.tenants, t, func(a *heldTenant, t perdure.TenantID) int {
		return cmp.Compare(a.id, t)
	})
}

// place returns the index of a place of the tenant, or where it belongs.
func (t *heldTenant) place(at Ready) (int, bool) {
	return slices.BinarySearchFunc(t.places, at, func(a *heldPlace, at Ready) int {
		return cmp.Or(strings.Compare(a.Queue, at.Queue), strings.Compare(a.Kind, at.Kind))
	})
}

// use returns a tenant of the memory, which it adds if there is none. The caller holds h.mu.
func (h *heldPlaces) use(t perdure.TenantID, now perdure.Instant) *heldTenant {
	i, known := h.tenant(t)
	if !known {
		h.evict(maxHeldTenants - 1)
		i, _ = h.tenant(t)
		h.tenants = slices.Insert(h.tenants, i, &heldTenant{id: t})
	}
	h.tenants[i].usedAt = now
	return h.tenants[i]
}

// evict forgets the tenants that were not used for the longest time, until few enough are left. The
// caller holds h.mu.
func (h *heldPlaces) evict(keep int) {
	for len(h.tenants) > keep {
		oldest := 0
		for i, t := range h.tenants {
			if t.usedAt < h.tenants[oldest].usedAt {
				oldest = i
			}
		}
		h.tenants = slices.Delete(h.tenants, oldest, oldest+1)
	}
}

// add remembers a place. A run there was held just now, so every build searches it from the start.
func (h *heldPlaces) add(at Ready, now perdure.Instant) {
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.use(at.Tenant, now)
	i, known := t.place(at)
	switch {
	case known:
		t.places[i].builds = nil
	case len(t.places) < maxHeldPlaces:
		t.places = slices.Insert(t.places, i, &heldPlace{Ready: at})
	}
}

// refresh reads places from the store, if that was not done within heldLookEvery.
func (h *heldPlaces) refresh(tx *kernel.Tx) error {
	h.mu.Lock()
	due, after := h.due(tx.Now), h.after
	h.mu.Unlock()
	if !due {
		return nil
	}
	read, err := tx.DB.Claims.HeldPlaces(after, maxHeldPlaces, maxHeldPolled)
	if err == nil {
		h.set(read, tx.Now)
	}
	return err
}

// due tells whether places have to be read. The caller holds h.mu.
func (h *heldPlaces) due(now perdure.Instant) bool {
	return now.Sub(h.lookedAt) >= heldLookEvery || now < h.lookedAt
}

// set replaces the places of the tenants of a read, and gives those that were not known. Positions
// are kept.
func (h *heldPlaces) set(read store.HeldRead, now perdure.Instant) (fresh []Ready) {
	h.mu.Lock()
	defer h.mu.Unlock()
	before := make(map[perdure.TenantID]*heldTenant)
	h.tenants = slices.DeleteFunc(h.tenants, func(t *heldTenant) bool {
		within := t.id > read.After && (read.Last == "" || t.id <= read.Last)
		if within {
			before[t.id] = t
		}
		return within
	})
	for _, at := range read.Places {
		old, known := before[at.Tenant], false
		place, usedAt := &heldPlace{Ready: at}, now
		if old != nil {
			var i int
			if i, known = old.place(at); known {
				place = old.places[i]
			}
			usedAt = old.usedAt
		}
		if !known {
			fresh = append(fresh, at)
		}
		t := h.use(at.Tenant, usedAt)
		t.places = append(t.places, place) // they are read in order
	}
	h.after, h.lookedAt = read.Last, now
	return fresh
}

// matching gives the places that a poll has to search. Those of tenants that were searched longest ago
// are first, and the tenants take turns.
func (h *heldPlaces) matching(op *Claim, now perdure.Instant) (out []heldSearch) {
	h.mu.Lock()
	defer h.mu.Unlock()
	tenants := h.tenants
	if !op.AnyTenant {
		i, known := h.tenant(op.Tenant)
		if !known {
			return nil
		}
		tenants = tenants[i : i+1]
	}
	lists := make([][]heldSearch, 0, len(tenants))
	for _, t := range slices.SortedStableFunc(slices.Values(tenants), func(a, b *heldTenant) int {
		return cmp.Compare(a.usedAt, b.usedAt)
	}) {
		var list []heldSearch
		for _, p := range t.places {
			at := p.builds[op.Build]
			if op.covers(p.Ready) && (now >= at.restUntil || now < h.lookedAt) {
				list = append(list, heldSearch{p.Ready, at.after})
			}
		}
		if len(list) > 0 {
			lists = append(lists, list)
		}
	}
	for n := 0; len(lists) > 0; n++ {
		lists = slices.DeleteFunc(lists, func(list []heldSearch) bool { return n >= len(list) })
		for _, list := range lists {
			out = append(out, list[n])
		}
	}
	return out
}

// passed remembers how far a build has searched a place. After the last run the build rests.
func (h *heldPlaces) passed(at Ready, build string, next perdure.RunID, now perdure.Instant) {
	h.mu.Lock()
	defer h.mu.Unlock()
	i, known := h.tenant(at.Tenant)
	if !known {
		return
	}
	t := h.tenants[i]
	t.usedAt = now
	if i, known = t.place(at); !known {
		return
	}
	p := t.places[i]
	if p.builds == nil || len(p.builds) >= maxHeldBuilds {
		p.builds = make(map[string]heldCursor)
	}
	cursor := heldCursor{after: next}
	if next == "" {
		cursor.restUntil = now.Add(heldLookEvery)
	}
	p.builds[build] = cursor
}

// Held reads places that have held runs, and gives those that this node did not know. Their polls have
// to be woken. It does not wait for reads of callers.
func NewHeldPlaces(ctx context.Context, e *kernel.Engine) (fresh []Ready, err error) {
	err = e.Store().Keep(ctx, func(v *store.View) error {
		knownHeld.Of(e).mu.Lock()
		after := knownHeld.Of(e).after
		knownHeld.Of(e).mu.Unlock()
		read, err := v.Claims.HeldPlaces(after, maxHeldPlaces, maxHeldRead)
		if err == nil {
			fresh = knownHeld.Of(e).set(read, v.Now)
		}
		return err
	})
	return fresh, err
}
