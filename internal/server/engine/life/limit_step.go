package life

import (
	"slices"
	"strconv"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/plant"
	"github.com/perdure/perdure/internal/server/store"
)

// Limits of steps: a step of a leased run takes slots before its function is called. See perdure.StepSlot.

// A StepTake asks for the slots of one step, or gives them back.
type StepTake struct {
	Lease
	Step   string
	Limits []perdure.LimitTake
	// Try is the number of the call of the step's function. A step that has its slots takes only units for
	// another try.
	Try      int
	GiveBack bool
}

// A StepTaken is the answer for one step.
type StepTaken struct {
	LeaseResult
	Taken bool
	// Blocked says which limit has no room, and Retry after which time it may have some. Zero: not known.
	Blocked *perdure.WaitingAtLimit
	Retry   time.Duration
}

// TakeLimits takes slots for steps of leased runs, and gives them back. A repeated call takes nothing.
type TakeLimits struct {
	Tenant perdure.TenantID
	Worker string
	Takes  []StepTake

	Results []StepTaken
}

func (op *TakeLimits) Needs() []store.Ref {
	out := make([]store.Ref, len(op.Takes))
	for i := range op.Takes {
		out[i] = store.Ref{Tenant: op.Tenant, Run: op.Takes[i].RunID}
	}
	return out
}

// Do takes the slots. Each step has its own result.
func (op *TakeLimits) Do(tx *kernel.Tx) (err error) {
	if err := RecordWorkerSeen(tx, op.Tenant, op.Worker); err != nil {
		return err
	}
	leases := make([]Lease, len(op.Takes))
	for i := range op.Takes {
		leases[i] = op.Takes[i].Lease
	}
	op.Results = make([]StepTaken, len(op.Takes))
	n := 0
	results, err := eachLease(tx, op.Tenant, leases, func(r *perdure.Run, l Lease) error {
		// The runs have the order of the takes; a refused one is not seen here.
		for op.Takes[n].Lease != l {
			n++
		}
		i := n
		n++
		op.Results[i] = StepTaken{}
		return takeStep(tx, r, &op.Takes[i], &op.Results[i])
	})
	for i := range results {
		op.Results[i].LeaseResult = results[i]
	}
	return err
}

// Weight counts steps.
func (op *TakeLimits) Weight() (rows, bytes int) {
	return 2 + 4*len(op.Takes), 1<<10 + 512*len(op.Takes)
}

// takeStep takes the slots of a step, or says which limit has no room.
func takeStep(tx *kernel.Tx, r *perdure.Run, take *StepTake, out *StepTaken) error {
	if err := perdure.CheckName("step", take.Step); err != nil {
		return err
	}
	if err := Holds(r, take.Epoch); err != nil {
		return err
	}
	have := r.SlotOf(take.Step)
	if take.GiveBack {
		if have == nil {
			return nil
		}
		return tx.Apply(r, perdure.StepsLeft{Epoch: take.Epoch, Steps: []string{take.Step}})
	}
	if err := perdure.CheckTakes("limits", take.Limits); err != nil {
		return err
	}
	if have != nil && have.Try >= take.Try && !plant.Is("step-takes-again") {
		out.Taken = true
		return nil
	}
	if have == nil && r.Limited != nil && len(r.Limited.Steps) >= perdure.MaxStepSlots {
		return perdure.OverBound("", "%d steps of the run hold slots, and no more may", perdure.MaxStepSlots)
	}
	if err := tx.Requires(kernel.StepLimits); err != nil {
		return err
	}
	list, err := stepLimits(tx, r.Tenant, take.Limits)
	if err != nil {
		return err
	}
	slot := perdure.StepSlot{Step: take.Step, Try: take.Try}
	for i := range list {
		b := &list[i]
		owned := r.Limited != nil && slices.Contains(r.Limited.Refs, b.ref) && !plant.Is("step-takes-slot-of-run")
		if !b.admits(tx.Now, owned || have != nil) && !(i > 0 && plant.Is("step-checks-first-limit")) {
			out.Blocked = &perdure.WaitingAtLimit{LimitRef: b.ref, Since: tx.Now,
				ClosedUntil: closedNow(b.closed, tx.Now)}
			out.Retry = b.retryAfter(tx.Now)
			return nil
		}
		if !owned {
			slot.Refs = append(slot.Refs, b.ref)
		}
	}
	return admitStep(tx, r, take, slot, out)
}

// admitStep takes what a step needs. The waits that it had for its limits are over.
func admitStep(tx *kernel.Tx, r *perdure.Run, take *StepTake, slot perdure.StepSlot, out *StepTaken) error {
	first := r.StartedAt == 0
	if r.State == perdure.Dispatched {
		if err := tx.Apply(r, perdure.Started{Epoch: take.Epoch}); err != nil {
			return err
		}
	}
	if err := tx.Apply(r, perdure.StepAdmitted{Epoch: take.Epoch, Slot: slot}); err != nil {
		return err
	}
	if first {
		if err := NotifyParentStarted(tx, r); err != nil {
			return err
		}
	}
	list, err := bindAll(tx, r.Tenant, take.Limits) // with the slots that it has taken now
	if err != nil {
		return err
	}
	for i := range list {
		b := &list[i]
		b.take(tx.Now)
		b.row.UsedAt = tx.Now
		tx.DB.LimitKeys.Put(b.row)
		touchLimit(tx, r.Tenant, b.ref)
	}
	out.Taken = true
	return dropWants(tx, r, take.Step, "")
}

// stepLimits reads the limits of a step, which have to be there.
func stepLimits(tx *kernel.Tx, t perdure.TenantID, takes []perdure.LimitTake) (list []boundLimit, err error) {
	for i, take := range takes {
		b, ok, err := bind(tx, t, take)
		if err == nil && !ok {
			err = &perdure.Error{Code: perdure.CodeUnknownLimit, Field: "limits[" + strconv.Itoa(i) + "].name",
				Message: "there is no limit " + strconv.Quote(take.Name)}
		}
		if err == nil {
			err = checkUse(tx, t, &b)
		}
		if err != nil {
			return nil, err
		}
		list = append(list, b)
	}
	return list, nil
}

// admits tells whether a step may begin. Those who wait go first. One that owns a slot takes only of the rate.
func (b *boundLimit) admits(now perdure.Instant, owned bool) bool {
	if plant.Is("step-overtakes") {
		return b.hasRoom(now, b.units)
	}
	if owned {
		return now >= b.closed && (b.values.Rate == nil || b.allows(now, b.fullAt(now), b.units))
	}
	return b.row.Waiting == 0 && b.hasRoom(now, b.units)
}

// retryAfter gives the time after which a limit without room has some, as far as that is known.
func (b *boundLimit) retryAfter(now perdure.Instant) time.Duration {
	at := b.closed
	if b.values.Rate != nil {
		at = max(at, b.values.Rate.At(b.fullAt(now), b.units))
	}
	return max(0, at.Sub(now))
}

// returnSlots gives back the slots of the steps that a commit records.
func returnSlots(tx *kernel.Tx, r *perdure.Run, entries []perdure.JournalEntry) error {
	if r.Limited == nil || len(r.Limited.Steps) == 0 {
		return nil
	}
	var over []string
	for i := range entries {
		if r.SlotOf(entries[i].Key) != nil {
			over = append(over, entries[i].Key)
		}
	}
	if len(over) == 0 || plant.Is("step-keeps-slot") {
		return nil
	}
	return tx.Apply(r, perdure.StepsLeft{Epoch: r.Epoch, Steps: over})
}

// dropWants closes the open limit waits of a step, but for one.
func dropWants(tx *kernel.Tx, r *perdure.Run, step, except string) error {
	for _, want := range r.Wants {
		if want.Step != step || want.Wait == except {
			continue
		}
		w, ok, err := tx.DB.Waits.Get(r.Tenant, r.ID, want.Wait)
		if err != nil {
			return err
		}
		if !ok || w.State != perdure.WaitOpen {
			continue
		}
		if err := withdrawWaits(tx, r, []string{want.Wait}); err != nil {
			return err
		}
	}
	return nil
}

// checkStepWait checks a wait for limits before it is opened.
func checkStepWait(tx *kernel.Tx, r *perdure.Run, spec *perdure.WaitSpec) error {
	if err := tx.Requires(kernel.StepLimits); err != nil {
		return err
	}
	if _, err := stepLimits(tx, r.Tenant, spec.Limits); err != nil {
		return err
	}
	if err := dropWants(tx, r, spec.Name, spec.ID); err != nil {
		return err
	}
	if len(r.Wants) >= perdure.MaxStepSlots {
		return perdure.OverBound("", "%d steps of the run wait for limits, and no more may", perdure.MaxStepSlots)
	}
	return nil
}

// lineTurn is how long a run stands in the line of one limit if several steps of it wait.
const lineTurn = 10 * time.Second

// nextLook gives the first timeout of open waits, or earlier the time to stand in another line.
func nextLook(tx *kernel.Tx, open []perdure.Wait) perdure.Instant {
	at, n := firstTimeout(open), 0
	for i := range open {
		if open[i].Type == perdure.WaitLimit {
			n++
		}
	}
	if turn := tx.Now.Add(lineTurn); n > 1 && (at == 0 || turn < at) {
		return turn
	}
	return at
}

// awaitLimits has a run that was suspended stand in the line of a limit, or satisfies the wait of a step whose
// limits have room. A run stands in one line at a time: if several steps wait, it goes from one to the next.
func awaitLimits(tx *kernel.Tx, r *perdure.Run) error {
	var full []*boundLimit
	for i := range r.Wants {
		want := &r.Wants[i]
		w, ok, err := tx.DB.Waits.Get(r.Tenant, r.ID, want.Wait)
		if err != nil || !ok || !w.Named || w.State != perdure.WaitOpen {
			if err != nil {
				return err
			}
			continue
		}
		list, err := bindAll(tx, r.Tenant, want.Limits)
		if err != nil {
			return err
		}
		n := slices.IndexFunc(list, func(b boundLimit) bool {
			return b.row.Waiting > 0 && !passes(tx, r, b.ref) || !b.hasRoom(tx.Now, b.units)
		})
		if n < 0 && !plant.Is("step-wait-ignores-room") {
			return EndWait(tx, r, w, perdure.WaitSatisfied, nil)
		}
		n = max(n, 0)
		full = append(full, &list[n])
	}
	if len(full) == 0 {
		return nil
	}
	at := full[0]
	for i := range full {
		if r.AtLimit() && full[i].ref == r.Limited.At {
			at = full[(i+1)%len(full)]
		}
	}
	return tx.Apply(r, perdure.LimitReached{At: at.ref, Turn: at.turn})
}

// unitsWanted gives what a run in the line of a limit takes of its rate.
func unitsWanted(r *perdure.Run, ref perdure.LimitRef) int {
	if want := wantAt(r, ref); want != nil {
		for _, t := range want.Limits {
			if t.Name == ref.Limit {
				return t.Taken()
			}
		}
	}
	return int(unitsAt(r, ref))
}

// wantAt gives the step for which a suspended run stands in the line of a limit, or nil.
func wantAt(r *perdure.Run, ref perdure.LimitRef) *perdure.StepWant {
	for i := range r.Wants {
		want := &r.Wants[i]
		if r.State == perdure.Suspended && slices.ContainsFunc(want.Limits, func(t perdure.LimitTake) bool {
			return t.Name == ref.Limit && (ref.Key == "" || ref.Key == t.Key)
		}) {
			return want
		}
	}
	return nil
}

// letStepThrough satisfies the wait of a step that a limit has room for, unless it has to wait at another one.
// The run is offered at once, ahead of those who wait.
func letStepThrough(tx *kernel.Tx, r *perdure.Run, ref perdure.LimitRef) error {
	s := limitsTouched.Of(tx)
	s.passing, s.at = r.ID, ref
	defer func() { s.passing, s.at = "", perdure.LimitRef{} }()
	if err := awaitLimits(tx, r); err != nil || r.State != perdure.Suspended || r.Limited.At != ref {
		return err
	}
	return tx.Apply(r, perdure.Woken{Reason: perdure.WaitSatisfied}) // no step of it waits here: it asks again
}
