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
	Keys       []perdure.Key `json:"keys"`
	NextCursor string        `json:"next_cursor,omitempty"` // where the next page begins; empty: this was the last
}

// SigningKeys lists what runs are signed with, the one that signs first.
type SigningKeys struct {
	Keys []SigningKey `json:"keys"`
}

// A SigningKey is the public half of a key that signs runs, or did.
type SigningKey struct {
	KeyID     string `json:"key_id"`
	PublicKey string `json:"public_key"` // PEM of PKIX
	Signs     bool   `json:"signs"`      // new runs are signed with it
}

// ChangeTenant says what holds for a tenant; what is left out stays as it is.
type ChangeTenant struct {
	RequireSignatures *bool `json:"require_signatures,omitempty"`
	// Limits of the tenant: one that is left out stays as it is, and 0 means the server's default.
	Limits *perdure.TenantLimitChanges `json:"limits,omitempty"`
}

// A Tenant is whose runs they are.
type Tenant struct {
	Tenant            perdure.TenantID `json:"tenant"`
	CreatedAt         perdure.Instant  `json:"created_at"`
	RequireSignatures bool             `json:"require_signatures"` // its runs are handed over only with a valid signature
	// Limits that are set for the tenant; 0: the server's default holds.
	Limits perdure.TenantLimits `json:"limits"`
	// LiveRuns is how many live runs the tenant has, counted up to 100 000. It is there when one tenant is looked at.
	LiveRuns *int64 `json:"live_runs,omitempty"`
}

// Tenants is a page of tenants, by their names.
type Tenants struct {
	Tenants    []Tenant `json:"tenants"`
	NextCursor string   `json:"next_cursor,omitempty"`
}

// MediaText is the media type of a text.
const MediaText = "text/plain"

// Health says how a node is.
type Health struct {
	Status string `json:"status"`
	Detail string `json:"detail,omitempty"`
}

// Invariants is the outcome of a check of the whole store.
type Invariants struct {
	Generation   int64       `json:"generation"` // how often the store was restored from a backup
	Checked      int         `json:"checked"`
	Violations   []Violation `json:"violations"`
	Unchecked    []string    `json:"unchecked,omitempty"` // those that there was no time for: on a large store a check takes long
	PastDeadline int         `json:"runs_past_deadline"`
	PastRuns     []string    `json:"past_deadline_run_ids,omitempty"` // the first of them
}

// A Violation is a row that breaks an invariant.
type Violation struct {
	ID        string `json:"id"`
	Statement string `json:"statement"`
	Row       string `json:"row"`
}

// WatchdogLog is what the watchdog did, newest first.
type WatchdogLog struct {
	Actions    []perdure.WatchdogAction `json:"actions"`
	NextCursor string                   `json:"next_cursor,omitempty"`
}

// AuditLog is who did what to what, newest first.
type AuditLog struct {
	Entries    []perdure.AuditEntry `json:"entries"`
	NextCursor string               `json:"next_cursor,omitempty"`
}
