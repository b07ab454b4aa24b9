package store

import (
	"slices"
	"strings"

	"github.com/perdure/perdure"
)

// A Lookup names what Do is going to look up of a run: a commit that may have been taken before, and steps that may be
// recorded.
type Lookup struct {
	Ref
	Commit string   // its id; empty: none
	Steps  []string // their keys in the journal
}

// lookingUp is an operation that says so, so that a batch looks these up together.
type lookingUp interface{ Lookups() []Lookup }

// lookUp reads, for all at once, which commits were taken before and which steps are recorded, as far as that is not known yet.
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
		// Whatever it is, the version that the batch has read guards it.
		var had *said
		if version, ok := tx.Runs.read[k]; ok && tx.cache != nil {
			had = tx.cache.said(k, version)
		}
		if c := (commitKey{k, l.Commit}); l.Commit != "" && l.Commit != r.LastCommit.ID {
			if _, _, known := tx.Commits.rows.get(c); !known && r.Commits > 0 && (had == nil || slices.Contains(had.commits, l.Commit)) {
				commits = append(commits, c)
			} else {
				tx.Commits.rows.absorb(c, CommitRow{}, false)
			}
		}
		for _, key := range l.Steps {
			s := journalKey{k, key}
			if _, _, known := tx.Journal.rows.get(s); !known && r.JournalSeq > 0 && (had == nil || slices.Contains(had.steps, key)) {
				steps = append(steps, s)
			} else {
				tx.Journal.rows.absorb(s, JournalRow{}, false)
			}
		}
	}
	if err := tx.Commits.load(commits); err != nil {
		return err
	}
	return tx.Journal.load(steps)
}

func (repo *Commits) load(keys []commitKey) error {
	rows := make([][]any, len(keys))
	for i, k := range keys {
		rows[i] = []any{string(k.t), string(k.r), k.id}
	}
	err := repo.in.tx.among("commits", []string{"tenant", "run_id", "commit_id"}, rows, func(given string, args []any) error {
		return commitTable.query(repo.in.sess, given, args, func(c *CommitRow) error {
			repo.rows.absorb(commitKey{runKey{c.Tenant, c.RunID}, c.ID}, *c, true)
			return nil
		})
	})
	if err == nil {
		for _, k := range keys {
			repo.rows.absorb(k, CommitRow{}, false)
		}
	}
	return err
}

func (repo *Journal) load(keys []journalKey) error {
	rows := make([][]any, len(keys))
	for i, k := range keys {
		rows[i] = []any{string(k.t), string(k.r), k.key}
	}
	err := repo.in.tx.among("journal", []string{"tenant", "run_id", "key"}, rows, func(given string, args []any) error {
		return repo.in.sess.Query("SELECT tenant, run_id, key, digest FROM journal "+given, args, func(scan func(...any) error) error {
			var j JournalRow
			if err := scan(&j.Tenant, &j.RunID, &j.Key, &j.Digest); err != nil {
				return err
			}
			repo.rows.absorb(journalKey{runKey{j.Tenant, j.RunID}, j.Key}, j, true)
			return nil
		})
	})
	if err == nil {
		for _, k := range keys {
			repo.rows.absorb(k, JournalRow{}, false)
		}
	}
	return err
}

// among calls query with what chooses the rows of a table whose columns have the given values, as seldom as it can.
func (tx *Tx) among(table string, columns []string, rows [][]any, query func(given string, args []any) error) error {
	d := tx.s.dialect
	if d.sizes != nil && len(rows) < 4 {
		// SQLite makes a table of what it is given, which costs more than asking a few times.
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

// Recorded gives the digests of those of the keys that a run's journal has already.
func (repo *Journal) Recorded(t perdure.TenantID, run perdure.RunID, keys []string) (map[string]string, error) {
	if err := repo.in.tx.lookUp([]Lookup{{Ref: Ref{t, run}, Steps: keys}}); err != nil {
		return nil, err
	}
	out := make(map[string]string)
	for _, key := range keys {
		if j, ok, _ := repo.rows.get(journalKey{runKey{t, run}, key}); ok {
			out[key] = j.Digest
		}
	}
	return out, nil
}

// Answer gives the answer that a commit of a run was given before.
func (repo *Commits) Answer(r *perdure.Run, id string) (c perdure.Taken, ok bool, err error) {
	if r.LastCommit.ID == id {
		return r.LastCommit, true, nil
	}
	if err := repo.in.tx.lookUp([]Lookup{{Ref: Ref{r.Tenant, r.ID}, Commit: id}}); err != nil {
		return c, false, err
	}
	row, ok, _ := repo.rows.get(commitKey{runKey{r.Tenant, r.ID}, id})
	return row.Taken, ok, nil
}
