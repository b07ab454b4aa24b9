package engine

import (
	"sync"

	"github.com/perdure/perdure"
)

// A Posting says that an endpoint may have something to send. Without an endpoint, an event of the
// tenant waits for FanOut.
type Posting struct {
	Tenant  perdure.TenantID
	Webhook perdure.WebhookID
	// Anew is set if the endpoint was changed, or is to be tried now.
	Anew bool
}

// maxPosted bounds the postings that were not taken. The deliverer finds the others by polling the
// store.
const maxPosted = 10000

// postings collects the endpoints with something to send, for this node's deliverer.
type postings struct {
	mu   sync.Mutex
	list map[Posting]bool
	bell chan struct{}
}

// add collects postings and signals the deliverer.
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

// Posted is signalled when there are new postings.
func (e *Engine) Posted() <-chan struct{} { return e.posted.bell }

// TakePosted gives the postings since its last call. It may miss some; see maxPosted.
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

// post adds a posting once the batch is durable.
func (tx *Tx) post(t perdure.TenantID, w perdure.WebhookID, anew bool) {
	tx.postings = append(tx.postings, Posting{t, w, anew})
}
