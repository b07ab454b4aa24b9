package rules

import (
	"errors"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/outbox"
	"github.com/perdure/perdure/internal/server/store"
)

// SignRun signs a run that is being accepted, if there is a key. Without one, a new run of a tenant
// that requires signatures is refused. A continuation is created all the same, because an end must
// not fail; it is rejected when it is granted.
func SignRun(tx *kernel.Tx, r *perdure.Run) error {
	required, err := requiresSignature(tx, r.Tenant)
	if err != nil {
		return err
	}
	switch {
	case Signer(tx.Engine) == nil && required && r.ContinuationOf == "":
		return NoSigner()
	case Signer(tx.Engine) == nil:
		return nil
	case r.ContinuationOf != "":
		// A continuation takes its kind and queue from the original run. It is signed only if the
		// original's signature is valid.
		orig, err := tx.Run(r.Tenant, r.ContinuationOf)
		if err != nil {
			return err
		}
		if required || !orig.Signature.IsZero() {
			if err := CheckSignature(tx, &orig); err != nil {
				return ignoreInvalidSignature(err)
			}
		}
	}
	signed, err := SignedRun(tx, r)
	if err != nil {
		return err
	}
	r.Signature = Signer(tx.Engine).Sign(signed)
	return nil
}

// requiresSignature tells whether a tenant's runs have to be signed, by the store or by the
// configuration. An attacker who can change the store can't change the configuration.
func requiresSignature(tx *kernel.Tx, t perdure.TenantID) (bool, error) {
	if SigningConfigured(tx.Engine, t) {
		return true, nil
	}
	row, _, err := tx.DB.Tenants.Get(t)
	return row.Signed, err
}

// SigningConfigured tells whether the configuration requires signatures for a tenant.
func SigningConfigured(e *kernel.Engine, t perdure.TenantID) bool {
	required := options.Of(e).SigningRequired
	return slices.Contains(required, t) || slices.Contains(required, AnyTenant)
}

// AnyTenant stands for every tenant in a list of tenants.
const AnyTenant perdure.TenantID = "*"

// NoSigner is the error of a server without a key for a tenant that requires signatures.
func NoSigner() error { return perdure.Errorf(perdure.CodeNoSigner, NoSignerText) }

const NoSignerText = "the tenant's runs have to be signed, and this server has no key to sign with"

// SignedRun gives the fields of a run that its signature covers, with the input as it is handed
// over.
func SignedRun(tx *kernel.Tx, r *perdure.Run) (*perdure.SignedRun, error) {
	input, err := tx.DB.Values.Resolve(r.Tenant, r.Input)
	return &perdure.SignedRun{Tenant: r.Tenant, RunID: r.ID, Kind: r.Kind, Queue: r.Queue, Input: []byte(input),
		DeadlineAt: r.DeadlineAt, OriginRunID: r.OriginID}, err
}

// CheckSignature verifies a run's signature. If the run is not what was accepted, the error has the
// code signature_invalid.
func CheckSignature(tx *kernel.Tx, r *perdure.Run) error {
	if Signer(tx.Engine) == nil {
		return NoSigner()
	}
	signed, err := SignedRun(tx, r)
	var damaged *perdure.Error
	if errors.As(err, &damaged) {
		return perdure.Errorf(perdure.CodeSignatureInvalid, "the run is not what was accepted: %s", damaged.Message)
	}
	if err != nil {
		return err
	}
	return Signer(tx.Engine).Trust().Verify(signed, r.Signature)
}

// CheckUnended refuses a run whose row is live although its log has an end. Its row was set back,
// so that it would be executed again under a valid signature.
func CheckUnended(tx *kernel.Tx, r *perdure.Run) error {
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

// MayRepeat refuses to repeat a run whose signature is not valid, or that was rejected for that.
// The new run would be signed, which would hide the change. It allows runs without a signature if
// none is required.
func MayRepeat(tx *kernel.Tx, orig *perdure.Run) error {
	required, err := requiresSignature(tx, orig.Tenant)
	switch {
	case err != nil || Signer(tx.Engine) == nil:
		return err
	case orig.Failure != nil && orig.Failure.Code == perdure.CodeSignatureInvalid:
		return perdure.Errorf(perdure.CodeSignatureInvalid,
			"the run was turned away because its signature is not valid: "+
				"look at it, and redrive its dead letter with resign if it is as it should be")
	case !required && orig.Signature.IsZero():
		return nil
	}
	err = CheckSignature(tx, orig)
	if perdure.CodeOf(err) == perdure.CodeSignatureInvalid {
		return perdure.Errorf(perdure.CodeSignatureInvalid,
			"%s; look at it, and redrive its dead letter, if it has one, with resign if it is as it should be",
			err.(*perdure.Error).Message)
	}
	return err
}

// RequiresSigned tells whether a tenant's runs have to be signed, from the configuration, the cache or the
// store.
func RequiresSigned(tx *kernel.Tx, t perdure.TenantID) (bool, error) {
	return SignedBy(tx.Engine, &tx.DB.Records, kernel.LookOf(tx), t)
}

// cachedSigning has the tenants that require signatures. A tenant that requires them anew has runs of the
// time before without one, so half a second more of these changes nothing.
var cachedSigning = kernel.NewPart(func(*kernel.Engine) *kernel.Cache[struct{}, outbox.TenantSet] {
	return &kernel.Cache[struct{}, outbox.TenantSet]{TTL: outbox.HookTTL}
})

// SignedBy is RequiresSigned for readers as well.
func SignedBy(e *kernel.Engine, db *store.Records, at kernel.Look, t perdure.TenantID) (bool, error) {
	if SigningConfigured(e, t) {
		return true, nil
	}
	all, err := cachedSigning.Of(e).Get(at, struct{}{}, func() (outbox.TenantSet, error) {
		return outbox.ReadTenants(db.Tenants.Signed)
	})
	if err != nil || !all.Many || all.Has[t] {
		return all.Has[t], err
	}
	row, _, err := db.Tenants.Get(t)
	return row.Signed, err
}
