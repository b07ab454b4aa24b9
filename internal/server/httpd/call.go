package httpd

import (
	"cmp"
	"context"
	"net"
	"net/http"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/server/doorbell"
	"github.com/perdure/perdure/internal/server/engine/kernel"
)

// A call is one request to a route.
type call struct {
	*http.Request
	s   *Server
	w   http.ResponseWriter
	key perdure.Key
	// actsFor is the tenant that a platform key has named in the query. It is empty for all other calls.
	actsFor perdure.TenantID
	// allTenants is set if it has named all of them.
	allTenants bool

	// releaseKey ends the watching of the call's key. It is nil if the key is not watched; see
	// watchKey.
	releaseKey func()

	// share is all that the call holds of the node.
	share share
	// found is the number of bytes that were read for the answer, where the handler sets it.
	found int64
	// heard has the counters of the bell from the beginning of the call. Its reads are not older.
	heard doorbell.Stats
}

// tenant returns the tenant that the call is about.
func (c *call) tenant() perdure.TenantID { return cmp.Or(c.actsFor, c.key.Tenant) }

// payer returns the tenant whose shares the call uses: that of its key.
func (c *call) payer() perdure.TenantID { return c.key.Tenant }

// worker is the id of the calling worker, as its leases have it. Its name was checked by checkPath.
func (c *call) worker() string { return c.s.engine.Keys.WorkerID(c.key.ID, c.PathValue("id")) }

func (c *call) run() perdure.RunID { return perdure.RunID(c.PathValue("id")) }

// reads tells whether a call can't change anything.
func (c *call) reads() bool { return c.Method == http.MethodGet || c.Method == http.MethodHead }

// by returns the key of the call, as it is told to others.
func (c *call) by() perdure.Key {
	k := c.key
	k.ID = holder(&k)
	return k
}

// holder returns the id of the key that a person or a program holds. That of a session is the key
// that it was opened with.
func holder(k *perdure.Key) string { return cmp.Or(k.Parent, k.ID) }

// actor returns the caller for the audit log. The address is that of the connection, because the
// headers that a proxy adds can be forged.
func (c *call) actor() kernel.Actor {
	remote := c.RemoteAddr
	if host, _, err := net.SplitHostPort(remote); err == nil {
		remote = host
	}
	return kernel.Actor{KeyID: holder(&c.key), Name: c.key.Name, Platform: c.key.Platform, Remote: remote}
}

// tenantOf returns the tenant of a run: that of the key, unless the key is of the platform, whose
// workers may lease runs of all tenants.
func (c *call) tenantOf(id perdure.RunID) (perdure.TenantID, error) {
	if !c.key.Platform {
		return c.tenant(), nil
	}
	if t, ok := c.s.runTenants.get(id); ok {
		return t, nil
	}
	return c.s.engine.Runs.TenantOf(c.Context(), id, c.tenant())
}

var errKey = perdure.Errorf(api.CodeUnauthorized, "the key is not valid")

// unauthorized turns "not found" into errKey, so that a missing key looks like an invalid one.
func unauthorized(err error) error {
	if perdure.CodeOf(err) == perdure.CodeNotFound {
		return errKey
	}
	return err
}

// watchKey ends the call's context when its key is revoked or expires. A call that may last long
// has to call it. serve checks the key of such a call again before it answers.
func (c *call) watchKey() error {
	if c.releaseKey != nil {
		return nil
	}
	key, forget := c.s.keyWatcher.watch(c.key.ID)
	ctx, cancel := context.WithCancelCause(c.Context())
	stop := context.AfterFunc(key, func() { cancel(errKey) })
	c.Request = c.WithContext(ctx)
	c.releaseKey = func() {
		stop()
		forget()
		cancel(nil)
	}
	return c.checkKey()
}

// checkKey returns an error if the call's key is no longer valid.
func (c *call) checkKey() error {
	if err := c.keyEnded(); err != nil {
		return err
	}
	return unauthorized(c.s.engine.Keys.Check(c.Context(), c.key.ID))
}

// keyEnded returns errKey if the call's context ended because of its key.
func (c *call) keyEnded() error {
	if context.Cause(c.Context()) == errKey {
		return errKey
	}
	return nil
}

// tokenParam is the parameter that holds a key where a browser can't send a header.
const tokenParam = "access_token"
