package watchdog

import (
	"encoding/json"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
)

// A gap is a time in which no node swept, because no server ran. Workers could not send signs of
// life then, so their silence means nothing. After a gap, the rules that judge by silence wait for
// one lease.
//
// A server that shuts down takes no more connections while it answers the calls that it has. Its sweeps
// don't count as such, and do not judge by silence.
//
// The store has one row, sweep in the table meta, with the time of the last sweep of any node and
// the last gap. One node that keeps sweeping is enough for there to be no gap.
type gap struct {
	SweptAt perdure.Instant `json:"swept_at"`
	// From is when the last gap began.
	From perdure.Instant `json:"gap_from,omitempty"`
	// HoldUntil is until when the rules that judge by silence wait.
	HoldUntil perdure.Instant `json:"hold_until,omitempty"`
	// SpareUntil is until when deadlines wait that passed during the gap, for runs whose worker may
	// still have a result.
	SpareUntil perdure.Instant `json:"spare_until,omitempty"`
}

// readGap reads the row, detects a gap, and writes the time of this sweep, unless the server shuts down.
func readGap(tx *kernel.Tx, draining bool) (*gap, error) {
	text, err := tx.DB.Meta.Get("sweep")
	if err != nil {
		return nil, err
	}
	var g gap
	if text != "" && json.Unmarshal([]byte(text), &g) != nil {
		g = gap{} // a row that can't be read counts as none
	}
	p := tx.Policy()
	if draining {
		g.HoldUntil = max(g.HoldUntil, tx.Now.Add(p.Lease))
		return &g, nil
	}
	age := tx.Now.Sub(g.SweptAt)
	if -age > p.GapAfter { // the clock was set back: no measured silence is right any more
		g = gap{SweptAt: tx.Now, From: tx.Now, HoldUntil: tx.Now.Add(p.Lease), SpareUntil: tx.Now.Add(p.GapSpare)}
		age = 0
	}
	if g.SweptAt != 0 && age > p.GapAfter {
		g.From, g.HoldUntil, g.SpareUntil = g.SweptAt, tx.Now.Add(p.Lease), tx.Now.Add(p.GapSpare)
	}
	// The row is not written by every sweep. A quarter of gap_after is often enough that regular
	// sweeps never look like a gap, and a second is seldom enough to cost nothing.
	if age >= min(time.Second, p.GapAfter/4) || g.SweptAt == 0 || g.From == g.SweptAt {
		g.SweptAt = tx.Now
		b, err := json.Marshal(g)
		if err != nil {
			return nil, err
		}
		tx.DB.Meta.Set("sweep", string(b))
	}
	return &g, nil
}

// postponedUntil returns until when a rule has to wait for a run because of the last gap. The
// result may be in the past, or zero.
//
// The deadline rule waits only for a run that was leased when the gap began and whose deadline came
// later. Its worker may have kept a result that is still to be taken. A second gap does not
// postpone the deadline again, because the deadline is before that gap.
func (g *gap) postponedUntil(rule *Rule, r *perdure.Run) perdure.Instant {
	if rule.Postponed {
		return g.HoldUntil
	}
	leased := r.State.Leased() && (r.Options.Process || r.LeaseUntil > g.From)
	if rule.Clock == "deadline" && leased && r.DeadlineAt > g.From {
		return g.SpareUntil
	}
	return 0
}
