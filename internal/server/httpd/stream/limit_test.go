package stream

import "testing"

func TestTenantHasThreeQuartersUnlessConfigured(t *testing.T) {
	for _, r := range []struct {
		limit      int64
		configured int
		want       int64
	}{{1, 0, 1}, {2, 0, 2}, {4, 0, 3}, {1000, 0, 750}, {1000, 10, 10}, {10, 1000, 10}} {
		if got := tenantShare(r.limit, r.configured); got != r.want {
			t.Errorf("share of %d streams with %d configured = %d, want %d", r.limit, r.configured, got, r.want)
		}
	}
}
