package dispatch

import (
	"fmt"
	"testing"

	"github.com/perdure/perdure"
)

func heldAt(tenant string, kind int) Ready {
	return Ready{Tenant: perdure.TenantID(tenant), Queue: "q", Kind: fmt.Sprintf("k%04d", kind)}
}

func searches(h *heldPlaces, tenant string) []heldSearch {
	op := &Claim{Tenant: perdure.TenantID(tenant), AnyTenant: tenant == "", Queues: []string{"q"}, Build: "v2"}
	return h.matching(op, 1)
}

func TestTenantWithManyHeldPlacesHidesNoOther(t *testing.T) {
	var h heldPlaces
	for kind := range 10 * maxHeldPlaces {
		h.add(heldAt("hostile", kind), 1)
	}
	h.add(heldAt("other", 1), 1)
	if n := len(searches(&h, "hostile")); n != maxHeldPlaces {
		t.Errorf("%d places of the hostile tenant are remembered, want %d", n, maxHeldPlaces)
	}
	if got := searches(&h, "other"); len(got) != 1 || got[0].Ready != heldAt("other", 1) {
		t.Errorf("places of the other tenant: %+v, want its one", got)
	}
	if got := searches(&h, ""); got[1].Tenant != "other" {
		t.Errorf("the second place of a poll for all tenants is of %s, want the tenants to take turns", got[1].Tenant)
	}
	h.passed(heldAt("hostile", 0), "v2", "", 5)
	if got := searches(&h, ""); got[0].Tenant != "other" {
		t.Errorf("the first place of the next poll is of %s, want the tenant that was not searched", got[0].Tenant)
	}
}

func TestTenantsOfHeldPlacesAreEvictedByUse(t *testing.T) {
	var h heldPlaces
	name := func(n int) string { return fmt.Sprintf("t%04d", n) }
	for n := range maxHeldTenants {
		h.add(heldAt(name(n), 1), perdure.Instant(n+1))
	}
	h.passed(heldAt(name(0), 1), "v1", "", perdure.Instant(maxHeldTenants+1)) // it is used again
	h.add(heldAt("new", 1), perdure.Instant(maxHeldTenants+2))
	for tenant, want := range map[string]int{name(0): 1, name(1): 0, name(2): 1, "new": 1} {
		if got := len(searches(&h, tenant)); got != want {
			t.Errorf("%d places of tenant %s are remembered, want %d", got, tenant, want)
		}
	}
	if n := len(h.tenants); n != maxHeldTenants {
		t.Errorf("%d tenants are remembered, want %d", n, maxHeldTenants)
	}
}
