package store

import (
	"github.com/perdure/perdure"
)

// A Head is the state of a run and the length of its log: enough to see whether something has
// changed.
type Head struct {
	ID         perdure.RunID
	Seq        int64
	State      perdure.State
	DeferredAt perdure.Instant
	SeenAt     perdure.Instant // when its worker last gave a sign of life
}

// headCols are the columns of a head.
const headCols = "id,seq,state,deferred_at,seen_at"

// Heads gives the heads of a tenant's runs, in no order. Runs that don't exist are left out.
func (repo *Runs) Heads(t perdure.TenantID, ids []perdure.RunID) (out []Head, err error) {
	err = eachPart(repo.in.dialect, texts(ids), func(part []string) error {
		given, args := repo.in.dialect.keyed("runs", []string{"tenant", "id"}, []string{string(t)}, part)
		return repo.in.sess.Query("SELECT "+headCols+" FROM runs "+given, args,
			func(scan func(...any) error) error {
				var h Head
				if err := scan(&h.ID, &h.Seq, &h.State, &h.DeferredAt, &h.SeenAt); err != nil {
					return err
				}
				out = append(out, h)
				return nil
			})
	})
	return out, err
}

// ByID gives runs of a tenant, in no order. Runs that don't exist are left out.
func (repo *Runs) ByID(t perdure.TenantID, ids []perdure.RunID) (out []perdure.Run, err error) {
	err = eachPart(repo.in.dialect, texts(ids), func(part []string) error {
		given, args := repo.in.dialect.keyed("runs", []string{"tenant", "id"}, []string{string(t)}, part)
		return runTable.query(repo.in.sess, given, args, func(r *perdure.Run) error {
			out = append(out, *r)
			return nil
		})
	})
	return out, err
}

// A LiveRun is a run as a list of threads shows it.
type LiveRun struct {
	ID    perdure.RunID
	Root  perdure.RunID
	Kind  string
	State perdure.State
}

// Live gives the live ones among some runs.
func (repo *Runs) Live(t perdure.TenantID, ids []perdure.RunID) (map[perdure.RunID]LiveRun, error) {
	out := make(map[perdure.RunID]LiveRun, len(ids))
	err := eachPart(repo.in.dialect, texts(ids), func(part []string) error {
		cond, args := repo.in.dialect.anyOf("id", part)
		query := "SELECT id, root_id, kind, state FROM runs WHERE tenant=? AND " + cond + " AND alarm_at IS NOT NULL"
		return repo.in.sess.Query(query, append([]any{string(t)}, args...), func(scan func(...any) error) error {
			var r LiveRun
			err := scan(&r.ID, &r.Root, &r.Kind, &r.State)
			out[r.ID] = r
			return err
		})
	})
	return out, err
}
