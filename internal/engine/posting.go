package engine

import (
	"sync"

	"github.com/perdure/perdure"
)

// A Posting says that there is something to send to an endpoint, or that there may be. With no endpoint, an event waits for its fan-out.
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
	tx.postings = append(tx.postings, Posting{t, w, anew})
}
