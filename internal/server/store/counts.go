package store

import (
	"slices"

	"github.com/perdure/perdure"
)

// A RunCount is the number of runs that have these fields.
type RunCount struct {
	Kind, Queue string
	State       perdure.State
	Deferred    bool
	N           int
}

// Status gives the status of the runs.
func (c *RunCount) Status() string {
	if c.Deferred {
		return perdure.StatusDeferred
	}
	return string(c.State)
}

// countCols are the columns of a counted run: those that are grouped by, and those of conditions.
const countCols = "id, state, kind, queue, deferred_at, alarm_at, thread_id, parent_id, root_id, metadata"

// searchedCols are further columns of conditions. They are read if the filter has such a condition.
const searchedCols = ", worker, class, seen_at, deadline_at, finished_at, rest"

// TallyLive counts a tenant's live runs that match a filter, by kind, queue and status; with an empty tenant those
// of all. It looks at no more than most live runs, those with the earliest alarms, and tells whether there are more.
func (v *View) TallyLive(t perdure.TenantID, f RunFilter, most int) (out []RunCount, more bool, err error) {
	// Ordered by the alarm, so that the index of alarms is used.
	from, args := " FROM runs WHERE tenant=? AND alarm_at IS NOT NULL ORDER BY alarm_at, id"+atMost, []any{string(t)}
	if t == "" {
		from, args = " FROM runs WHERE alarm_at IS NOT NULL ORDER BY alarm_at, tenant, id"+atMost, nil
	}
	n := 0
	err = v.sess.Query("SELECT count(*) FROM (SELECT id"+from+") AS part", append(args, int64(most+1)),
		func(scan func(...any) error) error { return scan(&n) })
	if err != nil || n == 0 {
		return nil, false, err
	}
	out, err = v.countAmong(f, from, append(args, int64(most)))
	return out, n > most, err
}

// TallyEnded counts the ended runs that match a filter, among the newest runs of a tenant. oldest is
// the oldest of these, or empty if they are all.
func (v *View) TallyEnded(
	t perdure.TenantID, f RunFilter, most int,
) (out []RunCount, oldest perdure.RunID, err error) {
	const from = " FROM runs WHERE tenant=? ORDER BY id DESC" + atMost
	n := 0
	err = v.sess.Query("SELECT count(*), coalesce(min(id),'') FROM (SELECT id"+from+") AS part",
		[]any{string(t), int64(most)}, func(scan func(...any) error) error { return scan(&n, &oldest) })
	if n < most {
		oldest = ""
	}
	if err != nil || n == 0 {
		return nil, oldest, err
	}
	out, err = v.countAmong(f, from, []any{string(t), int64(most)})
	return slices.DeleteFunc(out, func(c RunCount) bool { return c.State.Live() }), oldest, err
}

// countAmong counts the runs of a bounded source that match a filter. among are the arguments of the source.
func (v *View) countAmong(f RunFilter, from string, among []any) (out []RunCount, err error) {
	cond, args, err := f.conditions(v.dialect)
	if err != nil {
		return nil, err
	}
	cols := countCols
	if f.Searches() {
		cols += searchedCols
	}
	args = slices.Concat(among, []any{orLast(f.Before), string(f.After)}, args)
	err = v.sess.Query("SELECT kind, queue, state, CASE WHEN deferred_at>0 AND alarm_at IS NOT NULL THEN 1 "+
		"ELSE 0 END AS deferred, count(*) FROM (SELECT "+cols+from+") AS part WHERE id<? AND id>?"+cond+
		" GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4", args, func(scan func(...any) error) error {
		var c RunCount
		var deferred int
		err := scan(&c.Kind, &c.Queue, &c.State, &deferred, &c.N)
		c.Deferred = deferred == 1
		out = append(out, c)
		return err
	})
	return out, err
}
