package store

import (
	"hash/fnv"
	"slices"
	"time"

	"github.com/perdure/perdure"
)

// Inputs without a version.
//
// A batch is decided on rows whose versions are compared when it is written, and on some that have no
// version, such as the set of endpoints or the limits of a queue. Of those it notes the tenant. What
// changes them in this process says so (Outdate); a change by another node is bounded by MaxAge.

// Outdate has the batches of this process decided again that depend on inputs of a tenant and are not
// being written yet. Callers use it when an input changes that no version guards.
func (s *Store) Outdate(t perdure.TenantID) { s.changes[inputsOf(t)].Add(1) }

// DependsOn says that the batch uses inputs of a tenant that no version guards. It has to be called
// before they are read.
func (tx *Tx) DependsOn(t perdure.TenantID) {
	slot := inputsOf(t)
	if !slices.ContainsFunc(tx.inputs, func(x input) bool { return x.slot == slot }) {
		tx.inputs = append(tx.inputs, input{slot, tx.s.changes[slot].Load()})
	}
}

// inputs is the number of counters of changed inputs. Tenants share them by hash.
const inputs = 256

// An input is a counter as it was when a batch began to depend on it.
type input struct {
	slot int
	seen int64
}

func inputsOf(t perdure.TenantID) int {
	h := fnv.New32a()
	h.Write([]byte(t))
	return int(h.Sum32() % inputs)
}

// outdated tells whether a batch has to be decided again because of Outdate or MaxAge.
func (s *Store) outdated(tx *Tx) bool {
	changed := func(x input) bool { return x.seen != s.changes[x.slot].Load() }
	return !tx.ignoreAge && (slices.ContainsFunc(tx.inputs, changed) || s.age != nil && s.age(tx.begun) > MaxAge)
}

// MaxAge is the maximal age of a decision when its transaction begins, if other nodes write too.
// Some inputs have no version, such as the set of endpoints, and may have changed since. After
// maxOld outdated decisions the batch is written anyway, so that a slow database does not stop all
// work.
const (
	MaxAge = 500 * time.Millisecond
	maxOld = 3
)
