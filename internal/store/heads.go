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
func (v *View) Heads(t perdure.TenantID, ids []perdure.RunID) (out []Head, err error) {
	err = eachPart(v.dialect, texts(ids), func(part []string) error {
		given, args := v.dialect.keyed("runs", []string{"tenant", "id"}, []string{string(t)}, part)
		return v.sess.Query("SELECT id,seq,state,deferred_at FROM runs "+given, args, func(scan func(...any) error) error {
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

// RunsByID gives runs of a tenant. Those that don't exist are left out; the order is not that of ids.
func (v *View) RunsByID(t perdure.TenantID, ids []perdure.RunID) (out []perdure.Run, err error) {
	err = eachPart(v.dialect, texts(ids), func(part []string) error {
		given, args := v.dialect.keyed("runs", []string{"tenant", "id"}, []string{string(t)}, part)
		return runTable.query(v.sess, given, args, func(r *perdure.Run) error {
			out = append(out, *r)
			return nil
		})
	})
	return out, err
}

// CredentialsByID gives keys by their ids. Those that don't exist are left out.
func (v *View) CredentialsByID(ids []string) (out []perdure.Key, err error) {
	err = eachPart(v.dialect, ids, func(part []string) error {
		given, args := v.dialect.keyed("keys", []string{"id"}, nil, part)
		return keysTable.query(v.sess, given, args, func(k *perdure.Key) error {
			out = append(out, *k)
			return nil
		})
	})
	return out, err
}
