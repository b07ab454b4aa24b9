package api

import (
	"time"

	"github.com/perdure/perdure"
)

// CreateKey is the body of a request for a new key.
type CreateKey struct {
	Name   string           `json:"name"`
	Scopes []string         `json:"scopes"`
	TTL    perdure.Duration `json:"ttl,omitempty"`
}

// NewKey is a new key. Its secret is shown only in the answer to the request that created it.
type NewKey struct {
	perdure.Key
	Secret string `json:"secret,omitempty"`
}

// Keys is a page of keys, without their secrets.
type Keys struct {
	Keys       []perdure.Key `json:"keys"`
	NextCursor string        `json:"next_cursor,omitempty"` // begin of the next page; empty on the last
}

// SigningKeys lists the public keys of signatures. The one that signs new runs is first.
type SigningKeys struct {
	Keys []SigningKey `json:"keys"`
}

// A SigningKey is the public half of a key that signs runs now or did before.
type SigningKey struct {
	KeyID     string `json:"key_id"`
	PublicKey string `json:"public_key"` // PEM of PKIX
	Signs     bool   `json:"signs"`      // new runs are signed with it
}

// ChangeTenant changes settings of a tenant. A field that is left out keeps its value.
type ChangeTenant struct {
	RequireSignatures *bool `json:"require_signatures,omitempty"`
	// Limits changes limits: one that is left out keeps its value, and 0 means the server's
	// default.
	Limits *perdure.TenantLimitChanges `json:"limits,omitempty"`
}

// A Tenant is the owner of runs, threads and keys.
type Tenant struct {
	Tenant            perdure.TenantID `json:"tenant"`
	CreatedAt         perdure.Instant  `json:"created_at"`
	RequireSignatures bool             `json:"require_signatures"` // runs are granted only with a valid signature
	// Limits are the limits set for the tenant; 0 means the server's default.
	Limits perdure.TenantLimits `json:"limits"`
	// LiveRuns is the number of the tenant's live runs, counted up to 100 000. A list leaves it
	// out.
	LiveRuns *int64 `json:"live_runs,omitempty"`
}

// Tenants is a page of tenants, in the order of their names.
type Tenants struct {
	Tenants    []Tenant `json:"tenants"`
	NextCursor string   `json:"next_cursor,omitempty"`
}

// MediaText is the media type of plain text.
const MediaText = "text/plain"

// Health is the health of a node.
type Health struct {
	Status string `json:"status"`
	Detail string `json:"detail,omitempty"`
}

// Invariants is the result of a check of the whole store.
type Invariants struct {
	Generation   int64       `json:"generation"` // how often the store was restored from a backup
	Checked      int         `json:"checked"`
	Violations   []Violation `json:"violations"`
	Unchecked    []string    `json:"unchecked,omitempty"` // invariants that were not checked for lack of time
	PastDeadline int         `json:"runs_past_deadline"`
	PastRuns     []string    `json:"past_deadline_run_ids,omitempty"` // the first runs past their deadline

	CheckedAt perdure.Instant `json:"checked_at,omitzero"` // when the check began
	TookMS    int64           `json:"took_ms"`
}

// A Violation is a row that breaks an invariant.
type Violation struct {
	ID        string `json:"id"`
	Statement string `json:"statement"`
	Row       string `json:"row"`
}

// WatchdogLog is a page of the watchdog's log, newest first.
type WatchdogLog struct {
	Actions    []perdure.WatchdogAction `json:"actions"`
	NextCursor string                   `json:"next_cursor,omitempty"`
}

// Locks are the locks of other sessions of PostgreSQL that are in the way of the answering node. Calls
// that need them are set aside, and the rest goes on. With SQLite there are none.
type Locks struct {
	Tables []LockedTable `json:"tables"`
	Rows   []LockedRow   `json:"rows"` // the oldest first
	// RowsSetAside counts the rows that were set aside since the start of the node.
	RowsSetAside int64 `json:"rows_set_aside"`
}

// A LockedTable is a table that another session holds locked as a whole.
type LockedTable struct {
	Table string    `json:"table"`
	Mode  string    `json:"mode"`  // of PostgreSQL: AccessExclusiveLock, ShareLock, …
	Waits bool      `json:"waits"` // the session waits for the lock, and everything else behind it
	Found time.Time `json:"found"` // when this node found it
	By    string    `json:"by"`    // the session, as far as PostgreSQL tells
	// For are the sessions that a waiting session waits for.
	For []string `json:"for,omitempty"`
}

// A LockedRow is a row that another session holds locked.
type LockedRow struct {
	Table string    `json:"table"`
	Key   []string  `json:"key"`
	Found time.Time `json:"found"` // when this node found it
	By    string    `json:"by"`    // the session, as far as PostgreSQL tells
}

// Policy has the settings of the policy that the answering node goes by. Nodes of one store are
// meant to have the same.
type Policy struct {
	Settings []PolicySetting `json:"settings"`
}

// A PolicySetting is a setting of the policy, with its values as "perdure config check" prints them.
type PolicySetting struct {
	Name    string `json:"name"`
	Value   string `json:"value"`
	Default string `json:"default"`
	// Changed is set if the value is not the default.
	Changed bool `json:"changed,omitempty"`
	// PerKind is set if a kind's definition may have a value of its own, which counts for its runs.
	PerKind bool   `json:"per_kind,omitempty"`
	Help    string `json:"help"`
	// Overrides are the values that the configuration has for kinds and activities.
	Overrides []PolicyOverride `json:"overrides,omitempty"`
}

// A PolicyOverride is the value of a setting for a kind, for an activity, or for an activity of a
// kind.
type PolicyOverride struct {
	Kind     string `json:"kind,omitempty"`
	Activity string `json:"activity,omitempty"`
	Value    string `json:"value"`
}

// AuditLog is a page of the audit log, newest first.
type AuditLog struct {
	Entries    []perdure.AuditEntry `json:"entries"`
	NextCursor string               `json:"next_cursor,omitempty"`
}
