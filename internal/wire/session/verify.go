package session

import (
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
)

// Verify checks the signature of a granted run, and that its deadline has not passed long ago. Its error
// has the code signature_invalid.
func Verify(t *perdure.Trust, g *api.Grant) error {
	var s perdure.Signature
	if g.Signature != nil {
		s = *g.Signature
	}
	signed := &perdure.SignedRun{
		Tenant: g.Tenant, RunID: g.RunID, Kind: g.Kind, Queue: g.Queue, Input: g.Input, DeadlineAt: g.DeadlineAt,
		OriginRunID: g.OriginRunID,
	}
	if err := t.Verify(signed, s); err != nil {
		return err
	}
	if late := time.Since(g.DeadlineAt.Time()); late > clockSlack {
		return perdure.Errorf(perdure.CodeSignatureInvalid, "the run's signed deadline, %s, passed %s ago "+
			"by this worker's clock: the run is replayed, or the clock is wrong", g.DeadlineAt, late.Round(time.Second))
	}
	return nil
}

// clockSlack is how far a worker's clock may be ahead. A server does not grant a run after its
// deadline, so a grant that is later than this replays an old one.
const clockSlack = 5 * time.Minute
