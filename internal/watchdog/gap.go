package watchdog

import (
	"encoding/json"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/engine"
)

// A gap is a time in which no node swept. Workers could not be heard then, so that nothing which is judged by
// silence is judged until they have had a lease's time to speak.
type gap struct {
	SweptAt    perdure.Instant `json:"swept_at"`
	From       perdure.Instant `json:"gap_from,omitempty"`
	HoldUntil  perdure.Instant `json:"hold_until,omitempty"`
	SpareUntil perdure.Instant `json:"spare_until,omitempty"`
}

// readGap reads when somebody last swept, and notes that somebody does now.
func readGap(tx *engine.Tx) (*gap, error) {
	text, err := tx.Meta("sweep")
	if err != nil {
		return nil, err
	}
	var g gap
	if text != "" {
		if json.Unmarshal([]byte(text), &g) != nil {
			g = gap{} // it can't be read: as if nobody had swept yet
		}
	}
	p := tx.Policy()
	age := tx.Now.Sub(g.SweptAt)
	if -age > p.GapAfter { // the clock was set back: nothing that it said of silence holds
		g = gap{SweptAt: tx.Now, From: tx.Now, HoldUntil: tx.Now.Add(p.Lease), SpareUntil: tx.Now.Add(p.GapSpare)}
		age = 0
	}
	if g.SweptAt != 0 && age > p.GapAfter {
		g.From, g.HoldUntil, g.SpareUntil = g.SweptAt, tx.Now.Add(p.Lease), tx.Now.Add(p.GapSpare)
	}
	// Often enough that a sweep which comes in time never finds a gap, and seldom enough to cost nothing.
	if age >= min(time.Second, p.GapAfter/4) || g.SweptAt == 0 || g.From == g.SweptAt {
		g.SweptAt = tx.Now
		b, err := json.Marshal(g)
		if err != nil {
			return nil, err
		}
		tx.SetMeta("sweep", string(b))
	}
	return &g, nil
}

// hold gives until when a rule is held back for a run after a gap.
func (g *gap) hold(now perdure.Instant, rule *Rule, r *perdure.Run) perdure.Instant {
	if rule.Held {
		return g.HoldUntil
	}
	if rule.Clock == "deadline" && r.State.Leased() && (r.Options.Process || r.LeaseUntil > g.From) && r.DeadlineAt > g.From {
		return g.SpareUntil // what its worker has kept may still be delivered; one gap after the other extends nothing
	}
	return 0
}
