package httpd

import (
	"net/http"
	"slices"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
)

// Platform keys that act for a tenant.
//
// A call is about the tenant of its key. A platform key may name another one with the parameter tenant,
// for the calls that people make: those of the dashboard. To read takes platform:read beside the scope of
// the call, and to change anything platform:admin. Workers lease for other tenants in their own way, and
// their calls do not take the parameter. The call uses the shares of the key's own tenant.

// tenantParam is the parameter that names the tenant.
const tenantParam = "tenant"

// everyTenant is the value of the parameter that stands for all tenants, where a route takes it.
const everyTenant = "*"

// actingScopes are the scopes of the calls that people make.
var actingScopes = []perdure.Scope{perdure.ScopeRead, perdure.ScopeCreate, perdure.ScopeControl, perdure.ScopeApprove,
	perdure.ScopeWebhooks, perdure.ScopeKinds, perdure.ScopeKeys, perdure.ScopeAudit}

// letChooseTenant adds the parameter to a route, unless it is about its caller.
func (r *route) letChooseTenant() {
	path, ours := strings.CutPrefix(r.pattern, api.Prefix)
	if !ours || r.guard.open || r.guard.platform || !slices.Contains(actingScopes, r.guard.scope) ||
		strings.HasPrefix(path, "/session") || r.media == api.MediaSocket || slices.Contains(r.query, tenantParam) {
		return
	}
	r.tenanted = true
	r.query = append(slices.Clone(r.query), tenantParam)
}

// chooseTenant makes the call be about the tenant that it names, if its key may do that.
func chooseTenant(c *call, r *route) error {
	q := c.URL.Query()
	if !q.Has(tenantParam) {
		return nil
	}
	needs := perdure.ScopePlatformAdmin
	if c.Method == http.MethodGet || c.Method == http.MethodHead || r.guard.scope == perdure.ScopeApprove {
		// The approval itself says whether its decision takes platform:admin: see Approval.MayDecide.
		needs = perdure.ScopePlatformRead
	}
	if !c.key.Platform {
		return perdure.Invalid(tenantParam, "is no parameter of this call")
	}
	if !c.key.Allows(needs) {
		return perdure.Errorf(api.CodeForbidden, "%s takes a key of the platform with the scope %s", tenantParam, needs)
	}
	name := q.Get(tenantParam)
	if name == everyTenant && r.everyTenant {
		c.allTenants = true
		return nil
	}
	if err := perdure.CheckName(tenantParam, name); err != nil {
		return err
	}
	t := perdure.TenantID(name)
	if t != c.key.Tenant {
		// A mistyped name must not look like an empty tenant, nor make a new one.
		if _, err := c.s.engine.Tenants.Get(c.Context(), t); err != nil {
			return err
		}
	}
	c.actsFor = t
	return nil
}
