package perdure

import (
	"slices"
	"strings"
)

// A Scope is something that a key allows.
type Scope string

// The scopes.
const (
	ScopeCreate   Scope = "runs:create"    // submit runs, threads, groups
	ScopeRead     Scope = "runs:read"      // look at anything of the tenant
	ScopeControl  Scope = "runs:control"   // cancel, defer, signal, retry, adopt, redrive, continue, delete
	ScopeApprove  Scope = "runs:approve"   // decide about what runs ask for
	ScopePoll     Scope = "worker:poll"    // lease runs
	ScopeReport   Scope = "worker:report"  // start, heartbeat, commit, release
	ScopeWebhooks Scope = "webhooks:admin" // make and change webhooks, see what was sent, have it sent again
	ScopeKeys     Scope = "keys:admin"     // make and revoke keys of the tenant
	ScopeAudit    Scope = "audit:read"     // read the audit log of the tenant

	ScopePlatformRead  Scope = "platform:read"  // platform keys only: tenants, invariants, the watchdog's log, metrics
	ScopePlatformAdmin Scope = "platform:admin" // platform keys only: change tenants, take backups
)

// TenantScopes are the scopes that a key of a tenant can have.
var TenantScopes = []Scope{ScopeCreate, ScopeRead, ScopeControl, ScopeApprove, ScopePoll, ScopeReport, ScopeWebhooks, ScopeKeys, ScopeAudit}

// Scopes are all there are: those of tenants, and those that mean something on a platform key alone.
var Scopes = append(slices.Clone(TenantScopes), ScopePlatformRead, ScopePlatformAdmin)

// ParseScopes reads a list such as "runs:create,runs:read".
func ParseScopes(list []string) ([]Scope, error) {
	var out []Scope
	for _, s := range list {
		s := Scope(strings.TrimSpace(s))
		if !slices.Contains(Scopes, s) {
			return nil, Invalid("scopes", "%q is none of %v", s, Scopes)
		}
		if !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out, nil
}

// A Key is a credential. It belongs to one tenant; a platform key may also look after the others.
type Key struct {
	ID        string   `json:"key_id"`
	Tenant    TenantID `json:"tenant"`
	Name      string   `json:"name"`
	Hash      string   `json:"-"`
	Platform  bool     `json:"platform,omitempty"`
	Scopes    []Scope  `json:"scopes"`
	CreatedAt Instant  `json:"created_at"`
	ExpiresAt Instant  `json:"expires_at,omitempty"`
	RevokedAt Instant  `json:"revoked_at,omitempty"`
}

// Allows tells whether the key has a scope. That it is the platform's adds none.
func (k *Key) Allows(s Scope) bool { return slices.Contains(k.Scopes, s) }

// Full tells whether the key is a platform key with every scope, as the first key of a store is.
func (k *Key) Full() bool {
	return k.Platform && !slices.ContainsFunc(Scopes, func(s Scope) bool { return !k.Allows(s) })
}

// MayDecide refuses a key that may not decide about approvals. A key that works on runs can't, whatever its other scopes: an
// agent would approve its own actions. The one exception is a platform key with every scope.
func (k *Key) MayDecide() error {
	switch {
	case !k.Allows(ScopeApprove):
		return Errorf(CodeForbidden, "the key lacks the scope %s", ScopeApprove)
	case (k.Allows(ScopePoll) || k.Allows(ScopeReport)) && !k.Full():
		return Errorf(CodeForbidden, "a key that works on runs can't decide about them: use one without %s and %s", ScopePoll, ScopeReport)
	}
	return nil
}

// MayMake refuses a key that would be allowed more than its maker: a scope that the maker lacks, decisions about approvals, or a
// longer life. It holds for keys of tenants and of the platform alike.
func (k *Key) MayMake(made *Key) error {
	for _, s := range made.Scopes {
		if !made.Platform && !slices.Contains(TenantScopes, s) {
			return Invalid("scopes", "%s is a scope of platform keys alone", s)
		}
		if !k.Allows(s) {
			return Errorf(CodeForbidden, "a key can't give away the scope %s, which it does not have", s)
		}
	}
	if made.Platform && !k.Platform {
		return Errorf(CodeForbidden, "this takes a key of the platform")
	}
	if made.MayDecide() == nil {
		if err := k.MayDecide(); err != nil {
			return err
		}
	}
	if k.ExpiresAt != 0 && (made.ExpiresAt == 0 || made.ExpiresAt > k.ExpiresAt) {
		return &Error{Code: CodeForbidden, Field: "ttl", Message: "a key that expires can't make one that lasts longer"}
	}
	return nil
}

// Valid tells whether the key counts at an instant.
func (k *Key) Valid(now Instant) bool {
	return k.RevokedAt == 0 && (k.ExpiresAt == 0 || now < k.ExpiresAt)
}
