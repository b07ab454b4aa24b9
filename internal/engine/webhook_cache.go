package engine

import (
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/perdure/perdure"
)

// hookTTL is how long cached endpoints are used without reading them again. An endpoint that
// another node creates takes effect after this, for later decisions. Earlier decisions are written
// within store.MaxAge, or decided again.
const hookTTL = 500 * time.Millisecond

// maxHooked bounds the set of tenants with endpoints. If there are more, each tenant is looked up.
const maxHooked = 1000

// webhookCache caches the endpoints of tenants, so that a log line of a tenant without endpoints
// needs no read. One read gives the set of tenants that have any. The endpoints of these are read
// per tenant.
type webhookCache struct {
	mu sync.Mutex
	// changes counts invalidations. A read that began before one does not fill the cache.
	changes   int64
	withHooks cachedTenants
	tenants   map[perdure.TenantID]cachedHooks
	// runHooks caches the endpoints that came with runs.
	runHooks map[perdure.WebhookID]runHook
}

// A runHook is the cached state of an endpoint that came with a run.
type runHook struct {
	// until is when this entry expires.
	until perdure.Instant
	// needed is the instant until which retention keeps the endpoint.
	needed perdure.Instant
}

// cached says when an entry expires, and the number of the batch that read it.
type cached struct {
	until perdure.Instant
	by    int64
}

// fresh tells whether a batch may use the entry. A batch that is decided again uses only entries
// that were read since. Its instant is that of the first try, and a stale entry may have caused the
// conflict.
func (c cached) fresh(tx *Tx) bool { return tx.Now < c.until && (!tx.DB.Again || c.by >= tx.DB.Number) }

// cachedTenants is a cached set of tenants.
type cachedTenants struct {
	cached
	set map[perdure.TenantID]bool
	// many is set if the set is not complete.
	many bool
}

// cachedHooks are a tenant's cached endpoints.
type cachedHooks struct {
	cached
	*routes
}

// routes is an index from a type of log line to the endpoints that are told of it. A commit may
// have a thousand lines, a tenant a hundred endpoints, and each of those fifty events.
type routes struct {
	list []perdure.Webhook
	// exact maps an event to positions in list.
	exact map[string][]int
	// begins maps the prefix of a wildcard to positions in list.
	begins map[string][]int
	// lengths holds the distinct lengths of these prefixes.
	lengths []int
}

// noRoutes is the index of a tenant without endpoints.
var noRoutes = &routes{}

// notified has the events of an endpoint without a list of its own.
var notified = func() (out []string) {
	for _, line := range perdure.NotifiedLines {
		out = append(out, string(line))
	}
	return out
}()

// newRoutes builds the index.
func newRoutes(list []perdure.Webhook) *routes {
	r := &routes{list: list, exact: make(map[string][]int), begins: make(map[string][]int)}
	for i := range list {
		events := list[i].Events
		if len(events) == 0 {
			events = notified
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

// match gives the positions of the endpoints that are told of a line of a run on a thread, in
// order.
func (r *routes) match(thread perdure.ThreadID, line perdure.LineType) (out []int) {
	add := func(places []int) {
		for _, i := range places {
			if w := &r.list[i]; w.ThreadID == "" || w.ThreadID == thread {
				out = append(out, i)
			}
		}
	}
	add(r.exact[string(line)])
	if line != perdure.LineHeartbeat && line != perdure.LineDelta {
		for _, n := range r.lengths {
			if n <= len(line) {
				add(r.begins[string(line[:n])])
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// routesOf gives the index of a tenant's active endpoints, from the cache or the store.
func (h *webhookCache) routesOf(tx *Tx, t perdure.TenantID) (*routes, error) {
	tx.DB.DependsOn(t)
	h.mu.Lock()
	hooked, c, changes := h.withHooks, h.tenants[t], h.changes
	h.mu.Unlock()
	now := cached{tx.Now.Add(hookTTL), tx.DB.Number}
	if !hooked.fresh(tx) {
		list, err := tx.DB.Webhooks.Tenants(maxHooked + 1)
		if err != nil {
			return nil, err
		}
		hooked = cachedTenants{cached: now, set: make(map[perdure.TenantID]bool, len(list)),
			many: len(list) > maxHooked}
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

// forget drops the cached endpoints of a tenant, and those of runs.
func (h *webhookCache) forget(t perdure.TenantID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.changes++
	h.withHooks = cachedTenants{}
	delete(h.tenants, t)
	clear(h.runHooks)
}

// exists tells whether the endpoint of a run is cached as existing. changes is to be passed to
// remember after reading it.
func (h *webhookCache) exists(tx *Tx, id perdure.WebhookID) (ok bool, changes int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return !tx.DB.Again && tx.Now < h.runHooks[id].until, h.changes
}

// needed gives the instant until which retention keeps the endpoint of a run, as far as it is
// cached. Zero: it is not cached.
func (h *webhookCache) needed(tx *Tx, id perdure.WebhookID) perdure.Instant {
	h.mu.Lock()
	defer h.mu.Unlock()
	if x := h.runHooks[id]; !tx.DB.Again && tx.Now < x.until {
		return x.needed
	}
	return 0
}

// remember caches that an endpoint of a run exists, unless the cache was invalidated since changes
// was read.
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
