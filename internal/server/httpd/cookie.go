package httpd

import (
	"net"
	"net/http"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
)

// The cookie of a session. A browser adds it to every request to this server, whichever page asks. So
// a call with a cookie has to come from a page of this server, and one that changes something has to
// carry a header that a form or an image can't send.

const (
	// sessionCookie is the name of the cookie. Over TLS it begins with __Host-: a browser takes such a
	// cookie only from this very host, and over TLS. Without TLS it ends with the server's port,
	// because a browser sends a cookie to all ports of a host.
	sessionCookie = "perdure_session"
	// pageHeader is the header that calls of the dashboard's pages carry.
	pageHeader = "X-Perdure"
)

// overTLS tells whether the caller reaches this server, or the proxy in front of it, over TLS.
func overTLS(c *call) bool { return c.TLS != nil || c.Header.Get("X-Forwarded-Proto") == "https" }

// cookieName returns the name of the cookie for this call.
func cookieName(c *call) string {
	if overTLS(c) {
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
func setCookie(c *call, secret string, age time.Duration) {
	cookie := &http.Cookie{Name: cookieName(c), Value: secret, Path: "/api/", MaxAge: int(age.Seconds()),
		HttpOnly: true, SameSite: http.SameSiteStrictMode}
	if overTLS(c) {
		cookie.Secure, cookie.Path = true, "/" // __Host- takes both, and no domain
	}
	http.SetCookie(c.w, cookie)
}

// sessionSecret returns the secret of the call's session, or nothing.
func sessionSecret(c *call) string {
	k, err := c.Cookie(cookieName(c))
	if err != nil {
		return ""
	}
	return k.Value
}

// checkSite refuses a call with a cookie that may come from another site's page.
func checkSite(c *call) error {
	site, origin := c.Header.Get("Sec-Fetch-Site"), c.Header.Get("Origin")
	switch {
	case origin != "" && !sameOrigin(origin, c.Request), site != "" && site != "same-origin" && site != "none":
		return perdure.Errorf(api.CodeCrossSite, "the login of the dashboard is for its own pages: send a key")
	case c.Method != http.MethodGet && c.Method != http.MethodHead && c.Header.Get(pageHeader) == "":
		return perdure.Errorf(api.CodeCrossSite, "a call with the dashboard's cookie needs the header %s", pageHeader)
	}
	return nil
}
