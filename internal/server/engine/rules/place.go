package rules

import (
	"crypto/sha256"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/store"
)

// EnsureQueue stages the row of a queue if it is missing.
func EnsureQueue(tx *kernel.Tx, t perdure.TenantID, queue string) error {
	return tx.EnsureStored("queue\x00"+string(t)+"\x00"+queue, func() error {
		_, have, err := tx.DB.Queues.Get(t, queue)
		if err == nil && !have {
			tx.DB.Queues.Put(store.QueueRow{Tenant: t, Name: queue, CreatedAt: tx.Now})
		}
		return err
	})
}

// PlacesKey gives a key for queues and kinds.
func PlacesKey(queues, kinds []string) string {
	h := sha256.New()
	for _, list := range [][]string{queues, kinds} {
		for _, name := range list {
			h.Write([]byte(name + "\x00"))
		}
		h.Write([]byte{1})
	}
	return string(h.Sum(nil)[:16])
}
