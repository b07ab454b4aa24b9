package store

import (
	"errors"
	"slices"

	"github.com/perdure/perdure"
)

// errConflict says that a row was changed by somebody else between reading and writing it.
var errConflict = errors.New("store: somebody else was quicker")

// A Tx is a batch in the making: what was read, what is to be written, and one instant for all of it.
// Nothing reaches the database before the batch is decided. An operation of the batch sees what those
// before it staged; one that is refused leaves no trace.
type Tx struct {
	Now perdure.Instant

	s    *Store
	sess Session

	runs    shelf[runKey, perdure.Run]
	read    map[runKey]int64 // the version of each run's row as it was read; absent for new ones
	threads shelf[threadKey, perdure.Thread]
	waits   shelf[waitKey, perdure.Wait]
	items   shelf[itemKey, perdure.Item]
	groups  shelf[groupKey, perdure.Group]
	lates   shelf[lateKey, perdure.LateResult]
	commits shelf[commitKey, CommitRow]
	keys    shelf[keyKey, KeyRow]
	deads   shelf[runKey, perdure.DeadLetter]
	journal shelf[journalKey, JournalRow]
	workers shelf[workerKey, perdure.Worker]
	waiters shelf[waiterKey, WaiterRow]
	members shelf[MemberRow, MemberRow]
	tenants shelf[perdure.TenantID, TenantRow]
	queues  shelf[queueKey, QueueRow]
	creds   shelf[string, perdure.Key]

	events   []EventRow
	messages []perdure.ThreadMessage
	outbox   []OutboxRow
	blobs    []blobRow
	blobRefs []blobRefRow
	later    []statement
	after    []func()

	haveWaits map[runKey]bool // the open waits of these runs are on the shelf
	haveItems map[runKey]bool
	claims    map[claimKey]claimPage

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

type statement struct {
	text string
	args []any
}

// A shelf holds the records of one table that a batch has read or means to write.
type shelf[K comparable, T any] struct {
	slots map[K]*slot[T]
	dirty []K // in the order in which they were first changed
}

type slot[T any] struct {
	val    T
	exists bool
	dirty  bool
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
		s.slots[k] = &slot[T]{val: v, exists: exists}
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
	before := *sl
	*sl = slot[T]{val: v, exists: true, dirty: true}
	if !before.dirty {
		s.dirty = append(s.dirty, k)
	}
	tx.undo = append(tx.undo, func() {
		*sl = before
		if !before.dirty {
			s.dirty = s.dirty[:len(s.dirty)-1]
		}
	})
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

// mark begins an operation; rollback forgets what it staged since.
func (tx *Tx) mark() { tx.undo = tx.undo[:0] }

func (tx *Tx) rollback() {
	for _, u := range slices.Backward(tx.undo) {
		u()
	}
	tx.undo = tx.undo[:0]
}

// Try calls f as an operation of its own inside the operation: if it fails, what it staged is forgotten,
// and the rest goes on.
func (tx *Tx) Try(f func() error) error {
	n := len(tx.undo)
	err := f()
	if err != nil {
		for _, u := range slices.Backward(tx.undo[n:]) {
			u()
		}
		tx.undo = tx.undo[:n]
	}
	return err
}

func push[T any](tx *Tx, list *[]T, v ...T) {
	n := len(*list)
	*list = append(*list, v...)
	tx.undo = append(tx.undo, func() { *list = (*list)[:n] })
}

// ---- writing

// empty tells whether the batch has nothing to write.
func (tx *Tx) empty() bool {
	return len(tx.runs.dirty)+len(tx.threads.dirty)+len(tx.waits.dirty)+len(tx.items.dirty)+len(tx.groups.dirty)+len(tx.lates.dirty)+
		len(tx.commits.dirty)+len(tx.keys.dirty)+len(tx.deads.dirty)+len(tx.journal.dirty)+len(tx.workers.dirty)+len(tx.waiters.dirty)+
		len(tx.members.dirty)+len(tx.tenants.dirty)+len(tx.queues.dirty)+len(tx.creds.dirty)+
		len(tx.events)+len(tx.messages)+len(tx.outbox)+len(tx.blobs)+len(tx.later) == 0
}

// write puts everything into the open transaction of the session.
func (tx *Tx) write() error {
	var fresh []perdure.Run
	var changed []changedRun
	for _, k := range tx.runs.dirty {
		r := &tx.runs.slots[k].val
		if read, stored := tx.read[k]; stored {
			changed = append(changed, changedRun{r, read})
		} else {
			fresh = append(fresh, *r)
		}
	}
	threads, groups := tx.threads.changed(), tx.groups.changed()
	for i := range threads {
		threads[i].Version++
	}
	for i := range groups {
		groups[i].Version++
	}
	s := tx.sess
	// The guarded rows come first: whoever loses the race finds out before writing anything else.
	return firstError(
		func() error { return saveRuns(s, tx.s.dialect, changed) },
		func() error { return runTable.insert(s, fresh) },
		func() error { return threadTable.insert(s, threads) },
		func() error { return groupTable.insert(s, groups) },
		func() error { return eventTable.insert(s, tx.events) },
		func() error { return waitTable.insert(s, tx.waits.changed()) },
		func() error { return itemTable.insert(s, tx.items.changed()) },
		func() error { return journalTable.insert(s, tx.journal.changed()) },
		func() error { return commitTable.insert(s, tx.commits.changed()) },
		func() error { return keyTable.insert(s, tx.keys.changed()) },
		func() error { return memberTable.insert(s, tx.members.changed()) },
		func() error { return messageTable.insert(s, tx.messages) },
		func() error { return lateTable.insert(s, tx.lates.changed()) },
		func() error { return deadTable.insert(s, tx.deads.changed()) },
		func() error { return outboxTable.insert(s, tx.outbox) },
		func() error { return workerTable.insert(s, tx.workers.changed()) },
		func() error { return waiterTable.insert(s, tx.waiters.changed()) },
		func() error { return tenantTable.insert(s, tx.tenants.changed()) },
		func() error { return queueTable.insert(s, tx.queues.changed()) },
		func() error { return keysTable.insert(s, tx.creds.changed()) },
		func() error { return blobTable.insert(s, tx.blobs) },
		func() error { return blobRefTable.insert(s, tx.blobRefs) },
		func() error {
			for _, st := range tx.later {
				if _, err := s.Exec(st.text, st.args); err != nil {
					return err
				}
			}
			return nil
		})
}

func firstError(steps ...func() error) error {
	for _, f := range steps {
		if err := f(); err != nil {
			return err
		}
	}
	return nil
}

// Touched gives the runs that the batch has changed.
func (tx *Tx) touched() []perdure.RunID {
	out := make([]perdure.RunID, len(tx.runs.dirty))
	for i, k := range tx.runs.dirty {
		out[i] = k.r
	}
	return out
}
