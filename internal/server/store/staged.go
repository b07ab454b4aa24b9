package store

import (
	"iter"

	"github.com/perdure/perdure"
)

// The rows of a batch, in memory.
//
// A batch reads a record once and keeps it by its key, also when it does not exist. A change is
// staged: later operations of the batch see it, and it is written when the whole batch is decided.
// Every change appends a function to Tx.undo. If the operation is refused, these functions run in
// reverse order and restore the rows. A View uses the same types and stages nothing.
//
//   - staged holds records that can change: read, put, drop.
//   - stagedOfRuns is a staged whose records belong to runs, with an index by run.
//   - added holds new rows that never change, such as log lines.
//
// These three have functions instead of methods, for the sake of compile times. A package that knows a
// Tx knows the types of its fields, and the compiler compiles all methods of a generic type again in
// every package that knows it. With methods, and with a *table[T] in place of a rowTable[T], each of
// the 85 packages that import the store compiled 3,300 functions of it, for 9 seconds.

// A writer has rows to write for one table, or a few that belong together.
type writer interface {
	// pending is the number of rows to write.
	pending() int
	// statements gives the statements that write them.
	statements(d *dialect) []statement
}

// A rowTable is a table as staged rows use it.
type rowTable[T any] interface {
	query(s Conn, rest string, args []any, row func(*T) error) error
	insert(d *dialect, rows []T) []statement
	isVersioned() bool
	raise(*T)
	change(d *dialect, rows []T) []statement
	lockKey(*T) lockKey
	tableName() string
}

// staged holds the records of one table that a batch has read or is going to write, by their keys.
type staged[K comparable, T any] struct {
	in    *base
	table rowTable[T]
	byKey map[K]*row[T]
	// dirty are the keys of changed records, in the order of their first change.
	dirty []K
}

// A row is a record as the batch has it.
type row[T any] struct {
	val    T
	exists bool
	dirty  bool
	// stored is set when the row was in the database when it was read.
	stored bool
}

// openRows sets the table of the rows and registers them to be written with the batch.
func openRows[K comparable, T any](s *staged[K, T], in *base, t rowTable[T]) {
	s.in, s.table = in, t
	in.write((*changingRows[K, T])(s))
}

// getRow gives a record that the batch knows. known is false if it has not been read.
func getRow[K comparable, T any](s *staged[K, T], k K) (v T, exists, known bool) {
	if r := s.byKey[k]; r != nil {
		return r.val, r.exists, true
	}
	return v, false, false
}

// loadRow gives a record and reads it if the batch does not know it. where selects its row.
func loadRow[K comparable, T any](s *staged[K, T], k K, where string, args ...any) (v T, ok bool, err error) {
	if v, ok, known := getRow(s, k); known {
		return v, ok, nil
	}
	err = s.table.query(s.in.sess, where, args, func(v *T) error {
		absorbRow(s, k, *v, true)
		return nil
	})
	if err != nil {
		return v, false, err // the record may exist: nothing is remembered
	}
	absorbRow(s, k, v, false)
	v, ok, _ = getRow(s, k)
	return v, ok, nil
}

// absorbRow keeps a record as the database has it, unless the batch has a newer one.
func absorbRow[K comparable, T any](s *staged[K, T], k K, v T, exists bool) {
	if s.byKey == nil {
		s.byKey = make(map[K]*row[T])
	}
	if s.byKey[k] == nil {
		s.byKey[k] = &row[T]{val: v, exists: exists, stored: exists}
	}
}

// putRow stages a record, new or changed.
func putRow[K comparable, T any](s *staged[K, T], k K, v T) {
	if s.byKey == nil {
		s.byKey = make(map[K]*row[T])
	}
	r, tx := s.byKey[k], s.in.tx
	if tx.locked != nil && s.table != nil && tx.rowLocked(s.table.tableName(), s.table.lockKey(&v)) {
		tx.stagedLocked = true
	}
	if r == nil {
		putNewRow(s, k, v)
		return
	}
	before, spent := *r, tx.spend(0, 0)
	*r = row[T]{val: v, exists: true, dirty: true, stored: before.stored}
	if !before.dirty {
		s.dirty = append(s.dirty, k)
		tx.spend(1, 0)
	}
	tx.undo = append(tx.undo, func() {
		*r = before
		if !before.dirty {
			s.dirty = s.dirty[:len(s.dirty)-1]
		}
		tx.refund(spent)
	})
}

// putNewRow stages a record that the batch has not read. Most of them are new, and their undo keeps no
// copy of the row.
func putNewRow[K comparable, T any](s *staged[K, T], k K, v T) {
	r, tx := &row[T]{val: v, exists: true, dirty: true}, s.in.tx
	s.byKey[k] = r
	s.dirty = append(s.dirty, k)
	spent := tx.spend(1, 0)
	tx.undo = append(tx.undo, func() {
		*r = row[T]{}
		s.dirty = s.dirty[:len(s.dirty)-1]
		tx.refund(spent)
	})
}

// dropRow marks a record as gone, if the batch knows it. The caller stages the DELETE.
func dropRow[K comparable, T any](s *staged[K, T], k K) {
	alterRow(s, k, func(r *row[T]) { r.exists = false })
}

// alterRow changes a record in memory, if the batch knows it, without writing it.
func alterRow[K comparable, T any](s *staged[K, T], k K, f func(*row[T])) {
	r := s.byKey[k]
	if r == nil {
		return
	}
	before := *r
	f(r)
	s.in.tx.undo = append(s.in.tx.undo, func() { *r = before })
}

// changedRows gives the records to write, in the order of their first change.
func changedRows[K comparable, T any](s *staged[K, T]) []T {
	out := make([]T, 0, len(s.dirty))
	for _, k := range s.dirty {
		if s.byKey[k].exists {
			out = append(out, s.byKey[k].val)
		}
	}
	return out
}

// changingRows are staged rows as a writer.
type changingRows[K comparable, T any] staged[K, T]

func (s *changingRows[K, T]) pending() int { return len(s.dirty) }

func (s *changingRows[K, T]) statements(d *dialect) []statement {
	return rowStatements((*staged[K, T])(s), d)
}

// rowStatements gives the statements that write the rows. In a versioned table a row that was read is
// updated, never inserted: if another writer has deleted it, it must not come back.
func rowStatements[K comparable, T any](s *staged[K, T], d *dialect) []statement {
	if !s.table.isVersioned() {
		return s.table.insert(d, changedRows(s))
	}
	var fresh, known []T
	for _, k := range s.dirty {
		r := s.byKey[k]
		if !r.exists {
			continue
		}
		v := r.val
		s.table.raise(&v)
		if r.stored {
			known = append(known, v)
		} else {
			fresh = append(fresh, v)
		}
	}
	return append(s.table.change(d, known), s.table.insert(d, fresh)...)
}

// stagedOfRuns is a staged of records that belong to runs, with an index by run.
type stagedOfRuns[K ofRun, T any] struct {
	staged[K, T]
	byRun map[runKey][]K
}

// A runKey names a run. Keys of records that belong to a run begin with one.
type runKey struct {
	t perdure.TenantID
	r perdure.RunID
}

// ofRun is a key of a record that belongs to a run.
type ofRun interface {
	comparable
	run() runKey
}

func (k runKey) run() runKey { return k }

func absorbOfRun[K ofRun, T any](s *stagedOfRuns[K, T], k K, v T, exists bool) {
	noteOfRun(s, k)
	absorbRow(&s.staged, k, v, exists)
}

func loadOfRun[K ofRun, T any](s *stagedOfRuns[K, T], k K, where string, args ...any) (v T, ok bool, err error) {
	noteOfRun(s, k)
	return loadRow(&s.staged, k, where, args...)
}

func putOfRun[K ofRun, T any](s *stagedOfRuns[K, T], k K, v T) {
	noteOfRun(s, k)
	putRow(&s.staged, k, v)
}

// noteOfRun adds a key to the index by run, unless it is there.
func noteOfRun[K ofRun, T any](s *stagedOfRuns[K, T], k K) {
	if s.byKey[k] != nil {
		return
	}
	if s.byRun == nil {
		s.byRun = make(map[runKey][]K)
	}
	s.byRun[k.run()] = append(s.byRun[k.run()], k)
}

// rowsOf gives the existing records of a run, in no order.
func rowsOf[K ofRun, T any](s *stagedOfRuns[K, T], r runKey) iter.Seq[*T] {
	return func(yield func(*T) bool) {
		for _, k := range s.byRun[r] {
			if x := s.byKey[k]; x != nil && x.exists && !yield(&x.val) {
				return
			}
		}
	}
}

// added holds rows that a batch inserts and never changes.
type added[T any] struct {
	in    *base
	table rowTable[T]
	list  []T
}

// openAdded sets the table of the rows and registers them to be written with the batch.
func openAdded[T any](a *added[T], in *base, t rowTable[T]) {
	a.in, a.table = in, t
	in.write((*writtenRows[T])(a))
}

// addRows stages rows.
func addRows[T any](a *added[T], v ...T) {
	n, tx := len(a.list), a.in.tx
	if tx.locked != nil {
		noteLocked(a, v)
	}
	spent := tx.spend(len(v), 0)
	a.list = append(a.list, v...)
	tx.undo = append(tx.undo, func() {
		a.list = a.list[:n]
		tx.refund(spent)
	})
}

// noteLocked notes whether new rows, or statements, need rows that are locked.
func noteLocked[T any](a *added[T], list []T) {
	tx := a.in.tx
	for i := range list {
		if st, ok := any(&list[i]).(*statement); ok {
			tx.stageStatement(st)
		} else if a.table != nil && tx.rowLocked(a.table.tableName(), a.table.lockKey(&list[i])) {
			tx.stagedLocked = true
		}
	}
}

// writtenRows are added rows as a writer.
type writtenRows[T any] added[T]

func (a *writtenRows[T]) pending() int { return len(a.list) }

func (a *writtenRows[T]) statements(d *dialect) []statement { return a.table.insert(d, a.list) }
