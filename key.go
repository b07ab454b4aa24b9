package perdure

import (
	"slices"
	"strings"
)

// A Scope is a permission of a key.
type Scope string

// The scopes.
const (
	ScopeCreate   Scope = "runs:create"    // submit runs, threads, groups
	ScopeRead     Scope = "runs:read"      // read everything of the tenant
	ScopeControl  Scope = "runs:control"   // cancel, defer, signal, retry, adopt, redrive, continue, delete
	ScopeApprove  Scope = "runs:approve"   // decide about approvals
	ScopePoll     Scope = "worker:poll"    // lease runs
	ScopeReport   Scope = "worker:report"  // start, heartbeat, commit, release
	ScopeWebhooks Scope = "webhooks:admin" // create and change webhooks, read deliveries, send them again
	ScopeKinds    Scope = "kinds:admin"    // override and delete kinds of the registry
	ScopeKeys     Scope = "keys:admin"     // create and revoke keys of the tenant
	ScopeAudit    Scope = "audit:read"     // read the audit log of the tenant

	ScopePlatformRead  Scope = "platform:read"  // platform keys only: tenants, invariants, the watchdog's log, metrics
	ScopePlatformAdmin Scope = "platform:admin" // platform keys only: change tenants, take backups
)

// TenantScopes lists the scopes that a tenant's key can have.
var TenantScopes = []Scope{
	ScopeCreate, ScopeRead, ScopeControl, ScopeApprove, ScopePoll, ScopeReport, ScopeWebhooks, ScopeKeys, ScopeAudit,
	ScopeKinds,
}

// Scopes lists all scopes: those of tenants, and those that only a platform key can have.
var Scopes = append(slices.Clone(TenantScopes), ScopePlatformRead, ScopePlatformAdmin)

// ParseScopes checks a list of scopes, such as "runs:create" and "runs:read", and removes
// duplicates.
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

// MaxKeys is how many valid keys a tenant may have. It may have as many sessions and login links.
const MaxKeys = 1000

// A Key is an API key. It belongs to one tenant; a platform key can also act on other tenants.
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
	// Parent is the key that a session was opened with. It is empty for all other keys.
	Parent string `json:"parent_key_id,omitempty"`
}

// Allows tells whether the key has a scope. A platform key has no scope that is not listed in it.
func (k *Key) Allows(s Scope) bool { return slices.Contains(k.Scopes, s) }

// Full tells whether the key is a platform key with every scope, as the first key of a store is.
func (k *Key) Full() bool {
	return k.Platform && !slices.ContainsFunc(Scopes, func(s Scope) bool { return !k.Allows(s) })
}

// MayDecide returns an error if the key may not decide about approvals. A key with a worker's scope
// may not, whatever its other scopes: an agent could approve its own actions. The one exception is
// a platform key with every scope.
func (k *Key) MayDecide() error {
	switch {
	case !k.Allows(ScopeApprove):
		return Errorf(CodeForbidden, "the key lacks the scope %s", ScopeApprove)
	case (k.Allows(ScopePoll) || k.Allows(ScopeReport)) && !k.Full():
		return Errorf(CodeForbidden, "a key that works on runs can't decide about them: use one without %s and %s",
			ScopePoll, ScopeReport)
	}
	return nil
}

// MayMake returns an error if the new key could do more than the key that creates it: if it has a
// scope that the creator lacks, may decide about approvals and the creator may not, or expires
// later. The rule is the same for keys of tenants and of the platform.
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

// readScopes are the scopes that change nothing.
var readScopes = []Scope{ScopeRead, ScopeAudit, ScopePlatformRead}

// Reading returns the key's scopes that change nothing.
func (k *Key) Reading() []Scope {
	return slices.DeleteFunc(slices.Clone(k.Scopes), func(s Scope) bool { return !slices.Contains(readScopes, s) })
}

// Valid tells whether the key is neither revoked nor expired.
func (k *Key) Valid(now Instant) bool {
	return k.RevokedAt == 0 && (k.ExpiresAt == 0 || now < k.ExpiresAt)
}
