package life

import (
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/rules"
	"github.com/perdure/perdure/internal/server/plant"
	"github.com/perdure/perdure/internal/server/store"
)

// Unique and debounced runs.
//
// A run with a key has a row that names it. The row is taken in the operation that accepts the run, and
// given back in the one that starts or ends it: its version makes two takers conflict. The row alone does
// not decide. A key is taken only as long as its run says so: a run that has ended, or is gone, holds
// none, whoever ended it.

// AddKeys has an engine free the keys of runs that start or end.
func AddKeys(e *kernel.Engine) { e.OnApplied(releaseKey) }

// KeyKept is how long the row of a free key is kept.
const KeyKept = time.Hour

// holder gives the run that has a key, or nil.
func holder(tx *kernel.Tx, row *store.UniqueRow) (*perdure.Run, error) {
	if row.RunID == "" || row.Until != 0 && tx.Now >= row.Until {
		return nil, nil
	}
	r, ok, err := tx.DB.Runs.Get(row.Tenant, row.RunID)
	if err != nil || !ok {
		return nil, err
	}
	use := perdure.UniqueUse{Key: row.Key, While: row.While, Until: row.Until}
	if !use.Holds(&r, tx.Now) {
		return nil, nil
	}
	return &r, nil
}

// resolveUnique decides about a new run of a kind with a unique key. It gives the run that its caller gets
// instead, or nil. since is when a run that was replaced was created.
func resolveUnique(
	tx *kernel.Tx, t perdure.TenantID, kind string, u *perdure.Unique,
) (instead *perdure.Run, since perdure.Instant, err error) {
	row, err := tx.DB.Unique.Get(t, kind, store.KeyUnique, u.Key)
	if err != nil {
		return nil, 0, err
	}
	old, err := holder(tx, &row)
	switch {
	case err != nil || old == nil:
		return nil, 0, err
	case u.OnConflict == perdure.UniqueReturn:
		return old, 0, nil
	case u.OnConflict == perdure.UniqueReject:
		return nil, 0, notUnique(old, "run %s of kind %s has the unique key %q", old.ID, kind, u.Key)
	case old.StartedAt != 0 || old.State != perdure.Queued:
		return nil, 0, notUnique(old, "run %s of kind %s has the unique key %q and has begun: it is not replaced",
			old.ID, kind, u.Key)
	}
	return nil, old.CreatedAt, replaceRun(tx, old)
}

// notUnique is the refusal of a run whose key another one has.
func notUnique(old *perdure.Run, format string, args ...any) error {
	e := perdure.Errorf(perdure.CodeNotUnique, format, args...)
	e.Field, e.RunID = "unique", old.ID
	return e
}

// replaceRun ends a run that has never started, because another one takes its place.
func replaceRun(tx *kernel.Tx, old *perdure.Run) error {
	const why = "another submission under its unique key took its place"
	if old.Cancel.RequestedAt == 0 {
		if err := tx.Apply(old, perdure.CancelAsked{Reason: why}); err != nil {
			return err
		}
	}
	return Finish(tx, old, perdure.CancelEnforced{Why: why, Code: perdure.CodeReplaced})
}

// takeKey gives a run that was just accepted its key. The caller has found it free.
func takeKey(tx *kernel.Tx, r *perdure.Run) error {
	row := store.UniqueRow{Tenant: r.Tenant, Kind: r.Kind}
	switch {
	case r.Options.Unique != nil:
		use := r.Options.Unique
		row.Purpose, row.Key, row.While, row.Until = store.KeyUnique, use.Key, use.While, use.Until
	case r.Options.Debounce != nil:
		row.Purpose, row.Key, row.While = store.KeyDebounce, r.Options.Debounce.Key, perdure.UniqueWaiting
	default:
		return nil
	}
	known, err := tx.DB.Unique.Get(row.Tenant, row.Kind, row.Purpose, row.Key)
	if err != nil {
		return err
	}
	row.Version, row.RunID, row.FreeAt = known.Version, r.ID, row.Until
	tx.DB.Unique.Put(row)
	return nil
}

// keyOf reads the row of a run's key. ok is false if the run has none, or another run has it.
func keyOf(tx *kernel.Tx, r *perdure.Run) (row store.UniqueRow, ok bool, err error) {
	switch {
	case r.Options.Unique != nil:
		row, err = tx.DB.Unique.Get(r.Tenant, r.Kind, store.KeyUnique, r.Options.Unique.Key)
	case r.Options.Debounce != nil:
		row, err = tx.DB.Unique.Get(r.Tenant, r.Kind, store.KeyDebounce, r.Options.Debounce.Key)
	}
	return row, err == nil && row.RunID != "" && row.RunID == r.ID, err
}

// releaseKey is called for every transition: it frees the key of a run that does not hold it any more.
func releaseKey(tx *kernel.Tx, before, r *perdure.Run, _ []perdure.Line) error {
	if r.Options.Unique == nil && r.Options.Debounce == nil {
		return nil
	}
	started := r.StartedAt != 0 && before.StartedAt == 0
	ended := r.State.Terminal() && before.State.Live()
	if !started && !ended {
		return nil
	}
	row, ok, err := keyOf(tx, r)
	if err != nil || !ok || row.While == perdure.UniqueFor || row.While == perdure.UniqueLive && !ended &&
		!plant.Is("unique-dropped-early") {
		return err
	}
	return FreeKey(tx, r)
}

// FreeKey frees the key of a run, if it has one.
func FreeKey(tx *kernel.Tx, r *perdure.Run) error {
	row, ok, err := keyOf(tx, r)
	if err != nil || !ok {
		return err
	}
	row.RunID, row.Until, row.FreeAt = "", 0, tx.Now
	tx.DB.Unique.Put(row)
	return nil
}

// freeKeysOf frees the keys of a run whose row can't be read.
func freeKeysOf(tx *kernel.Tx, t perdure.TenantID, id perdure.RunID) error {
	rows, err := tx.DB.Unique.OfRun(t, id)
	for _, row := range rows {
		row.RunID, row.Until, row.FreeAt = "", 0, tx.Now
		tx.DB.Unique.Put(row)
	}
	return err
}

// repeatKey gives a retry the key of its original. It is refused while another run has it.
func repeatKey(tx *kernel.Tx, r, orig *perdure.Run) error {
	use := orig.Options.Unique
	if use == nil || use.While == perdure.UniqueFor && tx.Now >= use.Until {
		return nil
	}
	row, err := tx.DB.Unique.Get(orig.Tenant, orig.Kind, store.KeyUnique, use.Key)
	if err != nil {
		return err
	}
	old, err := holder(tx, &row)
	if err != nil {
		return err
	}
	if old != nil && old.ID != orig.ID {
		return notUnique(old, "run %s of kind %s has the unique key %q of the run that is to be repeated", old.ID,
			orig.Kind, use.Key)
	}
	r.Options.Unique = use
	return nil
}

// passKey gives the key of a run to the one that goes on for it, if the run still has it.
func passKey(tx *kernel.Tx, next, r *perdure.Run) error {
	if r.Options.Unique == nil {
		return nil
	}
	row, ok, err := keyOf(tx, r)
	if err != nil || !ok || row.While == perdure.UniqueWaiting {
		return err
	}
	next.Options.Unique = r.Options.Unique
	return nil
}

// debounceInto gives the run that a debounced submission becomes a part of, with its new input, or nil.
func debounceInto(tx *kernel.Tx, t perdure.TenantID, sub *perdure.Submission) (*perdure.Run, error) {
	row, err := tx.DB.Unique.Get(t, sub.Kind, store.KeyDebounce, sub.Debounce.Key)
	if err != nil {
		return nil, err
	}
	r, err := holder(tx, &row)
	if err != nil || r == nil || !r.Debounces() {
		return nil, err
	}
	next := *r
	next.Input = tx.DB.Values.InternShown(t, string(r.ID), sub.Input)
	if err := rules.SignRun(tx, &next); err != nil {
		return nil, err
	}
	at := min(tx.Now.Add(time.Duration(sub.Debounce.For)), r.Options.Debounce.Last)
	if plant.Is("debounce-past-max") {
		at = tx.Now.Add(time.Duration(sub.Debounce.For))
	}
	tx.DB.Runs.RenewInput()
	// The row of the key is written, so that this conflicts with another submission of another node.
	tx.DB.Unique.Put(row)
	return r, tx.Apply(r, perdure.Debounced{Input: next.Input, Signature: next.Signature, RunAt: at})
}
