package httpd

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// Pages of other origins get nothing unless the operator has named their origin. Who is named may call the whole
// API, with a key as everybody.

const (
	corsMethods = "GET, POST, PUT, PATCH, DELETE"
	corsHeaders = "Authorization, Content-Type, Idempotency-Key, Last-Event-ID, X-Api-Key, Traceparent"
	corsExposed = "Retry-After, Location, Content-Location"
)

// namedOrigin tells whether an origin is one that the operator has named.
func (s *Server) namedOrigin(origin string) bool {
	return origin != "" && origin != "null" && slices.ContainsFunc(s.opt.Origins, func(o string) bool { return strings.EqualFold(o, origin) })
}

// sameOrigin tells whether a page of that origin was served by the host that the request is addressed to.
func sameOrigin(origin string, r *http.Request) bool {
	u, err := url.Parse(origin)
	return err == nil && u.Host != "" && strings.EqualFold(u.Host, r.Host)
}

// cors answers a browser that asks on behalf of a page of another origin. It tells whether that was all.
func (s *Server) cors(w http.ResponseWriter, r *http.Request) (done bool) {
	origin := r.Header.Get("Origin")
	if len(s.opt.Origins) > 0 {
		w.Header().Add("Vary", "Origin")
	}
	if !s.namedOrigin(origin) {
		return false
	}
	h := w.Header()
	h.Set("Access-Control-Allow-Origin", origin)
	h.Set("Access-Control-Expose-Headers", corsExposed)
	if r.Method != http.MethodOptions || r.Header.Get("Access-Control-Request-Method") == "" {
		return false
	}
	h.Set("Access-Control-Allow-Methods", corsMethods)
	h.Set("Access-Control-Allow-Headers", corsHeaders)
	h.Set("Access-Control-Max-Age", "600")
	if r.Header.Get("Access-Control-Request-Private-Network") == "true" {
		h.Set("Access-Control-Allow-Private-Network", "true")
	}
	s.setWriteDeadline(w, 0)
	w.WriteHeader(http.StatusNoContent)
	return true
}
