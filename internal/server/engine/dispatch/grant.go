package dispatch

import (
	"errors"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/doorbell"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/engine/rules"
	"github.com/perdure/perdure/internal/server/plant"
	"github.com/perdure/perdure/internal/server/store"
)

// grant leases a run, or ends it if it is damaged or its signature is not valid.
func (op *Claim) grant(tx *kernel.Tx, r perdure.Run) (g Grant, ok bool, err error) {
	if r.Damage == nil && !life.Readable(r.Input) {
		r.Damage = &perdure.Damage{What: "input is no JSON"}
	}
	if r.Damage != nil {
		return g, false, setRunAside(tx, &r, op.Worker, op.Build)
	}
	if away, err := rejectInvalidSignature(tx, &r, op.Worker, op.Build); away || err != nil {
		return g, false, err
	}
	g, err = op.grantRun(tx, r)
	var broken *perdure.Error
	if !errors.As(err, &broken) {
		return g, err == nil, err
	}
	// The journal, inbox or input can't be read. The delivery counts all the same, so that the run
	// reaches its end and does not block others.
	tx.Engine.Log.Error("a run could not be handed over", "run", r.ID, "error", err)
	if broken.Code != perdure.CodeDamaged {
		return g, false, nil
	}
	// A damaged value stays unreadable: end the run.
	if r, err = tx.Run(r.Tenant, r.ID); err != nil {
		return g, false, err
	}
	r.Damage = &perdure.Damage{What: broken.Message}
	return g, false, setRunAside(tx, &r, op.Worker, op.Build)
}

// grantFound grants runs in order until the budget is spent. It rings the queue of the run that did
// not fit.
func (op *Claim) grantFound(tx *kernel.Tx, found []store.Claimable, budget *pollBudget) (full bool, err error) {
	if err := prefetch(tx, found); err != nil {
		return false, err
	}
	var c *conditions
	for i, f := range found {
		if i == 0 || f.Tenant != found[i-1].Tenant {
			if c, err = conditionsOf(tx, f.Tenant); err != nil {
				return false, err
			}
		}
		// An earlier grant may have changed the run: the start of a child writes its parent's row.
		r, err := tx.Run(f.Tenant, f.ID)
		if err != nil {
			return false, err
		}
		// An earlier run of this poll may have been ended instead of granted, and this one stopped with it.
		if why := c.grantable(&r, op.Build); why != nil || c.err != nil {
			if err := c.holdBack(tx, &r, why); err != nil {
				return false, err
			}
			continue
		}
		if len(op.Grants) > 0 && !budget.fits(&r) {
			tx.Ring(doorbell.Queue(r.Tenant, r.Queue).Of(r.Kind))
			return true, nil
		}
		g, ok, err := op.grant(tx, r)
		if err != nil {
			return false, err
		}
		if ok {
			budget.spend(&g)
			op.Grants = append(op.Grants, g)
		} else {
			// 8 rows is about the cost of an end.
			budget.rows -= 8
		}
	}
	return false, nil
}

// holdBack has a claimable run wait at its limit that has no room, so that the next polls don't find it.
func (c *conditions) holdBack(tx *kernel.Tx, r *perdure.Run, why *perdure.WaitingFor) error {
	if c.err != nil {
		return c.err
	}
	if why.Reason != perdure.WaitingLimit || !r.Ready || r.State != perdure.Queued {
		return nil
	}
	return life.BlockAt(tx, r, why.Limits[0].LimitRef)
}

// grantRun applies the grant and reads the input, and as much of journal and inbox as fits.
func (op *Claim) grantRun(tx *kernel.Tx, r perdure.Run) (Grant, error) {
	ev := perdure.Granted{Worker: op.Worker, Build: op.Build, Start: op.Start, Confirms: op.Confirms ||
		plant.Is("single-attempt-redelivered")}
	ev.Start = ev.Start || ev.Spends(&r)
	var err error
	if ev.Limits, ev.Steps, err = life.SlotsFor(tx, &r); err != nil {
		return Grant{}, err
	}
	if ev.Settles, err = settleClass(tx, &r); err != nil {
		return Grant{}, err
	}
	firstStart := ev.Start && r.StartedAt == 0
	if err := tx.Apply(&r, ev); err != nil {
		return Grant{}, err
	}
	if firstStart {
		if err := life.NotifyParentStarted(tx, &r); err != nil {
			return Grant{}, err
		}
	}
	// Also if a holder before has acknowledged the request: this one has to clean up in its place.
	g := Grant{Run: r, Cancel: r.Cancel.RequestedAt != 0}
	if g.Input, err = tx.DB.Values.Resolve(r.Tenant, r.Input); err != nil {
		return Grant{}, err
	}
	bytesLeft := life.GrantMax
	if g.Journal, g.JournalNext, err = life.JournalPage(&tx.DB.Records, &r, 0, &bytesLeft); err != nil {
		return Grant{}, err
	}
	g.Inbox, g.InboxNext, err = life.HandOverItems(tx, &r, 0, &bytesLeft)
	return g, err
}

// prefetch loads the runs that are about to be granted, with one read for each tenant.
func prefetch(tx *kernel.Tx, found []store.Claimable) error {
	var order []perdure.TenantID
	byTenant := make(map[perdure.TenantID][]perdure.RunID)
	for i := range found {
		t := found[i].Tenant
		if byTenant[t] == nil {
			order = append(order, t)
		}
		byTenant[t] = append(byTenant[t], found[i].ID)
	}
	for _, t := range order {
		if err := tx.DB.Runs.Load(t, byTenant[t]); err != nil {
			return err
		}
	}
	return nil
}

func distinct(names []string) []string { return slices.Compact(slices.Sorted(slices.Values(names))) }

// settleClass decides about the class of a run that is about to be granted, if it is open. A signed
// run is signed again, because its signature covers the deadline; it was verified just before. A server
// without a key leaves the deadline as it is.
func settleClass(tx *kernel.Tx, r *perdure.Run) (*perdure.Settlement, error) {
	if !r.Options.Open {
		return nil, nil
	}
	kind, _, err := rules.LookUpKind(tx, r.Tenant, r.Kind, true)
	if err != nil {
		return nil, err
	}
	s := tx.Engine.Policy().Settle(r, kind, tx.Now)
	switch {
	case r.Signature.IsZero() || s.DeadlineAt == r.DeadlineAt:
		return s, nil
	case rules.Signer(tx.Engine) == nil:
		s.DeadlineAt = r.DeadlineAt
		return s, nil
	}
	signed, err := rules.SignedRun(tx, r)
	if err != nil {
		return nil, err
	}
	signed.DeadlineAt = s.DeadlineAt
	r.Signature = rules.Signer(tx.Engine).Sign(signed)
	return s, nil
}

// setRunAside ends a damaged run that a poll has found. A run that can't end now is granted without
// handing it over, so that the next polls do not find it first.
func setRunAside(tx *kernel.Tx, r *perdure.Run, worker, build string) error {
	// The poll has spent a slot on it: another poll looks at the runs behind it.
	tx.Ring(doorbell.Queue(r.Tenant, r.Queue).Of(r.Kind))
	before := *r
	err := tx.Try(func() error {
		_, err := life.EndDamaged(tx, r)
		return err
	})
	var refused *perdure.Error
	if !errors.As(err, &refused) {
		return err
	}
	tx.Engine.Log.Error("a damaged run can't end", "tenant", r.Tenant, "run", r.ID, "error", err)
	if before.State.Leased() && !before.Ready {
		return nil
	}
	return tx.Apply(&before, perdure.Granted{Worker: worker, Build: build})
}

// rejectInvalidSignature ends a run that is about to be granted and whose signature is not valid.
// It counts the delivery, though no worker gets the run. A run with a signature is verified even if
// its tenant does not require one. An attacker who can change a run can change that setting, too.
func rejectInvalidSignature(tx *kernel.Tx, r *perdure.Run, worker, build string) (bool, error) {
	if rules.Signer(tx.Engine) == nil || r.Signature.IsZero() {
		required, err := rules.RequiresSigned(tx, r.Tenant)
		if err != nil || !required {
			return false, err
		}
	}
	err := rules.CheckSignature(tx, r)
	if err == nil {
		err = rules.CheckUnended(tx, r)
	}
	if perdure.CodeOf(err) != perdure.CodeSignatureInvalid {
		return false, err
	}
	why := perdure.Failure{Code: perdure.CodeSignatureInvalid, Message: err.(*perdure.Error).Message}
	tx.DB.After(func() {
		tx.Engine.Log.Warn("a run is not handed over: its signature is not valid", "tenant", r.Tenant, "run", r.ID,
			"why", why.Message)
	})
	if err := tx.Apply(r, perdure.Granted{Worker: worker, Build: build}); err != nil {
		return true, err
	}
	// The poll has spent a slot on it: another poll looks at the runs behind it.
	tx.Ring(doorbell.Queue(r.Tenant, r.Queue).Of(r.Kind))
	err = tx.Try(func() error { return life.Finish(tx, r, perdure.Rejected{Epoch: r.Epoch, Failure: why}) })
	var refused *perdure.Error
	// The run can't end. It was granted without handing it over, so it does not block others.
	if errors.As(err, &refused) {
		tx.Engine.Log.Error("a run whose signature is not valid can't end", "tenant", r.Tenant,
			"run", r.ID, "error", err)
		err = nil
	}
	return true, err
}
