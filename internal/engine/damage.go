package engine

import (
	"encoding/json"
	"errors"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/doorbell"
)

// EndDamaged ends a run whose stored row is damaged. The dead letter holds what can be read of it.
func (tx *Tx) EndDamaged(r *perdure.Run) (Repair, error) {
	why := perdure.Failure{Code: perdure.CodeDamaged, Message: "the run is damaged: " + r.Damage.What}
	signed, err := requiresSigned(tx, r.Tenant)
	if err != nil {
		return Repair{}, err
	}
	if signed {
		why = perdure.Failure{Code: perdure.CodeSignatureInvalid,
			Message: "the run is not what was accepted: " + r.Damage.What}
	}
	tx.DB.After(func() {
		tx.e.log.Warn("a run is damaged and ends", "tenant", r.Tenant, "run", r.ID, "why", why.Message)
	})
	return Repair{"damaged", "failed/" + string(why.Code), why.Message}, tx.Finish(r, perdure.Corrupted{Failure: why})
}

// setRunAside ends a damaged run that a poll has found. A run that can't end now is granted without
// handing it over, so that the next polls do not find it first.
func setRunAside(tx *Tx, r *perdure.Run, worker, build string) error {
	// The poll has spent a slot on it: another poll looks at the runs behind it.
	tx.ring(doorbell.Queue(r.Tenant, r.Queue).Of(r.Kind))
	before := *r
	err := tx.Try(func() error {
		_, err := tx.EndDamaged(r)
		return err
	})
	var refused *perdure.Error
	if !errors.As(err, &refused) {
		return err
	}
	tx.e.log.Error("a damaged run can't end", "tenant", r.Tenant, "run", r.ID, "error", err)
	if before.State.Leased() && !before.Ready {
		return nil
	}
	return tx.Apply(&before, perdure.Granted{Worker: worker, Build: build})
}

// readable tells whether a value is valid JSON, or a reference.
func readable(v perdure.Value) bool {
	_, _, ref := v.Ref()
	return ref || v == "" || json.Valid([]byte(v))
}
