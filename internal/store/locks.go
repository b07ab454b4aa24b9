package store

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/perdure/perdure"
)

// watchPatience is how long the watchdog waits for a row that somebody else has locked.
const watchPatience = time.Second

// errLocked refuses what would change a row that somebody holds locked: another program, or a node that stands still in the
// middle of a commit. Who shares the batch does not wait for it.
var errLocked = perdure.Errorf(perdure.CodeUnavailable, "nothing was written: somebody else holds what it changes locked in the database")

// Locked tells whether an operation was refused because somebody else holds a row locked.
func Locked(err error) bool { return errors.Is(err, errLocked) }

// findLocked finds out which of the rows that a batch could not write are locked, so that it can be decided again without them. It
// tells whether that is worth a try.
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
		return try < 3 // whoever it was may be gone by now
	}
	if len(l.locked) == 0 {
		s.log.Warn("rows of the database are locked by somebody else: what needs them has to wait, the rest goes on", "lane", l.id, "rows", len(found), "one", anyRow(found))
	}
	for k := range l.locked {
		found[k] = true
	}
	l.locked = found
	return true
}

// stillLocked looks which of the rows that were found locked are so still.
func (l *lane) stillLocked() {
	s := l.s
	if len(l.locked) == 0 {
		return
	}
	found, err := l.lockedOf(l.locked)
	if err != nil {
		return // the batch will find out
	}
	if l.locked = found; len(found) == 0 {
		s.log.Info("no row of the database is locked any more", "lane", l.id)
	}
}

// contended finds the rows that somebody else has changed since a batch of the watchdog has read them. The batch is decided again
// without them: a run that changes all the time costs its own turn, and not that of all others.
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
		if sl := tx.Threads.rows.byKey[k]; sl.stored {
			tables["threads"] = append(tables["threads"], row{k, string(k.t), string(k.id), sl.val.Version})
		}
	}
	for _, k := range tx.Groups.rows.dirty {
		if sl := tx.Groups.rows.byKey[k]; sl.stored {
			tables["gatherings"] = append(tables["gatherings"], row{k, string(k.t), string(k.id), sl.val.Version})
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
			return l.read.Query("SELECT "+table+".tenant, "+table+".id, version FROM "+table+" "+s.dialect.among(table, []string{"tenant", "id"}, s.dialect.rows(list)),
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

// lockedOf gives those rows that are there and locked.
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
		choose := "SELECT tenant, id FROM " + table + " " + s.dialect.among(table, []string{"tenant", "id"}, s.dialect.rows(list))
		args := s.dialect.args(list)
		if table == "meta" { // two rows at most
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

// anyRow names one of some rows.
func anyRow(rows map[any]bool) any {
	for k := range rows {
		return k
	}
	return nil
}

// LockedRows is how many rows the batch has to leave alone, because somebody else holds them locked.
func (tx *Tx) LockedRows() int { return len(tx.locked) }

// RunLocked tells whether a run is one of them.
func (tx *Tx) RunLocked(t perdure.TenantID, id perdure.RunID) bool { return tx.locked[runKey{t, id}] }

// RunContended tells whether a run is left alone because it changes all the time.
func (tx *Tx) RunContended(t perdure.TenantID, id perdure.RunID) bool {
	return tx.contended[runKey{t, id}]
}

// Contended tells whether the batch leaves rows alone because they change all the time.
func (tx *Tx) Contended() bool { return len(tx.contended) > 0 }

// untouched refuses what was staged since hit was last false, if a row of it is locked.
func (tx *Tx) untouched() error {
	if !tx.hit {
		return nil
	}
	tx.hit = false
	return errLocked
}
