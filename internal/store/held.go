package store

import (
	"fmt"
	"strings"

	"github.com/perdure/perdure"
)

// Runs that are held back.
//
// A run that a defect of the code holds waits for its backoff, and a build that has not held it may
// claim it before. The column held_by has the builds that may not. It is empty for every other run,
// and runs_held is a partial index of the runs that have it. So a poll costs nothing more while no
// run is held back.

// packHeldBy gives the column held_by.
func packHeldBy(r *perdure.Run) string {
	if !r.HeldBack() {
		return ""
	}
	return "\n" + strings.Join(r.Hold.Builds, "\n") + "\n"
}

// HeldPlaces gives queues and kinds that have a run that is held back, in order, and at most limit.
func (repo *Claims) HeldPlaces(limit int) (out []Ready, err error) {
	for last := (Ready{}); len(out) < limit; {
		next := Ready{}
		err := repo.in.sess.Query("SELECT tenant, queue, kind FROM runs WHERE held_by<>'' "+
			"AND (tenant,queue,kind)>(?,?,?) ORDER BY tenant, queue, kind LIMIT 1",
			[]any{string(last.Tenant), last.Queue, last.Kind},
			func(scan func(...any) error) error { return scan(&next.Tenant, &next.Queue, &next.Kind) })
		if err != nil || next.Tenant == "" {
			return out, err
		}
		out, last = append(out, next), next
	}
	return out, nil
}

// HeldBack gives the runs of a place after one that are held back and that a build has not held. It
// reads at most limit rows. next is the last run that was read, and empty after the last of all.
func (repo *Claims) HeldBack(
	at Ready, build string, after perdure.RunID, limit int,
) (ids []perdure.RunID, next perdure.RunID, err error) {
	n := 0
	err = repo.in.sess.Query(fmt.Sprintf("SELECT id, held_by FROM runs WHERE held_by<>'' AND tenant=? AND queue=? "+
		"AND kind=? AND id>? ORDER BY id LIMIT %d", limit),
		[]any{string(at.Tenant), at.Queue, at.Kind, string(after)}, func(scan func(...any) error) error {
			var by string
			if err := scan(&next, &by); err != nil {
				return err
			}
			n++
			if !strings.Contains(by, "\n"+build+"\n") && !repo.in.tx.RunLocked(at.Tenant, next) {
				ids = append(ids, next)
			}
			return nil
		})
	if n < limit {
		next = ""
	}
	return ids, next, err
}
