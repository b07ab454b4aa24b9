package store

import (
	"cmp"
	"errors"
	"slices"
	"strings"

	"github.com/perdure/perdure"
)

// Lists of runs.
//
// A list is read in bounded steps, so that a filter that matches few runs costs no more than one
// that matches all.
//
// Each step takes the next candidates, newest first, from the narrowest index that the filter
// allows. There are indexes by tree, by parent, by thread, by metadata entry, by alarm (live runs), by
// state (runs that ended without success), by queue, by kind, and the primary key. The other
// conditions are checked on the rows.
//
// A page ends when it has enough runs or bytes, when enough candidates were examined, or when its
// time is over. Next then says where the following page begins. A page may be empty and still have
// a Next.

// Limits of a page.
const (
	PageBytes = 8 << 20 // size of its rows
	PageRows  = 20000   // rows that are examined for it
)

const (
	rowsAtFirst = 64   // rows that one query reads, until their size is known
	sliceRows   = 1000 // candidates of one step
)

// A RunPage is a page of a list of runs.
type RunPage struct {
	Runs []perdure.Run
	// Next is the last run that was examined, if there may be more behind it: the Before of the
	// next page.
	Next perdure.RunID
	// Cut says that the page ended because of the rows or the time of the search, at Next.
	Cut bool
}

// List gives the first page of a tenant's runs, newest first.
func (repo *Runs) List(t perdure.TenantID, f RunFilter) ([]perdure.Run, error) {
	p, err := repo.Page(t, f)
	return p.Runs, err
}

// Page reads a page of a tenant's runs, newest first.
func (repo *Runs) Page(t perdure.TenantID, f RunFilter) (RunPage, error) {
	if f.Bytes == 0 {
		f.Bytes = PageBytes
	}
	if f.Rows == 0 {
		f.Rows = PageRows
	}
	f.Before = perdure.RunID(orLast(f.Before))
	cond, args, err := f.conditions(repo.in.dialect)
	if err != nil {
		return RunPage{}, err
	}
	l := &runList{in: repo.in, runs: repo, t: t, f: f, cond: cond, args: args, before: f.Before, bytes: f.Bytes}
	next, err := l.source()
	for err == nil && !l.done {
		if err = next(); err == nil && !l.done && (l.looked >= f.Rows || f.Over != nil && f.Over()) {
			l.end(l.before)
			l.page.Cut = true
		}
	}
	return l.page, err
}

// orLast gives a cursor, or if there is none a text that is greater than every id.
func orLast(before perdure.RunID) string { return cmp.Or(string(before), "~") }

// A runList is a page in the making.
type runList struct {
	in     *base
	runs   *Runs
	t      perdure.TenantID
	f      RunFilter
	cond   string // conditions on a row, each preceded by AND
	args   []any
	before perdure.RunID // runs from here on have been examined
	looked int           // number of candidates so far
	bytes  int           // remaining bytes of the page
	page   RunPage
	done   bool
}

// end ends the page. next is empty when there are no more runs.
func (l *runList) end(next perdure.RunID) { l.page.Next, l.done = next, true }

// add adds a run to the page, and tells whether the page is full.
func (l *runList) add(r *perdure.Run) bool {
	size := RunSize(r)
	if n := len(l.page.Runs); n > 0 && size > l.bytes {
		l.end(l.page.Runs[n-1].ID)
		return true
	}
	l.page.Runs, l.bytes, l.before = append(l.page.Runs, *r), l.bytes-size, r.ID
	if len(l.page.Runs) == l.f.Limit || l.bytes <= 0 {
		l.end(r.ID)
		return true
	}
	return false
}

// RunSize estimates the size of a run's row, and is at least the size of its JSON.
func RunSize(r *perdure.Run) int {
	const fields = 2 << 10 // names, numbers and ids
	n := fields + len(r.Input) + len(r.Metadata) + len(r.Result) + len(r.Progress) + len(r.Fallback) +
		quoted(r.Summary) + quoted(r.Activity) + quoted(r.Cancel.Reason)
	if r.Failure != nil {
		n += quoted(r.Failure.Message) + quoted(string(r.Failure.Code))
	}
	return n
}

// quoted is the maximal size of a text as JSON.
func quoted(s string) int {
	n := len(s)
	for i := range len(s) {
		if c := s[i]; c < ' ' || c == '<' || c == '>' || c == '&' || c == 0xe2 {
			n += 5
		} else if c == '"' || c == '\\' {
			n++
		}
	}
	return n
}

// rows is how many rows to read at once: as many as are likely to fit.
func (l *runList) rows() int {
	n := rowsAtFirst
	if have := len(l.page.Runs); have > 0 {
		n = l.bytes * have / max(1, l.f.Bytes-l.bytes)
	}
	return max(1, min(n, l.f.Limit-len(l.page.Runs), sliceRows))
}

// everything reads runs without a condition.
func (l *runList) everything() error {
	n := l.rows()
	got, err := l.read("WHERE tenant=? AND id<? AND id>? ORDER BY id DESC"+atMost, string(l.t), string(l.before),
		string(l.f.After), int64(n))
	if err == nil && got < n && !l.done {
		l.end("")
	}
	return err
}

// slice reads the matching runs among the next candidates by primary key.
func (l *runList) slice() error {
	most := min(sliceRows, l.f.Rows)
	count, last := 0, ""
	err := l.in.sess.Query("SELECT count(*), coalesce(min(id),'') FROM (SELECT id FROM runs WHERE tenant=? AND id<? "+
		"AND id>? ORDER BY id DESC"+atMost+") AS part",
		[]any{string(l.t), string(l.before), string(l.f.After), int64(most)},
		func(scan func(...any) error) error { return scan(&count, &last) })
	if err != nil {
		return err
	}
	l.looked += count
	for count > 0 && !l.done {
		n := l.rows()
		args := slices.Concat([]any{string(l.t), string(l.before), last}, l.args, []any{int64(n)})
		got, err := l.read("WHERE tenant=? AND id<? AND id>=?"+l.cond+" ORDER BY id DESC"+atMost, args...)
		if err != nil {
			return err
		}
		if got < n && !l.done {
			l.before = perdure.RunID(last)
			break
		}
	}
	if count < most && !l.done {
		l.end("")
	}
	return nil
}

// read adds the runs of a query to the page, and gives how many there were.
func (l *runList) read(rest string, args ...any) (n int, err error) {
	err = l.query(rest, args, func(r *perdure.Run) error {
		if n++; l.add(r) {
			return errEnough
		}
		return nil
	})
	if errors.Is(err, errEnough) {
		err = nil
	}
	return n, err
}

// query reads runs, or with Heads only the fields of their heads.
func (l *runList) query(rest string, args []any, each func(*perdure.Run) error) error {
	if !l.f.Heads {
		return runTable.query(l.in.sess, rest, args, each)
	}
	return l.in.sess.Query("SELECT "+headCols+" FROM runs "+rest, args, func(scan func(...any) error) error {
		r := perdure.Run{Tenant: l.t}
		if err := scan(&r.ID, &r.Seq, &r.State, &r.DeferredAt, &r.SeenAt); err != nil {
			return err
		}
		return each(&r)
	})
}

// byIDs makes a step of a function that finds the next candidates, newest first. find gives fewer
// than n when there are no more. The first step looks at about as many as the page takes, and the
// next ones at more: usually most of them match.
func (l *runList) byIDs(find idSource) func() error {
	few := max(l.f.Limit, 8)
	next, rows := min(2*few, sliceRows), min(few, rowsAtFirst)
	return func() error {
		most, size := next, rows
		next, rows = min(4*next, sliceRows), rowsAtFirst
		ids, err := find(most)
		if err != nil {
			return err
		}
		for part := range slices.Chunk(ids, size) {
			if err := l.readIDs(part); err != nil || l.done {
				return err
			}
			l.before, l.looked = part[len(part)-1], l.looked+len(part)
		}
		if len(ids) < most {
			l.end("")
		}
		return nil
	}
}

// readIDs adds those of some runs to the page that match.
func (l *runList) readIDs(ids []perdure.RunID) error {
	var found []perdure.Run
	err := eachPart(l.in.dialect, texts(ids), func(part []string) error {
		given, args := l.in.dialect.keyed("runs", []string{"tenant", "id"}, []string{string(l.t)}, part)
		return l.query(given+l.cond, append(args, l.args...), func(r *perdure.Run) error {
			found = append(found, *r)
			return nil
		})
	})
	slices.SortFunc(found, func(a, b perdure.Run) int { return strings.Compare(string(b.ID), string(a.ID)) })
	for i := range found {
		if err == nil && l.add(&found[i]) {
			break
		}
	}
	return err
}
