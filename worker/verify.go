package worker

import (
	"fmt"
	"os"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
)

// LoadTrust reads trusted public keys from files, such as "perdure keys signing public" writes.
func LoadTrust(files ...string) (*perdure.Trust, error) {
	var sets [][]byte
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("read the keys that are trusted: %w", err)
		}
		sets = append(sets, b)
	}
	t, err := perdure.ParseTrust(sets...)
	if err != nil {
		return nil, fmt.Errorf("read the keys that are trusted: %w", err)
	}
	return t, nil
}

// verify checks the signature of a granted run, and that its deadline has not passed long ago.
// Without Options.Trust nothing is checked.
func (w *Worker) verify(g *api.Grant) error {
	if w.opt.Trust == nil {
		return nil
	}
	var s perdure.Signature
	if g.Signature != nil {
		s = *g.Signature
	}
	signed := &perdure.SignedRun{
		Tenant: g.Tenant, RunID: g.RunID, Kind: g.Kind, Queue: g.Queue, Input: g.Input, DeadlineAt: g.DeadlineAt,
		OriginRunID: g.OriginRunID,
	}
	if err := w.opt.Trust.Verify(signed, s); err != nil {
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
