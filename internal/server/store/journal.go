package store

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/perdure/perdure"
)

// A JournalRow is a recorded step of a run.
type JournalRow struct {
	Tenant perdure.TenantID
	RunID  perdure.RunID
	Seq    int64
	Key    string
	Value  perdure.Value
	Digest string
	At     perdure.Instant
}

var journalTable = register(&table[JournalRow]{
	name: "journal", once: true, keys: []string{"tenant", "run_id", "seq"},
	columns: func(c *columns, j *JournalRow) {
		text(c, "tenant", &j.Tenant)
		text(c, "run_id", &j.RunID)
		number(c, "seq", &j.Seq)
		text(c, "key", &j.Key)
		text(c, "value", &j.Value)
		text(c, "digest", &j.Digest)
		number(c, "at", &j.At)
	},
})

type journalKey struct {
	runKey
	key string
}

// Journal holds the steps that runs have recorded. For stored steps a batch has the digest only.
type Journal struct {
	in     *base
	values *Values
	rows   staged[journalKey, JournalRow]
}

func (repo *Journal) open(in *base, values *Values) {
	repo.values = values
	repo.in = in
	openRows(&repo.rows, in, journalTable)
}

// Recorded gives the digests of those keys that a run's journal already has.
func (repo *Journal) Recorded(t perdure.TenantID, run perdure.RunID, keys []string) (map[string]string, error) {
	if err := repo.in.tx.lookUp([]Lookup{{Ref: Ref{t, run}, Steps: keys}}); err != nil {
		return nil, err
	}
	out := make(map[string]string)
	for _, key := range keys {
		if j, ok, _ := getRow(&repo.rows, journalKey{runKey{t, run}, key}); ok {
			out[key] = j.Digest
		}
	}
	return out, nil
}

// load reads the digests of steps.
func (repo *Journal) load(keys []journalKey) error {
	rows := make([][]any, len(keys))
	for i, k := range keys {
		rows[i] = []any{string(k.t), string(k.r), k.key}
	}
	err := repo.in.tx.among("journal", []string{"tenant", "run_id", "key"}, rows, func(given string, args []any) error {
		return repo.in.sess.Query("SELECT tenant, run_id, key, digest FROM journal "+given, args,
			func(scan func(...any) error) error {
				var j JournalRow
				if err := scan(&j.Tenant, &j.RunID, &j.Key, &j.Digest); err != nil {
					return err
				}
				absorbRow(&repo.rows, journalKey{runKey{j.Tenant, j.RunID}, j.Key}, j, true)
				return nil
			})
	})
	if err == nil {
		for _, k := range keys {
			absorbRow(&repo.rows, k, JournalRow{}, false)
		}
	}
	return err
}

// After reads a run's journal after a number, including the steps of the batch. A commit and the
// next grant may share a batch, and a step that is missing in a grant is executed again.
func (repo *Journal) After(t perdure.TenantID, run perdure.RunID, after int64, limit int) ([]JournalRow, error) {
	var rows []JournalRow
	err := journalTable.query(repo.in.sess, "WHERE tenant=? AND run_id=? AND seq>? ORDER BY seq"+atMost,
		[]any{string(t), string(run), after, int64(limit)}, func(j *JournalRow) error {
			rows = append(rows, *j)
			return nil
		})
	if err != nil || len(rows) == limit {
		return rows, err // staged steps come after stored ones
	}
	for _, k := range repo.rows.dirty {
		if j := repo.rows.byKey[k].val; k.runKey == (runKey{t, run}) && j.Seq > after {
			rows = append(rows, j)
		}
	}
	slices.SortFunc(rows, func(a, b JournalRow) int { return int(a.Seq - b.Seq) })
	return rows[:min(limit, len(rows))], nil
}

// Keys gives the keys of a run's journal that have a prefix, in the order of recording, including
// those of the batch.
func (repo *Journal) Keys(t perdure.TenantID, run perdure.RunID, prefix string) ([]string, error) {
	seqs := make(map[string]int64)
	last := len(prefix) - 1
	err := repo.in.sess.Query("SELECT key, seq FROM journal WHERE tenant=? AND run_id=? AND key>=? AND key<?",
		[]any{string(t), string(run), prefix, prefix[:last] + string(rune(prefix[last]+1))},
		func(scan func(...any) error) error {
			var key string
			var seq int64
			err := scan(&key, &seq)
			seqs[key] = seq
			return err
		})
	for _, k := range repo.rows.dirty {
		if k.runKey == (runKey{t, run}) && strings.HasPrefix(k.key, prefix) {
			seqs[k.key] = repo.rows.byKey[k].val.Seq
		}
	}
	return slices.SortedFunc(maps.Keys(seqs), func(a, b string) int { return cmp.Compare(seqs[a], seqs[b]) }), err
}

// SeqOf gives the number of a run's entry with a key. It is zero if there is none.
func (repo *Journal) SeqOf(t perdure.TenantID, run perdure.RunID, key string) (seq int64, err error) {
	if j, ok, _ := getRow(&repo.rows, journalKey{runKey{t, run}, key}); ok && j.Seq > 0 {
		return j.Seq, nil
	}
	err = repo.in.sess.Query("SELECT seq FROM journal WHERE tenant=? AND run_id=? AND key=?",
		[]any{string(t), string(run), key}, func(scan func(...any) error) error { return scan(&seq) })
	return seq, err
}

// Copy stages a copy of an entry for another run. Both share a value that is stored by its hash.
func (repo *Journal) Copy(j JournalRow, to perdure.RunID) {
	repo.in.tx.bytes += len(j.Value)
	j.RunID, j.Value = to, repo.values.Share(j.Tenant, string(to), j.Value)
	repo.Put(j)
}

// Put stages a new step.
func (repo *Journal) Put(j JournalRow) {
	putRow(&repo.rows, journalKey{runKey{j.Tenant, j.RunID}, j.Key}, j)
}
