package httpd

import (
	"cmp"
	"net"
	"net/http"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/engine"
)

// People log in with a key, and get a session: a key of its own that their browser keeps in a cookie
// that no script can read. Programs send keys in headers.
//
// A browser adds the cookie to every request to this server, whichever page asks. So a call with a
// cookie has to come from a page of this server, and one that changes something has to carry a header
// that a form or an image can't send.

const (
	// sessionCookie is the name of the cookie. Over TLS it begins with __Host-: a browser takes such a
	// cookie only from this very host, and over TLS. Without TLS it ends with the server's port,
	// because a browser sends a cookie to all ports of a host.
	sessionCookie = "perdure_session"
	// pageHeader is the header that calls of the dashboard's pages carry.
	pageHeader = "X-Perdure"
)

// openSession logs in with the key of the call.
func openSession(c *call, in *api.OpenSession) (int, *api.Session, error) {
	op := &engine.OpenSession{With: c.key, ReadOnly: in.ReadOnly}
	if err := c.s.engine.Do(c.Context(), op); err != nil {
		return 0, nil, unauthorized(err)
	}
	c.setCookie(op.Secret, op.Key.ExpiresAt.Sub(perdure.At(time.Now())))
	return 0, sessionOf(&op.Key), nil
}

// makeLink makes a link that logs in once.
func makeLink(c *call, in *api.OpenSession) (int, *api.LoginLink, error) {
	op := &engine.OpenSession{With: c.key, ReadOnly: in.ReadOnly, Link: true}
	if err := c.s.engine.Do(c.Context(), op); err != nil {
		return 0, nil, unauthorized(err)
	}
	return 0, &api.LoginLink{Path: "/ui/#login=" + op.Secret, ExpiresAt: op.Key.ExpiresAt}, nil
}

func getSession(c *call, _ *none) (int, *api.Session, error) { return 0, sessionOf(&c.key), nil }

// closeSession logs out.
func closeSession(c *call, _ *none) (int, *api.Session, error) {
	if err := c.s.engine.Do(c.Context(), &engine.CloseSession{Key: c.key}); err != nil {
		return 0, nil, err
	}
	c.setCookie("", -time.Second)
	return 0, sessionOf(&c.key), nil
}

func sessionOf(k *perdure.Key) *api.Session {
	return &api.Session{KeyID: holder(k), Name: k.Name, Tenant: k.Tenant, Platform: k.Platform, Scopes: k.Scopes,
		ReadOnly: len(k.Reading()) == len(k.Scopes), ExpiresAt: k.ExpiresAt}
}

// holder returns the id of the key that a person or a program holds. That of a session is the key
// that it was opened with.
func holder(k *perdure.Key) string { return cmp.Or(k.Parent, k.ID) }

// by returns the key of the call, as it is told to others.
func (c *call) by() perdure.Key {
	k := c.key
	k.ID = holder(&k)
	return k
}

// overTLS tells whether the caller reaches this server, or the proxy in front of it, over TLS.
func (c *call) overTLS() bool { return c.TLS != nil || c.Header.Get("X-Forwarded-Proto") == "https" }

// cookieName returns the name of the cookie for this call.
func (c *call) cookieName() string {
	if c.overTLS() {
		return "__Host-" + sessionCookie
	}
	if addr, ok := c.Context().Value(http.LocalAddrContextKey).(net.Addr); ok {
		if _, port, err := net.SplitHostPort(addr.String()); err == nil {
			return sessionCookie + "_" + port
		}
	}
	return sessionCookie
}

// setCookie gives the browser a session, or with a negative age takes it away.
func (c *call) setCookie(secret string, age time.Duration) {
	cookie := &http.Cookie{Name: c.cookieName(), Value: secret, Path: "/api/", MaxAge: int(age.Seconds()),
		HttpOnly: true, SameSite: http.SameSiteStrictMode}
	if c.overTLS() {
		cookie.Secure, cookie.Path = true, "/" // __Host- takes both, and no domain
	}
	http.SetCookie(c.w, cookie)
}

// cookie returns the secret of the call's session, or nothing.
func (c *call) cookie() string {
	k, err := c.Cookie(c.cookieName())
	if err != nil {
		return ""
	}
	return k.Value
}

// checkSite refuses a call with a cookie that may come from another site's page.
func (c *call) checkSite() error {
	site, origin := c.Header.Get("Sec-Fetch-Site"), c.Header.Get("Origin")
	switch {
	case origin != "" && !sameOrigin(origin, c.Request), site != "" && site != "same-origin" && site != "none":
		return perdure.Errorf(api.CodeCrossSite, "the login of the dashboard is for its own pages: send a key")
	case c.Method != http.MethodGet && c.Method != http.MethodHead && c.Header.Get(pageHeader) == "":
		return perdure.Errorf(api.CodeCrossSite, "a call with the dashboard's cookie needs the header %s", pageHeader)
	}
	return nil
}
