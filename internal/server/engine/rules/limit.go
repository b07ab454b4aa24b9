package rules

import (
	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
)

// lookAtLimit has the watchdog look at a limit that runs wait at, once every node has what it allows now.
func lookAtLimit(tx *kernel.Tx, t perdure.TenantID, limit string) error {
	row, ok, err := tx.DB.LimitKeys.Get(t, perdure.LimitRef{Limit: limit})
	if at := tx.Now.Add(KindTTL); err == nil && ok && row.Waiting > 0 && (row.AlarmAt == 0 || row.AlarmAt > at) {
		row.AlarmAt = at
		tx.DB.LimitKeys.Put(row)
		tx.WakeAt(at)
	}
	return err
}
