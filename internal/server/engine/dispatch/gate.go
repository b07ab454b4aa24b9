package dispatch

import (
	"cmp"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/engine/rules"
	"github.com/perdure/perdure/internal/server/store"
)

// The gate: may this run be granted to this poll now?
//
// Every way to a grant asks it: the search of a poll, the search for held runs, polls that name runs,
// and polls that stand by. Readers who say why a run waits ask it too, so that they say what the grants
// go by. A run that may be granted and is not taken waits for a worker: unattended says for which one.
//
// A reason to wait is one row of rules. The first row that applies is the verdict.
//
// A row is about a place, that is all runs of a queue and kind, or about one run. A poll does not look
// at places that are closed. So a rule about many runs belongs to their place: a poll that finds runs
// which it may not have reads them for nothing.

// A rule is a reason why a run may not be granted.
type rule struct {
	reason perdure.WaitReason
	// place decides about a queue and a kind. No kind: about all kinds of the queue. No queue either:
	// about all runs of the tenant.
	place func(c *conditions, queue, kind string) *perdure.WaitingFor
	// run decides about one run, for a build.
	run func(c *conditions, r *perdure.Run, build string) *perdure.WaitingFor
	// cleanup is set if a rule about places also keeps back a run whose worker has to clean up after a
	// cancel request.
	cleanup bool
}

// reasons are the reasons, in the order in which they are told.
var reasons = []rule{
	{reason: perdure.WaitingQueuePaused,
		place: func(c *conditions, queue, _ string) *perdure.WaitingFor {
			p := c.Paused.On(queue, c.now)
			if p == nil {
				return nil
			}
			return when(true, p.Message(queue), p.At, p.Until)
		}},
	{reason: perdure.WaitingKindPaused,
		place: func(c *conditions, _, kind string) *perdure.WaitingFor {
			p := c.Paused.OfKind(kind, c.now)
			if p == nil {
				return nil
			}
			return when(true, p.MessageOfKind(kind), p.At, p.Until)
		}},
	{reason: perdure.WaitingNoSigner, cleanup: true,
		place: func(c *conditions, _, _ string) *perdure.WaitingFor {
			return when(c.unverified, rules.NoSignerText, 0, 0)
		}},
	{reason: perdure.WaitingThreadBusy,
		run: func(_ *conditions, r *perdure.Run, _ string) *perdure.WaitingFor {
			return when(r.Turn == perdure.TurnWaiting, "behind another run of its thread", 0, 0)
		}},
	{reason: perdure.WaitingCopying,
		run: func(_ *conditions, r *perdure.Run, _ string) *perdure.WaitingFor {
			return when(r.Copying(), "the journal of the run that it retries is being copied", 0, 0)
		}},
	{reason: perdure.WaitingHeld,
		run: func(c *conditions, r *perdure.Run, build string) *perdure.WaitingFor {
			if !r.HeldBack() || r.MayTry(build, c.now) {
				return nil
			}
			return when(true, heldText(r.Hold), r.Hold.Since, r.Hold.NextAt)
		}},
	{reason: perdure.WaitingLimit, run: atLimit},
	{reason: perdure.WaitingNotBefore,
		run: func(c *conditions, r *perdure.Run, build string) *perdure.WaitingFor {
			if r.Ready || r.MayTry(build, c.now) {
				return nil
			}
			return when(true, "not before "+rfc3339(r.ReadyAt), 0, r.ReadyAt)
		}},
}

// atLimit is the rule about limits. A run that waits at one keeps waiting until it is let through. A grant
// asks the limits of a claimable run as well; for a reader such a run waits for a worker.
func atLimit(c *conditions, r *perdure.Run, _ string) *perdure.WaitingFor {
	x := &perdure.WaitingAtLimit{}
	switch {
	case r.AtLimit():
		x.LimitRef, x.Since = r.Limited.At, r.Limited.Since
	case c.tx == nil:
		return nil
	default:
		var err error
		if x, err = life.FullLimit(c.tx, r); err != nil {
			c.err = err
		}
		if x == nil {
			return nil
		}
	}
	why := when(true, limitText(x), x.Since, x.ClosedUntil)
	why.Limits = []perdure.WaitingAtLimit{*x}
	return why
}

// limitText says which limit a run waits at.
func limitText(x *perdure.WaitingAtLimit) string {
	text := "blocked by limit " + x.Limit
	if x.Key != "" {
		text += " (key " + x.Key + ")"
	}
	if x.ClosedUntil != 0 {
		text += ", which is closed until " + rfc3339(x.ClosedUntil)
	}
	return text
}

// when gives a verdict without its reason if a rule applies.
func when(applies bool, text string, since, until perdure.Instant) *perdure.WaitingFor {
	if !applies {
		return nil
	}
	return &perdure.WaitingFor{Text: text, Since: since, Until: until}
}

func rfc3339(at perdure.Instant) string { return at.Time().Format(time.RFC3339) }

// heldText says which build has a defect.
func heldText(h *perdure.Hold) string {
	build := ""
	if n := len(h.Builds); n > 0 && h.Builds[n-1] != "" {
		build = "build " + h.Builds[n-1]
	} else {
		build = "its program"
	}
	return "held: " + build + " has a defect (" + string(h.Failure.Code) + "); another build may take it at once"
}

// conditions are the facts about a tenant that reasons go by, beside the run itself.
type conditions struct {
	now perdure.Instant
	// tx is nil for a reader. err is an error of a rule that has read something.
	tx  *kernel.Tx
	err error
	// unverified is set if the tenant's runs have to be signed and this server can't verify them.
	unverified bool
	Paused     rules.Pauses
}

// conditionsOf gives the conditions of a tenant for a decision.
func conditionsOf(tx *kernel.Tx, t perdure.TenantID) (c *conditions, err error) {
	c = &conditions{now: tx.Now, tx: tx}
	if rules.Signer(tx.Engine) == nil {
		if c.unverified, err = rules.RequiresSigned(tx, t); err != nil {
			return nil, err
		}
	}
	c.Paused, err = rules.PausedIn(tx, t)
	return c, err
}

// conditionsIn gives the conditions of a tenant for a reader.
func conditionsIn(e *kernel.Engine, db *store.Records, t perdure.TenantID) (_ *conditions, err error) {
	c, at := &conditions{now: db.Now}, kernel.Look{Now: db.Now, Reader: true}
	if rules.Signer(e) == nil {
		if c.unverified, err = rules.SignedBy(e, db, at, t); err != nil {
			return nil, err
		}
	}
	c.Paused, err = rules.PausesOf(e, db, at, t)
	return c, err
}

// closed tells why no run of a queue and kind may be granted, or gives nil.
func (c *conditions) closed(queue, kind string) *perdure.WaitingFor {
	return c.shut(queue, kind, false)
}

// shut is closed, for a run whose worker has to clean up as well.
func (c *conditions) shut(queue, kind string, cleanup bool) *perdure.WaitingFor {
	for i := range reasons {
		x := &reasons[i]
		if x.place == nil || cleanup && !x.cleanup {
			continue
		}
		if why := x.place(c, queue, kind); why != nil {
			why.Reason = x.reason
			return why
		}
	}
	return nil
}

// grantable tells why a run may not be granted to a poll of a build, or gives nil.
func (c *conditions) grantable(r *perdure.Run, build string) *perdure.WaitingFor {
	if why := c.shut(r.Queue, r.Kind, r.ForCleanup()); why != nil {
		return why
	}
	for i := range reasons {
		if reasons[i].run == nil {
			continue
		}
		if why := reasons[i].run(c, r, build); why != nil {
			why.Reason = reasons[i].reason
			return why
		}
	}
	return nil
}

// enter gives the conditions under which a poll is granted runs of a tenant, or nil if it is granted
// none. A worker of the tenant is told that a signing key is missing, because nothing that it waits for
// would change that. One of the platform goes on with other tenants.
func (op *Claim) enter(tx *kernel.Tx, t perdure.TenantID) (*conditions, error) {
	c, err := conditionsOf(tx, t)
	if err != nil {
		return nil, err
	}
	why := c.closed("", "")
	if why != nil && why.Reason == perdure.WaitingNoSigner && !op.AnyTenant {
		return nil, rules.NoSigner()
	}
	if why != nil {
		return nil, nil
	}
	return c, nil
}

// unattended says why nobody has taken a run that may be granted.
func (s *Serving) unattended(r *perdure.Run) *perdure.WaitingFor {
	if r.Local() {
		return &perdure.WaitingFor{Reason: perdure.WaitingOwnRunner, Since: r.ReadyAt,
			Text: "its own runner has not taken it yet"}
	}
	if u := s.Unserved(r); u != nil {
		return &perdure.WaitingFor{Reason: perdure.WaitingUnserved, Text: u.Message(r.Kind), Since: u.LastPolledAt}
	}
	return &perdure.WaitingFor{Reason: perdure.WaitingNoFreeSlot, Since: r.ReadyAt,
		Text: "no worker has had a free slot for it yet"}
}

// PauseOf gives the pause of a run's queue or kind, and says it in words, or nil. It is for clocks, which
// a pause holds up whatever else the run waits for. If both are paused it gives the one that ends later.
func PauseOf(tx *kernel.Tx, r *perdure.Run) (p *perdure.QueuePause, text string, err error) {
	c, err := conditionsOf(tx, r.Tenant)
	if err != nil {
		return nil, "", err
	}
	if p = c.Paused.On(r.Queue, c.now); p != nil {
		text = p.Message(r.Queue)
	}
	k := c.Paused.OfKind(r.Kind, c.now)
	if k != nil && (p == nil || p.Until != 0 && (k.Until == 0 || k.Until > p.Until)) {
		p, text = k, k.MessageOfKind(r.Kind)
	}
	return p, text, nil
}

// EndAtDeadline ends a run whose deadline has passed. If its queue or kind was paused, or it was never
// granted because nobody polls for its kind, its error says so.
func EndAtDeadline(tx *kernel.Tx, r *perdure.Run) error {
	ev := perdure.DeadlinePassed{}
	if r.State == perdure.Queued {
		_, text, err := PauseOf(tx, r)
		if err != nil {
			return err
		}
		ev.Waited = text
	}
	if ev.Waited == "" && r.Ready && r.Epoch == 0 {
		s, err := servingOf(tx.Engine, &tx.DB.Records, kernel.LookOf(tx), r.Tenant)
		if err != nil {
			return err
		}
		if u := s.Unserved(r); u != nil {
			ev.Waited = u.Message(r.Kind)
		}
	}
	return life.Finish(tx, r, ev)
}

// maxWaitTenants bounds the tenants of a page whose runs say why they wait.
const maxWaitTenants = 50

// A WaitReader says of runs of a page why they wait. It reads the conditions of a tenant once.
type WaitReader struct {
	Engine  *kernel.Engine
	DB      *store.Records
	tenants map[perdure.TenantID]*tenantWaits
	// lines counts the runs whose line at a limit was read.
	lines int
}

// tenantWaits holds the rows of one tenant that a WaitReader has read. serving is nil until it is needed.
type tenantWaits struct {
	*conditions
	serving *Serving
}

// Of gives the conditions of a tenant.
func (w *WaitReader) Of(t perdure.TenantID) (*tenantWaits, error) {
	if x := w.tenants[t]; x != nil {
		return x, nil
	}
	c, err := conditionsIn(w.Engine, w.DB, t)
	if err != nil {
		return nil, err
	}
	if w.tenants == nil {
		w.tenants = make(map[perdure.TenantID]*tenantWaits)
	}
	w.tenants[t] = &tenantWaits{conditions: c}
	return w.tenants[t], nil
}

// WaitingFor says why a run waits, or gives nil if it is neither queued nor suspended because of a limit.
func (w *WaitReader) WaitingFor(r *perdure.Run) (*perdure.WaitingFor, error) {
	if r.State == perdure.Suspended && r.AtLimit() {
		why := atLimit(&conditions{}, r, "")
		why.Reason = perdure.WaitingLimit
		return why, w.tellLine(r, why)
	}
	if r.State != perdure.Queued || len(w.tenants) >= maxWaitTenants && w.tenants[r.Tenant] == nil {
		return nil, nil
	}
	t, err := w.Of(r.Tenant)
	if err != nil {
		return nil, err
	}
	if why := t.grantable(r, ""); why != nil {
		return why, w.tellLine(r, why)
	}
	s, err := w.Serving(r.Tenant)
	if err != nil {
		return nil, err
	}
	return s.unattended(r), nil
}

// maxLinesTold bounds the runs of a page that say how many are ahead of them at a limit.
const maxLinesTold = 50

// tellLine adds to the reason of a run that waits at a limit how many are ahead of it, and until when the
// limit is closed.
func (w *WaitReader) tellLine(r *perdure.Run, why *perdure.WaitingFor) error {
	if why.Reason != perdure.WaitingLimit || !r.AtLimit() || w.lines >= maxLinesTold {
		return nil
	}
	w.lines++
	x, err := &why.Limits[0], error(nil)
	if x.Ahead, err = w.DB.LimitLines.Ahead(r); err != nil {
		return err
	}
	key, _, err := w.DB.LimitKeys.Get(r.Tenant, x.LimitRef)
	if err != nil {
		return err
	}
	if holder, err := ownHolder(w.DB, r, x.LimitRef, key.Leased); err != nil {
		return err
	} else if holder != "" {
		why.Text += ", whose slots are held by its own parent " + string(holder) + ": only a deadline would end that"
	}
	limit, _, err := w.DB.Limits.Get(r.Tenant, x.Limit)
	if until := max(key.ClosedUntil, limit.ClosedUntil); until > w.DB.Now {
		x.ClosedUntil = until
		why.Text, why.Until = limitText(x), until
	}
	return err
}

// maxAncestors bounds the ancestors that are looked at.
const maxAncestors = 32

// ownHolder gives the nearest leased ancestor of a run that waits at a limit, if ancestors hold all of the slots.
// They may wait for the run, and then nobody gives one back.
func ownHolder(
	db *store.Records, r *perdure.Run, at perdure.LimitRef, leased int64,
) (nearest perdure.RunID, err error) {
	for id, n := r.ParentID, 0; id != "" && n < maxAncestors; n++ {
		p, ok, err := db.Runs.Get(r.Tenant, id)
		if err != nil || !ok {
			return "", err
		}
		if held := life.SlotsAt(&p, at); held > 0 {
			leased -= int64(held)
			nearest = cmp.Or(nearest, p.ID)
		}
		id = p.ParentID
	}
	if leased > 0 {
		return "", nil
	}
	return nearest, nil
}

// Serving gives the queues and kinds that are served in a tenant.
func (w *WaitReader) Serving(tenant perdure.TenantID) (*Serving, error) {
	t, err := w.Of(tenant)
	if err == nil && t.serving == nil {
		t.serving, err = servingOf(w.Engine, w.DB, kernel.Look{Now: w.DB.Now}, tenant)
	}
	if err != nil {
		return nil, err
	}
	return t.serving, nil
}
