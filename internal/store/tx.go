package store

import (
	"errors"
	"iter"
	"runtime/debug"
	"slices"
	"strconv"
	"time"

	"github.com/perdure/perdure"
)

// errConflict says that a row was changed by somebody else between reading and writing it.
var errConflict = errors.New("store: somebody else was quicker")

// A Tx is a batch in the making: what was read, what is to be written, and one instant for all of it.
// Nothing reaches the database before the batch is decided. An operation of the batch sees what those
// before it staged; one that is refused leaves no trace.
type Tx struct {
	Now    perdure.Instant
	Again  bool  // it was decided before and not written: nothing that was remembered before Number is to be believed
	Number int64 // of the batches of this process

	begun   time.Time
	changes int64 // how often the store had been outdated then
	mayAge  bool  // it is written although it is outdated
	paced   bool  // others wait for it; see Late

	s    *Store
	sess Session

	cache  *cache
	doubt  bool     // counters of rows are not believed
	cached []runKey // runs that were not read but remembered
	judged []runKey // runs that operations which were refused are about

	locked map[any]bool // rows that somebody else holds locked, or changes all the time, by their keys
	// contended are those of them that change all the time.
	contended map[any]bool
	hit       bool // one of them was staged
	metas     map[metaKey]bool

	runs      shelf[runKey, perdure.Run]
	read      map[runKey]int64 // the version of each run's row as it was read; absent for new ones
	threads   shelf[threadKey, perdure.Thread]
	waits     runShelf[waitKey, perdure.Wait]
	items     runShelf[itemKey, perdure.Item]
	itemsWere map[itemKey]perdure.Item // those that the batch changes, as the database has them
	moves     []itemMove
	groups    shelf[groupKey, perdure.Group]
	lates     runShelf[lateKey, perdure.LateResult]
	commits   shelf[commitKey, CommitRow]
	keys      shelf[keyKey, KeyRow]
	deads     shelf[runKey, perdure.DeadLetter]
	journal   shelf[journalKey, JournalRow] // of those that are stored already, the digest is all that is known
	workers   shelf[workerKey, perdure.Worker]
	waiters   runShelf[waiterKey, WaiterRow]
	members   runShelf[MemberRow, MemberRow]
	tenants   shelf[perdure.TenantID, TenantRow]
	queues    shelf[queueKey, QueueRow]
	creds     shelf[string, perdure.Key]

	webhooks  shelf[webhookKey, perdure.Webhook]
	approvals shelf[waitKey, perdure.Approval]
	artifacts runShelf[artifactKey, perdure.Artifact]
	contents  shelf[contentKey, content] // what the statements in later come to
	notes     shelf[noteKey, perdure.Notification]
	fanOuts   shelf[fanOutKey, FanOut]
	quotas    shelf[quotaKey, WebhookQuota]

	events   []EventRow
	messages []perdure.ThreadMessage
	attempts []perdure.WebhookAttempt
	watched  []perdure.WatchdogAction
	audits   []perdure.AuditEntry
	blobs    []blobRow
	blobRefs []blobRefRow
	removals []Removal
	later    []statement
	after    []func()

	haveWaits map[runKey]bool // the open waits of these runs are on the shelf
	claims    map[claimKey]claimPage

	expired, trimmed bool // what has outlived its time, and the watchdog's log, were seen to

	reads, writes, bytes int // see Cost

	undo []func()
}

type (
	runKey struct {
		t perdure.TenantID
		r perdure.RunID
	}
	threadKey struct {
		t  perdure.TenantID
		id perdure.ThreadID
	}
	waitKey struct {
		runKey
		id string
	}
	itemKey struct {
		runKey
		seq int64
	}
	groupKey struct {
		t  perdure.TenantID
		id perdure.GroupID
	}
	lateKey struct {
		runKey
		n int
	}
	commitKey struct {
		runKey
		id string
	}
	journalKey struct {
		runKey
		key string
	}
	keyKey struct {
		t   perdure.TenantID
		key string
	}
	workerKey struct {
		t  perdure.TenantID
		id string
	}
	waiterKey struct {
		runKey
		node string
	}
	queueKey struct {
		t    perdure.TenantID
		name string
	}
)

// A shelf holds the records of one table that a batch has read or means to write.
type shelf[K comparable, T any] struct {
	slots map[K]*slot[T]
	dirty []K // in the order in which they were first changed
}

type slot[T any] struct {
	val    T
	exists bool
	dirty  bool
	stored bool // the database has it, or had it when it was read
}

func (s *shelf[K, T]) get(k K) (v T, exists, known bool) {
	if sl := s.slots[k]; sl != nil {
		return sl.val, sl.exists, true
	}
	return v, false, false
}

// absorb takes what the database has, unless the batch knows better already.
func (s *shelf[K, T]) absorb(k K, v T, exists bool) {
	if s.slots == nil {
		s.slots = make(map[K]*slot[T])
	}
	if s.slots[k] == nil {
		s.slots[k] = &slot[T]{val: v, exists: exists, stored: exists}
	}
}

func (s *shelf[K, T]) put(tx *Tx, k K, v T) {
	if s.slots == nil {
		s.slots = make(map[K]*slot[T])
	}
	sl := s.slots[k]
	if sl == nil {
		sl = &slot[T]{}
		s.slots[k] = sl
	}
	if tx.locked != nil && tx.locked[k] {
		tx.hit = true
	}
	before, spent := *sl, tx.spend(0, 0)
	*sl = slot[T]{val: v, exists: true, dirty: true, stored: before.stored}
	if !before.dirty {
		s.dirty = append(s.dirty, k)
		tx.spend(1, 0)
	}
	tx.undo = append(tx.undo, func() {
		*sl = before
		if !before.dirty {
			s.dirty = s.dirty[:len(s.dirty)-1]
		}
		tx.refund(spent)
	})
}

// drop has a record count as gone. Whoever calls it stages what removes it.
func (s *shelf[K, T]) drop(tx *Tx, k K) {
	sl := s.slots[k]
	before := *sl
	sl.exists = false
	tx.undo = append(tx.undo, func() { *sl = before })
}

// A runShelf holds records that belong to runs, and finds those of one run without looking at the others.
type runShelf[K ofRun, T any] struct {
	shelf[K, T]
	byRun map[runKey][]K
}

type ofRun interface {
	comparable
	run() runKey
}

func (k runKey) run() runKey { return k }

func (s *runShelf[K, T]) absorb(k K, v T, exists bool) {
	s.note(k)
	s.shelf.absorb(k, v, exists)
}

func (s *runShelf[K, T]) put(tx *Tx, k K, v T) {
	s.note(k)
	s.shelf.put(tx, k, v)
}

func (s *runShelf[K, T]) note(k K) {
	if s.slots[k] != nil {
		return
	}
	if s.byRun == nil {
		s.byRun = make(map[runKey][]K)
	}
	s.byRun[k.run()] = append(s.byRun[k.run()], k)
}

// of gives the records of a run, in no order.
func (s *runShelf[K, T]) of(r runKey) iter.Seq[*T] {
	return func(yield func(*T) bool) {
		for _, k := range s.byRun[r] {
			if sl := s.slots[k]; sl.exists && !yield(&sl.val) {
				return
			}
		}
	}
}

// changed gives the records that are to be written, in the order in which they were first changed.
func (s *shelf[K, T]) changed() []T {
	out := make([]T, 0, len(s.dirty))
	for _, k := range s.dirty {
		if s.slots[k].exists {
			out = append(out, s.slots[k].val)
		}
	}
	return out
}

func newTx(s *Store, sess Session, now perdure.Instant) *Tx {
	tx := &Tx{Now: now, Number: s.begun.Add(1), begun: time.Now(), changes: s.changes.Load(), s: s, read: make(map[runKey]int64),
		haveWaits: make(map[runKey]bool), claims: make(map[claimKey]claimPage)}
	tx.sess = counted{sess, &tx.reads}
	return tx
}

// mark begins an operation; rollback forgets what it staged since.
func (tx *Tx) mark() { tx.undo, tx.hit = tx.undo[:0], false }

func (tx *Tx) rollback() {
	for _, u := range slices.Backward(tx.undo) {
		u()
	}
	tx.undo = tx.undo[:0]
}

// Try calls f as an operation of its own inside the operation: if it fails, what it staged is forgotten,
// and the rest goes on.
func (tx *Tx) Try(f func() error) error {
	n, hit := len(tx.undo), tx.hit
	tx.hit = false
	err := func() (err error) {
		defer func() {
			if p := recover(); p != nil {
				tx.s.log.Error("an operation panicked", "panic", p, "stack", string(debug.Stack()))
				err = perdure.Errorf(perdure.CodeInternal, "the server has a defect: %v", p)
			}
		}()
		if err := f(); err != nil {
			return err
		}
		return tx.untouched()
	}()
	tx.hit = hit
	if err != nil {
		for _, u := range slices.Backward(tx.undo[n:]) {
			u()
		}
		tx.undo = tx.undo[:n]
	}
	return err
}

func push[T any](tx *Tx, list *[]T, v ...T) {
	n, spent := len(*list), tx.spend(len(v), 0)
	*list = append(*list, v...)
	tx.undo = append(tx.undo, func() {
		*list = (*list)[:n]
		tx.refund(spent)
	})
}

// ---- writing

// empty tells whether the batch has nothing to write.
func (tx *Tx) empty() bool {
	return len(tx.Runs.rows.dirty)+len(tx.Threads.rows.dirty)+len(tx.Waits.rows.dirty)+len(tx.Inbox.rows.dirty)+len(tx.Groups.rows.dirty)+len(tx.LateResults.rows.dirty)+
		len(tx.Commits.rows.dirty)+len(tx.Idempotency.rows.dirty)+len(tx.DeadLetters.rows.dirty)+len(tx.Journal.rows.dirty)+len(tx.Workers.rows.dirty)+len(tx.Waiters.rows.dirty)+
		len(tx.Groups.members.dirty)+len(tx.Tenants.rows.dirty)+len(tx.Queues.rows.dirty)+len(tx.Keys.rows.dirty)+len(tx.Webhooks.rows.dirty)+len(tx.Outbox.rows.dirty)+len(tx.FanOuts.rows.dirty)+len(tx.Webhooks.quotas.dirty)+len(tx.Approvals.rows.dirty)+len(tx.Artifacts.rows.dirty)+
		len(tx.Events.rows)+len(tx.Threads.messages)+len(tx.Outbox.attempts)+len(tx.WatchLog.rows)+len(tx.AuditLog.rows)+len(tx.Values.blobs)+len(tx.Removals.rows)+len(tx.Inbox.moves)+len(tx.later) == 0
}

// statements gives all that the batch has to write.
func (tx *Tx) statements() []statement {
	var fresh []perdure.Run
	var changed []changedRun
	for _, k := range tx.Runs.rows.dirty {
		r := &tx.Runs.rows.slots[k].val
		if read, stored := tx.Runs.read[k]; stored {
			changed = append(changed, changedRun{r, read})
		} else {
			fresh = append(fresh, *r)
		}
	}
	d := tx.s.dialect
	// The guarded rows come first: whoever loses the race finds out before writing anything else.
	list := slices.Concat(
		saveRuns(d, changed),
		runTable.insert(d, fresh),
		metadataTable.insert(d, tx.Runs.indexMetadata(fresh)),
		save(d, threadTable, threadTable, &tx.Threads.rows, func(th *perdure.Thread) { th.Version++ }),
		save(d, groupTable, groupHeads, &tx.Groups.rows, func(g *perdure.Group) { g.Version++ }),
		save(d, webhookTable, webhookTable, &tx.Webhooks.rows, func(w *perdure.Webhook) { w.Version++ }),
		save(d, quotaTable, quotaTable, &tx.Webhooks.quotas, func(q *WebhookQuota) { q.Version++ }),
		save(d, noteTable, noteTable, &tx.Outbox.rows, func(n *perdure.Notification) { n.Version++ }),
		save(d, fanOutTable, fanOutTable, &tx.FanOuts.rows, func(f *FanOut) { f.Version++ }),
		eventTable.insert(d, tx.Events.rows),
		waitTable.insert(d, tx.Waits.rows.changed()),
		approvalTable.insert(d, tx.Approvals.rows.changed()),
		tx.Inbox.saveItems(),
		tx.Inbox.saveMoves(), // after it: what an operation of the batch has decided about an item stands
		journalTable.insert(d, tx.Journal.rows.changed()),
		commitTable.insert(d, tx.Commits.rows.changed()),
		keyTable.insert(d, tx.Idempotency.rows.changed()),
		memberTable.insert(d, tx.Groups.members.changed()),
		messageTable.insert(d, tx.Threads.messages),
		lateTable.insert(d, tx.LateResults.rows.changed()),
		deadTable.insert(d, tx.DeadLetters.rows.changed()),
		attemptTable.insert(d, tx.Outbox.attempts),
		watchTable.insert(d, tx.WatchLog.rows),
		auditTable.insert(d, tx.AuditLog.rows),
		workerTable.insert(d, tx.Workers.rows.changed()),
		waiterTable.insert(d, tx.Waiters.rows.changed()),
		tenantTable.insert(d, tx.Tenants.rows.changed()),
		queueTable.insert(d, tx.Queues.rows.changed()),
		keysTable.insert(d, tx.Keys.rows.changed()),
		blobTable.insert(d, distinct(tx.Values.blobs)),
		blobRefTable.insert(d, tx.Values.refs),
		artifactTable.insert(d, tx.Artifacts.rows.changed()),
		removalTable.insert(d, tx.Removals.rows),
		tx.later)
	if d.ownClock {
		list = append(list, statement{"INSERT INTO meta (name,value) VALUES ('clock',?) ON CONFLICT (name) DO UPDATE SET value=excluded.value " +
			"WHERE CAST(meta.value AS INTEGER)<CAST(excluded.value AS INTEGER)",
			[]any{strconv.FormatInt(int64(tx.Now), 10)}, anyNumber})
	}
	if tx.s.opt.Redact != nil {
		redact(list, tx.s.opt.Redact)
	}
	return list
}

// save gives the statements that write records of a versioned table. What was read is only changed: one that is gone since must
// not come back. changing has the columns that a change writes.
func save[K comparable, T any](d *dialect, all, changing *table[T], s *shelf[K, T], count func(*T)) []statement {
	var fresh, known []T
	for _, k := range s.dirty {
		sl := s.slots[k]
		if !sl.exists {
			continue
		}
		v := sl.val
		count(&v)
		if sl.stored {
			known = append(known, v)
		} else {
			fresh = append(fresh, v)
		}
	}
	return append(changing.update(d, known), all.insert(d, fresh)...)
}

// Touched gives the runs that the batch has changed.
func (repo *Runs) touched() []perdure.RunID {
	out := make([]perdure.RunID, len(repo.rows.dirty))
	for i, k := range repo.rows.dirty {
		out[i] = k.r
	}
	return out
}
