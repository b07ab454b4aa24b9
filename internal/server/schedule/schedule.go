package schedule

import (
	"crypto/sha256"
	"encoding/binary"
	"time"
	_ "time/tzdata" // time zones are those of the program, the same on every node

	"github.com/perdure/perdure"
)

// Bounds of a schedule.
const (
	MinEvery  = 10 * time.Second
	MaxEvery  = 366 * 24 * time.Hour
	MaxJitter = 24 * time.Hour
	maxText   = 200 // bytes of an expression or of the name of a zone

	// Grace is how late an instant may fire without being missed.
	Grace = time.Minute
	// MaxMissed is how many missed instants a schedule makes up for at most.
	MaxMissed = 100
	// maxCounted bounds how many missed instants are counted.
	maxCounted = 1_000
)

// Overlap says what happens at an instant while the last run is live.
type Overlap string

const (
	OverlapAllow     Overlap = "allow"      // starts one more; the default
	OverlapSkip      Overlap = "skip"       // starts none, and counts it
	OverlapQueue     Overlap = "queue"      // starts one when the last one has ended; one instant waits
	OverlapCancelOld Overlap = "cancel_old" // asks the last one to stop, and starts one
)

// Missed says what happens to instants that nobody fired in time.
type Missed string

const (
	MissedOnce Missed = "once" // starts one run for the latest of them; the default
	MissedSkip Missed = "skip" // starts none, and counts them
	MissedAll  Missed = "all"  // starts one for each of the last MaxMissed
)

// A Plan says at which instants a schedule fires.
type Plan struct {
	Cron     string           `json:"cron,omitempty"`
	Every    perdure.Duration `json:"every,omitempty"`
	Timezone string           `json:"timezone,omitempty"` // of cron; UTC by default
	Jitter   perdure.Duration `json:"jitter,omitempty"`
	StartAt  perdure.Instant  `json:"start_at,omitempty"`
	EndAt    perdure.Instant  `json:"end_at,omitempty"`
	Overlap  Overlap          `json:"overlap,omitempty"`
	Missed   Missed           `json:"missed,omitempty"`
}

// A Clock gives the instants of a plan.
type Clock struct {
	plan   Plan
	anchor perdure.Instant // instants of every are counted from here
	id     string          // of the schedule, for its jitter
	cron   cron
	zone   *time.Location
}

// NewClock checks a plan and fills in its defaults. Instants of every are counted from StartAt, or
// else from anchor.
func NewClock(p *Plan, id string, anchor perdure.Instant) (*Clock, error) {
	if err := p.validate(); err != nil {
		return nil, err
	}
	c := &Clock{plan: *p, id: id, anchor: anchor, zone: time.UTC}
	if p.StartAt != 0 {
		c.anchor = p.StartAt
	}
	if p.Cron == "" {
		return c, nil
	}
	var err error
	if c.cron, err = parseCron(p.Cron); err != nil {
		return nil, err
	}
	if p.Timezone != "" {
		if c.zone, err = time.LoadLocation(p.Timezone); err != nil {
			return nil, perdure.Unprocessable("timezone", "%.60q is no time zone of the IANA database, such as "+
				"\"Europe/Berlin\"", p.Timezone)
		}
	}
	if _, ok := c.cron.next(anchor.Time(), c.zone); !ok {
		return nil, &perdure.Error{Code: perdure.CodeNeverFires, Field: "cron",
			Message: "no day of the next 12 years has the date of this expression"}
	}
	return c, nil
}

func (p *Plan) validate() error {
	switch {
	case (p.Cron == "") == (p.Every == 0):
		return perdure.Unprocessable("cron", "give either cron or every")
	case len(p.Cron) > maxText || len(p.Timezone) > maxText:
		return perdure.Unprocessable("cron", "takes at most %d bytes", maxText)
	case p.Timezone != "" && p.Cron == "":
		return perdure.Unprocessable("timezone", "goes with cron")
	case p.Timezone == "Local":
		return perdure.Unprocessable("timezone", "\"Local\" would be another zone on another node; name one, such as "+
			"\"Europe/Berlin\"")
	case p.Every != 0 && (time.Duration(p.Every) < MinEvery || time.Duration(p.Every) > MaxEvery):
		return perdure.Unprocessable("every", "must lie between %s and %s", MinEvery, perdure.Duration(MaxEvery))
	case time.Duration(p.Every)%time.Second != 0:
		return perdure.Unprocessable("every", "takes whole seconds")
	case p.Jitter < 0 || time.Duration(p.Jitter) > MaxJitter:
		return perdure.Unprocessable("jitter", "must lie between 0s and %s", MaxJitter)
	case p.StartAt != 0 && p.EndAt != 0 && p.EndAt <= p.StartAt:
		return perdure.Unprocessable("end_at", "must lie after start_at")
	}
	if p.Overlap == "" {
		p.Overlap = OverlapAllow
	}
	if p.Missed == "" {
		p.Missed = MissedOnce
	}
	switch p.Overlap {
	case OverlapAllow, OverlapSkip, OverlapQueue, OverlapCancelOld:
	default:
		return perdure.Unprocessable("overlap", "%.20q is none of allow, skip, queue, cancel_old", p.Overlap)
	}
	switch p.Missed {
	case MissedOnce, MissedSkip, MissedAll:
	default:
		return perdure.Unprocessable("missed", "%.20q is none of once, skip, all", p.Missed)
	}
	return nil
}

// Next gives the first instant after another one. There is none after EndAt.
func (c *Clock) Next(after perdure.Instant) (at perdure.Instant, ok bool) {
	if start := c.plan.StartAt; start != 0 && after < start {
		after = start - 1
	}
	if every := time.Duration(c.plan.Every); every > 0 {
		step := perdure.Instant(every / time.Microsecond)
		if at = c.anchor; after >= at {
			at += ((after-at)/step + 1) * step
		}
	} else {
		t, found := c.cron.next(after.Time(), c.zone)
		if !found {
			return 0, false
		}
		at = perdure.At(t)
	}
	if c.plan.EndAt != 0 && at > c.plan.EndAt {
		return 0, false
	}
	return at, true
}

// FireAt gives when an instant fires: at most Jitter later, always before the next instant fires, and
// the same on every node.
func (c *Clock) FireAt(at perdure.Instant) perdure.Instant {
	room := time.Duration(c.plan.Jitter)
	if room == 0 {
		return at
	}
	if next, ok := c.Next(at); ok {
		room = min(room, next.Sub(at)-time.Second)
	}
	if room <= 0 {
		return at
	}
	sum := sha256.Sum256(binary.BigEndian.AppendUint64([]byte(c.id), uint64(at)))
	return at.Add(time.Duration(binary.BigEndian.Uint64(sum[:8]) % uint64(room)))
}

// Due are the instants of a schedule that have come.
type Due struct {
	// Fire is the instant to start a run for. Zero: none.
	Fire perdure.Instant
	// Missed is how many instants before it, or all if there is none, are passed over.
	Missed int
	// Next is the instant that comes after all of these. Zero: the schedule is over.
	Next perdure.Instant
}

// Due decides about the instants from next on that have come by now.
//
// An instant is missed if it is later than Grace, or if the one after it has come as well.
func (c *Clock) Due(next, now perdure.Instant) Due {
	if next == 0 || c.FireAt(next) > now {
		return Due{Next: next}
	}
	latest, passed := c.latest(next, now)
	after, ok := c.Next(latest)
	if !ok {
		after = 0
	}
	late := now.Sub(c.FireAt(latest)) > Grace
	switch {
	case c.plan.Missed == MissedAll && passed > 0:
		first, skipped := c.lastOf(next, latest, passed)
		following, ok := c.Next(first)
		if !ok {
			following = 0
		}
		return Due{Fire: first, Missed: skipped, Next: following}
	case late && c.plan.Missed == MissedSkip:
		return Due{Missed: passed + 1, Next: after}
	}
	return Due{Fire: latest, Missed: passed, Next: after}
}

// Skip gives the first instant behind until, and how many are passed over, from next on. The number is
// counted up to a bound.
func (c *Clock) Skip(next, until perdure.Instant) (after perdure.Instant, passed int) {
	for at, ok := next, true; ok && at <= until && passed < maxCounted; at, ok = c.Next(at) {
		passed++
	}
	if after, ok := c.Next(until); ok {
		return after, passed
	}
	return 0, passed
}

// Local gives how clocks of the plan's time zone show an instant.
func (c *Clock) Local(at perdure.Instant) string { return at.Time().In(c.zone).Format(time.RFC1123Z) }

// Overlap says what the plan says of overlaps.
func (c *Clock) Overlap() Overlap { return c.plan.Overlap }

// latest gives the last instant from next on whose time to fire has come, and how many were before it.
// It counts up to a bound, and finds the last one in any case.
func (c *Clock) latest(next, now perdure.Instant) (at perdure.Instant, passed int) {
	if step := perdure.Instant(c.plan.Every) / perdure.Instant(time.Microsecond); step > 0 {
		// Arithmetic brings it near; jitter decides about the last ones.
		if jump := (now-next)/step - 2; jump > 0 {
			next, passed = next+jump*step, int(min(jump, maxCounted))
		}
	}
	at = next
	for range maxCounted {
		after, ok := c.Next(at)
		if !ok || c.FireAt(after) > now {
			return at, min(passed, maxCounted)
		}
		at, passed = after, passed+1
	}
	return c.lastBefore(at, now), maxCounted
}

// lastBefore gives the last instant that has come, by looking back in spans that grow.
func (c *Clock) lastBefore(known, now perdure.Instant) perdure.Instant {
	for back := time.Hour; now.Add(-back) > known; back *= 2 {
		at, ok := c.Next(now.Add(-back))
		if !ok || c.FireAt(at) > now {
			continue
		}
		for {
			next, ok := c.Next(at)
			if !ok || c.FireAt(next) > now {
				return at
			}
			at = next
		}
	}
	return known
}

// lastOf gives the first instant that is made up for, of those that have come: the last MaxMissed of
// them. skipped is how many lie before it.
func (c *Clock) lastOf(next, latest perdure.Instant, passed int) (first perdure.Instant, skipped int) {
	if passed < MaxMissed {
		return next, 0
	}
	ring := make([]perdure.Instant, 0, MaxMissed)
	for back := MinEvery; ; back *= 2 {
		ring = ring[:0]
		from := max(latest.Add(-back), next-1)
		for at, ok := c.Next(from); ok && at <= latest; at, ok = c.Next(at) {
			if len(ring) == MaxMissed {
				ring = append(ring[:0], ring[1:]...)
			}
			ring = append(ring, at)
		}
		if len(ring) == MaxMissed || from == next-1 {
			return ring[0], passed + 1 - len(ring)
		}
	}
}
