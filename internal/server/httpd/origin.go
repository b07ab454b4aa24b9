package httpd

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// Pages of other origins may call the API only if their origin is configured. Such a page may call
// the whole API, and needs a key like any other client.

const (
	corsMethods = "GET, POST, PUT, PATCH, DELETE"
	corsHeaders = "Authorization, Content-Type, Idempotency-Key, Last-Event-ID, X-Api-Key, Traceparent"
	corsExposed = "Retry-After, Location, Content-Location"
)

// namedOrigin tells whether an origin is configured.
func (s *Server) namedOrigin(origin string) bool {
	same := func(o string) bool { return strings.EqualFold(o, origin) }
	return origin != "" && origin != "null" && slices.ContainsFunc(s.opt.Origins, same)
}

// sameOrigin tells whether an origin has the host that the request is addressed to.
func sameOrigin(origin string, r *http.Request) bool {
	u, err := url.Parse(origin)
	return err == nil && u.Host != "" && strings.EqualFold(u.Host, r.Host)
}

// cors sets the CORS headers for a page of a configured origin, which may send and read some headers. It
// answers preflight requests, and then returns true.
func (s *Server) cors(w http.ResponseWriter, r *http.Request, accepts, exposes string) (done bool) {
	origin := r.Header.Get("Origin")
	if len(s.opt.Origins) > 0 {
		w.Header().Add("Vary", "Origin")
	}
	if !s.namedOrigin(origin) {
		return false
	}
	h := w.Header()
	h.Set("Access-Control-Allow-Origin", origin)
	h.Set("Access-Control-Expose-Headers", exposes)
	if r.Method != http.MethodOptions || r.Header.Get("Access-Control-Request-Method") == "" {
		return false
	}
	h.Set("Access-Control-Allow-Methods", corsMethods)
	h.Set("Access-Control-Allow-Headers", accepts)
	h.Set("Access-Control-Max-Age", "600")
	if r.Header.Get("Access-Control-Request-Private-Network") == "true" {
		h.Set("Access-Control-Allow-Private-Network", "true")
	}
	s.setWriteDeadline(w, 0)
	w.WriteHeader(http.StatusNoContent)
	return true
}
