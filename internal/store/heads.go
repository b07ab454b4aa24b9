package store

import (
	"github.com/perdure/perdure"
)

// A Head says how far a run's log goes, and what state the run is in: all that is needed to see whether something
// has happened.
type Head struct {
	ID         perdure.RunID
	Seq        int64
	State      perdure.State
	DeferredAt perdure.Instant
}

// Heads gives the heads of runs of a tenant. Those that don't exist are left out; the order is not that of ids.
func (repo *Runs) Heads(t perdure.TenantID, ids []perdure.RunID) (out []Head, err error) {
	err = eachPart(repo.in.dialect, texts(ids), func(part []string) error {
		given, args := repo.in.dialect.keyed("runs", []string{"tenant", "id"}, []string{string(t)}, part)
		return repo.in.sess.Query("SELECT id,seq,state,deferred_at FROM runs "+given, args, func(scan func(...any) error) error {
			var h Head
			if err := scan(&h.ID, &h.Seq, &h.State, &h.DeferredAt); err != nil {
				return err
			}
			out = append(out, h)
			return nil
		})
	})
	return out, err
}

// ByID gives runs of a tenant. Those that don't exist are left out; the order is not that of ids.
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

// ByID gives keys by their ids. Those that don't exist are left out.
func (repo *Keys) ByID(ids []string) (out []perdure.Key, err error) {
	err = eachPart(repo.in.dialect, ids, func(part []string) error {
		given, args := repo.in.dialect.keyed("keys", []string{"id"}, nil, part)
		return keysTable.query(repo.in.sess, given, args, func(k *perdure.Key) error {
			out = append(out, *k)
			return nil
		})
	})
	return out, err
}
