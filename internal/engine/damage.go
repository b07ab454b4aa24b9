package engine

import (
	"encoding/json"
	"errors"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/doorbell"
)

// EndDamaged ends a run that is not what was written. What can be read of it stands in its dead letter.
func (tx *Tx) EndDamaged(r *perdure.Run) (Repair, error) {
	why := perdure.Failure{Code: perdure.CodeDamaged, Message: "the run is damaged: " + r.Damage.What}
	signed, err := tx.e.signing.requires(tx, r.Tenant)
	if err != nil {
		return Repair{}, err
	}
	if signed {
		why = perdure.Failure{Code: perdure.CodeSignatureInvalid, Message: "the run is not what was accepted: " + r.Damage.What}
	}
	tx.DB.After(func() {
		tx.e.log.Warn("a run is damaged and ends", "tenant", r.Tenant, "run", r.ID, "why", why.Message)
	})
	return Repair{"damaged", "failed/" + string(why.Code), why.Message}, tx.Finish(r, perdure.Spoiled{Failure: why})
}

// setRunAside ends a damaged run that a poll has found. One that can't end now counts as delivered, to nobody: it is not found again at
// once, and blocks nobody.
func setRunAside(tx *Tx, r *perdure.Run, worker string) error {
	// It may have stood before others, who were not looked at.
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
	return tx.Apply(&before, perdure.Granted{Worker: worker})
}

// readable tells whether a value is JSON, or stands elsewhere.
func readable(v perdure.Value) bool {
	_, _, ref := v.Ref()
	return ref || v == "" || json.Valid([]byte(v))
}
