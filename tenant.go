package perdure

// TenantLimits bound what one tenant may take. Zero means the server's default. A limit that is set binds
// always; a default binds only while other tenants ask, too.
type TenantLimits struct {
	// MaxLiveRuns is how many runs of the tenant may be live at once, on all nodes together.
	MaxLiveRuns int64 `json:"max_live_runs"`
	// MaxCalls is how many calls of the tenant may be under way at once on each node. Calls that block are
	// counted as streams or polls instead.
	MaxCalls int64 `json:"max_calls"`
	// MaxStreams is how many streams, sockets and waits of the tenant may be open at once on each node.
	MaxStreams int64 `json:"max_streams"`
	// MaxPolls is how many polls of the tenant's workers may wait at once on each node.
	MaxPolls int64 `json:"max_polls"`
	// MaxBytesPerHour is how many bytes of request bodies each node accepts from the tenant in an hour.
	MaxBytesPerHour int64 `json:"max_bytes_per_hour"`
}

// TenantLimitChanges change some limits of a tenant. Nil leaves a limit as it is, and zero means the default.
type TenantLimitChanges struct {
	MaxLiveRuns     *int64 `json:"max_live_runs,omitempty"`
	MaxCalls        *int64 `json:"max_calls,omitempty"`
	MaxStreams      *int64 `json:"max_streams,omitempty"`
	MaxPolls        *int64 `json:"max_polls,omitempty"`
	MaxBytesPerHour *int64 `json:"max_bytes_per_hour,omitempty"`
}

// maxTenantLimit bounds the limits themselves. maxLiveLimit bounds the one that is counted.
const (
	maxTenantLimit = 1 << 50
	maxLiveLimit   = 100_000_000
)

// Apply changes limits, or refuses changes that make no sense.
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
