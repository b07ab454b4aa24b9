package store

import (
	"errors"
	"math"
	"slices"
	"strings"

	"github.com/perdure/perdure"
)

// An eventRow is a line of a run's log.
type eventRow struct {
	Tenant perdure.TenantID
	RunID  perdure.RunID
	perdure.Line
}

var eventTable = register(&table[eventRow]{
	name: "events", once: true, keys: []string{"tenant", "run_id", "seq"},
	groups: [][]string{{"tenant", "at", "attempt", "epoch"}, {"seq", "type"}, {"data"}},
	columns: func(c *columns, e *eventRow) {
		text(c, "tenant", &e.Tenant)
		text(c, "run_id", &e.RunID)
		number(c, "seq", &e.Seq)
		text(c, "type", (*string)(&e.Type))
		number(c, "at", &e.At)
		number(c, "attempt", &e.Attempt)
		number(c, "epoch", &e.Epoch)
		text(c, "data", &e.Data)
	},
})

// Events holds the lines of the runs' logs.
type Events struct {
	in     *base
	values *Values
	rows   added[eventRow]
}

func (repo *Events) open(in *base, values *Values) {
	repo.values = values
	repo.in = in
	openAdded(&repo.rows, in, eventTable)
}

const eventsAfter = "WHERE tenant=? AND run_id=? AND seq>? ORDER BY seq" + atMost

// After reads a run's log after a line, as the database has it. Lines of the batch are not
// included.
func (repo *Events) After(t perdure.TenantID, run perdure.RunID, after int64, limit int) ([]perdure.Line, error) {
	var out []perdure.Line
	err := eventTable.query(repo.in.sess, eventsAfter, []any{string(t), string(run), after, int64(limit)},
		func(e *eventRow) error {
			out = append(out, e.Line)
			return nil
		})
	return out, err
}

// Within reads a run's log after a line: at most limit lines, and no more once they have that many
// bytes.
func (repo *Events) Within(
	t perdure.TenantID, run perdure.RunID, after int64, limit, bytes int,
) ([]perdure.Line, error) {
	var out []perdure.Line
	err := eventTable.query(repo.in.sess, eventsAfter, []any{string(t), string(run), after, int64(limit)},
		func(e *eventRow) error {
			out = append(out, e.Line)
			if bytes -= len(e.Data); bytes <= 0 {
				return errEnough
			}
			return nil
		})
	if errors.Is(err, errEnough) {
		err = nil
	}
	return out, err
}

// Last reads the end of a run's log, the last line first: at most limit lines, and no more once
// they have that many bytes.
func (repo *Events) Last(t perdure.TenantID, run perdure.RunID, limit, bytes int) (out []perdure.Line, err error) {
	err = eventTable.query(repo.in.sess, "WHERE tenant=? AND run_id=? ORDER BY seq DESC"+atMost,
		[]any{string(t), string(run), int64(limit)}, func(e *eventRow) error {
			out = append(out, e.Line)
			if bytes -= len(e.Data); bytes <= 0 {
				return errEnough
			}
			return nil
		})
	if errors.Is(err, errEnough) {
		err = nil
	}
	return out, err
}

// LastOf calls enough with the lines of a type after a given one, the last one first, until it
// returns true. Lines of the batch are included. A value that is stored by its hash is given in
// full.
func (repo *Events) LastOf(
	t perdure.TenantID, run perdure.RunID, typ perdure.LineType, after int64, enough func(perdure.Line) bool,
) error {
	for _, e := range slices.Backward(repo.rows.list) {
		if e.Tenant != t || e.RunID != run || e.Type != typ || e.Seq <= after {
			continue
		}
		full, err := repo.values.Resolve(t, e.Data)
		if err != nil {
			return err
		}
		if e.Data = full; enough(e.Line) {
			return nil
		}
	}
	// Stored lines are read a few at a time: most callers have enough soon.
	const few = 32
	for before := int64(math.MaxInt64); ; {
		var some []perdure.Line
		err := eventTable.query(repo.in.sess,
			"WHERE tenant=? AND run_id=? AND seq>? AND seq<? AND type=? ORDER BY seq DESC"+atMost,
			[]any{string(t), string(run), after, before, string(typ), int64(few)}, func(e *eventRow) error {
				some = append(some, e.Line)
				return nil
			})
		if err != nil {
			return err
		}
		for _, l := range some {
			if l.Data, err = resolve(repo.in.sess, t, l.Data); err != nil {
				return err
			}
			if enough(l) {
				return nil
			}
			before = l.Seq
		}
		if len(some) < few {
			return nil
		}
	}
}

// OfTypes reads the last lines of some types of a run's log, in their order.
func (repo *Events) OfTypes(
	t perdure.TenantID, run perdure.RunID, types []perdure.LineType, limit int,
) ([]perdure.Line, error) {
	args := []any{string(t), string(run)}
	for _, typ := range types {
		args = append(args, string(typ))
	}
	var out []perdure.Line
	err := eventTable.query(repo.in.sess,
		"WHERE tenant=? AND run_id=? AND type IN (?"+strings.Repeat(",?", len(types)-1)+") ORDER BY seq DESC"+atMost,
		append(args, int64(limit)), func(e *eventRow) error {
			out = append(out, e.Line)
			return nil
		})
	slices.Reverse(out)
	return out, err
}

// AttemptOf gives the attempt that an epoch of a run was granted for. It is zero if the log does
// not have that epoch any more. Epochs only increase along a log, so that a binary search finds it.
func (repo *Events) AttemptOf(r *perdure.Run, epoch int64) (attempt int, err error) {
	for low, high := int64(1), r.Seq; low <= high; {
		middle := low + (high-low)/2
		var at, of int64
		n := 0
		err := repo.in.sess.Query("SELECT seq, epoch, attempt FROM events WHERE tenant=? AND run_id=? AND seq>=? "+
			"ORDER BY seq LIMIT 1",
			[]any{string(r.Tenant), string(r.ID), middle},
			func(scan func(...any) error) error { return scan(&at, &of, &n) })
		switch {
		case err != nil:
			return 0, err
		case at == 0 || of >= epoch:
			if at != 0 && of == epoch {
				attempt = n
			}
			high = middle - 1
		default:
			low = at + 1
		}
	}
	return attempt, nil
}

// endWithin is how many of the last lines Ended reads. Few lines follow an end: a dead letter, late
// results, late callbacks.
const endWithin = 64

// Ended tells whether the last lines of a run's log include its end. It reads the database without
// the changes of the batch, to check runs that are live by their row.
func (repo *Events) Ended(t perdure.TenantID, run perdure.RunID) (ended bool, err error) {
	err = repo.in.sess.Query("SELECT COUNT(*) FROM (SELECT type FROM events WHERE tenant=? AND run_id=? "+
		"ORDER BY seq DESC"+atMost+") AS last WHERE type IN (?,?,?,?)",
		[]any{string(t), string(run), int64(endWithin), string(perdure.LineCompleted), string(perdure.LineFailed),
			string(perdure.LineTimedOut), string(perdure.LineCancelled)},
		func(scan func(...any) error) error {
			var n int64
			err := scan(&n)
			ended = n > 0
			return err
		})
	return ended, err
}
