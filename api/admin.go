package api

import "github.com/perdure/perdure"

// CreateKey asks for a key.
type CreateKey struct {
	Name   string           `json:"name"`
	Scopes []string         `json:"scopes"`
	TTL    perdure.Duration `json:"ttl,omitempty"`
}

// NewKey is a key with its secret, which is shown this once.
type NewKey struct {
	perdure.Key
	Secret string `json:"secret,omitempty"` // in the answer that made it alone
}

// Keys lists keys, without their secrets.
type Keys struct {
	Keys []perdure.Key `json:"keys"`
}

// Health says how a node is.
type Health struct {
	Status string `json:"status"`
	Detail string `json:"detail,omitempty"`
}

// Invariants is the outcome of a check of the whole store.
type Invariants struct {
	Checked      int         `json:"checked"`
	Violations   []Violation `json:"violations"`
	PastDeadline int         `json:"runs_past_deadline"`
}

// A Violation is a row that breaks an invariant.
type Violation struct {
	ID        string `json:"id"`
	Statement string `json:"statement"`
	Row       string `json:"row"`
}
