package outbox

import (
	"sync"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
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

var posted = kernel.NewPart(func(*kernel.Engine) *postings {
	return &postings{list: make(map[Posting]bool), bell: make(chan struct{}, 1)}
})

// stagedIn has the notifications of an operation.
var stagedIn = kernel.NewScratch[struct {
	// notified counts the notifications that the operation has staged; see maxNotified.
	notified int
	// postings name the endpoints that have something to send once the batch is durable.
	postings []Posting
}]()

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
func Posted(e *kernel.Engine) <-chan struct{} { return posted.Of(e).bell }

// TakePosted gives the postings since its last call. It may miss some; see maxPosted.
func TakePosted(e *kernel.Engine) []Posting {
	p := posted.Of(e)
	p.mu.Lock()
	defer p.mu.Unlock()
	out := make([]Posting, 0, len(p.list))
	for x := range p.list {
		out = append(out, x)
	}
	clear(p.list)
	return out
}

// postTo adds a posting once the batch is durable.
func postTo(tx *kernel.Tx, t perdure.TenantID, w perdure.WebhookID, anew bool) {
	s := stagedIn.Of(tx)
	s.postings = append(s.postings, Posting{t, w, anew})
}
