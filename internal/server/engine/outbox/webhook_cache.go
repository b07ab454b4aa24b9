package outbox

import (
	"slices"
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
)

// HookTTL is how long cached endpoints are used without reading them again. An endpoint that
// another node creates takes effect after this, for later decisions. Earlier decisions are written
// within store.MaxAge, or decided again.
const HookTTL = 500 * time.Millisecond

// maxHooked bounds the set of tenants with endpoints. If there are more, each tenant is looked up.
const maxHooked = 1000

// webhookCache caches the endpoints of tenants, so that a log line of a tenant without endpoints
// needs no read. One read gives the set of tenants that have any. The endpoints of these are read
// per tenant. An endpoint that another node creates is told of lines that are written a moment later.
type webhookCache struct {
	withHooks kernel.Cache[struct{}, TenantSet]
	tenants   kernel.Cache[perdure.TenantID, *routes]
	// runHooks has, of endpoints that came with runs and exist, until when retention keeps them.
	runHooks kernel.Cache[perdure.WebhookID, perdure.Instant]
}

var cachedHooks = kernel.NewPart(func(*kernel.Engine) *webhookCache {
	c := &webhookCache{}
	c.withHooks.TTL, c.tenants.TTL, c.runHooks.TTL = HookTTL, HookTTL, HookTTL
	return c
})

// A TenantSet is a set of tenants.
type TenantSet struct {
	Has map[perdure.TenantID]bool
	// many is set if the set is not complete.
	Many bool
}

// ReadTenants reads a set of tenants.
func ReadTenants(read func(limit int) ([]perdure.TenantID, error)) (TenantSet, error) {
	list, err := read(maxHooked + 1)
	s := TenantSet{Has: make(map[perdure.TenantID]bool, len(list)), Many: len(list) > maxHooked}
	for _, t := range list {
		s.Has[t] = true
	}
	return s, err
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
func (h *webhookCache) routesOf(tx *kernel.Tx, t perdure.TenantID) (*routes, error) {
	tx.DB.DependsOn(t)
	at := kernel.LookOf(tx)
	hooked, err := h.withHooks.Get(at, struct{}{}, func() (TenantSet, error) {
		return ReadTenants(tx.DB.Webhooks.Tenants)
	})
	if err != nil {
		return nil, err
	}
	if !hooked.Has[t] && !hooked.Many {
		return noRoutes, nil
	}
	return h.tenants.Get(at, t, func() (*routes, error) {
		all, err := tx.DB.Webhooks.List(t)
		return newRoutes(slices.DeleteFunc(all, func(w perdure.Webhook) bool { return !w.Active() })), err
	})
}

// forget drops the cached endpoints of a tenant, and those of runs.
func (h *webhookCache) forget(t perdure.TenantID) {
	h.withHooks.Forget()
	h.tenants.Forget(t)
	h.runHooks.Forget()
}
