package store

import (
	"slices"

	"github.com/perdure/perdure"
)

// MaxExpired bounds the expired dead letters that a batch removes, and also the idempotency keys.
const MaxExpired = 1000

// An Expired is a dead letter or an idempotency key whose time to live is over.
type Expired struct {
	Tenant perdure.TenantID
	// ID is the run of a dead letter, or the key.
	ID     string
	Letter bool
	// Live tells that the run of a key is live. Such a key is kept.
	Live bool
}

// Expired gives expired dead letters and idempotency keys, at most so many of each. A batch gets
// them once: they are not removed before it is written.
func (repo *Removals) Expired(limit int) (out []Expired, err error) {
	if !repo.in.tx.onceInBatch(&repo.expired) {
		return nil, nil
	}
	args := []any{int64(repo.in.Now), int64(limit)}
	err = repo.in.sess.Query("SELECT tenant,run_id FROM dead_letters WHERE expires_at<=? "+
		"ORDER BY expires_at, tenant, run_id"+atMost, args, func(scan func(...any) error) error {
		x := Expired{Letter: true}
		err := scan(&x.Tenant, &x.ID)
		out = append(out, x)
		return err
	})
	if err != nil {
		return nil, err
	}
	// MATERIALIZED, so that the due rows are selected once, whatever statistics the planner has. A
	// live run has an alarm. coalesce keeps the planner from the index of alarms: it would read all
	// live runs for each key instead of the one that the key names.
	err = repo.in.sess.Query("WITH due AS MATERIALIZED (SELECT tenant,key,ref FROM idempotency WHERE expires_at<=? "+
		"ORDER BY expires_at, tenant, key"+atMost+") SELECT tenant, key, CASE WHEN EXISTS (SELECT 1 FROM runs "+
		"WHERE runs.tenant=due.tenant AND runs.id=due.ref AND coalesce(runs.alarm_at,0)<>0) THEN 1 ELSE 0 END FROM due",
		args, func(scan func(...any) error) error {
			var x Expired
			var live int64
			err := scan(&x.Tenant, &x.ID, &live)
			x.Live = live != 0
			out = append(out, x)
			return err
		})
	return out, err
}

// Expire stages the removal of expired rows, and gives how many of each kind are removed. A key of a
// live run is checked again later: it lasts at least as long as its run. If another node removes
// the same ones now, this batch is decided again.
func (repo *Removals) Expire(rows []Expired) (letters, keys int, err error) {
	var dead, over, live [][]any
	for _, x := range rows {
		list := &over
		switch {
		case x.Letter:
			list = &dead
		case x.Live:
			list = &live
		}
		*list = append(*list, []any{string(x.Tenant), x.ID})
	}
	now := int64(repo.in.Now)
	if len(dead)+len(over) > 0 {
		if err := repo.in.tx.exclusive("expired"); err != nil {
			return 0, 0, err
		}
	}
	for _, x := range []struct {
		rows  [][]any
		begin string
		args  []any
	}{
		{dead, "DELETE FROM dead_letters WHERE expires_at<=? AND (tenant,run_id)", []any{now}},
		{over, "DELETE FROM idempotency WHERE expires_at<=? AND (tenant,key)", []any{now}},
		{live, "UPDATE idempotency SET expires_at=? WHERE expires_at<=? AND (tenant,key)",
			[]any{now + 3600*1e6, now}},
	} {
		if len(x.rows) == 0 {
			continue
		}
		for part := range repo.in.dialect.parts(x.rows) {
			addRows(&repo.in.tx.later, statement{x.begin + " IN (" + repo.in.dialect.rows(part) + ")",
				append(slices.Clone(x.args), repo.in.dialect.args(part)...), anyNumber})
		}
	}
	return len(dead), len(over), nil
}
