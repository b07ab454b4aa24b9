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

//
// A run that waits for its clean-up is in the index, too: a poll finds it in a queue that is paused.

// A HeldRead is a part of the queues and kinds that have a run that is held back: those of the tenants
// behind After, up to Last. Last is empty if there are no more tenants.
type HeldRead struct {
	After, Last perdure.TenantID
	Places      []Ready // in order
}

// HeldPlaces reads the places of the tenants behind one, at most perTenant of each. It begins no
// tenant once it has limit places.
func (repo *Claims) HeldPlaces(after perdure.TenantID, perTenant, limit int) (out HeldRead, err error) {
	out = HeldRead{After: after, Last: after}
	at, ofTenant := Ready{Tenant: after}, perTenant // the first place is one of another tenant
	for {
		from := behindPlace(at.Queue, at.Kind)
		where, args := "(tenant,queue,kind)>=(?,?,?)", []any{string(at.Tenant), from.Queue, from.Kind}
		if ofTenant >= perTenant {
			where, args = "tenant>?", args[:1]
		}
		next := Ready{}
		err := repo.in.sess.Query("SELECT tenant, queue, kind FROM runs WHERE held_by<>'' AND "+where+
			" ORDER BY tenant, queue, kind LIMIT 1", args,
			func(scan func(...any) error) error { return scan(&next.Tenant, &next.Queue, &next.Kind) })
		if err != nil {
			return out, err
		}
		if next.Tenant != at.Tenant || ofTenant >= perTenant {
			if next.Tenant != "" && len(out.Places) >= limit {
				return out, nil
			}
			if out.Last = next.Tenant; next.Tenant == "" {
				return out, nil
			}
			ofTenant = 0
		}
		out.Places, at = append(out.Places, next), next
		ofTenant++
	}
}

// HeldBack gives the runs of a place after one that are held back and that a build has not held, and those
// that wait for their clean-up; with cleanup only these. It
// reads at most limit rows. next is the last run that was read, and empty after the last of all.
func (repo *Claims) HeldBack(
	at Ready, build string, cleanup bool, after perdure.RunID, limit int,
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
			if by != heldForCleanup && (cleanup || strings.Contains(by, "\n"+build+"\n")) {
				return nil
			}
			if !repo.in.tx.RunLocked(at.Tenant, next) {
				ids = append(ids, next)
			}
			return nil
		})
	if n < limit {
		next = ""
	}
	return ids, next, err
}
