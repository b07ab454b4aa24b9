package store

import (
	"errors"
	"math"
	"slices"

	"github.com/perdure/perdure"
)

// Last reads the end of a run's log, the last line first: so many lines, and no more once they hold that many bytes.
func (repo *Events) Last(t perdure.TenantID, run perdure.RunID, limit, bytes int) (out []perdure.Line, err error) {
	err = eventTable.query(repo.in.sess, "WHERE tenant=? AND run_id=? ORDER BY seq DESC"+atMost, []any{string(t), string(run), int64(limit)}, func(e *EventRow) error {
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

// ChangedAt gives when something last happened to a run: a sign of life, a line of its log, an item of its inbox. The row
// alone does not tell, because a signal that nobody waits for writes none of its instants.
func (repo *Runs) ChangedAt(r *perdure.Run) (perdure.Instant, error) {
	at := max(r.CreatedAt, r.StartedAt, r.SeenAt, r.FinishedAt)
	lines, err := repo.in.Events.Last(r.Tenant, r.ID, 1, 1)
	if err != nil {
		return 0, err
	}
	for i := range lines {
		at = max(at, lines[i].At)
	}
	err = itemTable.query(repo.in.sess, "WHERE tenant=? AND run_id=? AND seq=?", []any{string(r.Tenant), string(r.ID), r.InboxSeq}, func(i *perdure.Item) error {
		at = max(at, i.CreatedAt)
		return nil
	})
	return at, err
}

// Skipped gives what the watchdog skipped of a run's inbox: the last ones, oldest first.
func (repo *Inbox) Skipped(t perdure.TenantID, run perdure.RunID, limit int) (out []perdure.Item, err error) {
	err = itemTable.query(repo.in.sess, "WHERE tenant=? AND run_id=? AND status='skipped' ORDER BY seq DESC"+atMost, []any{string(t), string(run), int64(limit)}, func(i *perdure.Item) error {
		out = append(out, *i)
		return nil
	})
	slices.Reverse(out)
	return out, err
}



// lastLines looks for them a few at a time: most callers have enough soon.
func lastLines(s Session, t perdure.TenantID, run perdure.RunID, typ string, after int64, enough func(perdure.Line) bool) error {
	const few = 32
	for before := int64(math.MaxInt64); ; {
		var some []perdure.Line
		err := eventTable.query(s, "WHERE tenant=? AND run_id=? AND seq>? AND seq<? AND type=? ORDER BY seq DESC"+atMost,
			[]any{string(t), string(run), after, before, typ, int64(few)}, func(e *EventRow) error {
				some = append(some, e.Line)
				return nil
			})
		if err != nil {
			return err
		}
		for _, l := range some {
			if l.Data, err = resolve(s, t, l.Data); err != nil {
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

// FirstOpen gives a run's open waits, in the order of their ids: at most so many.
func (repo *Waits) FirstOpen(t perdure.TenantID, run perdure.RunID, limit int) (out []perdure.Wait, err error) {
	err = waitTable.query(repo.in.sess, "WHERE tenant=? AND run_id=? AND state='open' ORDER BY id"+atMost, []any{string(t), string(run), int64(limit)}, func(w *perdure.Wait) error {
		out = append(out, *w)
		return nil
	})
	return out, err
}

// maxFamily bounds how many children are looked at to find those that live.
const maxFamily = 1000

// Family gives children of a run: at most so many, those that live first, and each in the order of their keys.
func (repo *Runs) Family(t perdure.TenantID, parent perdure.RunID, limit int) ([]perdure.Run, error) {
	var live, ended []perdure.RunID
	err := repo.in.sess.Query("SELECT id, CASE WHEN alarm_at IS NULL THEN 0 ELSE 1 END FROM runs WHERE tenant=? AND parent_id=? AND parent_id<>'' ORDER BY journal_key"+atMost,
		[]any{string(t), string(parent), int64(maxFamily)}, func(scan func(...any) error) error {
			var id perdure.RunID
			var lives int64
			err := scan(&id, &lives)
			if lives == 1 {
				live = append(live, id)
			} else {
				ended = append(ended, id)
			}
			return err
		})
	if err != nil {
		return nil, err
	}
	chosen := append(live, ended...)
	chosen = chosen[:min(limit, len(chosen))]
	found, err := repo.ByID(t, chosen)
	if err != nil {
		return nil, err
	}
	byID := make(map[perdure.RunID]perdure.Run, len(found))
	for _, r := range found {
		byID[r.ID] = r
	}
	out := make([]perdure.Run, 0, len(found))
	for _, id := range chosen {
		if r, ok := byID[id]; ok {
			out = append(out, r)
		}
	}
	return out, nil
}

// AttemptOf gives the attempt that an epoch of a run was granted for, or zero if the log does not say, or no longer.
// Epochs only rise along a log, so that a few of its lines tell.
func (repo *Events) AttemptOf(r *perdure.Run, epoch int64) (attempt int, err error) {
	for low, high := int64(1), r.Seq; low <= high; {
		middle := low + (high-low)/2
		var at, of int64
		n := 0
		err := repo.in.sess.Query("SELECT seq, epoch, attempt FROM events WHERE tenant=? AND run_id=? AND seq>=? ORDER BY seq LIMIT 1",
			[]any{string(r.Tenant), string(r.ID), middle}, func(scan func(...any) error) error { return scan(&at, &of, &n) })
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
