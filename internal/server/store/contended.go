package store

import (
	"cmp"
	"maps"
	"slices"

	"github.com/perdure/perdure"
)

// contended finds the rows that another writer has changed since a sweep has read them, and adds
// them to the known ones. The sweep is decided again without these rows.
func (l *lane) contended(tx *Tx, known map[lockKey]bool) map[lockKey]bool {
	s := l.s
	type row struct {
		t, id   string
		version int64
	}
	tables := map[string][]row{}
	for k, version := range tx.Runs.read {
		tables["runs"] = append(tables["runs"], row{string(k.t), string(k.r), version})
	}
	for _, k := range tx.Threads.rows.dirty {
		if known := tx.Threads.rows.byKey[k]; known.stored {
			tables["threads"] = append(tables["threads"], row{string(k.t), string(k.id), known.val.Version})
		}
	}
	for _, k := range tx.Groups.rows.dirty {
		if known := tx.Groups.rows.byKey[k]; known.stored {
			tables["gatherings"] = append(tables["gatherings"], row{string(k.t), string(k.id), known.val.Version})
		}
	}
	out := maps.Clone(known)
	if out == nil {
		out = make(map[lockKey]bool)
	}
	for _, table := range []string{"runs", "threads", "gatherings"} {
		rows := tables[table]
		slices.SortFunc(rows, func(a, b row) int { return cmp.Or(cmp.Compare(a.t, b.t), cmp.Compare(a.id, b.id)) })
		now := make(map[lockKey]int64, len(rows))
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
					now[rowLock(table, t, id)] = version
					return err
				})
		})
		if err != nil {
			return known
		}
		for _, r := range rows {
			if k := rowLock(table, r.t, r.id); now[k] != r.version {
				out[k] = true
			}
		}
	}
	return out
}

// RunContended tells whether a run is left out because it changes all the time.
func (tx *Tx) RunContended(t perdure.TenantID, id perdure.RunID) bool {
	return tx.contended != nil && tx.contended[runLock(t, id)]
}

// Contended tells whether the batch leaves out rows because they change all the time.
func (tx *Tx) Contended() bool { return len(tx.contended) > 0 }
