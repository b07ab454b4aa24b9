package store

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/perdure/perdure"
)

// Rows that other sessions hold locked, or change all the time.
//
// On PostgreSQL another session may hold a row locked for long. It may be an administrator's
// session, or a node that is paused in the middle of a commit. A write waits for a lock for
// lockPatience at most. Then the lane finds the rows of the batch that are locked, and decides the
// batch again. An operation that stages one of them is refused with errLocked, and the others go on.
//
//   - look asks for all rows that the batch writes with FOR UPDATE SKIP LOCKED. The missing ones are
//     locked. A row counts as held if the same transaction still holds it lookAgain later: a commit
//     of another node is over by then.
//   - If no row is held, the batch waits for something that a query can't show: a key that another
//     transaction has inserted and not committed. explore executes the statements one by one in a
//     transaction that is rolled back, and finds the one that waits.
//   - A table that is locked as a whole shows in pg_locks (blockers.go).
//
// While rows are held, and for wary afterwards, every batch looks before it writes. A row of a
// transaction that is known to hold rows is set aside without a wait. Without locked rows nothing of
// this costs a statement.
//
// An operation of a caller that was refused is tried again for askAgain (Store.DoAll), and goes on
// soon after the lock is free. A sweep skips its row.
//
// A sweep of the watchdog touches many rows, and one that changes all the time would make it
// conflict forever. After a conflict, contended compares the versions that the sweep has read with
// the current ones. Rows that differ are treated like locked ones in the next try.
//
// SQLite locks the whole file, so that nothing of this happens there.

const (
	// lockPatience is how long a write waits for a lock.
	lockPatience = 250 * time.Millisecond
	// lookAgain is the time after which a row that is held by the same transaction counts as held.
	lookAgain = 20 * time.Millisecond
	// wary is how long batches look before they write after rows were locked.
	wary = 10 * time.Second
	// recheckEvery is the interval at which held rows are asked for again.
	recheckEvery = 100 * time.Millisecond
	// askAgain is how long a caller's operation on a held or contended row is tried again, and
	// askEvery the longest pause before the next try.
	askAgain = 2 * time.Second
	askEvery = 400 * time.Millisecond
	// maxHeld bounds the held rows that a lane remembers. Further ones are found by each look.
	maxHeld = 1000
	// maxLooks bounds how often a batch is decided again because of looks.
	maxLooks = 5
	// maxExplored bounds the statements that wait and are found by one exploration.
	maxExplored = 16
	// exploreWait is how long an explored statement waits for a lock.
	exploreWait = 50 * time.Millisecond
)

var (
	// errLocked refuses an operation that would change a locked row. The other operations of its
	// batch do not wait for it.
	errLocked = perdure.Errorf(perdure.CodeUnavailable,
		"nothing was written: somebody else holds what it changes locked in the database")
	// errContended refuses an operation that other nodes were quicker than in every try.
	errContended = perdure.Errorf(perdure.CodeUnavailable,
		"nothing was written: others change the same row all the time")
	// refusedTable refuses an operation that needs a table that is locked as a whole.
	refusedTable = perdure.Errorf(perdure.CodeUnavailable,
		"nothing was written: somebody else holds a whole table locked in the database")
)

// Locked tells whether an operation was refused because another session holds a row locked.
func Locked(err error) bool { return same(err, errLocked) }

// HeldUp tells whether an operation was refused because another session holds a row or a whole table
// locked: it can be done when the lock is free.
func HeldUp(err error) bool { return Locked(err) || TableLocked(err) }

// TableLocked tells whether an operation was refused because another session holds a whole table
// locked.
func TableLocked(err error) bool { return same(err, refusedTable) }

// A heldRow is a row that another session holds locked, or a statement that waits.
type heldRow struct {
	table string
	key   []any // of the row; nil: the table, or the statement again
	// again is executed to find out whether the lock is free, if the row can't be asked for.
	again statement
	// locks are the keys that an operation is refused for.
	locks []lockKey
	// holder is the number of the transaction that holds it, or empty.
	holder string
	since  time.Time
}

// lockedKeys gives what a batch has to leave out.
func (l *lane) lockedKeys(contended map[lockKey]bool) map[lockKey]bool {
	if len(l.held)+len(contended) == 0 {
		return nil
	}
	out := make(map[lockKey]bool, 2*len(l.held)+len(contended))
	for _, h := range l.held {
		for _, k := range h.locks {
			out[k] = true
		}
	}
	maps.Copy(out, contended)
	return out
}

// lookAhead looks for locked rows before a batch is written, while rows are held. It tells whether
// the batch has to be decided again.
func (l *lane) lookAhead(tx *Tx) bool {
	if !l.s.locks.wary() {
		return false
	}
	found, err := l.look(tx.statements())
	if err != nil {
		return false // the batch runs into the same error
	}
	return l.hold(l.s.locks.known(found))
}

// findLocked finds what a batch waits for that ran into a lock. It tells whether to decide it again.
func (l *lane) findLocked(tx *Tx, ops []Op, try int) bool {
	s := l.s
	s.locks.beWary()
	if tables := s.locks.lookAtTables(s); len(tables) > 0 {
		// A sweep goes on without the tables, unless it can do nothing: decisions 76 and 101.
		return !(isSweep(ops) && slices.ContainsFunc(tables, neededBySweep)) && l.holdTables(tables)
	}
	list := tx.statements()
	found, err := l.look(list)
	if err == nil && len(found) > 0 {
		s.locks.known(found)
		s.pause(lookAgain)
		var still []*heldRow
		if still, err = l.lookAt(found); err == nil {
			found = s.locks.known(still)
		}
	}
	if err == nil && len(found) == 0 {
		if found, err = l.explore(list); len(found) > 0 {
			found[0].holder = s.locks.watch(l, &found[0].again)
			for _, h := range found[1:] {
				h.holder = found[0].holder
			}
		}
	}
	if err != nil {
		return false
	}
	return l.hold(found) || try < 3 // nothing was found: the lock may be free by now
}

// neededBySweep tells whether every sweep needs a table. Without it no rule can act, and no worker can
// be heard.
func neededBySweep(t TableLock) bool {
	return t.Table == "runs" || t.Table == "events" || t.Table == "meta"
}

// hold remembers rows, and tells whether one of them is new.
func (l *lane) hold(found []*heldRow) bool {
	fresh := 0
	for _, h := range found {
		if _, known := l.held[h.locks[0]]; known {
			continue
		}
		if fresh++; len(l.held) < maxHeld {
			l.held[h.locks[0]] = h
		}
	}
	if fresh > 0 {
		l.s.locks.setAside(l, fresh)
	}
	return fresh > 0
}

// holdTables remembers tables that are locked as a whole, and tells whether one of them is new.
func (l *lane) holdTables(tables []TableLock) bool {
	var found []*heldRow
	for _, t := range tables {
		found = append(found, &heldRow{table: t.Table, locks: []lockKey{tableLock(t.Table)}, since: time.Now()})
	}
	return l.hold(found)
}

// stillLocked forgets the rows that are no longer locked.
func (l *lane) stillLocked() {
	if len(l.held) == 0 || time.Since(l.heldAt) < recheckEvery {
		return
	}
	l.heldAt = time.Now()
	var rows, waiting []*heldRow
	whole := false
	for _, h := range l.held {
		switch {
		case h.key != nil:
			rows = append(rows, h)
		case h.again.text != "":
			waiting = append(waiting, h)
		default:
			whole = true
		}
	}
	still, err := l.lookAt(rows)
	if err != nil {
		return // the batch runs into the same error
	}
	for _, h := range waiting {
		if got, err := l.explore([]statement{h.again}); err != nil || len(got) > 0 {
			still = append(still, h)
		}
	}
	before := l.held
	l.held = make(map[lockKey]*heldRow, len(still))
	for _, h := range still {
		if was := before[h.locks[0]]; was != nil {
			h = was
		}
		l.held[h.locks[0]] = h
	}
	if whole {
		for _, t := range l.s.locks.lookAtTables(l.s) {
			if was := before[tableLock(t.Table)]; was != nil {
				l.held[tableLock(t.Table)] = was
			}
		}
	}
	l.s.locks.setAside(l, 0)
}

// look gives the locked ones of the rows that statements write.
func (l *lane) look(list []statement) (out []*heldRow, err error) {
	rows := make(map[string][][]any)
	for i := range list {
		switch t := targetOf(&list[i]); {
		case t.free:
		case t.rows != nil:
			rows[t.table] = append(rows[t.table], t.keys()...)
		case t.key != nil:
			rows[t.table] = append(rows[t.table], t.key)
		case t.where != "":
			more, err := l.lockedAmong(t.table, "WHERE "+t.where, t.args, 0)
			if err != nil {
				return nil, err
			}
			for _, h := range more {
				h.locks = append(h.locks, t.lock)
			}
			out = append(out, more...)
		}
	}
	more, err := l.lockedRows(rows)
	return append(out, more...), err
}

// lookAt gives those of some rows that are still held by the same transaction.
func (l *lane) lookAt(before []*heldRow) (out []*heldRow, err error) {
	rows, known := make(map[string][][]any), make(map[lockKey]*heldRow, len(before))
	for _, h := range before {
		rows[h.table] = append(rows[h.table], h.key)
		known[h.locks[0]] = h
	}
	now, err := l.lockedRows(rows)
	for _, h := range now {
		if was := known[h.locks[0]]; was.holder == h.holder {
			out = append(out, was)
		}
	}
	return out, err
}

// lockedRows gives those of some rows that exist and are locked.
func (l *lane) lockedRows(rows map[string][][]any) (out []*heldRow, err error) {
	d := l.s.dialect
	for _, table := range slices.Sorted(maps.Keys(rows)) {
		list := rows[table]
		more, err := l.lockedAmong(table, d.among(table, keyColumns(table), d.rows(list)), d.args(list), len(list))
		if err != nil {
			return nil, err
		}
		out = append(out, more...)
	}
	return out, nil
}

// lockedAmong gives the locked ones of the rows that rest selects. If as many as all can be locked,
// none is.
func (l *lane) lockedAmong(table, rest string, args []any, all int) (out []*heldRow, err error) {
	columns := keyColumns(table)
	choose := "SELECT "
	for _, c := range columns {
		choose += table + "." + c + ","
	}
	choose += table + ".xmax::text FROM " + table + " " + rest
	read := func(query string, row func(h *heldRow)) error {
		return l.write.Query(query, args, func(scan func(...any) error) error {
			h := &heldRow{table: table, key: make([]any, len(columns)), since: time.Now()}
			dest := make([]any, len(columns), len(columns)+1)
			for i := range columns {
				dest[i] = &h.key[i]
			}
			if err := scan(append(dest, &h.holder)...); err != nil {
				return err
			}
			h.locks = []lockKey{rowLock(table, h.key...)}
			if len(columns) > ownerColumns {
				h.locks = append(h.locks, ownerLock(table, h.key[:ownerColumns]...))
			}
			row(h)
			return nil
		})
	}
	free := make(map[lockKey]bool)
	err = read(choose+l.s.dialect.skipRows(table), func(h *heldRow) { free[h.locks[0]] = true })
	if err != nil || all > 0 && len(free) >= all {
		return nil, err
	}
	err = read(choose, func(h *heldRow) {
		if !free[h.locks[0]] {
			out = append(out, h)
		}
	})
	return out, err
}

// explore executes statements one after the other, and takes all of it back. It gives those that wait
// for a lock, and of a statement that inserts many rows the row.
func (l *lane) explore(list []statement) (out []*heldRow, err error) {
	if err := l.write.Begin(); err != nil {
		return nil, err
	}
	defer l.write.Rollback()
	exec := func(text string) error {
		_, err := l.write.Exec(text, nil)
		return err
	}
	if err := exec("SET LOCAL lock_timeout=" + strconv.FormatInt(exploreWait.Milliseconds(), 10)); err != nil {
		return nil, err
	}
	queue := slices.Clone(list)
	for len(queue) > 0 && len(out) < maxExplored {
		st := queue[0]
		queue = queue[1:]
		if err := exec("SAVEPOINT explored"); err != nil {
			return out, err
		}
		_, err := l.write.Exec(st.text, st.args)
		if err == nil {
			continue
		}
		if !l.s.dialect.locked(err) {
			return out, nil // a conflict, which the batch meets itself
		}
		if err := exec("ROLLBACK TO SAVEPOINT explored"); err != nil {
			return out, err
		}
		if halves := halved(&st); halves != nil {
			queue = append(halves, queue...)
			continue
		}
		out = append(out, l.waiting(st))
	}
	return out, nil
}

// waiting makes a heldRow of a statement that waits.
func (l *lane) waiting(st statement) *heldRow {
	t := targetOf(&st)
	h := &heldRow{table: t.table, again: st, since: time.Now()}
	for _, key := range t.keys() {
		h.locks = append(h.locks, rowLock(t.table, key...))
	}
	if len(h.locks) == 0 {
		h.locks = []lockKey{t.lock}
	}
	return h
}

// rowLocked tells whether the batch has to leave out a row.
func (tx *Tx) rowLocked(table string, key lockKey) bool {
	if tx.locked[tableLock(table)] {
		tx.stagedTable = true
		return true
	}
	return tx.locked[key]
}

// readsLocked tells whether a query reads a table that is locked as a whole.
func (tx *Tx) readsLocked(query string) bool {
	for k := range tx.locked {
		if table := string(k); !strings.Contains(table, "\x00") && strings.Contains(query, " "+table+" ") {
			return true
		}
	}
	return false
}

// stageStatement notes whether a statement needs a locked row.
func (tx *Tx) stageStatement(st *statement) {
	if t := targetOf(st); !t.free && tx.rowLocked(t.table, t.lock) {
		tx.stagedLocked = true
	}
}

// TableLocked tells whether the batch has to leave out a whole table.
func (tx *Tx) TableLocked(table string) bool { return tx.locked[tableLock(table)] }

// LockedTables is the number of tables that the batch has to leave out.
func (tx *Tx) LockedTables() (n int) {
	for k := range tx.locked {
		if !strings.Contains(string(k), "\x00") {
			n++
		}
	}
	return n
}

// LockedRows is the number of rows that the batch has to leave out.
func (tx *Tx) LockedRows() int { return len(tx.locked) }

// RunLocked tells whether the batch has to leave out a run.
func (tx *Tx) RunLocked(t perdure.TenantID, id perdure.RunID) bool {
	return tx.locked != nil && tx.locked[runLock(t, id)]
}

// runLock names the row of a run.
func runLock(t perdure.TenantID, id perdure.RunID) lockKey {
	return rowLock("runs", string(t), string(id))
}

// refuseLocked refuses the operation if it has staged a locked row.
func (tx *Tx) refuseLocked() error {
	locked, table := tx.stagedLocked, tx.stagedTable
	tx.stagedLocked, tx.stagedTable = false, false
	switch {
	case !locked:
		return nil
	case table:
		return refusedTable
	}
	return errLocked
}
