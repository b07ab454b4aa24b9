package httpd

import (
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/server/engine/access"
)

// People log in with a key, and get a session: a key of its own that their browser keeps in a cookie
// that no script can read (cookie.go). Programs send keys in headers.

// openSession logs in with the key of the call.
func openSession(c *call, in *api.OpenSession) (int, *api.Session, error) {
	op := &access.OpenSession{With: c.key, ReadOnly: in.ReadOnly}
	if err := c.s.engine.Do(c.Context(), op); err != nil {
		return 0, nil, unauthorized(err)
	}
	setCookie(c, op.Secret, op.Key.ExpiresAt.Sub(perdure.At(time.Now())))
	return 0, sessionOf(&op.Key), nil
}

// makeLink makes a link that logs in once.
func makeLink(c *call, in *api.OpenSession) (int, *api.LoginLink, error) {
	op := &access.OpenSession{With: c.key, ReadOnly: in.ReadOnly, Link: true}
	if err := c.s.engine.Do(c.Context(), op); err != nil {
		return 0, nil, unauthorized(err)
	}
	return 0, &api.LoginLink{Path: "/ui/#login=" + op.Secret, ExpiresAt: op.Key.ExpiresAt}, nil
}

func getSession(c *call, _ *none) (int, *api.Session, error) { return 0, sessionOf(&c.key), nil }

// closeSession logs out.
func closeSession(c *call, _ *none) (int, *api.Session, error) {
	if err := c.s.engine.Do(c.Context(), &access.CloseSession{Key: c.key}); err != nil {
		return 0, nil, err
	}
	setCookie(c, "", -time.Second)
	return 0, sessionOf(&c.key), nil
}

func sessionOf(k *perdure.Key) *api.Session {
	return &api.Session{KeyID: holder(k), Name: k.Name, Tenant: k.Tenant, Platform: k.Platform, Scopes: k.Scopes,
		ReadOnly: len(k.Reading()) == len(k.Scopes), ExpiresAt: k.ExpiresAt}
}
