package engine

import (
	"errors"
	"slices"
	"sync"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/doorbell"
)

// signRun signs a run that is being accepted, if there is a key. Without one, a tenant that requires signatures gets no new
// run; a continuation is made all the same, because an end must not fail, and is refused when it is granted.
func signRun(tx *Tx, r *perdure.Run) error {
	required, err := requiresSignature(tx, r.Tenant)
	if err != nil {
		return err
	}
	switch {
	case tx.e.signer == nil && required && r.ContinuationOf == "":
		return noSigner()
	case tx.e.signer == nil:
		return nil
	case r.ContinuationOf != "":
		// Its kind and its queue are those of the run that it continues: they are not vouched for if that one is not.
		orig, err := tx.run(r.Tenant, r.ContinuationOf)
		if err != nil {
			return err
		}
		if required || !orig.Signature.IsZero() {
			if err := checkSignature(tx, &orig); err != nil {
				return ignoreInvalidSignature(err)
			}
		}
	}
	signed, err := signedRun(tx, r)
	if err != nil {
		return err
	}
	r.Signature = tx.e.signer.Sign(signed)
	return nil
}

// requiresSignature tells whether a tenant's runs have to be signed: the store says so, or the configuration, which nobody changes who
// can change the store.
func requiresSignature(tx *Tx, t perdure.TenantID) (bool, error) {
	if tx.e.signingConfigured(t) {
		return true, nil
	}
	row, _, err := tx.DB.Tenants.Get(t)
	return row.Signed, err
}

// signingConfigured tells whether the configuration has a tenant's runs signed.
func (e *Engine) signingConfigured(t perdure.TenantID) bool {
	return slices.Contains(e.signingRequired, t) || slices.Contains(e.signingRequired, AnyTenant)
}

// AnyTenant stands for every tenant where some have to be named.
const AnyTenant perdure.TenantID = "*"

func noSigner() error {
	return perdure.Errorf(perdure.CodeNoSigner, "the tenant's runs have to be signed, and this server has no key to sign with")
}

// signedRun is what a run's signature covers: its input as it is handed over.
func signedRun(tx *Tx, r *perdure.Run) (*perdure.SignedRun, error) {
	input, err := tx.DB.Values.Resolve(r.Tenant, r.Input)
	return &perdure.SignedRun{Tenant: r.Tenant, RunID: r.ID, Kind: r.Kind, Queue: r.Queue, Input: []byte(input), DeadlineAt: r.DeadlineAt}, err
}

// checkSignature tells whether a run is what was accepted. If not, the error has the code signature_invalid.
func checkSignature(tx *Tx, r *perdure.Run) error {
	if tx.e.signer == nil {
		return noSigner()
	}
	signed, err := signedRun(tx, r)
	var damaged *perdure.Error
	if errors.As(err, &damaged) {
		return perdure.Errorf(perdure.CodeSignatureInvalid, "the run is not what was accepted: %s", damaged.Message)
	}
	if err != nil {
		return err
	}
	return tx.e.signer.Trust().Verify(signed, r.Signature)
}

// checkUnended refuses a run whose row is live and whose log has an end: its row was set back, so that it would be executed again under
// a signature that holds.
func checkUnended(tx *Tx, r *perdure.Run) error {
	ended, err := r.FinishedAt != 0, error(nil)
	if !ended {
		ended, err = tx.DB.Events.Ended(r.Tenant, r.ID)
	}
	if err == nil && ended {
		err = perdure.Errorf(perdure.CodeSignatureInvalid, "the run has ended before: its log has an end, and its row was set back")
	}
	return err
}

// ignoreInvalidSignature drops the finding that a run is not what was accepted, and no other error.
func ignoreInvalidSignature(err error) error {
	if perdure.CodeOf(err) == perdure.CodeSignatureInvalid {
		return nil
	}
	return err
}

// mayRepeat refuses to make a new run of one that is not what was accepted, or that was turned away as such: the new one would be
// signed, and nobody could tell any more. Where nothing is signed there is nothing to tell.
func mayRepeat(tx *Tx, orig *perdure.Run) error {
	required, err := requiresSignature(tx, orig.Tenant)
	switch {
	case err != nil || tx.e.signer == nil:
		return err
	case orig.Failure != nil && orig.Failure.Code == perdure.CodeSignatureInvalid:
		return perdure.Errorf(perdure.CodeSignatureInvalid, "the run was turned away because its signature is not valid: look at it, and redrive its dead letter with resign if it is as it should be")
	case !required && orig.Signature.IsZero():
		return nil
	}
	err = checkSignature(tx, orig)
	if perdure.CodeOf(err) == perdure.CodeSignatureInvalid {
		return perdure.Errorf(perdure.CodeSignatureInvalid, "%s; look at it, and redrive its dead letter, if it has one, with resign if it is as it should be", err.(*perdure.Error).Message)
	}
	return err
}

// checkGrantable tells whether runs of a tenant are handed over here. Those that have to be verified are not by a server that has
// no key to do it with: they wait for one that has.
func checkGrantable(tx *Tx, t perdure.TenantID) error {
	if tx.e.signer != nil {
		return nil
	}
	required, err := tx.e.signing.requires(tx, t)
	if err == nil && required {
		err = noSigner()
	}
	return err
}

// rejectInvalidSignature ends a run that is about to be granted and is not what was accepted. It was delivered, and to nobody. One that bears
// a signature is verified in any case: what its tenant requires can be changed by whoever changes a run.
func rejectInvalidSignature(tx *Tx, r *perdure.Run, worker string) (bool, error) {
	if tx.e.signer == nil || r.Signature.IsZero() {
		required, err := tx.e.signing.requires(tx, r.Tenant)
		if err != nil || !required {
			return false, err
		}
	}
	err := checkSignature(tx, r)
	if err == nil {
		err = checkUnended(tx, r)
	}
	if perdure.CodeOf(err) != perdure.CodeSignatureInvalid {
		return false, err
	}
	why := perdure.Failure{Code: perdure.CodeSignatureInvalid, Message: err.(*perdure.Error).Message}
	tx.DB.After(func() {
		tx.e.log.Warn("a run is not handed over: its signature is not valid", "tenant", r.Tenant, "run", r.ID, "why", why.Message)
	})
	if err := tx.Apply(r, perdure.Granted{Worker: worker}); err != nil {
		return true, err
	}
	// It may have stood before others, who were not looked at.
	tx.ring(doorbell.Queue(r.Tenant, r.Queue).Of(r.Kind))
	err = tx.Try(func() error { return tx.Finish(r, perdure.Rejected{Epoch: r.Epoch, Failure: why}) })
	var refused *perdure.Error
	if errors.As(err, &refused) { // it was delivered, to nobody, and blocks nobody
		tx.e.log.Error("a run whose signature is not valid can't end", "tenant", r.Tenant, "run", r.ID, "error", err)
		err = nil
	}
	return true, err
}

// signingTenants remembers which tenants require signatures, so that a grant to the others costs no look. What another node sets
// counts after hookTTL.
type signingTenants struct {
	mu      sync.Mutex
	changes int64
	known   cachedTenants
}

func (s *signingTenants) requires(tx *Tx, t perdure.TenantID) (bool, error) {
	if tx.e.signingConfigured(t) {
		return true, nil
	}
	s.mu.Lock()
	known, changes := s.known, s.changes
	s.mu.Unlock()
	if !known.fresh(tx) {
		list, err := tx.DB.Tenants.Signed(maxHooked + 1)
		if err != nil {
			return false, err
		}
		known = cachedTenants{cached: cached{tx.Now.Add(hookTTL), tx.DB.Number}, many: len(list) > maxHooked}
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
		row, _, err := tx.DB.Tenants.Get(t)
		return row.Signed, err
	}
	return known.set[t], nil
}

// forget has it read anew.
func (s *signingTenants) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changes++
	s.known = cachedTenants{}
}
