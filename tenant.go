package perdure

// TenantLimits are the limits of one tenant. Zero means the server's default. A limit that is set
// always applies; a default applies only while other tenants are active too.
type TenantLimits struct {
	// MaxLiveRuns limits the live runs of the tenant, on all nodes together.
	MaxLiveRuns int64 `json:"max_live_runs"`
	// MaxCalls limits the concurrent calls of the tenant on each node. Calls that block are counted
	// as streams or polls instead.
	MaxCalls int64 `json:"max_calls"`
	// MaxStreams limits the open streams, sockets and waits of the tenant on each node.
	MaxStreams int64 `json:"max_streams"`
	// MaxPolls limits the waiting polls of the tenant's workers on each node.
	MaxPolls int64 `json:"max_polls"`
	// MaxBytesPerHour limits the bytes of request bodies that each node accepts from the tenant per
	// hour.
	MaxBytesPerHour int64 `json:"max_bytes_per_hour"`
	// Weight is how many runs a poll for all tenants takes of the tenant when its turn has come. Zero means 1.
	Weight int64 `json:"weight,omitempty"`
}

// TenantLimitChanges changes limits of a tenant. Nil keeps a limit, and zero resets it to the
// default.
type TenantLimitChanges struct {
	MaxLiveRuns     *int64 `json:"max_live_runs,omitempty"`
	MaxCalls        *int64 `json:"max_calls,omitempty"`
	MaxStreams      *int64 `json:"max_streams,omitempty"`
	MaxPolls        *int64 `json:"max_polls,omitempty"`
	MaxBytesPerHour *int64 `json:"max_bytes_per_hour,omitempty"`
	Weight          *int64 `json:"weight,omitempty"`
}

// The greatest values of limits. maxLiveLimit is for MaxLiveRuns, which is checked by counting
// rows.
const (
	maxTenantLimit = 1 << 50
	maxLiveLimit   = 100_000_000
	maxWeight      = 100
)

// Apply changes the limits, or returns an error for a value out of range.
func (c TenantLimitChanges) Apply(l *TenantLimits) error {
	for _, x := range []struct {
		name   string
		from   *int64
		to     *int64
		atMost int64
	}{
		{"max_live_runs", c.MaxLiveRuns, &l.MaxLiveRuns, maxLiveLimit},
		{"max_calls", c.MaxCalls, &l.MaxCalls, maxTenantLimit},
		{"max_streams", c.MaxStreams, &l.MaxStreams, maxTenantLimit},
		{"max_polls", c.MaxPolls, &l.MaxPolls, maxTenantLimit},
		{"max_bytes_per_hour", c.MaxBytesPerHour, &l.MaxBytesPerHour, maxTenantLimit},
		{"weight", c.Weight, &l.Weight, maxWeight},
	} {
		if x.from == nil {
			continue
		}
		if *x.from < 0 || *x.from > x.atMost {
			return Invalid("limits."+x.name, "takes a whole number from 1 to %d, or 0 for the default", x.atMost)
		}
		*x.to = *x.from
	}
	return nil
}

// IsZero tells whether no limit is set.
func (l TenantLimits) IsZero() bool { return l == TenantLimits{} }
