package engine

import (
	"errors"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/doorbell"
	"github.com/perdure/perdure/internal/store"
)

// signRun signs a run that is being accepted, if there is a key. Without one, a new run of a tenant
// that requires signatures is refused. A continuation is created all the same, because an end must
// not fail; it is rejected when it is granted.
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
		// A continuation takes its kind and queue from the original run. It is signed only if the
		// original's signature is valid.
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

// requiresSignature tells whether a tenant's runs have to be signed, by the store or by the
// configuration. An attacker who can change the store can't change the configuration.
func requiresSignature(tx *Tx, t perdure.TenantID) (bool, error) {
	if tx.e.signingConfigured(t) {
		return true, nil
	}
	row, _, err := tx.DB.Tenants.Get(t)
	return row.Signed, err
}

// signingConfigured tells whether the configuration requires signatures for a tenant.
func (e *Engine) signingConfigured(t perdure.TenantID) bool {
	return slices.Contains(e.signingRequired, t) || slices.Contains(e.signingRequired, AnyTenant)
}

// AnyTenant stands for every tenant in a list of tenants.
const AnyTenant perdure.TenantID = "*"

// noSigner is the error of a server without a key for a tenant that requires signatures.
func noSigner() error { return perdure.Errorf(perdure.CodeNoSigner, noSignerText) }

const noSignerText = "the tenant's runs have to be signed, and this server has no key to sign with"

// signedRun gives the fields of a run that its signature covers, with the input as it is handed
// over.
func signedRun(tx *Tx, r *perdure.Run) (*perdure.SignedRun, error) {
	input, err := tx.DB.Values.Resolve(r.Tenant, r.Input)
	return &perdure.SignedRun{Tenant: r.Tenant, RunID: r.ID, Kind: r.Kind, Queue: r.Queue, Input: []byte(input),
		DeadlineAt: r.DeadlineAt, OriginRunID: r.OriginID}, err
}

// checkSignature verifies a run's signature. If the run is not what was accepted, the error has the
// code signature_invalid.
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

// checkUnended refuses a run whose row is live although its log has an end. Its row was set back,
// so that it would be executed again under a valid signature.
func checkUnended(tx *Tx, r *perdure.Run) error {
	ended, err := r.FinishedAt != 0, error(nil)
	if !ended {
		ended, err = tx.DB.Events.Ended(r.Tenant, r.ID)
	}
	if err == nil && ended {
		err = perdure.Errorf(perdure.CodeSignatureInvalid,
			"the run has ended before: its log has an end, and its row was set back")
	}
	return err
}

// ignoreInvalidSignature drops an error with the code signature_invalid, and no other.
func ignoreInvalidSignature(err error) error {
	if perdure.CodeOf(err) == perdure.CodeSignatureInvalid {
		return nil
	}
	return err
}

// mayRepeat refuses to repeat a run whose signature is not valid, or that was rejected for that.
// The new run would be signed, which would hide the change. It allows runs without a signature if
// none is required.
func mayRepeat(tx *Tx, orig *perdure.Run) error {
	required, err := requiresSignature(tx, orig.Tenant)
	switch {
	case err != nil || tx.e.signer == nil:
		return err
	case orig.Failure != nil && orig.Failure.Code == perdure.CodeSignatureInvalid:
		return perdure.Errorf(perdure.CodeSignatureInvalid,
			"the run was turned away because its signature is not valid: "+
				"look at it, and redrive its dead letter with resign if it is as it should be")
	case !required && orig.Signature.IsZero():
		return nil
	}
	err = checkSignature(tx, orig)
	if perdure.CodeOf(err) == perdure.CodeSignatureInvalid {
		return perdure.Errorf(perdure.CodeSignatureInvalid,
			"%s; look at it, and redrive its dead letter, if it has one, with resign if it is as it should be",
			err.(*perdure.Error).Message)
	}
	return err
}

// rejectInvalidSignature ends a run that is about to be granted and whose signature is not valid.
// It counts the delivery, though no worker gets the run. A run with a signature is verified even if
// its tenant does not require one. An attacker who can change a run can change that setting, too.
func rejectInvalidSignature(tx *Tx, r *perdure.Run, worker, build string) (bool, error) {
	if tx.e.signer == nil || r.Signature.IsZero() {
		required, err := requiresSigned(tx, r.Tenant)
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
		tx.e.log.Warn("a run is not handed over: its signature is not valid", "tenant", r.Tenant, "run", r.ID,
			"why", why.Message)
	})
	if err := tx.Apply(r, perdure.Granted{Worker: worker, Build: build}); err != nil {
		return true, err
	}
	// The poll has spent a slot on it: another poll looks at the runs behind it.
	tx.ring(doorbell.Queue(r.Tenant, r.Queue).Of(r.Kind))
	err = tx.Try(func() error { return tx.Finish(r, perdure.Rejected{Epoch: r.Epoch, Failure: why}) })
	var refused *perdure.Error
	// The run can't end. It was granted without handing it over, so it does not block others.
	if errors.As(err, &refused) {
		tx.e.log.Error("a run whose signature is not valid can't end", "tenant", r.Tenant, "run", r.ID, "error", err)
		err = nil
	}
	return true, err
}

// requiresSigned tells whether a tenant's runs have to be signed, from the configuration, the cache or the
// store.
func requiresSigned(tx *Tx, t perdure.TenantID) (bool, error) {
	return signedBy(tx.e, &tx.DB.Records, lookOf(tx), t)
}

// signedBy is requiresSigned for readers as well.
func signedBy(e *Engine, db *store.Records, at look, t perdure.TenantID) (bool, error) {
	if e.signingConfigured(t) {
		return true, nil
	}
	all, err := e.signing.get(at, struct{}{}, func() (tenantSet, error) { return readTenants(db.Tenants.Signed) })
	if err != nil || !all.many || all.has[t] {
		return all.has[t], err
	}
	row, _, err := db.Tenants.Get(t)
	return row.Signed, err
}
