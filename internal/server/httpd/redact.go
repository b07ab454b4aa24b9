package httpd

import (
	"net/http"
	"net/url"

	"github.com/perdure/perdure/internal/wire/redact"
)

// redacted returns a request without the secrets in its path, its query and its headers. Its body
// is redacted when it is read. Everything after this step thus compares, hashes, stores and shows
// the same text. Credentials are not redacted: they are never stored, and one may itself be a
// secret.
func redacted(s *redact.Set, r *http.Request) *http.Request {
	if s == nil {
		return r
	}
	clean := *r
	if r.URL.RawQuery != "" || s.Has(r.URL.Path) || s.Has(r.URL.RawPath) {
		u := *r.URL
		u.Path, u.RawPath = s.String(u.Path), s.String(u.RawPath)
		if u.Path != r.URL.Path {
			u.RawPath = ""
		}
		if q, err := url.ParseQuery(u.RawQuery); err == nil {
			u.RawQuery = redactQuery(s, q, u.RawQuery)
		} else {
			u.RawQuery = s.String(u.RawQuery)
		}
		clean.URL = &u
	}
	clean.Header = r.Header.Clone()
	for name, values := range clean.Header {
		if name == "Authorization" || name == "X-Api-Key" {
			continue
		}
		for i, v := range values {
			values[i] = s.String(v)
		}
	}
	return &clean
}

// redactQuery returns a query without secrets. A query that has none is returned as it was sent.
func redactQuery(s *redact.Set, q url.Values, raw string) string {
	clean, changed := make(url.Values, len(q)), false
	for name, values := range q {
		for _, v := range values {
			if name != tokenParam {
				if c := s.String(v); c != v {
					v, changed = c, true
				}
			}
			n := s.String(name)
			changed = changed || n != name
			clean[n] = append(clean[n], v)
		}
	}
	if !changed {
		return raw
	}
	return clean.Encode()
}
