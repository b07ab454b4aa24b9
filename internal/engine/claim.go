package engine

import (
	"cmp"
	"errors"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/doorbell"
	"github.com/perdure/perdure/internal/store"
)

// Claim leases runs to a worker: a poll.
//
// One poll costs a bounded number of looks, rows and bytes, and grants at least one run if it finds one. What it leaves
// stays claimable, and the queue is rung again for the next poll.
type Claim struct {
	Tenant    perdure.TenantID
	AnyTenant bool // a worker of the platform leases for all
	Worker    string
	Queues    []string
	Kinds     []string // empty: any
	Slots     int
	Room      int  // bytes of inputs, journals and inboxes; 0: PollMax
	Start     bool // the worker begins at once: the grants are running

	Grants []Grant

	began perdure.TenantID // where a round through the tenants began that has found nothing yet
}

// A Grant is a leased run, with what a worker needs to execute it.
type Grant struct {
	Run         perdure.Run
	Input       perdure.Value
	Journal     []JournalRow
	JournalNext int64 // more of the journal follows after this one; 0: that is all
	Inbox       []perdure.Item
	InboxNext   int64
	Cancel      bool // asked to stop: clean up and say so
}

// Size is how many bytes a grant has, about.
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

// GrantMax bounds the bytes of journal and inbox that ride on a grant; the rest is fetched.
const GrantMax = 1 << 20

// Bounds of one poll.
const (
	MaxSlots = 1000    // runs
	PollMax  = 8 << 20 // bytes of inputs, journals and inboxes together

	pollRows = 2000 // rows that are read or written for its grants
)

func (*Claim) Needs() []store.Ref { return nil }

// Lane keeps polls among themselves.
func (*Claim) Lane() store.Lane { return store.LaneClaim }

// Do grants.
func (op *Claim) Do(tx *Tx) error {
	op.Grants = nil
	if err := perdure.CheckName("worker_id", op.Worker); err != nil {
		return err
	}
	if op.Slots < 1 || op.Slots > MaxSlots {
		return perdure.Invalid("slots", "%d does not lie between 1 and %d", op.Slots, MaxSlots)
	}
	if len(op.Queues) == 0 {
		op.Queues = []string{perdure.DefaultQueue}
	}
	if err := recordWorkerSeen(tx, op.Tenant, op.Worker, op.Queues, op.Slots); err != nil {
		return err
	}
	// Named twice, a queue would have its runs granted twice.
	op.Queues, op.Kinds = distinct(op.Queues), distinct(op.Kinds)
	s := op.begin(tx)
	budget := pollBudget{rows: pollRows, bytes: cmp.Or(op.Room, PollMax)}
	for looked := 0; looked < op.Slots; {
		found, err := s.next(op.Slots - looked)
		if err != nil {
			return err
		}
		if len(found) == 0 {
			break
		}
		looked += len(found)
		if full, err := op.grantFound(tx, found, &budget); err != nil {
			return err
		} else if full {
			break
		}
	}
	s.finish()
	return nil
}

// A pollBudget is what a poll may still cost.
type pollBudget struct{ rows, bytes int }

// grantOverhead is about how many bytes a grant has beside what it carries.
const grantOverhead = 512

// fits tells whether a run can be granted too. How much of its journal and inbox there is shows only when they are read:
// each page has at least one entry, which may be as large as a value.
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

// spend counts a grant: the run, its line, and the rows that ride on it.
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

// entryOverhead is about how many bytes a journal entry or an inbox item has beside its value.
const entryOverhead = 64

// grantFound grants runs in their order until the budget is spent. The one that does not fit rings for itself.
func (op *Claim) grantFound(tx *Tx, found []perdure.Run, budget *pollBudget) (full bool, err error) {
	if err := prefetch(tx, found); err != nil {
		return false, err
	}
	for _, f := range found {
		r, err := tx.run(f.Tenant, f.ID) // the start of a child writes its parent's row
		if err != nil {
			return false, err
		}
		if !r.Ready { // one that was turned away has taken it along
			continue
		}
		if len(op.Grants) > 0 && !budget.fits(&r) {
			tx.ring(doorbell.Queue(r.Tenant, r.Queue).Of(r.Kind))
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
			budget.rows -= 8 // about what an end writes
		}
	}
	return false, nil
}

// prefetch reads the runs that are about to be granted, those of a tenant at once.
func prefetch(tx *Tx, found []perdure.Run) error {
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

// grant leases a run, or sets it aside if it can't be granted.
func (op *Claim) grant(tx *Tx, r perdure.Run) (g Grant, ok bool, err error) {
	if r.Damage == nil && !readable(r.Input) {
		r.Damage = &perdure.Damage{What: "input is no JSON"}
	}
	if r.Damage != nil {
		return g, false, setRunAside(tx, &r, op.Worker)
	}
	if away, err := rejectInvalidSignature(tx, &r, op.Worker); away || err != nil {
		return g, false, err
	}
	g, err = grantRun(tx, r, op.Worker, op.Start)
	var broken *perdure.Error
	if !errors.As(err, &broken) {
		return g, err == nil, err
	}
	// What it needs can't be read. The delivery counts, so that it reaches its end, and it blocks nobody.
	tx.e.log.Error("a run could not be handed over", "run", r.ID, "error", err)
	if broken.Code != perdure.CodeDamaged {
		return g, false, nil
	}
	if r, err = tx.run(r.Tenant, r.ID); err != nil { // and never will be
		return g, false, err
	}
	r.Damage = &perdure.Damage{What: broken.Message}
	return g, false, setRunAside(tx, &r, op.Worker)
}

func distinct(names []string) []string { return slices.Compact(slices.Sorted(slices.Values(names))) }

func grantRun(tx *Tx, r perdure.Run, worker string, start bool) (Grant, error) {
	firstStart := start && r.StartedAt == 0
	if err := tx.Apply(&r, perdure.Granted{Worker: worker, Start: start}); err != nil {
		return Grant{}, err
	}
	if firstStart {
		if err := notifyParentStarted(tx, &r); err != nil {
			return Grant{}, err
		}
	}
	g := Grant{Run: r, Cancel: r.Cancel.Pending()}
	var err error
	if g.Input, err = tx.DB.Values.Resolve(r.Tenant, r.Input); err != nil {
		return Grant{}, err
	}
	room := GrantMax
	if g.Journal, g.JournalNext, err = journalPage(tx, &r, 0, &room); err != nil {
		return Grant{}, err
	}
	g.Inbox, g.InboxNext, err = handOverItems(tx, &r, 0, &room)
	return g, err
}

// journalPage reads what of the journal fits.
func journalPage(tx *Tx, r *perdure.Run, after int64, room *int) (page []JournalRow, next int64, err error) {
	for after < r.JournalSeq {
		rows, err := tx.DB.Journal.After(r.Tenant, r.ID, after, 256)
		if err != nil {
			return nil, 0, err
		}
		for _, j := range rows {
			if j.Value, err = tx.DB.Values.Resolve(r.Tenant, j.Value); err != nil {
				return nil, 0, err
			}
			if j.Seq <= after || !readable(j.Value) {
				return nil, 0, perdure.Errorf(perdure.CodeDamaged, "entry %d of its journal can't be read", j.Seq)
			}
			if *room -= len(j.Key) + len(j.Value); *room < 0 && len(page) > 0 {
				return page, after, nil
			}
			page = append(page, j)
			after = j.Seq
		}
		if len(rows) == 0 {
			break
		}
	}
	return page, 0, nil
}

// maxItems bounds the inbox items that are handed over at once.
const maxItems = 256

// handOverItems gives the holder of the current epoch what of the inbox fits, stamped with that epoch.
func handOverItems(tx *Tx, r *perdure.Run, after int64, room *int) (page []perdure.Item, next int64, err error) {
	items, err := tx.DB.Inbox.After(r, after, maxItems+1)
	if err != nil {
		return nil, 0, err
	}
	for _, i := range items {
		if len(page) == maxItems {
			return page, page[len(page)-1].Seq, nil
		}
		data, err := tx.DB.Values.Resolve(r.Tenant, i.Data)
		if err != nil {
			return nil, 0, err
		}
		if !readable(data) {
			return nil, 0, perdure.Errorf(perdure.CodeDamaged, "item %d of its inbox can't be read", i.Seq)
		}
		if *room -= len(data) + 64; *room < 0 && len(page) > 0 {
			return page, page[len(page)-1].Seq, nil
		}
		if i.Status != perdure.ItemProcessing || i.Epoch != r.Epoch {
			i.Status, i.Epoch = perdure.ItemProcessing, r.Epoch
			i.AlarmAt = tx.Now.Add(tx.e.policy.InboxProcessingTimeout)
			tx.DB.Inbox.Put(i)
		}
		i.Data = data
		page = append(page, i)
	}
	return page, 0, nil
}

// recordWorkerSeen notes a worker's sign of life, workerRowDue enough to cost nothing.
func recordWorkerSeen(tx *Tx, t perdure.TenantID, worker string, queues []string, slots int) error {
	if worker == "" || !tx.e.workerRowDue(t, worker, tx.Now) {
		return nil
	}
	w, _, err := tx.DB.Workers.Get(t, worker)
	if err != nil {
		return err
	}
	w.Tenant, w.ID, w.SeenAt, w.Offline = t, worker, tx.Now, false
	if queues != nil {
		w.Queues, w.Slots = jsonList(queues), slots
	}
	tx.DB.Workers.Put(w)
	tx.DB.After(func() { tx.e.rememberWorkerSeen(t, worker, tx.Now) })
	return nil
}

// workerRowDue tells whether a worker's sign of life is worth writing down again.
func (e *Engine) workerRowDue(t perdure.TenantID, worker string, now perdure.Instant) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	last, ok := e.workers[string(t)+"\x00"+worker]
	return !ok || now.Sub(last) >= e.policy.WorkerOffline/8
}

func (e *Engine) rememberWorkerSeen(t perdure.TenantID, worker string, now perdure.Instant) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.workers) >= maxKnown {
		clear(e.workers)
	}
	e.workers[string(t)+"\x00"+worker] = now
}

// A JournalRow is an entry of a run's journal.
type JournalRow = store.JournalRow

// Journal reads more of a leased run's journal than its grant had room for.
type Journal struct {
	Tenant perdure.TenantID
	RunID  perdure.RunID
	Epoch  int64
	After  int64

	Page []JournalRow
	Next int64
}

func (op *Journal) Needs() []store.Ref { return refs(op.Tenant, op.RunID) }

// Do reads.
func (op *Journal) Do(tx *Tx) error {
	r, err := heldRun(tx, op.Tenant, op.RunID, op.Epoch)
	if err != nil {
		return err
	}
	room := GrantMax
	op.Page, op.Next, err = journalPage(tx, &r, op.After, &room)
	return err
}

// Inbox hands over more of a leased run's inbox: what its grant had no room for, and what has come since.
type Inbox struct {
	Tenant perdure.TenantID
	RunID  perdure.RunID
	Epoch  int64
	After  int64

	Page []perdure.Item
	Next int64
}

func (op *Inbox) Needs() []store.Ref { return refs(op.Tenant, op.RunID) }

// Do hands over.
func (op *Inbox) Do(tx *Tx) error {
	r, err := heldRun(tx, op.Tenant, op.RunID, op.Epoch)
	if err != nil {
		return err
	}
	// The hand-over rides on the run's row, so that nobody takes the run away in the same moment.
	if err := tx.Apply(&r, perdure.ItemsHandedOver{}); err != nil {
		return err
	}
	room := GrantMax
	op.Page, op.Next, err = handOverItems(tx, &r, op.After, &room)
	return err
}

// heldRun gives a run if the epoch holds it.
func heldRun(tx *Tx, t perdure.TenantID, id perdure.RunID, epoch int64) (perdure.Run, error) {
	r, err := tx.run(t, id)
	if err != nil {
		return r, err
	}
	return r, holds(&r, epoch)
}

func holds(r *perdure.Run, epoch int64) error {
	if epoch != r.Epoch || !r.State.Leased() {
		return perdure.Errorf(perdure.CodeStaleEpoch, "epoch %d does not hold this run", epoch)
	}
	return nil
}
