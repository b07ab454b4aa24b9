package store

import (
	"cmp"
	"encoding/json"
	"errors"
	"maps"
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
// allows. There are indexes by tree, by parent, by metadata entry, by alarm (live runs), by state
// (runs that ended without success), by queue, by kind, and the primary key. The other conditions are
// checked on the rows.
//
// A page ends when it has enough runs or bytes, when enough candidates were examined, or when its
// time is over. Next then says where the following page begins. A page may be empty and still have
// a Next.

// A RunFilter selects runs. Empty fields select all.
type RunFilter struct {
	Status   []string // each a state, or "deferred"
	State    []perdure.State
	Kind     string
	Queue    string
	ThreadID perdure.ThreadID
	ParentID perdure.RunID
	RootID   perdure.RunID
	Metadata map[string]string
	Before   perdure.RunID // the cursor: only older ones
	After    perdure.RunID // only newer ones
	Live     bool          // only runs that have not ended
	Limit    int

	// Heads reads only the fields of a Head. The other fields of the runs are empty.
	Heads bool

	// Bytes bounds the size of a page, which has at least one run; zero: PageBytes.
	Bytes int
	// Rows bounds the candidates that a page examines; zero: PageRows.
	Rows int
	// Over tells that the time for a page is over; nil: there is no limit.
	Over func() bool
}

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

// source selects the index by which the runs are found, and gives the function that does one step.
func (l *runList) source() (func() error, error) {
	f := &l.f
	switch {
	case f.RootID != "":
		return l.byIDs(l.ofTree), nil
	case f.ParentID != "":
		return l.byIDs(l.ofParent), nil
	case len(f.Metadata) > 0:
		find, err := l.rarestEntry()
		return l.byIDs(find), err
	case l.cond == "":
		return l.everything, nil
	case f.onlyLive():
		return l.live(), nil
	}
	if states := f.unsuccessful(); states != nil {
		return l.byIDs(func(n int) ([]perdure.RunID, error) { return l.ended(states, n) }), nil
	}
	switch {
	case f.Queue != "" && f.Queue != perdure.DefaultQueue:
		return l.byIDs(func(n int) ([]perdure.RunID, error) { return l.having("queue", f.Queue, n) }), nil
	case f.Kind != "":
		return l.byIDs(func(n int) ([]perdure.RunID, error) { return l.having("kind", f.Kind, n) }), nil
	}
	return l.slice, nil
}

// having finds runs by their kind or by a queue that is not the default one.
func (l *runList) having(column, value string, n int) ([]perdure.RunID, error) {
	but := ""
	if column == "queue" {
		but = " AND queue<>'default'" // selects the index
	}
	return l.find("SELECT id FROM runs WHERE tenant=? AND "+column+"=?"+but+" AND id<? AND id>? ORDER BY "+column+
		" DESC, id DESC"+atMost, string(l.t), value, string(l.before), string(l.f.After), int64(n))
}

// unsuccessful gives the states of the filter, if it selects only runs that ended without success.
// Few runs do, and they have an index.
func (f *RunFilter) unsuccessful() []string {
	states := texts(f.State)
	if len(states) == 0 {
		states = f.Status
	}
	for _, s := range states {
		if !perdure.State(s).Terminal() || s == string(perdure.Completed) {
			return nil
		}
	}
	return states
}

// ended finds runs that ended in one of these states.
func (l *runList) ended(states []string, n int) (out []perdure.RunID, err error) {
	for _, s := range slices.Compact(slices.Sorted(slices.Values(states))) {
		ids, err := l.find("SELECT id FROM runs WHERE tenant=? AND state=? AND state<>'completed' "+
			"AND alarm_at IS NULL AND id<? AND id>? ORDER BY state DESC, id DESC"+atMost,
			string(l.t), s, string(l.before), string(l.f.After), int64(n))
		if err != nil {
			return nil, err
		}
		out = append(out, ids...)
	}
	slices.SortFunc(out, func(a, b perdure.RunID) int { return strings.Compare(string(b), string(a)) })
	return out[:min(n, len(out))], nil
}

// onlyLive tells whether the filter selects live runs only.
func (f *RunFilter) onlyLive() bool {
	ended := func(s perdure.State) bool { return !s.Live() }
	endedStatus := func(s string) bool { return s != perdure.StatusDeferred && !perdure.State(s).Live() }
	return f.Live || len(f.State) > 0 && !slices.ContainsFunc(f.State, ended) ||
		len(f.Status) > 0 && !slices.ContainsFunc(f.Status, endedStatus)
}

// Matches tells whether a run has one of the filter's statuses and states. A run keeps the other
// fields that a filter selects by for all its life.
func (f *RunFilter) Matches(r *perdure.Run) bool {
	return (len(f.Status) == 0 || slices.Contains(f.Status, r.Status())) &&
		(len(f.State) == 0 || slices.Contains(f.State, r.State)) && (!f.Live || r.State.Live())
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
// than n when there are no more.
func (l *runList) byIDs(find func(n int) ([]perdure.RunID, error)) func() error {
	return func() error {
		const most = sliceRows
		ids, err := find(most)
		if err != nil {
			return err
		}
		for part := range slices.Chunk(ids, rowsAtFirst) {
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

// find reads ids.
func (l *runList) find(query string, args ...any) (ids []perdure.RunID, err error) {
	err = l.in.sess.Query(query, args, func(scan func(...any) error) error {
		var id perdure.RunID
		err := scan(&id)
		ids = append(ids, id)
		return err
	})
	return ids, err
}

// ofTree finds runs of a tree. The index does not contain the root.
func (l *runList) ofTree(n int) ([]perdure.RunID, error) {
	root := l.f.RootID
	ids, err := l.find("SELECT id FROM runs WHERE tenant=? AND root_id=? AND root_id<>id AND id<? AND id>? "+
		"ORDER BY root_id DESC, id DESC"+atMost,
		string(l.t), string(root), string(l.before), string(l.f.After), int64(n))
	if root < l.before && root > l.f.After && (len(ids) < n || root > ids[n-1]) {
		ids = append(ids, root)
		slices.SortFunc(ids, func(a, b perdure.RunID) int { return strings.Compare(string(b), string(a)) })
		ids = ids[:min(n, len(ids))]
	}
	return ids, err
}

// ofParent finds the children of a run. Their index does not have the order of ids, so that they
// are found first and sorted then.
func (l *runList) ofParent(n int) ([]perdure.RunID, error) {
	return l.find("WITH children AS MATERIALIZED (SELECT id FROM runs WHERE tenant=? AND parent_id=? "+
		"AND parent_id<>'') "+
		"SELECT id FROM children WHERE id<? AND id>? ORDER BY id DESC"+atMost, string(l.t), string(l.f.ParentID),
		string(l.before), string(l.f.After), int64(n))
}

// rarestEntry finds runs by one metadata entry of the filter: the one that the fewest runs have,
// counted up to sliceRows.
func (l *runList) rarestEntry() (func(n int) ([]perdure.RunID, error), error) {
	name, fewest := "", int64(sliceRows+1)
	for _, k := range slices.Sorted(maps.Keys(l.f.Metadata)) {
		n := int64(0)
		if len(l.f.Metadata) > 1 {
			err := l.in.sess.Query("SELECT count(*) FROM (SELECT 1 FROM run_metadata WHERE tenant=? AND name=? "+
				"AND value=?"+atMost+") AS part",
				[]any{string(l.t), k, indexed(l.f.Metadata[k]), int64(sliceRows)},
				func(scan func(...any) error) error { return scan(&n) })
			if err != nil {
				return nil, err
			}
		}
		if n < fewest {
			name, fewest = k, n
		}
	}
	return func(n int) ([]perdure.RunID, error) {
		return l.find("SELECT run_id FROM run_metadata "+
			"WHERE tenant=? AND name=? AND value=? AND run_id<? AND run_id>? "+
			"ORDER BY tenant DESC, name DESC, value DESC, run_id DESC"+atMost,
			string(l.t), name, indexed(l.f.Metadata[name]), string(l.before), string(l.f.After), int64(n))
	}, nil
}

// live gives steps for a filter of live runs. The first step is slice: where most runs are live, it
// fills the page. Otherwise the live runs are few and are found by the index of alarms.
func (l *runList) live() func() error {
	step, first := l.slice, true
	return func() error {
		if !first {
			return step()
		}
		first = false
		if err := l.slice(); err != nil || l.done {
			return err
		}
		ids, all, err := l.runs.liveIDs(l.t)
		if err != nil || !all {
			return err
		}
		step = l.byIDs(func(n int) ([]perdure.RunID, error) {
			for len(ids) > 0 && ids[0] >= l.before {
				ids = ids[1:]
			}
			for len(ids) > 0 && ids[len(ids)-1] <= l.f.After {
				ids = ids[:len(ids)-1]
			}
			return ids[:min(n, len(ids))], nil
		})
		return nil
	}
}

// liveIDs gives the tenant's live runs, newest first. all is false if there are more than PageRows.
func (repo *Runs) liveIDs(t perdure.TenantID) (ids []perdure.RunID, all bool, err error) {
	err = repo.in.sess.Query("SELECT id FROM runs WHERE tenant=? AND alarm_at IS NOT NULL ORDER BY alarm_at, id"+
		atMost, []any{string(t), int64(PageRows + 1)}, func(scan func(...any) error) error {
		var id perdure.RunID
		err := scan(&id)
		ids = append(ids, id)
		return err
	})
	slices.SortFunc(ids, func(a, b perdure.RunID) int { return strings.Compare(string(b), string(a)) })
	return ids, len(ids) <= PageRows, err
}

// conditions gives the filter as conditions on a row of runs, each preceded by AND.
func (f *RunFilter) conditions(d *dialect) (string, []any, error) {
	var where strings.Builder
	var args []any
	and := func(cond string, arg string) {
		if arg != "" {
			where.WriteString(" AND " + cond)
			args = append(args, arg)
		}
	}
	oneOf := func(column string, values []string) string {
		for _, v := range values {
			args = append(args, v)
		}
		if len(values) == 1 {
			return column + "=?"
		}
		return column + " IN (?" + strings.Repeat(",?", len(values)-1) + ")"
	}
	const deferred = "deferred_at>0 AND alarm_at IS NOT NULL"
	if plain := slices.DeleteFunc(slices.Clone(f.Status), isDeferred); len(plain) > 0 {
		cond := oneOf("state", plain) + " AND (deferred_at=0 OR alarm_at IS NULL)"
		if len(plain) < len(f.Status) {
			cond = "(" + cond + " OR " + deferred + ")"
		}
		where.WriteString(" AND " + cond)
	} else if len(f.Status) > 0 {
		where.WriteString(" AND " + deferred)
	}
	if len(f.State) > 0 {
		where.WriteString(" AND " + oneOf("state", texts(f.State)))
	}
	and("kind=?", f.Kind)
	and("queue=?", f.Queue)
	and("thread_id=?", string(f.ThreadID))
	and("parent_id=?", string(f.ParentID))
	and("root_id=?", string(f.RootID))
	if f.Live {
		where.WriteString(" AND alarm_at IS NOT NULL")
	}
	for _, k := range slices.Sorted(maps.Keys(f.Metadata)) {
		// Metadata is an object of strings, written without spaces, so that a name and its value
		// are adjacent.
		pair, err := json.Marshal(map[string]string{k: f.Metadata[k]})
		if err != nil {
			return "", nil, err
		}
		and(d.contains, strings.Trim(string(pair), "{}"))
	}
	return where.String(), args, nil
}

func isDeferred(status string) bool { return status == perdure.StatusDeferred }
