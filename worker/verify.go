package worker

import (
	"fmt"
	"os"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
)

// LoadTrust reads the public keys that runs have to be signed by from files, such as "perdure keys signing public" writes.
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

// verify tells whether a granted run is what was accepted and signed. A worker that trusts nobody in particular takes the
// server's word.
func (w *Worker) verify(g *api.Grant) error {
	if w.opt.Trust == nil {
		return nil
	}
	var s perdure.Signature
	if g.Signature != nil {
		s = *g.Signature
	}
	return w.opt.Trust.Verify(&perdure.SignedRun{Tenant: g.Tenant, RunID: g.RunID, Kind: g.Kind, Queue: g.Queue, Input: g.Input, DeadlineAt: g.DeadlineAt}, s)
}
