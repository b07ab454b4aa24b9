package engine

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"sync"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/doorbell"
	"github.com/perdure/perdure/internal/store"
)

// Holds: runs whose worker has reported a defect of the code; see perdure.Hold.
//
// A poll of a build that has not held a run may claim it during the backoff. Such runs are not
// claimable for others, so the ordinary search does not find them. The engine remembers the places,
// queues and kinds of tenants, that have held runs (heldPlaces). A poll searches these before its
// ordinary search, within bounds. While nothing is held, a poll compares two numbers.
//
// The memory is a hint. A hold on this node adds its place, and once a second a poll or the server's
// background work reads the places anew. A run whose place is not in the memory is claimed when its
// backoff is over.

// Bounds of the search for held runs.
const (
	// heldLookEvery is how often the places are read.
	heldLookEvery = time.Second
	// maxHeldPlaces bounds the places that are remembered.
	maxHeldPlaces = 128
	// maxHeldRows bounds the held runs that one poll looks at, and maxHeldGrants those it claims.
	maxHeldRows   = 64
	maxHeldGrants = 16
	// maxHeldBuilds bounds the builds of a place whose position is remembered.
	maxHeldBuilds = 64
)

// holdPolicy gives how long a run may be on hold, and whether a defect holds it at all. Its kind
// decides, and the policy where the kind is silent.
func holdPolicy(tx *Tx, r *perdure.Run) (timeout time.Duration, hold bool, err error) {
	p := &tx.e.policy
	timeout, hold = p.HoldTimeout, p.HoldDefects
	if r.ThreadID != "" {
		timeout = p.HoldTimeoutThread
	}
	def, err := kindOf(tx, r.Tenant, r.Kind)
	if err != nil {
		return 0, false, err
	}
	if def.HoldDefects != nil {
		hold = *def.HoldDefects
	}
	return cmp.Or(time.Duration(def.HoldTimeout), timeout), hold, nil
}

// holdRun queues a run again because its worker reports a defect of the code. Under a cancel request,
// or if the policy says so, a defect is a failure like any other.
func holdRun(tx *Tx, r *perdure.Run, epoch int64, why perdure.Failure) error {
	timeout, hold, err := holdPolicy(tx, r)
	if err != nil {
		return err
	}
	if !hold || r.Cancel.RequestedAt != 0 {
		return tx.RetryOrFail(r, epoch, why)
	}
	build, err := grantedBuild(tx, r)
	if err != nil {
		return err
	}
	begins, defects := !r.OnHold(), 1
	if r.Hold != nil {
		defects += r.Hold.Count
	}
	before := r.Hold
	err = tx.Requeue(r, perdure.Held{Epoch: epoch, Failure: why, Build: build, Timeout: timeout,
		Delay: tx.e.policy.Backoff(defects, tx.Roll())})
	if err != nil {
		return err
	}
	if begins {
		if err := noteHold(tx, r); err != nil {
			return err
		}
	}
	if before == nil || !slices.Contains(before.Builds, build) {
		t, id, kind := r.Tenant, r.ID, r.Kind
		tx.DB.After(func() {
			tx.e.log.Warn("run held", "tenant", t, "run", id, "kind", kind, "code", why.Code, "build", build)
		})
	}
	place := Ready{Tenant: r.Tenant, Queue: r.Queue, Kind: r.Kind}
	tx.DB.After(func() { tx.e.held.add(place) })
	// Polls of other builds may claim it now.
	tx.ring(doorbell.Queue(r.Tenant, r.Queue).Of(r.Kind))
	return nil
}

// grantedBuild gives the build of the worker that holds a run: the last grant's line has it.
func grantedBuild(tx *Tx, r *perdure.Run) (string, error) {
	var granted struct {
		Build string `json:"build"`
	}
	err := tx.DB.Events.LastOf(r.Tenant, r.ID, perdure.LineDispatched, 0, func(l perdure.Line) bool {
		_ = json.Unmarshal([]byte(l.Data), &granted) // a line that can't be read names no build
		return true
	})
	return granted.Build, err
}

// noteHold adds a notice to the thread that says that its run is on hold.
func noteHold(tx *Tx, r *perdure.Run) error {
	return addNotice(tx, r, "This run is on hold because of a fault in its program. It is tried again by itself.",
		"status", "held", "code", string(r.Hold.Failure.Code))
}

// ReleaseHold ends the hold of a run: any worker may claim it now. With a Key it counts once.
type ReleaseHold struct {
	Tenant perdure.TenantID
	RunID  perdure.RunID
	Key    string

	Run perdure.Run
}

func (op *ReleaseHold) Needs() []store.Ref { return refs(op.Tenant, op.RunID) }

// Do releases the run.
func (op *ReleaseHold) Do(tx *Tx) error {
	return onHeldRun(tx, op.Tenant, op.RunID, "release-hold", op.Key, &op.Run, func(r *perdure.Run) error {
		if err := tx.Apply(r, perdure.HoldReleased{}); err != nil {
			return err
		}
		return tx.audit(op.Tenant, perdure.AuditRunReleaseHold, string(op.RunID))
	})
}

// DeadLetterRun ends a run that is on hold, failed with the code of its defect, and writes a dead
// letter. With a Key it counts once.
type DeadLetterRun struct {
	Tenant perdure.TenantID
	RunID  perdure.RunID
	Key    string

	Run perdure.Run
}

func (op *DeadLetterRun) Needs() []store.Ref { return refs(op.Tenant, op.RunID) }

// Do ends the run.
func (op *DeadLetterRun) Do(tx *Tx) error {
	return onHeldRun(tx, op.Tenant, op.RunID, "dead-letter", op.Key, &op.Run, func(r *perdure.Run) error {
		if err := tx.Finish(r, perdure.HoldAbandoned{}); err != nil {
			return err
		}
		return tx.audit(op.Tenant, perdure.AuditRunDeadLetter, string(op.RunID))
	})
}

// onHeldRun does something to a run that is on hold, once for each key, and refuses any other run.
func onHeldRun(
	tx *Tx, t perdure.TenantID, id perdure.RunID, action, key string, out *perdure.Run, do func(*perdure.Run) error,
) error {
	r, err := tx.run(t, id)
	if err != nil {
		return err
	}
	_, err = underKey(tx, t, action+":"+string(id), key, nil, func() (string, error) {
		if !r.OnHold() {
			return "", perdure.Errorf(perdure.CodeWrongState, "the run is %s and not on hold", r.State)
		}
		return "", do(&r)
	}, func(string) error { return nil })
	*out = r
	return err
}

// takeHeld claims runs that are held back and that the poll's build has not held.
func (op *Claim) takeHeld(tx *Tx, budget *pollBudget) (full bool, err error) {
	if op.Build == "" {
		return false, nil
	}
	if err := tx.e.held.refresh(tx); err != nil {
		return false, err
	}
	rows, slots := maxHeldRows, min(op.Slots, maxHeldGrants)
	for _, at := range tx.e.held.matching(op, tx.Now) {
		if rows <= 0 || len(op.Grants) >= slots {
			break
		}
		if err := checkGrantable(tx, at.Tenant); err != nil {
			if perdure.CodeOf(err) == perdure.CodeNoSigner && op.AnyTenant {
				continue
			}
			return false, err
		}
		limit := min(rows, slots-len(op.Grants)+maxHeldRows/2)
		ids, next, err := tx.DB.Claims.HeldBack(at.Ready, op.Build, at.after, limit)
		if err != nil {
			return false, err
		}
		rows -= limit
		if left := slots - len(op.Grants); len(ids) > left {
			ids = ids[:left]
			next = ids[left-1]
		}
		if len(ids) == 0 {
			tx.e.held.passed(at.Ready, op.Build, next, tx.Now)
			continue
		}
		found := make([]perdure.Run, len(ids))
		for i, id := range ids {
			found[i] = perdure.Run{Tenant: at.Tenant, ID: id}
		}
		if full, err := op.grantFound(tx, found, budget); err != nil || full {
			return full, err
		}
		tx.e.held.passed(at.Ready, op.Build, next, tx.Now)
	}
	return false, nil
}

// heldPlaces remembers the places that have held runs.
type heldPlaces struct {
	mu       sync.Mutex
	lookedAt perdure.Instant
	list     []*heldPlace // in order
}

// A heldPlace is a queue and kind of a tenant that has held runs.
type heldPlace struct {
	Ready
	builds map[string]heldCursor
}

// A heldCursor is the position of a build's search in a place.
type heldCursor struct {
	after perdure.RunID
	// restUntil is set when the build has seen all held runs of the place.
	restUntil perdure.Instant
}

// A heldSearch is a place that a poll searches, from behind a run.
type heldSearch struct {
	Ready
	after perdure.RunID
}

func comparePlaces(a *heldPlace, at Ready) int {
	return slices.Compare([]string{string(a.Tenant), a.Queue, a.Kind}, []string{string(at.Tenant), at.Queue, at.Kind})
}

// add remembers a place. A run there was held just now, so every build searches it from the start.
func (h *heldPlaces) add(at Ready) {
	h.mu.Lock()
	defer h.mu.Unlock()
	i, known := slices.BinarySearchFunc(h.list, at, comparePlaces)
	switch {
	case known:
		h.list[i].builds = nil
	case len(h.list) < maxHeldPlaces:
		h.list = slices.Insert(h.list, i, &heldPlace{Ready: at})
	}
}

// refresh reads the places from the store, if that was not done within heldLookEvery.
func (h *heldPlaces) refresh(tx *Tx) error {
	h.mu.Lock()
	due := h.due(tx.Now)
	h.mu.Unlock()
	if !due {
		return nil
	}
	places, err := tx.DB.Claims.HeldPlaces(maxHeldPlaces)
	if err == nil {
		h.set(places, tx.Now)
	}
	return err
}

// due tells whether the places have to be read. The caller holds h.mu.
func (h *heldPlaces) due(now perdure.Instant) bool {
	return now.Sub(h.lookedAt) >= heldLookEvery || now < h.lookedAt
}

// set replaces the places, and gives those that were not known. Positions are kept.
func (h *heldPlaces) set(places []Ready, now perdure.Instant) (fresh []Ready) {
	h.mu.Lock()
	defer h.mu.Unlock()
	list := make([]*heldPlace, len(places))
	for i, at := range places {
		if k, known := slices.BinarySearchFunc(h.list, at, comparePlaces); known {
			list[i] = h.list[k]
		} else {
			list[i] = &heldPlace{Ready: at}
			fresh = append(fresh, at)
		}
	}
	h.list, h.lookedAt = list, now
	return fresh
}

// matching gives the places that a poll has to search.
func (h *heldPlaces) matching(op *Claim, now perdure.Instant) (out []heldSearch) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, p := range h.list {
		at := p.builds[op.Build]
		if op.covers(p.Ready) && (now >= at.restUntil || now < h.lookedAt) {
			out = append(out, heldSearch{p.Ready, at.after})
		}
	}
	return out
}

// covers tells whether a poll asks for the runs of a place.
func (op *Claim) covers(at Ready) bool {
	return (op.AnyTenant || op.Tenant == at.Tenant) && slices.Contains(op.Queues, at.Queue) &&
		(len(op.Kinds) == 0 || slices.Contains(op.Kinds, at.Kind))
}

// passed remembers how far a build has searched a place. After the last run the build rests.
func (h *heldPlaces) passed(at Ready, build string, next perdure.RunID, now perdure.Instant) {
	h.mu.Lock()
	defer h.mu.Unlock()
	i, known := slices.BinarySearchFunc(h.list, at, comparePlaces)
	if !known {
		return
	}
	p := h.list[i]
	if p.builds == nil || len(p.builds) >= maxHeldBuilds {
		p.builds = make(map[string]heldCursor)
	}
	cursor := heldCursor{after: next}
	if next == "" {
		cursor.restUntil = now.Add(heldLookEvery)
	}
	p.builds[build] = cursor
}

// Held reads the places that have held runs, and gives those that this node did not know. Their
// polls have to be woken. It does not wait for reads of callers.
func (e *Engine) Held(ctx context.Context) (fresh []Ready, err error) {
	err = e.store.Keep(ctx, func(v *store.View) error {
		places, err := v.Claims.HeldPlaces(maxHeldPlaces)
		if err == nil {
			fresh = e.held.set(places, v.Now)
		}
		return err
	})
	return fresh, err
}
