package life

import (
	"encoding/json"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/store"
)

// Limits as tenants set them. limit_room.go has their counts, limit_next.go who is next.

const (
	// maxTenantLimits is the number of limits of a tenant, and maxLimitOverrides that of keys with values of
	// their own.
	maxTenantLimits   = 1000
	maxLimitOverrides = 10_000
)

// PutLimit makes a limit, or changes one. Repeating it changes nothing. A lowered limit takes no lease away.
type PutLimit struct {
	Tenant      perdure.TenantID
	Name        string
	Values      perdure.LimitValues
	PerKey      bool
	Description string
	Key         string

	Limit   store.LimitRow
	Created bool
}

func (*PutLimit) Needs() []store.Ref { return nil }

// Do stages the limit.
func (op *PutLimit) Do(tx *kernel.Tx) error {
	op.Created = false
	if err := op.check(); err != nil {
		return err
	}
	body := []any{op.Values, op.PerKey, op.Description}
	_, err := kernel.UnderKey(tx, op.Tenant, "limit.set:"+op.Name, op.Key, body, func() (string, error) {
		return "", op.put(tx)
	}, func(string) (err error) {
		op.Limit, err = readLimit(tx, op.Tenant, op.Name)
		return err
	})
	return err
}

func (op *PutLimit) check() error {
	if err := perdure.CheckLimitName("name", op.Name); err != nil {
		return err
	}
	if err := perdure.CheckText("description", op.Description); err != nil {
		return err
	}
	if op.Values.Concurrency == 0 && op.Values.Rate == nil {
		return perdure.Unprocessable("concurrency", "give a concurrency of at least 1, a rate, or both; "+
			"close the limit if nothing is to be granted")
	}
	return op.Values.Validate()
}

func (op *PutLimit) put(tx *kernel.Tx) error {
	if err := tx.DB.RefuseIfFull(); err != nil {
		return err
	}
	row, known, err := tx.DB.Limits.Get(op.Tenant, op.Name)
	if err != nil {
		return err
	}
	spec, err := store.SpecOf(&op.Values)
	if err != nil {
		return err
	}
	exists := known && row.DeletedAt == 0
	switch {
	case exists && row.PerKey != op.PerKey:
		return perdure.Unprocessable("per_key", "can't be changed: delete the limit and make it anew")
	case exists && row.Description == op.Description && row.Spec == spec:
		op.Limit = row
		return nil
	case !known:
		n, err := tx.DB.Limits.Count(op.Tenant, maxTenantLimits)
		if err != nil {
			return err
		}
		if n >= maxTenantLimits {
			return perdure.Errorf(perdure.CodeQuota, "the tenant has %d limits, as many as it may have", n)
		}
		row = store.LimitRow{Tenant: op.Tenant, Name: op.Name}
	}
	if err := tx.Requires(kernel.Limits); err != nil {
		return err
	}
	if !exists {
		row.CreatedAt, row.DeletedAt, row.ClosedUntil, row.CloseReason = tx.Now, 0, 0, ""
	}
	row.Spec, row.PerKey, row.Description, row.ChangedAt = spec, op.PerKey, op.Description, tx.Now
	if exists {
		lookAgain(tx, &row)
	}
	tx.DB.Limits.Put(row)
	op.Limit, op.Created = row, !exists
	return tx.Audit(op.Tenant, perdure.AuditLimitSet, op.Name, "values", json.RawMessage(spec), "per_key", op.PerKey)
}

// lookAgain has the keys of a limit looked at that has changed: at once the one that it counts by, if it
// has none of its own, and the others by the watchdog.
func lookAgain(tx *kernel.Tx, row *store.LimitRow) {
	if !row.PerKey {
		touchLimit(tx, row.Tenant, perdure.LimitRef{Limit: row.Name})
	}
	row.AlarmAt, row.SweptTo = tx.Now, ""
	tx.WakeAt(row.AlarmAt)
}

// readLimit reads a limit that is not deleted.
func readLimit(tx *kernel.Tx, t perdure.TenantID, name string) (store.LimitRow, error) {
	if err := perdure.CheckName("name", name); err != nil {
		return store.LimitRow{}, err
	}
	row, ok, err := tx.DB.Limits.Get(t, name)
	if err == nil && (!ok || row.DeletedAt != 0) {
		err = kernel.NotFound("limit")
	}
	return row, err
}

// DeleteLimit deletes a limit. Runs that wait there go on, in bounded steps.
type DeleteLimit struct {
	Tenant perdure.TenantID
	Name   string
	Key    string
}

func (*DeleteLimit) Needs() []store.Ref { return nil }

// Do deletes the limit.
func (op *DeleteLimit) Do(tx *kernel.Tx) error {
	_, err := kernel.UnderKey(tx, op.Tenant, "limit.delete:"+op.Name, op.Key, nil, func() (string, error) {
		row, err := readLimit(tx, op.Tenant, op.Name)
		if err != nil {
			return "", err
		}
		row.DeletedAt = tx.Now
		lookAgain(tx, &row)
		tx.DB.Limits.Put(row)
		return "", tx.Audit(op.Tenant, perdure.AuditLimitDelete, op.Name)
	}, func(string) error { return nil })
	return err
}

// PutLimitKey gives a key of a limit values of its own, or those of the others again.
type PutLimitKey struct {
	Tenant   perdure.TenantID
	Name     string
	LimitKey string
	// Values without any field remove the key's own values.
	Values perdure.LimitValues
	Key    string

	Row store.LimitKeyRow
}

func (*PutLimitKey) Needs() []store.Ref { return nil }

// Do stages the values.
func (op *PutLimitKey) Do(tx *kernel.Tx) error {
	if err := checkKey(op.LimitKey); err != nil {
		return err
	}
	if err := op.Values.Validate(); err != nil {
		return err
	}
	_, err := kernel.UnderKey(tx, op.Tenant, "limit.key:"+op.Name+" "+op.LimitKey, op.Key, op.Values,
		func() (string, error) { return "", op.put(tx) },
		func(string) (err error) {
			op.Row, err = countsOf(tx, op.Tenant, perdure.LimitRef{Limit: op.Name, Key: op.LimitKey})
			return err
		})
	return err
}

func checkKey(key string) error {
	if key == "" {
		return perdure.Invalid("key", "is missing")
	}
	return perdure.CheckLimitKey("key", key)
}

func (op *PutLimitKey) put(tx *kernel.Tx) error {
	limit, err := readLimit(tx, op.Tenant, op.Name)
	if err != nil {
		return err
	}
	if !limit.PerKey {
		return perdure.Unprocessable("key", "limit %s has no keys: it was made without per_key", op.Name)
	}
	row, err := countsOf(tx, op.Tenant, perdure.LimitRef{Limit: op.Name, Key: op.LimitKey})
	if err != nil {
		return err
	}
	spec, err := store.SpecOf(&op.Values)
	if op.Row = row; err != nil || row.Spec == spec {
		return err
	}
	if err := tx.Requires(kernel.Limits); err != nil {
		return err
	}
	if row.Spec == "" {
		n, err := tx.DB.LimitKeys.Count(op.Tenant, true, maxLimitOverrides)
		if err != nil {
			return err
		}
		if n >= maxLimitOverrides {
			return perdure.Errorf(perdure.CodeQuota, "the tenant has %d keys with values of their own, "+
				"as many as it may have", n)
		}
	}
	row.Spec, row.UsedAt = spec, tx.Now
	tx.DB.LimitKeys.Put(row)
	touchLimit(tx, op.Tenant, row.Ref())
	op.Row = row
	action := perdure.AuditLimitKeySet
	if spec == "" {
		action = perdure.AuditLimitKeyDelete
	}
	return tx.Audit(op.Tenant, action, op.Name, "key", op.LimitKey)
}

// CloseLimit closes a limit, or one of its keys, until an instant. Nothing is granted under it meanwhile.
// Open opens it.
type CloseLimit struct {
	Tenant perdure.TenantID
	Name   string
	// LimitKey is the key that is closed. Empty: all of the limit.
	LimitKey string
	Until    perdure.Instant
	For      time.Duration
	Reason   string
	Open     bool
	Key      string

	ClosedUntil perdure.Instant
}

func (*CloseLimit) Needs() []store.Ref { return nil }

// Do closes or opens the limit.
func (op *CloseLimit) Do(tx *kernel.Tx) error {
	until, err := op.until(tx.Now)
	if err != nil {
		return err
	}
	body := []any{op.LimitKey, op.Until, op.For, op.Reason, op.Open}
	_, err = kernel.UnderKey(tx, op.Tenant, "limit.close:"+op.Name, op.Key, body, func() (string, error) {
		limit, err := readLimit(tx, op.Tenant, op.Name)
		if err != nil {
			return "", err
		}
		if op.LimitKey != "" && !limit.PerKey {
			return "", perdure.Unprocessable("key", "limit %s has no keys: it was made without per_key", op.Name)
		}
		op.ClosedUntil = until
		if err := closeLimit(tx, limit, op.LimitKey, until, op.Reason); err != nil {
			return "", err
		}
		action := perdure.AuditLimitClose
		if op.Open {
			action = perdure.AuditLimitOpen
		}
		return "", tx.Audit(op.Tenant, action, op.Name, "key", op.LimitKey, "until", until)
	}, func(string) error {
		op.ClosedUntil = until
		return nil
	})
	return err
}

// until gives the end of the closure.
func (op *CloseLimit) until(now perdure.Instant) (perdure.Instant, error) {
	if err := perdure.CheckLimitKey("key", op.LimitKey); err != nil {
		return 0, err
	}
	if err := perdure.CheckText("reason", op.Reason); err != nil {
		return 0, err
	}
	switch {
	case op.Open:
		return 0, nil
	case (op.Until != 0) == (op.For != 0):
		return 0, perdure.Invalid("for", "give either until or for")
	case op.For < 0 || op.For > perdure.MaxLimitClosed:
		return 0, perdure.Unprocessable("for", "must lie between 1ms and %s", perdure.MaxLimitClosed)
	case op.Until != 0 && op.Until <= now:
		return 0, perdure.Unprocessable("until", "has passed")
	case op.Until > now.Add(perdure.MaxLimitClosed):
		return 0, perdure.Unprocessable("until", "lies more than %s ahead", perdure.MaxLimitClosed)
	case op.Until != 0:
		return op.Until, nil
	}
	return now.Add(op.For), nil
}

// closeLimit closes a limit, or a key of it. Zero opens it. A key that nothing has used yet gets a row, and is refused
// if the tenant has as many as it may.
func closeLimit(tx *kernel.Tx, limit store.LimitRow, key string, until perdure.Instant, reason string) error {
	if key == "" && limit.PerKey {
		limit.ClosedUntil, limit.CloseReason = until, reason
		lookAgain(tx, &limit)
		tx.DB.Limits.Put(limit)
		return nil
	}
	row, err := countsOf(tx, limit.Tenant, perdure.LimitRef{Limit: limit.Name, Key: key})
	switch {
	case err != nil:
		return err
	case row.Version == 0 && row.UsedAt == 0 && until == 0:
		return nil // it is open
	}
	if err := checkKeys(tx, &row); err != nil {
		return err
	}
	row.ClosedUntil, row.CloseReason, row.UsedAt = until, reason, tx.Now
	tx.DB.LimitKeys.Put(row)
	touchLimit(tx, limit.Tenant, row.Ref())
	return nil
}

// closeLimits closes limits that a commit names. A closure that holds for longer stays. A limit that is not
// there has nothing to close, and a key beyond what a tenant may have is left open: a commit never fails for it.
func closeLimits(tx *kernel.Tx, t perdure.TenantID, list []perdure.LimitClosure) error {
	for i := range list {
		c := &list[i]
		l, ok, err := limitOf(tx, t, c.Name)
		if err != nil {
			return err
		}
		if !ok || l.Version == 0 && l.CreatedAt == 0 {
			continue
		}
		key := c.Key
		if !l.PerKey {
			key = ""
		}
		row, err := countsOf(tx, t, perdure.LimitRef{Limit: c.Name, Key: key})
		if err != nil {
			return err
		}
		until := tx.Now.Add(time.Duration(c.ClosedFor))
		if key == "" && l.PerKey && l.ClosedUntil >= until || row.ClosedUntil >= until {
			continue
		}
		err = closeLimit(tx, l, key, until, c.Reason)
		if perdure.CodeOf(err) == perdure.CodeQuota {
			tx.Engine.Log.Warn("a key of a limit stays open", "tenant", t, "limit", c.Name, "error", err)
		} else if err != nil {
			return err
		}
	}
	return nil
}
