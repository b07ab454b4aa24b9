package httpd

import (
	"context"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/fair"
)

// admit lets a call pass, or says why not. The tenant comes from the key alone. A key is needed on loopback
// too.
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
	secret, err := c.secret(g.inQuery)
	if err != nil {
		return err
	}
	if c.key, err = s.authenticate(c.Context(), secret, g.remembered); err != nil {
		return unauthorized(err)
	}
	s.seats.Meet(c.key.Tenant)
	c.Request = c.WithContext(fair.With(c.Context(), c.key.Tenant))
	if g.platform && !c.key.Platform {
		return perdure.Errorf(api.CodeForbidden, "this takes a key of the platform")
	}
	if g.scope != "" && !c.key.Allows(g.scope) {
		return perdure.Errorf(api.CodeForbidden, "the key lacks the scope %s", g.scope)
	}
	return nil
}

// authenticate gives the key that a secret is. While the store can't say, it may be one that is remembered.
func (s *Server) authenticate(ctx context.Context, secret string, remembered bool) (perdure.Key, error) {
	if remembered && s.engine.Health.Away() != nil { // it would be asked in vain, and that takes its time
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

var errKey = perdure.Errorf(api.CodeUnauthorized, "the key is not valid")

// unauthorized says of a key that is not there, or not any more, that it is not valid.
func unauthorized(err error) error {
	if perdure.CodeOf(err) == perdure.CodeNotFound {
		return errKey
	}
	return err
}

// hold is called by a call that may take long: its context ends when its key does, and it is not answered under a key that was
// revoked, or has expired, meanwhile.
func (c *call) hold() error {
	if c.release != nil {
		return nil
	}
	key, forget := c.s.keyring.watch(c.key.ID)
	ctx, cancel := context.WithCancelCause(c.Context())
	stop := context.AfterFunc(key, func() { cancel(errKey) })
	c.Request = c.WithContext(ctx)
	c.release = func() {
		stop()
		forget()
		cancel(nil)
	}
	return c.valid()
}

// valid refuses if the call's key is valid no more.
func (c *call) valid() error {
	if err := c.dead(); err != nil {
		return err
	}
	return unauthorized(c.s.engine.Keys.Check(c.Context(), c.key.ID))
}

// dead tells that the call's context has ended because its key did.
func (c *call) dead() error {
	if context.Cause(c.Context()) == errKey {
		return errKey
	}
	return nil
}

// tokenParam is the parameter that holds a key where a browser can't send a header.
const tokenParam = "access_token"

// secret reads the credential: Authorization: Bearer, or x-api-key, or for some routes a parameter. Two are none:
// nobody guesses which is meant.
func (c *call) secret(inQuery bool) (string, error) {
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
	case len(found) == 0:
		return "", perdure.Errorf(api.CodeUnauthorized, "send Authorization: Bearer <key>")
	case len(found) > 1:
		return "", perdure.Errorf(api.CodeUnauthorized, "send one key")
	}
	return found[0], nil
}
