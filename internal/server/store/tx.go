package store

import (
	"runtime/debug"
	"slices"
	"strconv"
	"time"

	"github.com/perdure/perdure"
)

// A Tx is a batch in the making: the rows it has read, the changes it has staged, and one instant
// for all of it. Nothing reaches the database before the batch is decided. An operation sees the
// changes of the operations before it. The changes of a refused operation are undone.
type Tx struct {
	Records
	// Again is set when the batch was decided before and could not be written. Callers must not use
	// state that they remembered before batch Number.
	Again bool
	// Number counts the batches of this process.
	Number int64

	begun time.Time
	// floor is that of the store when the batch began; see EpochFloor.
	floor int64
	// inputs are those that the batch depends on; see DependsOn.
	inputs []input
	// ignoreAge is set when the batch is written although it is outdated.
	ignoreAge bool
	// paced is set when callers wait for the batch; see Late.
	paced bool
	// turn is set while the batch has its turn, and alone if it has it for itself; see takeTurn.
	turn, alone bool

	cache *cache
	// recount is set when counters in rows may be wrong, so that numbers are read from the tables.
	recount bool
	// cached are the runs that came from the cache instead of the database.
	cached []runKey
	// refused are the runs that refused operations were about.
	refused []runKey

	// locked are the keys of rows that another session holds locked or changes all the time. An
	// operation that stages one of them is refused.
	locked map[lockKey]bool
	// contended are those of locked that change all the time.
	contended map[lockKey]bool
	// stagedLocked is set when a row of locked was staged, stagedTable when its whole table is locked.
	stagedLocked, stagedTable bool

	// later are statements that are executed after the rows are written.
	later added[statement]
	after []func()
	// last is decided after all other operations of the batch.
	last Op
	// dropped is called if the batch is not written as it was decided.
	dropped []func()

	reads, writes, bytes int // see Cost

	undo []func()
}

// newTx begins a batch. It reads through sess.
func newTx(s *Store, sess Conn, now perdure.Instant) *Tx {
	tx := &Tx{Number: s.begun.Add(1), begun: time.Now(), floor: s.floor.Load()}
	tx.base = base{Now: now, s: s, dialect: s.dialect, sess: counted{sess, tx}, tx: tx,
		writers: make([]writer, 0, 32)}
	tx.Records.open()
	tx.later.in = &tx.base
	return tx
}

// takeTurn waits for the turn to read counts of limits and change them. Each grant and each end of a run under a
// limit changes its count, and lanes that write whole rows would conflict all the time: such a batch has the turn
// alone. Others share it; see limit_relative.go.
func (tx *Tx) takeTurn() {
	switch {
	case tx == nil || tx.turn || !tx.s.Shared():
		return
	case tx.alone:
		tx.s.turns.Lock()
	default:
		tx.s.turns.RLock()
	}
	tx.turn = true
}

// endTurn lets the next lane have its turn.
func (tx *Tx) endTurn() {
	switch {
	case !tx.turn:
		return
	case tx.alone:
		tx.s.turns.Unlock()
	default:
		tx.s.turns.RUnlock()
	}
	tx.turn = false
}

// EpochFloor is the lowest value that an epoch has after its next rise. It is zero unless PostgreSQL
// had a failover: epochs below may have been granted by commits that were lost.
func (tx *Tx) EpochFloor() int64 { return tx.floor }

// mark begins an operation.
func (tx *Tx) mark() { tx.undo, tx.stagedLocked, tx.stagedTable = tx.undo[:0], false, false }

// rollback undoes what was staged since mark, the last change first.
func (tx *Tx) rollback() {
	for _, u := range slices.Backward(tx.undo) {
		u()
	}
	tx.undo = tx.undo[:0]
}

// Try calls f as an operation inside the operation. If f fails or panics, its changes are undone
// and the caller goes on.
func (tx *Tx) Try(f func() error) error {
	n, before, table := len(tx.undo), tx.stagedLocked, tx.stagedTable
	tx.stagedLocked, tx.stagedTable = false, false
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
		return tx.refuseLocked()
	}()
	tx.stagedLocked, tx.stagedTable = before, table
	if err != nil {
		for _, u := range slices.Backward(tx.undo[n:]) {
			u()
		}
		tx.undo = tx.undo[:n]
	}
	return err
}

// After has f called once the batch is durable. Doorbells ring there.
func (tx *Tx) After(f func()) {
	n := len(tx.after)
	tx.after = append(tx.after, f)
	tx.undo = append(tx.undo, func() { tx.after = tx.after[:n] })
}

// Last gives the operation that is decided after all others of the batch. If there is none, begin
// makes it. Its refusal concerns nobody else.
func (tx *Tx) Last(begin func() Op) Op {
	if tx.last == nil {
		tx.last = begin()
	}
	return tx.last
}

// Dropped has f called if the operation is undone, or the batch is not written as it was decided. The
// batch may then be decided again.
func (tx *Tx) Dropped(f func()) {
	n := len(tx.dropped)
	tx.dropped = append(tx.dropped, f)
	tx.undo = append(tx.undo, func() {
		tx.dropped = tx.dropped[:n]
		f()
	})
}

// Stage adds a statement of the caller's own to the batch. Repairs use it, and tests that damage
// data.
func (tx *Tx) Stage(text string, args ...any) { tx.stage(text, args, anyNumber) }

// empty tells whether the batch has nothing to write.
func (tx *Tx) empty() bool {
	return len(tx.later.list) == 0 && tx.LimitKeys.pending() == 0 &&
		!slices.ContainsFunc(tx.writers, func(w writer) bool { return w.pending() > 0 })
}

// statements gives the statements of the batch in write order: rows, the counts of limits, staged
// statements, and on SQLite the stored clock.
func (tx *Tx) statements() (list []statement) {
	for _, w := range tx.writers {
		if w.pending() > 0 {
			list = append(list, w.statements(tx.dialect)...)
		}
	}
	if tx.LimitKeys.pending() > 0 {
		list = append(list, tx.LimitKeys.statements(tx.dialect)...)
	}
	list = append(list, tx.later.list...)
	if tx.dialect.ownClock {
		list = append(list, statement{"INSERT INTO meta (name,value) VALUES ('clock',?) " +
			"ON CONFLICT (name) DO UPDATE SET value=excluded.value " +
			"WHERE CAST(meta.value AS INTEGER)<CAST(excluded.value AS INTEGER)",
			[]any{strconv.FormatInt(int64(tx.Now), 10)}, anyNumber})
	}
	if tx.s.opt.Redact != nil {
		redact(list, tx.s.opt.Redact)
	}
	return list
}

// onceInBatch tells whether something is done for the first time in this batch, and records that it
// is.
func (tx *Tx) onceInBatch(done *bool) bool {
	if *done {
		return false
	}
	*done = true
	tx.undo = append(tx.undo, func() { *done = false })
	return true
}

// exclusive increments a counter in meta, so that the batch conflicts with another node's that does
// the same now. It is for work that no version guards and that only one node may do.
func (tx *Tx) exclusive(name string) error {
	last, err := tx.Meta.Get(name)
	if err != nil {
		return err
	}
	n, _ := strconv.ParseInt(last, 10, 64)
	addRows(&tx.later, statement{"INSERT INTO meta (name,value) VALUES (?,?) " +
		"ON CONFLICT (name) DO UPDATE SET value=excluded.value WHERE meta.value=?",
		[]any{name, strconv.FormatInt(n+1, 10), last}, 1})
	return nil
}

// count reads a number.
func (tx *Tx) count(n *int, query string, args ...any) error {
	return tx.sess.Query(query, args, func(scan func(...any) error) error { return scan(n) })
}
