package engine

import (
	"sync"
	"time"

	"github.com/perdure/perdure"
)

// hookTTL is how long the endpoints of a tenant are believed without looking: one that another node makes counts
// after this.
const hookTTL = time.Second

// hooks remembers the endpoints of tenants, so that a line which nobody asked for costs no look.
type hooks struct {
	mu      sync.Mutex
	changes int64 // how often something was forgotten: what was read before that is not remembered
	tenants map[perdure.TenantID]cachedHooks
	there   map[perdure.WebhookID]perdure.Instant // endpoints of runs, until when they are known to be there
}

type cachedHooks struct {
	list  []perdure.Webhook
	until perdure.Instant
}

// of gives a tenant's registered endpoints that are told of something.
func (h *hooks) of(tx *Tx, t perdure.TenantID) ([]perdure.Webhook, error) {
	h.mu.Lock()
	c, ok := h.tenants[t]
	changes := h.changes
	h.mu.Unlock()
	if ok && tx.Now < c.until {
		return c.list, nil
	}
	all, err := tx.Webhooks(t)
	if err != nil {
		return nil, err
	}
	c = cachedHooks{until: tx.Now.Add(hookTTL)}
	for _, w := range all {
		if w.Active() {
			c.list = append(c.list, w)
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.changes == changes {
		if len(h.tenants) >= maxKnown || h.tenants == nil {
			h.tenants = make(map[perdure.TenantID]cachedHooks)
		}
		h.tenants[t] = c
	}
	return c.list, nil
}

// forget has what is known of a tenant's endpoints read anew.
func (h *hooks) forget(t perdure.TenantID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.changes++
	delete(h.tenants, t)
	clear(h.there)
}

// isThere tells whether the endpoint of a run is known to be there, and otherwise as of when it is not.
func (h *hooks) isThere(id perdure.WebhookID, now perdure.Instant) (ok bool, changes int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return now < h.there[id], h.changes
}

// saw remembers that it is there, unless something was changed since.
func (h *hooks) saw(id perdure.WebhookID, now perdure.Instant, changes int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.changes != changes {
		return
	}
	if len(h.there) >= maxKnown || h.there == nil {
		h.there = make(map[perdure.WebhookID]perdure.Instant)
	}
	h.there[id] = now.Add(hookTTL)
}

// A Posting says that there is something to send to an endpoint, or that there may be.
type Posting struct {
	Tenant  perdure.TenantID
	Webhook perdure.WebhookID
	Anew    bool // somebody changed the endpoint, or wants it tried now
}

// maxPosted bounds the postings that nobody has taken; a look at the store finds the others.
const maxPosted = 10000

// postings are the endpoints for which something was stored since somebody last asked.
type postings struct {
	mu   sync.Mutex
	list map[Posting]bool
	bell chan struct{}
}

func (p *postings) add(list []Posting) {
	p.mu.Lock()
	for _, x := range list {
		if len(p.list) < maxPosted {
			p.list[x] = true
		}
	}
	p.mu.Unlock()
	select {
	case p.bell <- struct{}{}:
	default:
	}
}

// Posted is signalled when something is there to be sent that was not before.
func (e *Engine) Posted() <-chan struct{} { return e.posted.bell }

// TakePosted gives the endpoints that this is about, since it was last called. It may miss some.
func (e *Engine) TakePosted() []Posting {
	e.posted.mu.Lock()
	defer e.posted.mu.Unlock()
	out := make([]Posting, 0, len(e.posted.list))
	for x := range e.posted.list {
		out = append(out, x)
	}
	clear(e.posted.list)
	return out
}

// post says, once it is durable, that there is something for an endpoint.
func (tx *Tx) post(t perdure.TenantID, w perdure.WebhookID, anew bool) {
	tx.posts = append(tx.posts, Posting{t, w, anew})
}
