package store

import "iter"

// Rows of a batch. A batch reads a record once and remembers it, whether it exists or not. What an operation of the
// batch changes is staged: later operations see it, and it is written when the batch is decided. An operation that is
// refused has its changes undone, the last one first. In a View the same types only remember.

// A writer has rows for one table.
type writer interface {
	pending() int                      // how many rows are to be written
	statements(d *dialect) []statement // that write them
}

// staged holds the records of one table that a batch has read or means to write, by their keys.
type staged[K comparable, T any] struct {
	in    *Records
	table *table[T]
	byKey map[K]*row[T]
	dirty []K // in the order in which they were first changed
}

type row[T any] struct {
	val    T
	exists bool
	dirty  bool
	stored bool // the database has it, or had it when it was read
}

// over says which table the rows belong to, and has them written with the batch.
func (s *staged[K, T]) over(in *Records, t *table[T]) {
	s.in, s.table = in, t
	in.write(s)
}

func (s *staged[K, T]) get(k K) (v T, exists, known bool) {
	if r := s.byKey[k]; r != nil {
		return r.val, r.exists, true
	}
	return v, false, false
}

// load gives a record, and reads it if it is not known. where chooses its row.
func (s *staged[K, T]) load(k K, where string, args ...any) (v T, ok bool, err error) {
	if v, ok, known := s.get(k); known {
		return v, ok, nil
	}
	err = s.table.query(s.in.sess, where, args, func(v *T) error {
		s.absorb(k, *v, true)
		return nil
	})
	if err != nil {
		return v, false, err // what could not be read is not known to be absent
	}
	s.absorb(k, v, false)
	v, ok, _ = s.get(k)
	return v, ok, nil
}

// absorb remembers what the database has, unless the batch knows better already.
func (s *staged[K, T]) absorb(k K, v T, exists bool) {
	if s.byKey == nil {
		s.byKey = make(map[K]*row[T])
	}
	if s.byKey[k] == nil {
		s.byKey[k] = &row[T]{val: v, exists: exists, stored: exists}
	}
}

// put stages a record, new or changed.
func (s *staged[K, T]) put(k K, v T) {
	if s.byKey == nil {
		s.byKey = make(map[K]*row[T])
	}
	r, tx := s.byKey[k], s.in.tx
	if r == nil {
		r = &row[T]{}
		s.byKey[k] = r
	}
	if tx.locked != nil && tx.locked[k] {
		tx.hit = true
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

// drop has a record count as gone, if it is known. The caller stages the statement that removes it.
func (s *staged[K, T]) drop(k K) {
	s.alter(k, func(r *row[T]) { r.exists = false })
}

// alter changes what is remembered of a record, if it is known, without having it written.
func (s *staged[K, T]) alter(k K, f func(*row[T])) {
	r := s.byKey[k]
	if r == nil {
		return
	}
	before := *r
	f(r)
	s.in.tx.undo = append(s.in.tx.undo, func() { *r = before })
}

// changed gives the records that are to be written, in the order in which they were first changed.
func (s *staged[K, T]) changed() []T {
	out := make([]T, 0, len(s.dirty))
	for _, k := range s.dirty {
		if s.byKey[k].exists {
			out = append(out, s.byKey[k].val)
		}
	}
	return out
}

func (s *staged[K, T]) pending() int { return len(s.dirty) }

// statements gives the statements that write the rows. A row of a versioned table that was read is only changed: one
// that is gone since must not come back.
func (s *staged[K, T]) statements(d *dialect) []statement {
	if !s.table.versioned {
		return s.table.insert(d, s.changed())
	}
	var fresh, known []T
	for _, k := range s.dirty {
		r := s.byKey[k]
		if !r.exists {
			continue
		}
		v := r.val
		*s.table.version(&v)++
		if r.stored {
			known = append(known, v)
		} else {
			fresh = append(fresh, v)
		}
	}
	changing := s.table
	if s.table.heads != nil {
		changing = s.table.heads
	}
	return append(changing.update(d, known), s.table.insert(d, fresh)...)
}

// stagedOfRuns holds records that belong to runs, and finds those of one run without looking at the others.
type stagedOfRuns[K ofRun, T any] struct {
	staged[K, T]
	byRun map[runKey][]K
}

type ofRun interface {
	comparable
	run() runKey
}

func (k runKey) run() runKey { return k }

func (s *stagedOfRuns[K, T]) absorb(k K, v T, exists bool) {
	s.note(k)
	s.staged.absorb(k, v, exists)
}

func (s *stagedOfRuns[K, T]) load(k K, where string, args ...any) (v T, ok bool, err error) {
	s.note(k)
	return s.staged.load(k, where, args...)
}

func (s *stagedOfRuns[K, T]) put(k K, v T) {
	s.note(k)
	s.staged.put(k, v)
}

func (s *stagedOfRuns[K, T]) note(k K) {
	if s.byKey[k] != nil {
		return
	}
	if s.byRun == nil {
		s.byRun = make(map[runKey][]K)
	}
	s.byRun[k.run()] = append(s.byRun[k.run()], k)
}

// of gives the records of a run, in no order.
func (s *stagedOfRuns[K, T]) of(r runKey) iter.Seq[*T] {
	return func(yield func(*T) bool) {
		for _, k := range s.byRun[r] {
			if x := s.byKey[k]; x != nil && x.exists && !yield(&x.val) {
				return
			}
		}
	}
}

// added holds rows that a batch adds to a table and never changes.
type added[T any] struct {
	in    *Records
	table *table[T]
	list  []T
}

// over says which table the rows belong to, and has them written with the batch.
func (a *added[T]) over(in *Records, t *table[T]) {
	a.in, a.table = in, t
	in.write(a)
}

// add stages rows.
func (a *added[T]) add(v ...T) {
	n, tx := len(a.list), a.in.tx
	spent := tx.spend(len(v), 0)
	a.list = append(a.list, v...)
	tx.undo = append(tx.undo, func() {
		a.list = a.list[:n]
		tx.refund(spent)
	})
}

func (a *added[T]) pending() int { return len(a.list) }

func (a *added[T]) statements(d *dialect) []statement { return a.table.insert(d, a.list) }
