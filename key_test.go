package perdure

import "testing"

// A key can only create keys with its own scopes. A worker's key cannot create one that may decide,
// neither a tenant's nor a platform key.
func TestKeyCannotCreateAStrongerKey(t *testing.T) {
	worker := []Scope{ScopePoll, ScopeReport, ScopeKeys, ScopeApprove, ScopeRead}
	nearlyAll := Scopes[:len(Scopes)-1]
	for _, c := range []struct {
		name     string
		by, made Key
		want     Code // empty: allowed
	}{
		{"a scope that it has", Key{Scopes: worker}, Key{Scopes: []Scope{ScopeRead}}, ""},
		{"a scope that it lacks", Key{Scopes: worker}, Key{Scopes: []Scope{ScopeRead, ScopeCreate}}, CodeForbidden},
		{"an approver", Key{Scopes: worker}, Key{Scopes: []Scope{ScopeApprove}}, CodeForbidden},
		{"an approver who reads", Key{Scopes: worker}, Key{Scopes: []Scope{ScopeApprove, ScopeRead, ScopeKeys}},
			CodeForbidden},
		{"another worker", Key{Scopes: worker}, Key{Scopes: worker}, ""},
		{"a maker of keys", Key{Scopes: worker}, Key{Scopes: []Scope{ScopeKeys}}, ""},
		{"an approver, by one who polls only", Key{Scopes: []Scope{ScopePoll, ScopeKeys, ScopeApprove}},
			Key{Scopes: []Scope{ScopeApprove}}, CodeForbidden},
		{"an approver, by one who reports only", Key{Scopes: []Scope{ScopeReport, ScopeKeys, ScopeApprove}},
			Key{Scopes: []Scope{ScopeApprove}}, CodeForbidden},
		{"an approver, by one who does not work", Key{Scopes: []Scope{ScopeKeys, ScopeApprove}},
			Key{Scopes: []Scope{ScopeApprove}}, ""},

		{"a scope that the platform's key lacks", Key{Platform: true, Scopes: []Scope{ScopeKeys}},
			Key{Scopes: []Scope{ScopeRead}}, CodeForbidden},
		{"an approver, by the platform's worker", Key{Platform: true, Scopes: worker},
			Key{Scopes: []Scope{ScopeApprove}}, CodeForbidden},
		{"the platform's approver, by its worker", Key{Platform: true, Scopes: worker},
			Key{Platform: true, Scopes: []Scope{ScopeApprove}}, CodeForbidden},
		{"an approver, by nearly the first key", Key{Platform: true, Scopes: nearlyAll},
			Key{Scopes: []Scope{ScopeApprove}}, CodeForbidden},
		{"the platform's worker", Key{Platform: true, Scopes: worker},
			Key{Platform: true, Scopes: []Scope{ScopePoll, ScopeReport}}, ""},
		{"an approver, by the first key", Key{Platform: true, Scopes: Scopes}, Key{Scopes: []Scope{ScopeApprove}}, ""},
		{"another of its kind, by the first key", Key{Platform: true, Scopes: Scopes},
			Key{Platform: true, Scopes: Scopes}, ""},

		{"a platform key, by a tenant's", Key{Scopes: worker}, Key{Platform: true, Scopes: []Scope{ScopeRead}},
			CodeForbidden},
		{"a tenant's key with a scope of the platform", Key{Platform: true, Scopes: Scopes},
			Key{Scopes: []Scope{ScopePlatformRead}}, CodeInvalid},
		{"one that lasts, by one that expires", Key{Scopes: worker, ExpiresAt: 100}, Key{Scopes: []Scope{ScopeRead}},
			CodeForbidden},
		{"one that lasts longer", Key{Platform: true, Scopes: Scopes, ExpiresAt: 100},
			Key{Platform: true, Scopes: Scopes, ExpiresAt: 101}, CodeForbidden},
		{"one that lasts as long", Key{Scopes: worker, ExpiresAt: 100}, Key{Scopes: []Scope{ScopeRead}, ExpiresAt: 100},
			""},
	} {
		if err := c.by.MayMake(&c.made); CodeOf(err) != c.want {
			t.Errorf("%s: MayMake = %v, want the code %q", c.name, err, c.want)
		}
	}
}

// A search over all keys that a worker's key can create, and those can create, finds none that
// decides.
func TestNoChainOfKeysLeadsFromWorkerToApprover(t *testing.T) {
	for _, platform := range []bool{false, true} {
		for _, works := range []Scope{ScopePoll, ScopeReport} {
			kinds := []Scope{works, ScopeApprove, ScopeKeys, ScopeControl, ScopePlatformAdmin}
			var keys []Key // every choice of scopes, of the tenant and of the platform
			for bits := 1; bits < 1<<len(kinds); bits++ {
				k := Key{}
				for i, s := range kinds {
					if bits&(1<<i) != 0 {
						k.Scopes = append(k.Scopes, s)
					}
				}
				keys = append(keys, k, Key{Scopes: k.Scopes, Platform: true})
			}
			reached := []Key{{Scopes: kinds, Platform: platform}}
			seen := make(map[int]bool)
			for len(reached) > 0 {
				by := reached[0]
				reached = reached[1:]
				if by.MayDecide() == nil {
					t.Fatalf("the key %+v may decide, and descends from a key with %s", by, works)
				}
				for i := range keys {
					if !seen[i] && by.Allows(ScopeKeys) && by.MayMake(&keys[i]) == nil {
						seen[i] = true
						reached = append(reached, keys[i])
					}
				}
			}
			if len(seen) < 8 {
				t.Errorf("%d keys can be created from one with %s, want at least 8: the search is too small", len(seen),
					works)
			}
		}
	}
}
