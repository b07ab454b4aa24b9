package store

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/perdure/perdure"
)

// Rows that other sessions hold locked, or change all the time.
//
// On PostgreSQL another session may hold a row locked for long. It may be an administrator's
// session, or a node that is paused in the middle of a commit. A write that waits for such a row
// runs into lock_timeout. Then findLocked asks for all rows of the batch with FOR UPDATE SKIP
// LOCKED, and the missing ones are locked. The batch is decided again. An operation that stages a
// locked row is refused with errLocked, and the others go on. The lane remembers locked rows and
// asks again before each batch.
//
// A sweep of the watchdog touches many rows, and one that changes all the time would make it
// conflict forever. After a conflict, contended compares the versions that the sweep has read with
// the current ones. Rows that differ are treated like locked ones in the next try.
//
// SQLite locks the whole file, so that nothing of this happens there.

// watchPatience is how long the watchdog waits for a locked row.
const watchPatience = time.Second

// errLocked refuses an operation that would change a locked row. The other operations of its batch
// do not wait for it.
var errLocked = perdure.Errorf(perdure.CodeUnavailable,
	"nothing was written: somebody else holds what it changes locked in the database")

// Locked tells whether an operation was refused because another session holds a row locked.
func Locked(err error) bool { return same(err, errLocked) }

// findLocked finds which rows of a batch are locked, so that it can be decided again without them.
// It tells whether another try is worth it.
func (l *lane) findLocked(tx *Tx, try int) bool {
	s := l.s
	rows := make(map[any]bool)
	for _, k := range tx.Runs.rows.dirty {
		rows[k] = true
	}
	for _, k := range tx.Threads.rows.dirty {
		rows[k] = true
	}
	for _, k := range tx.Groups.rows.dirty {
		rows[k] = true
	}
	for _, k := range tx.Workers.rows.dirty {
		rows[k] = true
	}
	for k := range tx.Meta.set {
		rows[k] = true
	}
	found, err := l.lockedOf(rows)
	if err != nil {
		return false
	}
	if len(found) == 0 {
		return try < 3 // the lock may be free by now
	}
	if len(l.locked) == 0 {
		s.log.Warn("rows of the database are locked by somebody else: what needs them has to wait, the rest goes on",
			"lane", l.id, "rows", len(found), "one", anyRow(found))
	}
	for k := range l.locked {
		found[k] = true
	}
	l.locked = found
	return true
}

// stillLocked forgets the rows that are no longer locked.
func (l *lane) stillLocked() {
	s := l.s
	if len(l.locked) == 0 {
		return
	}
	found, err := l.lockedOf(l.locked)
	if err != nil {
		return // the batch runs into the same error
	}
	if l.locked = found; len(found) == 0 {
		s.log.Info("no row of the database is locked any more", "lane", l.id)
	}
}

// contended finds the rows that another writer has changed since a sweep has read them, and adds
// them to the known ones. The sweep is decided again without these rows.
func (l *lane) contended(tx *Tx, known map[any]bool) map[any]bool {
	s := l.s
	type row struct {
		key     any
		t, id   string
		version int64
	}
	tables := map[string][]row{}
	for k, version := range tx.Runs.read {
		tables["runs"] = append(tables["runs"], row{k, string(k.t), string(k.r), version})
	}
	for _, k := range tx.Threads.rows.dirty {
		if known := tx.Threads.rows.byKey[k]; known.stored {
			tables["threads"] = append(tables["threads"], row{k, string(k.t), string(k.id), known.val.Version})
		}
	}
	for _, k := range tx.Groups.rows.dirty {
		if known := tx.Groups.rows.byKey[k]; known.stored {
			tables["gatherings"] = append(tables["gatherings"], row{k, string(k.t), string(k.id), known.val.Version})
		}
	}
	out := maps.Clone(known)
	if out == nil {
		out = make(map[any]bool)
	}
	for _, table := range []string{"runs", "threads", "gatherings"} {
		rows := tables[table]
		slices.SortFunc(rows, func(a, b row) int { return cmp.Or(cmp.Compare(a.t, b.t), cmp.Compare(a.id, b.id)) })
		now := make(map[any]int64, len(rows))
		err := eachPart(s.dialect, rows, func(part []row) error {
			list := make([][]any, len(part))
			for i := range part {
				list[i] = []any{part[i].t, part[i].id}
			}
			return l.read.Query("SELECT "+table+".tenant, "+table+".id, version FROM "+table+" "+
				s.dialect.among(table, []string{"tenant", "id"}, s.dialect.rows(list)),
				s.dialect.args(list), func(scan func(...any) error) error {
					var t, id string
					var version int64
					err := scan(&t, &id, nullable[int64]{&version})
					now[keyIn(table, t, id)] = version
					return err
				})
		})
		if err != nil {
			return known
		}
		for _, r := range rows {
			if now[r.key] != r.version {
				out[r.key] = true
			}
		}
	}
	return out
}

// lockedOf gives those of some rows that exist and are locked.
func (l *lane) lockedOf(rows map[any]bool) (map[any]bool, error) {
	s := l.s
	tables := make(map[string][][]any)
	for k := range rows {
		switch k := k.(type) {
		case runKey:
			tables["runs"] = append(tables["runs"], []any{string(k.t), string(k.r)})
		case threadKey:
			tables["threads"] = append(tables["threads"], []any{string(k.t), string(k.id)})
		case groupKey:
			tables["gatherings"] = append(tables["gatherings"], []any{string(k.t), string(k.id)})
		case workerKey:
			tables["workers"] = append(tables["workers"], []any{string(k.t), k.id})
		case metaKey:
			tables["meta"] = append(tables["meta"], []any{"", string(k)})
		}
	}
	out := make(map[any]bool)
	for table, list := range tables {
		choose := "SELECT tenant, id FROM " + table + " " +
			s.dialect.among(table, []string{"tenant", "id"}, s.dialect.rows(list))
		args := s.dialect.args(list)
		if table == "meta" { // meta has no tenant
			names := make([]string, len(list))
			for i := range list {
				names[i] = list[i][1].(string)
			}
			given, a := s.dialect.anyOf("name", names)
			choose, args = "SELECT '', name FROM meta WHERE "+given, a
		}
		for _, free := range []bool{false, true} {
			query := choose
			if free {
				query += " FOR UPDATE OF " + table + " SKIP LOCKED"
			}
			err := l.write.Query(query, args, func(scan func(...any) error) error {
				var t, id string
				if err := scan(&t, &id); err != nil {
					return err
				}
				if k := keyIn(table, t, id); free {
					delete(out, k)
				} else {
					out[k] = true
				}
				return nil
			})
			if err != nil {
				return nil, err
			}
		}
	}
	return out, nil
}

// keyIn gives the key of a row of a table.
func keyIn(table, t, id string) any {
	switch tenant := perdure.TenantID(t); table {
	case "runs":
		return runKey{tenant, perdure.RunID(id)}
	case "threads":
		return threadKey{tenant, perdure.ThreadID(id)}
	case "gatherings":
		return groupKey{tenant, perdure.GroupID(id)}
	case "workers":
		return workerKey{tenant, id}
	}
	return metaKey(id)
}

// anyRow gives one of some rows, for a log line.
func anyRow(rows map[any]bool) any {
	for k := range rows {
		return k
	}
	return nil
}

// LockedRows is the number of rows that the batch has to leave out.
func (tx *Tx) LockedRows() int { return len(tx.locked) }

// RunLocked tells whether the batch has to leave out a run.
func (tx *Tx) RunLocked(t perdure.TenantID, id perdure.RunID) bool { return tx.locked[runKey{t, id}] }

// RunContended tells whether a run is left out because it changes all the time.
func (tx *Tx) RunContended(t perdure.TenantID, id perdure.RunID) bool {
	return tx.contended[runKey{t, id}]
}

// Contended tells whether the batch leaves out rows because they change all the time.
func (tx *Tx) Contended() bool { return len(tx.contended) > 0 }

// refuseLocked refuses the operation if it has staged a locked row.
func (tx *Tx) refuseLocked() error {
	if !tx.stagedLocked {
		return nil
	}
	tx.stagedLocked = false
	return errLocked
}
