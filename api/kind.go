package api

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/perdure/perdure"
)

// AnnounceKind is a worker's description of a kind that it executes.
type AnnounceKind struct {
	perdure.KindDef
	// Build identifies the worker's program. Of a kind's builds, the one that was first seen last
	// counts.
	Build string `json:"build,omitempty"`
	// AllTenants announces to the layer under every tenant's. It needs a platform key.
	AllTenants bool `json:"all_tenants,omitempty"`
}

// KindAnnounced is the answer to an announcement.
type KindAnnounced struct {
	Kind        string          `json:"kind"`
	Build       string          `json:"build,omitempty"`
	FirstSeenAt perdure.Instant `json:"first_seen_at"`
	Counts      bool            `json:"counts"` // no other build was first seen later
}

// A Kind is an entry of the registry: the effective definition, and where it comes from.
type Kind struct {
	Kind string `json:"kind"`
	perdure.KindDef
	// Sources has the layer of each field that is set: "platform", "worker" or "operator". Fields of
	// retry have names such as "retry.backoff".
	Sources map[string]string `json:"sources"`
	// Build is the build that counts. Builds are the last ones, newest first.
	Build  string      `json:"build,omitempty"`
	Builds []KindBuild `json:"builds"`
	// Served tells whether a live worker polls for the kind, on any queue.
	Served       bool             `json:"served"`
	LastPolledAt *perdure.Instant `json:"last_polled_at,omitempty"` // when a worker that serves it was last seen
	// Paused is set while none of its runs is granted.
	Paused *perdure.QueuePause `json:"paused,omitempty"`
	// MissingLimits are those of Limits that do not exist, so that they bound nothing.
	MissingLimits []string `json:"missing_limits,omitempty"`
}

// A KindBuild is a build that has announced a kind.
type KindBuild struct {
	Build       string          `json:"build"`
	FirstSeenAt perdure.Instant `json:"first_seen_at"`
	LastSeenAt  perdure.Instant `json:"last_seen_at"`
	Platform    bool            `json:"platform,omitempty"` // announced for all tenants
}

// Kinds is a page of the registry, by name.
type Kinds struct {
	Kinds      []Kind `json:"kinds"`
	NextCursor string `json:"next_cursor,omitempty"` // begin of the next page; empty on the last
}

// ChangeKind overrides the fields of a kind that are given. In JSON, null removes an override.
type ChangeKind struct {
	perdure.KindDef
	// Remove names overrides to remove: "timeout", "retry.backoff", or "retry" for all of retry.
	Remove []string `json:"-"`
}

// retryPrefix is the prefix of the names of retry's fields.
const retryPrefix = "retry."

// MarshalJSON writes null for the overrides to remove.
func (c ChangeKind) MarshalJSON() ([]byte, error) {
	b, err := json.Marshal(c.KindDef)
	if err != nil || len(c.Remove) == 0 {
		return b, err
	}
	fields, retry := make(map[string]json.RawMessage), make(map[string]json.RawMessage)
	if err := json.Unmarshal(b, &fields); err != nil {
		return nil, err
	}
	if fields["retry"] != nil {
		if err := json.Unmarshal(fields["retry"], &retry); err != nil {
			return nil, err
		}
	}
	null := json.RawMessage("null")
	for _, name := range c.Remove {
		if of, ok := strings.CutPrefix(name, retryPrefix); ok {
			retry[of] = null
			continue
		}
		fields[name] = null
	}
	if len(retry) > 0 && !slices.Contains(c.Remove, "retry") {
		if fields["retry"], err = json.Marshal(retry); err != nil {
			return nil, err
		}
	}
	return json.Marshal(fields)
}

// UnmarshalJSON reads null as an override to remove.
func (c *ChangeKind) UnmarshalJSON(b []byte) error {
	*c = ChangeKind{}
	if err := json.Unmarshal(b, &c.KindDef); err != nil {
		return err
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(b, &fields); err != nil {
		return err
	}
	c.removeNulls("", fields)
	if c.Retry != nil {
		var retry map[string]json.RawMessage
		if err := json.Unmarshal(fields["retry"], &retry); err != nil {
			return err
		}
		c.removeNulls(retryPrefix, retry)
	}
	for _, s := range []*json.RawMessage{&c.InputSchema, &c.OutputSchema} {
		if string(*s) == "null" {
			*s = nil
		}
	}
	slices.Sort(c.Remove)
	return nil
}

func (c *ChangeKind) removeNulls(prefix string, fields map[string]json.RawMessage) {
	for name, v := range fields {
		if string(v) == "null" {
			c.Remove = append(c.Remove, prefix+name)
		}
	}
}
