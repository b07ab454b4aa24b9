package api

import "github.com/perdure/perdure"

// OpenSession logs a person in. The key of the call is the one to log in with.
type OpenSession struct {
	// ReadOnly leaves the session the scopes that read.
	ReadOnly bool `json:"read_only,omitempty"`
}

// A Session is a login of a person. It ends at ExpiresAt, and with the key that it was opened with.
type Session struct {
	// KeyID is the key that the session was opened with, and Name its name.
	KeyID     string           `json:"key_id"`
	Name      string           `json:"name"`
	Tenant    perdure.TenantID `json:"tenant"`
	Platform  bool             `json:"platform,omitempty"`
	Scopes    []perdure.Scope  `json:"scopes"`
	ReadOnly  bool             `json:"read_only,omitempty"`
	ExpiresAt perdure.Instant  `json:"expires_at,omitempty"`
}

// A LoginLink opens the dashboard once, without typing a key.
type LoginLink struct {
	// Path is the address of the dashboard on this server, with the login.
	Path      string          `json:"path"`
	ExpiresAt perdure.Instant `json:"expires_at"`
}
