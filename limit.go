package perdure

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Limits: how many runs may be leased at once, and how often runs may be granted.
//
// A run names limits when it is accepted (LimitUse). While it is queued or leased, its position at
// them (Limited) is one of three: it waits at a limit without room, it is offered, which means that a
// poll may claim it, or it holds its slots. The engine keeps the counts; here is how the position of a
// run follows from events.

// The bounds of limits.
const (
	maxLimits       = 4         // limits that a run names
	MaxLimitKey     = 200       // bytes of a key
	maxLimitCount   = 1_000_000 // a concurrency, and the grants of a rate
	minLimitPer     = time.Second
	maxLimitPer     = 24 * time.Hour
	MaxLimitClosed  = 366 * 24 * time.Hour // how far ahead a limit may be closed
	LimitOfKind     = "kind:"              // begins the name of the limit that a kind's concurrency is
	LimitOfQueue    = "queue:"             // begins the name of the limit that a queue's concurrency is
	maxLimitPointer = 500
)

// A LimitUse says which limits a run is under.
type LimitUse struct {
	Names []string `json:"names"`
	// Key is the key under limits that have a count of their own for each key.
	Key string `json:"key,omitempty"`
	// Units is what a grant takes of a rate. Zero: one.
	Units int `json:"units,omitempty"`
}

// Taken returns what a grant takes of a rate.
func (u *LimitUse) Taken() int { return max(1, u.Units) }

// A LimitRef names a limit, and the key if the limit has a count of its own for each.
type LimitRef struct {
	Limit string `json:"limit"`
	Key   string `json:"key,omitempty"`
}

// A Limited is the position of a run at its limits. Runs share it: it is never changed in place.
type Limited struct {
	// At is the limit that the run waits at, and Turn its key there, for limits at which keys take
	// turns. Empty: it waits at none.
	At   LimitRef `json:"at,omitzero"`
	Turn string   `json:"turn,omitempty"`
	// Since is when it began to wait for a grant because of a limit. Zero: it did not have to.
	Since Instant `json:"since,omitempty"`
	// Refs are the limits that count it: as offered since OfferedAt, or as leased if Held is set.
	Refs      []LimitRef `json:"refs,omitempty"`
	OfferedAt Instant    `json:"offered_at,omitempty"`
	// Units are what an offered run was counted with at the rate of each of Refs. Releases up to 0.1.0 don't
	// write them.
	Units []int `json:"units,omitempty"`
	Held  bool  `json:"held,omitempty"`
	// Steps are the slots that steps of a leased run hold, beside those of the run. They end with its epoch.
	Steps []StepSlot `json:"steps,omitempty"`
}

// AtLimit tells whether the run waits at a limit without room: for a grant, or, suspended, for a step.
func (r *Run) AtLimit() bool { return r.Limited != nil && r.Limited.At.Limit != "" }

// HoldsSlots tells whether the run counts as leased at its limits.
func (r *Run) HoldsSlots() bool {
	return r.Limited != nil && (r.Limited.Held || len(r.Limited.Steps) > 0)
}

// Unplaced tells whether the run is claimable and under limits that don't count it yet.
func (r *Run) Unplaced() bool {
	return r.State == Queued && r.Ready && r.Limited == nil && (r.Options.Limits != nil || r.DueStep() != nil) &&
		!r.ForCleanup()
}

// followLimits gives the position of a run at its limits after an event has led to the state.
func (r *Run) followLimits(to State) *Limited {
	l := r.Limited
	switch {
	case l == nil:
		return nil
	case to.Leased() && r.HoldsSlots():
		return l
	case to == Suspended && l.At.Limit != "" && len(r.Wants) > 0:
		return l
	case to == Queued && !r.HoldsSlots() && r.Ready == (l.At.Limit == ""):
		return l
	}
	return nil
}

// LimitReached has a run wait at a limit without room. Its log gets one line each time that it has to
// wait for a grant, however many limits it waits at one after the other.
type LimitReached struct {
	At   LimitRef
	Turn string
}

func (LimitReached) allowed(_ *Policy, r *Run, _ Instant) bool {
	return r.Ready || r.AtLimit() || r.State == Suspended && len(r.Wants) > 0
}

func (e LimitReached) apply(_ *Policy, r *Run, now Instant, log *history) {
	since := Instant(0)
	if r.Limited != nil {
		since = r.Limited.Since
	}
	r.Ready = false
	if since == 0 {
		since = now
		log.add(LineBlocked, object("limit", e.At.Limit, "key", e.At.Key))
	}
	r.Limited = &Limited{At: e.At, Turn: e.Turn, Since: since}
}

// LimitOffered makes a run claimable that its limits have room for. Units are what it takes of the rate of each.
type LimitOffered struct {
	Refs  []LimitRef
	Units []int
}

func (LimitOffered) allowed(_ *Policy, r *Run, _ Instant) bool { return r.Ready || r.AtLimit() }

func (e LimitOffered) apply(_ *Policy, r *Run, now Instant, _ *history) {
	since := Instant(0)
	if r.Limited != nil {
		since = r.Limited.Since
	}
	if !r.Ready {
		r.Ready, r.ReadyAt = true, now
	}
	r.Limited = nil
	if len(e.Refs) > 0 || since != 0 {
		r.Limited = &Limited{Since: since, Refs: e.Refs, OfferedAt: now, Units: e.Units}
	}
}

// held gives the position of a run that was granted under limits, and with slots of steps.
func held(refs []LimitRef, steps []StepSlot) *Limited {
	if len(refs) == 0 && len(steps) == 0 {
		return nil
	}
	return &Limited{Refs: refs, Held: len(refs) > 0, Steps: steps}
}

// A LimitRate bounds the grants within any window of time: Count, and Burst more.
type LimitRate struct {
	Count int      `json:"count"`
	Per   Duration `json:"per"`
	// Burst is 1 by default.
	Burst int `json:"burst,omitempty"`
}

// Every returns the time after which a rate allows one more unit.
func (x *LimitRate) Every() time.Duration {
	per, count := time.Duration(x.Per).Microseconds(), int64(x.Count)
	return time.Duration((per+count-1)/count) * time.Microsecond
}

// At returns the first instant at which a rate allows units. full is when the rate has regained all
// that was taken. The result is exact: no window has more than Count and Burst units. A grant of more
// units than Burst waits until that many more were not used.
func (x *LimitRate) At(full Instant, units int) Instant {
	return full.Add(time.Duration(units-max(1, x.Burst)) * x.Every())
}

// Take returns the instant at which a rate has regained all that was taken, after units more are taken.
func (x *LimitRate) Take(full, now Instant, units int) Instant {
	return max(full, now).Add(time.Duration(units) * x.Every())
}

// Validate checks a rate.
func (x *LimitRate) Validate(field string) error {
	switch {
	case x.Count == 0:
		return Unprocessable(field+".count", "is 0: close the limit if nothing is to be granted")
	case x.Count < 0 || x.Count > maxLimitCount:
		return Unprocessable(field+".count", "%d does not lie between 1 and %d", x.Count, maxLimitCount)
	case time.Duration(x.Per) < minLimitPer || time.Duration(x.Per) > maxLimitPer:
		return Unprocessable(field+".per", "must lie between %s and %s", minLimitPer, maxLimitPer)
	case x.Burst < 0 || x.Burst > maxLimitCount:
		return Unprocessable(field+".burst", "%d does not lie between 1 and %d", x.Burst, maxLimitCount)
	}
	return nil
}

// LimitValues are what a limit allows, or what another key than the others is allowed instead.
type LimitValues struct {
	// Concurrency is how many runs may be leased at once. Zero: any number.
	Concurrency int        `json:"concurrency,omitempty"`
	Rate        *LimitRate `json:"rate,omitempty"`
}

// Overlay replaces the values that upper has.
func (v *LimitValues) Overlay(upper *LimitValues) {
	v.Concurrency = cmp.Or(upper.Concurrency, v.Concurrency)
	if upper.Rate != nil {
		v.Rate = upper.Rate
	}
}

// Validate checks the values.
func (v *LimitValues) Validate() error {
	if v.Concurrency < 0 || v.Concurrency > maxLimitCount {
		return Unprocessable("concurrency", "%d does not lie between 1 and %d", v.Concurrency, maxLimitCount)
	}
	if v.Rate != nil {
		return v.Rate.Validate("rate")
	}
	return nil
}

// CheckLimitName checks the name of a limit that somebody makes.
func CheckLimitName(field, name string) error {
	if err := checkName(field, name); err != nil {
		return err
	}
	for _, own := range []string{LimitOfKind, LimitOfQueue} {
		if strings.HasPrefix(name, own) {
			return Invalid(field, "begins with %q, which is for the concurrency of kinds and queues", own)
		}
	}
	return nil
}

// CheckLimitKey checks a key. It may be empty.
func CheckLimitKey(field, key string) error {
	if len(key) > MaxLimitKey {
		return Invalid(field, "is longer than %d bytes", MaxLimitKey)
	}
	if strings.ContainsFunc(key, func(c rune) bool { return c < ' ' }) {
		return Invalid(field, "has a control character")
	}
	return checkText(field, key)
}

// checkLimits checks the limits that a request names.
func checkLimits(prefix string, names []string, key string, units int) error {
	if len(names) > maxLimits {
		return Unprocessable(prefix+"limits", "has %d limits; a run takes %d", len(names), maxLimits)
	}
	for i, name := range names {
		if err := CheckLimitName(fmt.Sprintf("%slimits[%d]", prefix, i), name); err != nil {
			return err
		}
		if slices.Contains(names[:i], name) {
			return Unprocessable(prefix+"limits", "names %q twice", name)
		}
	}
	if err := CheckLimitKey(prefix+"limit_key", key); err != nil {
		return err
	}
	if units < 0 || units > maxLimitCount {
		return Unprocessable(prefix+"units", "%d does not lie between 1 and %d", units, maxLimitCount)
	}
	return nil
}

// checkPointer checks a JSON Pointer, as RFC 6901 has it.
func checkPointer(field, p string) error {
	if p == "" {
		return nil
	}
	bad := len(p) > maxLimitPointer || !cleanText(p) || p[0] != '/'
	for i := 0; i < len(p) && !bad; i++ {
		bad = p[i] == '~' && (i+1 == len(p) || p[i+1] != '0' && p[i+1] != '1')
	}
	if bad {
		return Unprocessable(field, "%q is no JSON Pointer, such as /customer/id", p)
	}
	return nil
}

// A LimitClosure closes a limit, or one of its keys, for a time. A closure that holds for longer stays, and
// a limit that is not there is left out.
type LimitClosure struct {
	Name      string   `json:"name"`
	Key       string   `json:"key,omitempty"`
	ClosedFor Duration `json:"closed_for"`
	Reason    string   `json:"reason,omitempty"`
}

// Validate checks a closure.
func (c *LimitClosure) Validate(field string) error {
	if err := CheckLimitName(field+".name", c.Name); err != nil {
		return err
	}
	if err := CheckLimitKey(field+".key", c.Key); err != nil {
		return err
	}
	if c.ClosedFor < Duration(minDuration) || time.Duration(c.ClosedFor) > MaxLimitClosed {
		return Unprocessable(field+".closed_for", "must lie between %s and %s", minDuration, MaxLimitClosed)
	}
	return checkText(field+".reason", c.Reason)
}
