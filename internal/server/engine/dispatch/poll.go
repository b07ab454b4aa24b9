package dispatch

import (
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/doorbell"
	"github.com/perdure/perdure/internal/server/engine/life"
)

// Claim leases runs to a worker: one poll.
//
// A poll reads a bounded number of rows and bytes, and grants at least one run if it finds one. Runs
// that it leaves stay claimable, and their queue is rung again for the next poll.
type Claim struct {
	Tenant perdure.TenantID
	// AnyTenant is set for a worker of the platform, which leases runs of all tenants.
	AnyTenant bool
	// Except lists tenants of which such a worker takes no more runs now.
	Except []perdure.TenantID
	Worker string
	Queues []string
	// Kinds are the kinds that the worker executes. Empty: any.
	Kinds []string
	// Runs names the runs to lease, instead of queues and kinds: the caller has submitted them for
	// itself. Those that are not claimable are left out.
	Runs  []perdure.RunID
	Slots int
	// Room bounds the bytes of inputs, journals and inboxes. Zero: PollMax.
	Room int
	// Start says that the worker begins at once: the grants are running, not only dispatched.
	Start bool
	// Confirms is the worker's promise to begin a run with a single attempt only after an answered start or
	// heartbeat. Without it the grant of such a run is its start and spends the attempt: the run is never
	// granted again.
	Confirms bool
	// Build identifies the worker's program. Empty: it is not known.
	Build string
	// Release is that of the worker's library.
	Release string
	// Key is the id of the caller's API key, and KeyExpires when it ends, zero for never. A poll that
	// stands by gets nothing after either end.
	Key        string
	KeyExpires perdure.Instant

	Grants []Grant
	// More is set if the claim has found nothing and has not read all places yet. The next claim with
	// this Op continues there.
	More bool

	// rest is where it continues.
	rest *pollRest
}

// A Grant is a leased run, with what a worker needs to execute it.
type Grant struct {
	Run     perdure.Run
	Input   perdure.Value
	Journal []life.JournalRow
	// JournalNext is the cursor for the rest of the journal. Zero: the grant has all of it.
	JournalNext int64
	Inbox       []perdure.Item
	// InboxNext is the cursor for the rest of the inbox. Zero: the grant has all of it.
	InboxNext int64
	// Cancel is set if the run is asked to stop. The worker cleans up and confirms.
	Cancel bool
}

// Size estimates the bytes of a grant.
func (g *Grant) Size() int {
	n := len(g.Input)
	for i := range g.Journal {
		n += len(g.Journal[i].Value)
	}
	for i := range g.Inbox {
		n += len(g.Inbox[i].Data)
	}
	return n
}

// takes tells whether the poll takes runs of a tenant.
func (op *Claim) takes(t perdure.TenantID) bool {
	if op.AnyTenant {
		return !slices.Contains(op.Except, t)
	}
	return op.Tenant == t
}

// A pollBudget is what a poll may still cost.
type pollBudget struct{ rows, bytes int }

// fits tells whether a run can be granted within the budget. The sizes of its journal and inbox are
// not known before they are read, so it counts one value of the greatest size for each.
func (b *pollBudget) fits(r *perdure.Run) bool {
	need := grantOverhead + len(r.Input)
	if _, size, ref := r.Input.Ref(); ref {
		need = grantOverhead + size
	}
	if r.JournalSeq > 0 {
		need += perdure.MaxValue
	}
	if r.InboxOpen > 0 {
		need += perdure.MaxValue
	}
	return b.rows > 0 && need <= b.bytes
}

// spend deducts a grant: the run, its log line, and the entries that it carries.
func (b *pollBudget) spend(g *Grant) {
	b.rows -= 2 + len(g.Journal) + len(g.Inbox)
	b.bytes -= grantOverhead + len(g.Input)
	for i := range g.Journal {
		b.bytes -= len(g.Journal[i].Key) + len(g.Journal[i].Value) + entryOverhead
	}
	for i := range g.Inbox {
		b.bytes -= len(g.Inbox[i].Data) + entryOverhead
	}
}

// grantOverhead estimates the bytes of a grant without its input, journal and inbox.
const grantOverhead = 512

// entryOverhead estimates the bytes of a journal entry or an inbox item without its value.
const entryOverhead = 64

// wants tells whether a poll is for runs of this queue and kind.
func (op *Claim) wants(r *perdure.Run) bool {
	return op.takes(r.Tenant) && slices.Contains(op.Queues, r.Queue) &&
		(len(op.Kinds) == 0 || slices.Contains(op.Kinds, r.Kind))
}

// covers tells whether a poll asks for the runs of a place.
func (op *Claim) covers(at Ready) bool {
	return op.takes(at.Tenant) && slices.Contains(op.Queues, at.Queue) &&
		(len(op.Kinds) == 0 || slices.Contains(op.Kinds, at.Kind))
}

// Topics gives the doorbell topics of the poll: one for each kind in each queue.
func (op *Claim) Topics() (out []doorbell.Topic) {
	for _, q := range op.Queues {
		t := doorbell.Queue(op.Tenant, q)
		if op.AnyTenant {
			t.Tenant = ""
		}
		if len(op.Kinds) == 0 {
			out = append(out, t)
		}
		for _, k := range op.Kinds {
			out = append(out, t.Of(k))
		}
	}
	return out
}

// A pollRest is where a poll continues that has found nothing yet.
type pollRest struct {
	tenants roundRobin[perdure.TenantID]
	paths   map[perdure.TenantID]path
	order   []perdure.TenantID
}
