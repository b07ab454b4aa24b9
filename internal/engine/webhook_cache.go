package engine

import (
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/perdure/perdure"
)

// hookTTL is how long what is known of endpoints is believed without looking. One that another node makes counts after
// this, for what is decided from then on; what was decided before is written within store.MaxAge, or decided again.
const hookTTL = 500 * time.Millisecond

// maxHooked bounds how many tenants with endpoints are known as a set. Where there are more, each is looked at.
const maxHooked = 1000

// webhookCache remembers the endpoints of tenants, so that a line which nobody asked for costs no look: one look at who has any
// is for all tenants, and the endpoints of those who have are read one tenant at a time.
type webhookCache struct {
	mu        sync.Mutex
	changes   int64 // how often something was forgotten: what was read before that is not remembered
	withHooks cachedTenants
	tenants   map[perdure.TenantID]cachedHooks
	runHooks  map[perdure.WebhookID]runHook // endpoints of runs
}

// A runHook is what is known of an endpoint of runs.
type runHook struct {
	until  perdure.Instant // until when it is known to be there
	needed perdure.Instant // until when it is needed, and not removed
}

// cached says how long something is believed, and which batch has read it.
type cached struct {
	until perdure.Instant
	by    int64
}

// fresh tells whether a batch may go by it. One that is decided again goes by what was read since: its instant is that of
// the first try, and what it remembered may be why.
func (c cached) fresh(tx *Tx) bool { return tx.Now < c.until && (!tx.DB.Again || c.by >= tx.DB.Number) }

type cachedTenants struct {
	cached
	set  map[perdure.TenantID]bool
	many bool // it is not all of them
}

type cachedHooks struct {
	cached
	*routes
}

// routes finds the endpoints that are told of a type of line without asking each of them: a commit may have a thousand lines, a tenant
// a hundred endpoints, and each of those fifty events.
type routes struct {
	list    []perdure.Webhook
	exact   map[string][]int // by event, the places in the list of who asked for it
	begins  map[string][]int // by what comes before the star
	lengths []int            // of these beginnings, each once
}

// noRoutes are those of a tenant without endpoints.
var noRoutes = &routes{}

func newRoutes(list []perdure.Webhook) *routes {
	r := &routes{list: list, exact: make(map[string][]int), begins: make(map[string][]int)}
	for i := range list {
		events := list[i].Events
		if len(events) == 0 {
			events = perdure.NotifiedLines
		}
		for _, e := range events {
			in := r.exact
			prefix, wild := strings.CutSuffix(e, "*")
			if wild {
				if in, e = r.begins, prefix; !slices.Contains(r.lengths, len(e)) {
					r.lengths = append(r.lengths, len(e))
				}
			}
			if at := in[e]; len(at) == 0 || at[len(at)-1] != i {
				in[e] = append(at, i)
			}
		}
	}
	return r
}

// match gives the places in the list of the endpoints that are told of a line of a run on a thread, in order.
func (r *routes) match(thread perdure.ThreadID, line string) (out []int) {
	add := func(places []int) {
		for _, i := range places {
			if w := &r.list[i]; w.ThreadID == "" || w.ThreadID == thread {
				out = append(out, i)
			}
		}
	}
	add(r.exact[line])
	if line != perdure.LineHeartbeat && line != perdure.LineDelta {
		for _, n := range r.lengths {
			if n <= len(line) {
				add(r.begins[line[:n]])
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// routesOf gives a tenant's registered endpoints that are told of something.
func (h *webhookCache) routesOf(tx *Tx, t perdure.TenantID) (*routes, error) {
	h.mu.Lock()
	hooked, c, changes := h.withHooks, h.tenants[t], h.changes
	h.mu.Unlock()
	now := cached{tx.Now.Add(hookTTL), tx.DB.Number}
	if !hooked.fresh(tx) {
		list, err := tx.DB.Webhooks.Tenants(maxHooked + 1)
		if err != nil {
			return nil, err
		}
		hooked = cachedTenants{cached: now, set: make(map[perdure.TenantID]bool, len(list)), many: len(list) > maxHooked}
		for _, x := range list {
			hooked.set[x] = true
		}
		h.mu.Lock()
		if h.changes == changes {
			h.withHooks = hooked
		}
		h.mu.Unlock()
	}
	if !hooked.set[t] && !hooked.many {
		return noRoutes, nil
	}
	if c.fresh(tx) {
		return c.routes, nil
	}
	all, err := tx.DB.Webhooks.List(t)
	if err != nil {
		return nil, err
	}
	c = cachedHooks{now, newRoutes(slices.DeleteFunc(all, func(w perdure.Webhook) bool { return !w.Active() }))}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.changes == changes {
		if len(h.tenants) >= maxKnown || h.tenants == nil {
			h.tenants = make(map[perdure.TenantID]cachedHooks)
		}
		h.tenants[t] = c
	}
	return c.routes, nil
}

// forget has what is known of endpoints read anew.
func (h *webhookCache) forget(t perdure.TenantID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.changes++
	h.withHooks = cachedTenants{}
	delete(h.tenants, t)
	clear(h.runHooks)
}

// exists tells whether the endpoint of a run is known to be there, and otherwise as of when it is not.
func (h *webhookCache) exists(tx *Tx, id perdure.WebhookID) (ok bool, changes int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return !tx.DB.Again && tx.Now < h.runHooks[id].until, h.changes
}

// needed tells until when the endpoint of a run is known to be needed, or zero.
func (h *webhookCache) needed(tx *Tx, id perdure.WebhookID) perdure.Instant {
	h.mu.Lock()
	defer h.mu.Unlock()
	if x := h.runHooks[id]; !tx.DB.Again && tx.Now < x.until {
		return x.needed
	}
	return 0
}

// remember records that it is there, and until when it is needed, unless something was changed since.
func (h *webhookCache) remember(id perdure.WebhookID, now, needed perdure.Instant, changes int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.changes != changes {
		return
	}
	if len(h.runHooks) >= maxKnown || h.runHooks == nil {
		h.runHooks = make(map[perdure.WebhookID]runHook)
	}
	h.runHooks[id] = runHook{now.Add(hookTTL), needed}
}
