package client

import (
	"errors"
	"maps"
	"net/url"
	"strconv"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
)

// Calls about another tenant.
//
// A client with Options.Tenant names that tenant in every call under /api/v1. The server refuses the
// parameter where it does not take it, so that no call acts on the tenant of the key instead. Calls of
// the platform are refused here: some of them have a parameter of the same name that means something
// else. Health checks are about no tenant and go out as they are.

// tenantParam is the parameter that names the tenant of a call.
const tenantParam = "tenant"

// For returns a client for calls about another tenant, as with [Options.Tenant]. It shares the
// connections of c.
func (c *Client) For(t perdure.TenantID) *Client {
	other := *c
	other.opt.Tenant = t
	return &other
}

// query returns the query of a call, with the client's tenant.
func (c *Client) query(r *request) (url.Values, error) {
	t := string(c.opt.Tenant)
	named := r.query.Has(tenantParam) && strings.HasPrefix(r.path, v1)
	if t == "" || named || !strings.HasPrefix(r.path, "/api/") {
		return r.query, nil
	}
	if perdure.CheckName(tenantParam, t) != nil {
		return nil, api.NewProblem(perdure.CodeInvalid, strconv.Quote(t)+" is no name of a tenant", tenantParam)
	}
	if !strings.HasPrefix(r.path, v1+"/") {
		return nil, api.NewProblem(perdure.CodeInvalid,
			r.method+" "+r.path+" takes no tenant, and this client is for "+t, tenantParam)
	}
	q := maps.Clone(r.query)
	if q == nil {
		q = make(url.Values)
	}
	q.Set(tenantParam, t)
	return q, nil
}

// explainTenant says why a server may refuse the client's tenant. It does not tell whether the key or the
// call is the reason, because keys of tenants are not to learn of the parameter.
func (c *Client) explainTenant(f *failure) *failure {
	var p *api.Problem
	if errors.As(f.err, &p) && c.opt.Tenant != "" && p.Code == perdure.CodeInvalid && p.Field == tenantParam {
		p.Detail = "the server takes no tenant here: the key is no platform key, or the call is one of those " +
			"without a tenant (workers, logins, callbacks)"
	}
	return f
}
