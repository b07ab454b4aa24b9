package store

import (
	"slices"
	"strings"

	"github.com/perdure/perdure"
)

// A Lookup names the records of a run that Do is going to look up: a commit that may be repeated,
// and steps that may be recorded.
type Lookup struct {
	Ref
	Commit string   // its id; empty: none
	Steps  []string // their keys in the journal
}

// lookingUp is an operation that declares its lookups, so that a batch reads them together.
type lookingUp interface{ Lookups() []Lookup }

// keyed is an operation under an idempotency key that Do is going to look up. A batch reads the keys
// of its operations together. An empty key is none.
type keyed interface {
	IdempotencyKey() (t perdure.TenantID, key string)
}

// lookUp reads which commits and steps are stored, for many runs in few queries, as far as the
// batch does not know yet.
func (tx *Tx) lookUp(list []Lookup) error {
	var commits []commitKey
	var steps []journalKey
	for _, l := range list {
		k := runKey{l.Tenant, l.Run}
		r, ok, err := tx.Runs.Get(l.Tenant, l.Run)
		if err != nil {
			return err
		}
		if !ok {
			continue
		}
		// The recorded names are those of the version that the batch has read, which guards them.
		var had *recorded
		if version, ok := tx.Runs.read[k]; ok && tx.cache != nil {
			had = tx.cache.recorded(k, version)
		}
		if c := (commitKey{k, l.Commit}); l.Commit != "" && l.Commit != r.LastCommit.ID {
			if _, _, known := getRow(&tx.Commits.rows, c); !known && r.Commits > 0 &&
				(had == nil || slices.Contains(had.commits, l.Commit)) {
				commits = append(commits, c)
			} else {
				absorbRow(&tx.Commits.rows, c, commitRow{}, false)
			}
		}
		for _, key := range l.Steps {
			s := journalKey{k, key}
			if _, _, known := getRow(&tx.Journal.rows, s); !known && r.JournalSeq > 0 &&
				(had == nil || slices.Contains(had.steps, key)) {
				steps = append(steps, s)
			} else {
				absorbRow(&tx.Journal.rows, s, JournalRow{}, false)
			}
		}
	}
	if err := tx.Commits.load(commits); err != nil {
		return err
	}
	return tx.Journal.load(steps)
}

// among calls query with conditions that select the rows with the given values, in as few calls as
// possible.
func (tx *Tx) among(table string, columns []string, rows [][]any, query func(given string, args []any) error) error {
	d := tx.dialect
	if d.sizes != nil && len(rows) < 4 {
		// SQLite builds a temporary table of the values, which costs more than a few queries.
		for _, row := range rows {
			if err := query("WHERE "+strings.Join(columns, "=? AND ")+"=?", row); err != nil {
				return err
			}
		}
		return nil
	}
	return eachPart(d, d.padded(rows), func(part [][]any) error {
		return query(d.among(table, columns, d.rows(part)), d.args(part))
	})
}
