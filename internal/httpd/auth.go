package httpd

import (
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
)

// admit lets a call pass, or says why not. The tenant comes from the key alone. A key is needed on loopback
// too.
func (s *Server) admit(c *call, g guard) error {
	if g.open {
		return nil
	}
	secret, err := c.secret(g.inQuery)
	if err != nil {
		return err
	}
	c.key, err = s.engine.Authenticate(c.Context(), secret)
	switch perdure.CodeOf(err) {
	case "":
	case perdure.CodeNotFound:
		return perdure.Errorf(api.CodeUnauthorized, "the key is not valid")
	default:
		return err
	}
	if g.platform && !c.key.Platform {
		return perdure.Errorf(api.CodeForbidden, "this takes a key of the platform")
	}
	if g.scope != "" && !c.key.Allows(g.scope) {
		return perdure.Errorf(api.CodeForbidden, "the key lacks the scope %s", g.scope)
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
