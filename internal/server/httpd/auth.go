package httpd

import (
	"context"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/server/fair"
)

// admit authenticates a call and checks it against the route's guard. The tenant comes from the key
// alone. Calls from the same machine need a key too.
func (s *Server) admit(c *call, g guard) error {
	if g.open {
		if g.token == nil {
			return nil
		}
		err := g.token(s, c.PathValue("token"))
		if err != nil && c.ContentLength != 0 {
			c.w.Header().Set("Connection", "close") // the body is not read
		}
		return err
	}
	secret, err := credential(c, g.inQuery)
	if err != nil {
		return err
	}
	if g.login {
		c.key, err = s.engine.Keys.AuthenticateLogin(c.Context(), secret)
	} else {
		c.key, err = s.authenticate(c.Context(), secret, g.remembered)
	}
	if err != nil {
		return unauthorized(err)
	}
	s.shares.limiter.Called(c.key.Tenant)
	c.Request = c.WithContext(fair.With(c.Context(), c.key.Tenant))
	if g.platform && !c.key.Platform {
		return perdure.Errorf(api.CodeForbidden, "this takes a key of the platform")
	}
	if g.scope != "" && !c.key.Allows(g.scope) {
		return perdure.Errorf(api.CodeForbidden, "the key lacks the scope %s", g.scope)
	}
	return nil
}

// authenticate returns the key of a secret. If remembered is set and the store can't be read, a key
// that was valid before is enough.
func (s *Server) authenticate(ctx context.Context, secret string, remembered bool) (perdure.Key, error) {
	if remembered && s.engine.Health.Away() != nil { // a read would only run into its timeout
		if k, err := s.engine.Keys.Remembered(secret); err == nil {
			return k, nil
		}
	}
	k, err := s.engine.Keys.Authenticate(ctx, secret)
	if remembered && err != nil && perdure.CodeOf(err) != perdure.CodeNotFound {
		if k, err := s.engine.Keys.Remembered(secret); err == nil {
			return k, nil
		}
	}
	return k, err
}

// credential reads the credential from Authorization: Bearer, from X-Api-Key, for some routes from a
// parameter, or else from the cookie of a session. A request with two credentials is refused. A cookie
// beside a credential is not looked at: the browser adds it to every call.
func credential(c *call, inQuery bool) (string, error) {
	var found []string
	for _, v := range c.Header.Values("Authorization") {
		scheme, token, _ := strings.Cut(v, " ")
		if !strings.EqualFold(scheme, "Bearer") {
			return "", perdure.Errorf(api.CodeUnauthorized, "send Authorization: Bearer <key>")
		}
		found = append(found, strings.TrimSpace(token))
	}
	found = append(found, c.Header.Values("X-Api-Key")...)
	if inQuery {
		found = append(found, c.URL.Query()[tokenParam]...)
	}
	switch {
	case len(found) == 0 && sessionSecret(c) != "":
		return sessionSecret(c), checkSite(c)
	case len(found) == 0:
		return "", perdure.Errorf(api.CodeUnauthorized, "send Authorization: Bearer <key>")
	case len(found) > 1:
		return "", perdure.Errorf(api.CodeUnauthorized, "send one key")
	}
	return found[0], nil
}
