package store

import (
	"errors"
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
	Records
	Again  bool  // it was decided before and not written: nothing that was remembered before Number is to be believed
	Number int64 // of the batches of this process

	begun   time.Time
	changes int64 // how often the store had been outdated then
	mayAge  bool  // it is written although it is outdated
	paced   bool  // others wait for it; see Late

	cache  *cache
	doubt  bool     // counters of rows are not believed
	cached []runKey // runs that were not read but remembered
	judged []runKey // runs that operations which were refused are about

	locked map[any]bool // rows that somebody else holds locked, or changes all the time, by their keys
	// contended are those of them that change all the time.
	contended map[any]bool
	hit       bool // one of them was staged

	later added[statement] // statements that are executed behind the rows
	after []func()

	reads, writes, bytes int // see Cost

	undo []func()
}

// A runKey names a run. Records that belong to a run have keys that begin with it.
type runKey struct {
	t perdure.TenantID
	r perdure.RunID
}

func newTx(s *Store, sess Session, now perdure.Instant) *Tx {
	tx := &Tx{Number: s.begun.Add(1), begun: time.Now(), changes: s.changes.Load()}
	tx.Records = Records{Now: now, s: s, dialect: s.dialect, sess: counted{sess, &tx.reads}, tx: tx, writers: make([]writer, 0, 32)}
	tx.Records.open()
	tx.later.in = &tx.Records
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

// After has f called once the batch is durable: doorbells ring then.
func (tx *Tx) After(f func()) {
	n := len(tx.after)
	tx.after = append(tx.after, f)
	tx.undo = append(tx.undo, func() { tx.after = tx.after[:n] })
}

// Stage adds a statement of the caller's own to the batch: for repairs, and for tests that break something.
func (tx *Tx) Stage(text string, args ...any) { tx.stage(text, args, anyNumber) }

// ---- writing

// empty tells whether the batch has nothing to write.
func (tx *Tx) empty() bool {
	return tx.later.pending() == 0 && !slices.ContainsFunc(tx.writers, func(w writer) bool { return w.pending() > 0 })
}

// statements gives all that the batch has to write, in write order.
func (tx *Tx) statements() (list []statement) {
	for _, w := range tx.writers {
		if w.pending() > 0 {
			list = append(list, w.statements(tx.dialect)...)
		}
	}
	list = append(list, tx.later.list...)
	if tx.dialect.ownClock {
		list = append(list, statement{"INSERT INTO meta (name,value) VALUES ('clock',?) ON CONFLICT (name) DO UPDATE SET value=excluded.value " +
			"WHERE CAST(meta.value AS INTEGER)<CAST(excluded.value AS INTEGER)",
			[]any{strconv.FormatInt(int64(tx.Now), 10)}, anyNumber})
	}
	if tx.s.opt.Redact != nil {
		redact(list, tx.s.opt.Redact)
	}
	return list
}
