package engine

import (
	"errors"
	"sync"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/doorbell"
)

// sign signs a run that is being accepted, if there is a key. Without one, a tenant that requires signatures gets no new
// run; a continuation is made all the same, because an end must not fail, and is refused when it is granted.
func (tx *Tx) sign(r *perdure.Run) error {
	t, _, err := tx.Tenant(r.Tenant)
	if err != nil {
		return err
	}
	switch {
	case tx.e.signer == nil && t.Signed && r.ContinuationOf == "":
		return noSigner()
	case tx.e.signer == nil:
		return nil
	case t.Signed && r.ContinuationOf != "":
		// Its kind and its queue are those of the run that it continues: they are not vouched for if that one is not.
		orig, err := tx.run(r.Tenant, r.ContinuationOf)
		if err != nil {
			return err
		}
		if err := tx.genuine(&orig); err != nil {
			return unlessForged(err)
		}
	}
	signed, err := tx.signed(r)
	if err != nil {
		return err
	}
	r.Signature = tx.e.signer.Sign(signed)
	return nil
}

func noSigner() error {
	return perdure.Errorf(perdure.CodeNoSigner, "the tenant's runs have to be signed, and this server has no key to sign with")
}

// signed is what a run's signature covers: its input as it is handed over.
func (tx *Tx) signed(r *perdure.Run) (*perdure.SignedRun, error) {
	input, err := tx.Resolve(r.Tenant, r.Input)
	return &perdure.SignedRun{Tenant: r.Tenant, RunID: r.ID, Kind: r.Kind, Queue: r.Queue, Input: []byte(input), DeadlineAt: r.DeadlineAt}, err
}

// genuine tells whether a run is what was accepted. If not, the error has the code signature_invalid.
func (tx *Tx) genuine(r *perdure.Run) error {
	if tx.e.signer == nil {
		return noSigner()
	}
	signed, err := tx.signed(r)
	var damaged *perdure.Error
	if errors.As(err, &damaged) {
		return perdure.Errorf(perdure.CodeSignatureInvalid, "the run is not what was accepted: %s", damaged.Message)
	}
	if err != nil {
		return err
	}
	return tx.e.signer.Trust().Verify(signed, r.Signature)
}

// unlessForged drops the finding that a run is not what was accepted, and no other error.
func unlessForged(err error) error {
	if perdure.CodeOf(err) == perdure.CodeSignatureInvalid {
		return nil
	}
	return err
}

// mayRepeat refuses to make a new run of one that is not what was accepted: the new one would be signed, and nobody could
// tell any more.
func (tx *Tx) mayRepeat(orig *perdure.Run) error {
	t, _, err := tx.Tenant(orig.Tenant)
	if err != nil || tx.e.signer == nil || !t.Signed && orig.Signature.IsZero() {
		return err
	}
	return tx.genuine(orig)
}

// handable tells whether runs of a tenant are handed over here. Those that have to be verified are not by a server that has
// no key to do it with: they wait for one that has.
func (tx *Tx) handable(t perdure.TenantID) error {
	if tx.e.signer != nil {
		return nil
	}
	signed, err := tx.e.strict.has(tx, t)
	if err == nil && signed {
		err = noSigner()
	}
	return err
}

// turnedAway ends a run that is about to be granted and is not what was accepted. It was delivered, and to nobody.
func (tx *Tx) turnedAway(r *perdure.Run, worker string) (bool, error) {
	signed, err := tx.e.strict.has(tx, r.Tenant)
	if err != nil || !signed {
		return false, err
	}
	err = tx.genuine(r)
	if perdure.CodeOf(err) != perdure.CodeSignatureInvalid {
		return false, err
	}
	why := perdure.Failure{Code: perdure.CodeSignatureInvalid, Message: err.(*perdure.Error).Message}
	tx.After(func() {
		tx.e.log.Warn("a run is not handed over: its signature is not valid", "tenant", r.Tenant, "run", r.ID, "why", why.Message)
	})
	if err := tx.returnItems(r); err != nil {
		return true, err
	}
	if err := tx.Apply(r, perdure.Granted{Worker: worker}); err != nil {
		return true, err
	}
	// It may have stood before others, who were not looked at.
	tx.ring(doorbell.Queue(r.Tenant, r.Queue).Of(r.Kind))
	return true, tx.Finish(r, perdure.Rejected{Epoch: r.Epoch, Failure: why})
}

// strict remembers which tenants require signatures, so that a grant to the others costs no look. What another node sets
// counts after hookTTL.
type strict struct {
	mu      sync.Mutex
	changes int64
	known   cachedTenants
}

func (s *strict) has(tx *Tx, t perdure.TenantID) (bool, error) {
	s.mu.Lock()
	known, changes := s.known, s.changes
	s.mu.Unlock()
	if !known.good(tx) {
		list, err := tx.SignedTenants(maxHooked + 1)
		if err != nil {
			return false, err
		}
		known = cachedTenants{cached: cached{tx.Now.Add(hookTTL), tx.Number}, many: len(list) > maxHooked}
		for _, x := range list {
			if known.set == nil {
				known.set = make(map[perdure.TenantID]bool, len(list))
			}
			known.set[x] = true
		}
		s.mu.Lock()
		if s.changes == changes {
			s.known = known
		}
		s.mu.Unlock()
	}
	if known.many && !known.set[t] {
		row, _, err := tx.Tenant(t)
		return row.Signed, err
	}
	return known.set[t], nil
}

// forget has it read anew.
func (s *strict) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changes++
	s.known = cachedTenants{}
}
