package store

import (
	"errors"
	"slices"
	"strings"

	"github.com/perdure/perdure"
)

var deadTable = register(&table[perdure.DeadLetter]{
	name: "dead_letters", keys: []string{"tenant", "run_id"},
	columns: func(c *columns, d *perdure.DeadLetter) {
		text(c, "tenant", &d.Tenant)
		text(c, "run_id", &d.RunID)
		text(c, "kind", &d.Kind)
		text(c, "queue", &d.Queue)
		text(c, "cause", &d.Cause)
		text(c, "message", &d.Message)
		number(c, "at", &d.At)
		number(c, "expires_at", &d.ExpiresAt)
		text(c, "redriven_by", &d.RedrivenBy)
	},
})

// DeadLetters holds the dead letters of failed runs.
type DeadLetters struct {
	in   *base
	rows staged[runKey, perdure.DeadLetter]
}

func (repo *DeadLetters) open(in *base) {
	repo.in = in
	openRows(&repo.rows, in, deadTable)
}

// Get gives a run's dead letter.
func (repo *DeadLetters) Get(t perdure.TenantID, run perdure.RunID) (perdure.DeadLetter, bool, error) {
	return loadRow(&repo.rows, runKey{t, run}, "WHERE tenant=? AND run_id=?", string(t), string(run))
}

// A LetterFilter selects dead letters. Empty fields select all.
type LetterFilter struct {
	Cause, Kind, Queue string
	Before             perdure.RunID // the cursor: only older ones
	Open               bool          // only those that were not redriven
	Oldest             bool          // oldest first
	Limit              int
	Rows               int // how many rows a page examines; zero: letterRows
}

// where gives the filter as a condition, with its arguments.
func (f *LetterFilter) where(t perdure.TenantID) (string, []any) {
	where, args := []string{"tenant=?"}, []any{string(t)}
	for _, c := range [][2]string{{"cause=?", f.Cause}, {"kind=?", f.Kind}, {"queue=?", f.Queue},
		{"run_id<?", string(f.Before)}} {
		if c[1] != "" {
			where, args = append(where, c[0]), append(args, c[1])
		}
	}
	if f.Open {
		where = append(where, "redriven_by=''")
	}
	return "WHERE " + strings.Join(where, " AND "), args
}

// letterRows bounds how many dead letters a page examines.
const letterRows = 5000

// Page reads a page of a tenant's dead letters, newest first. next is the last one that was
// examined, if there may be more. If few of many match, a page may be empty and still have a next.
func (repo *DeadLetters) Page(
	t perdure.TenantID, f LetterFilter,
) (out []perdure.DeadLetter, next perdure.RunID, err error) {
	if f.Rows == 0 {
		f.Rows = letterRows
	}
	if f.Before == "" {
		f.Before = "~" // greater than every id
	}
	count, last := 0, perdure.RunID("")
	err = repo.in.sess.Query("SELECT count(*), coalesce(min(run_id),'') FROM (SELECT run_id FROM dead_letters "+
		"WHERE tenant=? AND run_id<? ORDER BY run_id DESC"+atMost+") AS part",
		[]any{string(t), string(f.Before), int64(f.Rows)},
		func(scan func(...any) error) error { return scan(&count, &last) })
	if err != nil || count == 0 {
		return nil, "", err
	}
	if count == f.Rows {
		next = last
	}
	where, args := f.where(t)
	bytes := PageBytes
	err = deadTable.query(repo.in.sess, where+" AND run_id>=? ORDER BY run_id DESC"+atMost,
		append(args, string(last), int64(f.Limit)), func(d *perdure.DeadLetter) error {
			size := 1024 + quoted(d.Message) + quoted(d.Cause)
			if n := len(out); n > 0 && size > bytes {
				next = out[n-1].RunID
				return errEnough
			}
			out, bytes = append(out, *d), bytes-size
			if len(out) == f.Limit {
				next = d.RunID
			}
			return nil
		})
	if errors.Is(err, errEnough) {
		err = nil
	}
	return out, next, err
}

// List lists a tenant's dead letters, newest first.
func (repo *DeadLetters) List(t perdure.TenantID, f LetterFilter) (out []perdure.DeadLetter, err error) {
	where, args := f.where(t)
	order := " ORDER BY run_id DESC"
	if f.Oldest {
		order = " ORDER BY run_id"
	}
	return deadTable.list(repo.in.sess, where+order+atMost, append(args, int64(f.Limit)))
}

// A LetterGroup is the dead letters of a kind with the same cause.
type LetterGroup struct {
	Cause, Kind     string
	Count, Redriven int
	Oldest, Newest  perdure.Instant
	Example         perdure.RunID // the newest one
	Message         string        // of the example
}

// Groups counts a tenant's dead letters by cause and kind, the largest group first. It examines the
// newest f.Rows of them; zero means PageRows.
func (repo *DeadLetters) Groups(t perdure.TenantID, f LetterFilter) (out []LetterGroup, err error) {
	if f.Rows == 0 {
		f.Rows = PageRows
	}
	where, args := f.where(t)
	args = slices.Concat([]any{string(t), int64(f.Rows)}, args, []any{int64(f.Limit)})
	err = repo.in.sess.Query("SELECT cause, kind, count(*), sum(CASE WHEN redriven_by<>'' THEN 1 ELSE 0 END), "+
		"min(at), max(at), max(run_id) FROM "+
		"(SELECT tenant, run_id, cause, kind, queue, redriven_by, at FROM dead_letters WHERE tenant=? "+
		"ORDER BY run_id DESC"+atMost+") AS newest "+
		where+" GROUP BY cause, kind ORDER BY count(*) DESC, cause, kind"+atMost, args,
		func(scan func(...any) error) error {
			var g LetterGroup
			err := scan(&g.Cause, &g.Kind, &g.Count, &g.Redriven, &g.Oldest, &g.Newest, &g.Example)
			out = append(out, g)
			return err
		})
	if err != nil {
		return nil, err
	}
	for i := range out {
		d, _, err := repo.Get(t, out[i].Example)
		if err != nil {
			return nil, err
		}
		out[i].Message = d.Message
	}
	return out, nil
}

// Put stages a dead letter.
func (repo *DeadLetters) Put(d perdure.DeadLetter) {
	putRow(&repo.rows, runKey{d.Tenant, d.RunID}, d)
}

// Drop stages the removal of a dead letter. Its run stays.
func (repo *DeadLetters) Drop(t perdure.TenantID, run perdure.RunID) {
	dropRow(&repo.rows, runKey{t, run})
	addRows(&repo.in.tx.later, statement{"DELETE FROM dead_letters WHERE tenant=? AND run_id=?",
		[]any{string(t), string(run)}, anyNumber})
}
