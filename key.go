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
)

// Scopes are all there are.
var Scopes = []Scope{ScopeCreate, ScopeRead, ScopeControl, ScopeApprove, ScopePoll, ScopeReport, ScopeWebhooks, ScopeKeys}

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

// MayDecide refuses a key that may not decide about approvals. One that works on runs can't, whatever its scopes: an agent
// would approve its own actions. The platform's may.
func (k *Key) MayDecide() error {
	switch {
	case !k.Allows(ScopeApprove):
		return Errorf(CodeForbidden, "the key lacks the scope %s", ScopeApprove)
	case !k.Platform && (k.Allows(ScopePoll) || k.Allows(ScopeReport)):
		return Errorf(CodeForbidden, "a key that works on runs can't decide about them: use one without %s and %s", ScopePoll, ScopeReport)
	}
	return nil
}

// Valid tells whether the key counts at an instant.
func (k *Key) Valid(now Instant) bool {
	return k.RevokedAt == 0 && (k.ExpiresAt == 0 || now < k.ExpiresAt)
}
