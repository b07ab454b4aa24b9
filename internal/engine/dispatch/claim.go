package dispatch

import (
	"cmp"
	"errors"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/doorbell"
	"github.com/perdure/perdure/internal/engine/access"
	"github.com/perdure/perdure/internal/engine/kernel"
	"github.com/perdure/perdure/internal/engine/life"
	"github.com/perdure/perdure/internal/engine/rules"
	"github.com/perdure/perdure/internal/plant"
	"github.com/perdure/perdure/internal/store"
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

// Bounds of one poll.
const (
	// MaxSlots bounds the runs of one poll.
	MaxSlots = 1000
	// PollMax bounds the bytes of inputs, journals and inboxes of one poll.
	PollMax = 8 << 20

	// pollRows bounds the rows that are read or written for the grants of one poll.
	pollRows = 2000
)

// takes tells whether the poll takes runs of a tenant.
func (op *Claim) takes(t perdure.TenantID) bool {
	if op.AnyTenant {
		return !slices.Contains(op.Except, t)
	}
	return op.Tenant == t
}

func (*Claim) Needs() []store.Ref { return nil }

// Lane keeps polls in a lane of their own.
func (*Claim) Lane() store.Lane { return store.LaneClaim }

// Do finds runs and grants them.
func (op *Claim) Do(tx *kernel.Tx) error {
	op.Grants, op.More = nil, false
	if err := access.CheckWorker(tx.Engine, op.Worker); err != nil {
		return err
	}
	if op.Slots < 1 || op.Slots > MaxSlots {
		return perdure.Invalid("slots", "%d does not lie between 1 and %d", op.Slots, MaxSlots)
	}
	if op.Build != "" {
		if err := perdure.CheckName("build", op.Build); err != nil {
			return err
		}
	}
	budget := pollBudget{rows: pollRows, bytes: cmp.Or(op.Room, PollMax)}
	if len(op.Runs) > 0 {
		return op.takeNamed(tx, &budget)
	}
	if len(op.Queues) == 0 {
		op.Queues = []string{perdure.DefaultQueue}
	}
	// A queue that is named twice would have its runs granted twice.
	op.Queues, op.Kinds = distinct(op.Queues), distinct(op.Kinds)
	err := recordPoll(tx, op.Tenant, op.Worker, op.Slots,
		perdure.WorkerPoll{Queues: op.Queues, Kinds: op.Kinds, AllTenants: op.AnyTenant,
			Node: access.NodeOf(tx.Engine, op.Worker)})
	if err != nil {
		return err
	}
	s := op.begin(tx)
	full, err := op.takeHeld(tx, s, &budget)
	if err != nil {
		return err
	}
	for looked := len(op.Grants); looked < op.Slots && !full; {
		found, err := s.next(op.Slots - looked)
		if err != nil {
			return err
		}
		if len(found) == 0 {
			break
		}
		looked += len(found)
		if full, err = s.grant(found, &budget); err != nil {
			return err
		}
	}
	return s.finish()
}

// grant grants runs that were found. What is read for the runs that are granted does not count.
func (s *search) grant(found []perdure.Run, budget *pollBudget) (full bool, err error) {
	reads, grants := s.tx.DB.Cost().Read, len(s.op.Grants)
	full, err = s.op.grantFound(s.tx, found, budget)
	grants = len(s.op.Grants) - grants
	s.granted += grants + max(0, s.tx.DB.Cost().Read-reads-(len(found)-grants))
	return full, err
}

// maxNamed bounds the runs that a poll names.
const maxNamed = 100

// takeNamed grants the runs that the poll names.
func (op *Claim) takeNamed(tx *kernel.Tx, budget *pollBudget) error {
	if len(op.Runs) > maxNamed {
		return perdure.Invalid("run_ids", "names %d runs; a poll takes %d", len(op.Runs), maxNamed)
	}
	if err := life.RecordWorkerSeen(tx, op.Tenant, op.Worker); err != nil {
		return err
	}
	if c, err := op.enter(tx, op.Tenant); c == nil {
		return err
	}
	var found []perdure.Run
	for _, id := range op.Runs {
		r, err := tx.Run(op.Tenant, id)
		if err != nil {
			return err
		}
		twice := slices.ContainsFunc(found, func(f perdure.Run) bool { return f.ID == id })
		if r.Ready && !twice && len(found) < op.Slots {
			found = append(found, r)
		}
	}
	_, err := op.grantFound(tx, found, budget)
	return err
}

// A pollBudget is what a poll may still cost.
type pollBudget struct{ rows, bytes int }

// grantOverhead estimates the bytes of a grant without its input, journal and inbox.
const grantOverhead = 512

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

// entryOverhead estimates the bytes of a journal entry or an inbox item without its value.
const entryOverhead = 64

// grantFound grants runs in order until the budget is spent. It rings the queue of the run that did
// not fit.
func (op *Claim) grantFound(tx *kernel.Tx, found []perdure.Run, budget *pollBudget) (full bool, err error) {
	if err := prefetch(tx, found); err != nil {
		return false, err
	}
	var c *conditions
	for i, f := range found {
		if i == 0 || f.Tenant != found[i-1].Tenant {
			if c, err = conditionsOf(tx, f.Tenant); err != nil {
				return false, err
			}
		}
		// An earlier grant may have changed the run: the start of a child writes its parent's row.
		r, err := tx.Run(f.Tenant, f.ID)
		if err != nil {
			return false, err
		}
		// An earlier run of this poll may have been ended instead of granted, and this one stopped with it.
		if c.grantable(&r, op.Build) != nil {
			continue
		}
		if len(op.Grants) > 0 && !budget.fits(&r) {
			tx.Ring(doorbell.Queue(r.Tenant, r.Queue).Of(r.Kind))
			return true, nil
		}
		g, ok, err := op.grant(tx, r)
		if err != nil {
			return false, err
		}
		if ok {
			budget.spend(&g)
			op.Grants = append(op.Grants, g)
		} else {
			// 8 rows is about the cost of an end.
			budget.rows -= 8
		}
	}
	return false, nil
}

// prefetch loads the runs that are about to be granted, with one read for each tenant.
func prefetch(tx *kernel.Tx, found []perdure.Run) error {
	var order []perdure.TenantID
	byTenant := make(map[perdure.TenantID][]perdure.RunID)
	for i := range found {
		t := found[i].Tenant
		if byTenant[t] == nil {
			order = append(order, t)
		}
		byTenant[t] = append(byTenant[t], found[i].ID)
	}
	for _, t := range order {
		if err := tx.DB.Runs.Load(t, byTenant[t]); err != nil {
			return err
		}
	}
	return nil
}

// grant leases a run, or ends it if it is damaged or its signature is not valid.
func (op *Claim) grant(tx *kernel.Tx, r perdure.Run) (g Grant, ok bool, err error) {
	if r.Damage == nil && !life.Readable(r.Input) {
		r.Damage = &perdure.Damage{What: "input is no JSON"}
	}
	if r.Damage != nil {
		return g, false, setRunAside(tx, &r, op.Worker, op.Build)
	}
	if away, err := rejectInvalidSignature(tx, &r, op.Worker, op.Build); away || err != nil {
		return g, false, err
	}
	g, err = op.grantRun(tx, r)
	var broken *perdure.Error
	if !errors.As(err, &broken) {
		return g, err == nil, err
	}
	// The journal, inbox or input can't be read. The delivery counts all the same, so that the run
	// reaches its end and does not block others.
	tx.Engine.Log.Error("a run could not be handed over", "run", r.ID, "error", err)
	if broken.Code != perdure.CodeDamaged {
		return g, false, nil
	}
	// A damaged value stays unreadable: end the run.
	if r, err = tx.Run(r.Tenant, r.ID); err != nil {
		return g, false, err
	}
	r.Damage = &perdure.Damage{What: broken.Message}
	return g, false, setRunAside(tx, &r, op.Worker, op.Build)
}

func distinct(names []string) []string { return slices.Compact(slices.Sorted(slices.Values(names))) }

// grantRun applies the grant and reads the input, and as much of journal and inbox as fits.
func (op *Claim) grantRun(tx *kernel.Tx, r perdure.Run) (Grant, error) {
	ev := perdure.Granted{Worker: op.Worker, Build: op.Build, Start: op.Start, Confirms: op.Confirms ||
		plant.Is("single-attempt-redelivered")}
	ev.Start = ev.Start || ev.Spends(&r)
	var err error
	if ev.Settles, err = settleClass(tx, &r); err != nil {
		return Grant{}, err
	}
	firstStart := ev.Start && r.StartedAt == 0
	if err := tx.Apply(&r, ev); err != nil {
		return Grant{}, err
	}
	if firstStart {
		if err := life.NotifyParentStarted(tx, &r); err != nil {
			return Grant{}, err
		}
	}
	// Also if a holder before has acknowledged the request: this one has to clean up in its place.
	g := Grant{Run: r, Cancel: r.Cancel.RequestedAt != 0}
	if g.Input, err = tx.DB.Values.Resolve(r.Tenant, r.Input); err != nil {
		return Grant{}, err
	}
	bytesLeft := life.GrantMax
	if g.Journal, g.JournalNext, err = life.JournalPage(&tx.DB.Records, &r, 0, &bytesLeft); err != nil {
		return Grant{}, err
	}
	g.Inbox, g.InboxNext, err = life.HandOverItems(tx, &r, 0, &bytesLeft)
	return g, err
}

// settleClass decides about the class of a run that is about to be granted, if it is open. A signed
// run is signed again, because its signature covers the deadline; it was verified just before. A server
// without a key leaves the deadline as it is.
func settleClass(tx *kernel.Tx, r *perdure.Run) (*perdure.Settlement, error) {
	if !r.Options.Open {
		return nil, nil
	}
	kind, _, err := rules.LookUpKind(tx, r.Tenant, r.Kind, true)
	if err != nil {
		return nil, err
	}
	s := tx.Engine.Policy().Settle(r, kind, tx.Now)
	switch {
	case r.Signature.IsZero() || s.DeadlineAt == r.DeadlineAt:
		return s, nil
	case rules.Signer(tx.Engine) == nil:
		s.DeadlineAt = r.DeadlineAt
		return s, nil
	}
	signed, err := rules.SignedRun(tx, r)
	if err != nil {
		return nil, err
	}
	signed.DeadlineAt = s.DeadlineAt
	r.Signature = rules.Signer(tx.Engine).Sign(signed)
	return s, nil
}

// Weight counts slots, and what is read to find runs. Most polls find fewer runs.
func (op *Claim) Weight() (rows, bytes int) {
	reads := 0
	if places := len(op.Queues) * max(1, len(op.Kinds)); places > 1 {
		reads = min(maxReads/2, 4*places) // to read a row costs less than to write one
	}
	return min(pollRows, 4+2*max(1, op.Slots)+reads), min(PollMax, (4<<10)*max(1, op.Slots))
}

// setRunAside ends a damaged run that a poll has found. A run that can't end now is granted without
// handing it over, so that the next polls do not find it first.
func setRunAside(tx *kernel.Tx, r *perdure.Run, worker, build string) error {
	// The poll has spent a slot on it: another poll looks at the runs behind it.
	tx.Ring(doorbell.Queue(r.Tenant, r.Queue).Of(r.Kind))
	before := *r
	err := tx.Try(func() error {
		_, err := life.EndDamaged(tx, r)
		return err
	})
	var refused *perdure.Error
	if !errors.As(err, &refused) {
		return err
	}
	tx.Engine.Log.Error("a damaged run can't end", "tenant", r.Tenant, "run", r.ID, "error", err)
	if before.State.Leased() && !before.Ready {
		return nil
	}
	return tx.Apply(&before, perdure.Granted{Worker: worker, Build: build})
}

// rejectInvalidSignature ends a run that is about to be granted and whose signature is not valid.
// It counts the delivery, though no worker gets the run. A run with a signature is verified even if
// its tenant does not require one. An attacker who can change a run can change that setting, too.
func rejectInvalidSignature(tx *kernel.Tx, r *perdure.Run, worker, build string) (bool, error) {
	if rules.Signer(tx.Engine) == nil || r.Signature.IsZero() {
		required, err := rules.RequiresSigned(tx, r.Tenant)
		if err != nil || !required {
			return false, err
		}
	}
	err := rules.CheckSignature(tx, r)
	if err == nil {
		err = rules.CheckUnended(tx, r)
	}
	if perdure.CodeOf(err) != perdure.CodeSignatureInvalid {
		return false, err
	}
	why := perdure.Failure{Code: perdure.CodeSignatureInvalid, Message: err.(*perdure.Error).Message}
	tx.DB.After(func() {
		tx.Engine.Log.Warn("a run is not handed over: its signature is not valid", "tenant", r.Tenant, "run", r.ID,
			"why", why.Message)
	})
	if err := tx.Apply(r, perdure.Granted{Worker: worker, Build: build}); err != nil {
		return true, err
	}
	// The poll has spent a slot on it: another poll looks at the runs behind it.
	tx.Ring(doorbell.Queue(r.Tenant, r.Queue).Of(r.Kind))
	err = tx.Try(func() error { return life.Finish(tx, r, perdure.Rejected{Epoch: r.Epoch, Failure: why}) })
	var refused *perdure.Error
	// The run can't end. It was granted without handing it over, so it does not block others.
	if errors.As(err, &refused) {
		tx.Engine.Log.Error("a run whose signature is not valid can't end", "tenant", r.Tenant,
			"run", r.ID, "error", err)
		err = nil
	}
	return true, err
}
