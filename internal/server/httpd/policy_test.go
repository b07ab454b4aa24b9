package httpd

import (
	"reflect"
	"testing"
	"time"

	"github.com/perdure/perdure"
)

func TestPolicyShowsSettingsInForce(t *testing.T) {
	w := newWorld(t, setup{policy: func(p *perdure.Policy) {
		p.Lease, p.MaxGrants = 45*time.Second, 4
		p.Liveness = perdure.Liveness{
			Kinds: map[string]perdure.KindLiveness{"report": {Thresholds: perdure.Thresholds{Silent: 2 * time.Minute,
				Dead: time.Hour}, Activities: map[string]perdure.Thresholds{"draw": {Silent: time.Hour}}}},
			Activities: map[string]perdure.Thresholds{"think": {Stale: 3 * time.Minute}},
		}
	}})
	admin := w.as(w.admin)
	settings := map[string]obj{}
	for _, s := range admin.get("/api/admin/policy").is(200)["settings"].([]any) {
		s := s.(obj)
		if s["help"] == "" {
			t.Errorf("setting %s has no help", s["name"])
		}
		delete(s, "help")
		settings[s["name"].(string)] = s
	}
	for _, want := range []obj{
		{"name": "lease", "value": "45s", "default": "1m0s", "changed": true},
		{"name": "max_deliveries", "value": "4", "default": "10", "changed": true},
		{"name": "queued_alert", "value": "5m0s", "default": "5m0s"},
		{"name": "hold_timeout", "value": "24h0m0s", "default": "24h0m0s", "per_kind": true},
		{"name": "silent", "value": "30s", "default": "30s", "overrides": []any{
			obj{"kind": "report", "value": "2m0s"}, obj{"kind": "report", "activity": "draw", "value": "1h0m0s"}}},
		{"name": "stale_after", "value": "2m0s", "default": "2m0s",
			"overrides": []any{obj{"activity": "think", "value": "3m0s"}}},
		{"name": "dead_after", "value": "10m0s", "default": "10m0s",
			"overrides": []any{obj{"kind": "report", "value": "1h0m0s"}}},
	} {
		if got := settings[want["name"].(string)]; !reflect.DeepEqual(got, want) {
			t.Errorf("setting %s = %v, want %v", want["name"], got, want)
		}
	}
	policy := perdure.DefaultPolicy()
	if got, want := len(settings), len(policy.Settings()); got != want {
		t.Errorf("%d settings, want all %d of the policy", got, want)
	}
}

// The settings are for keys that may read the watchdog's log. A key of a tenant is told nothing.
func TestPolicyNeedsPlatformRead(t *testing.T) {
	w := newWorld(t, setup{})
	w.get("/api/admin/policy").refuses(403, "forbidden")
	secret := w.as(w.admin).do("POST", "/api/admin/keys", `{"name":"auditor","scopes":["audit:read"]}`).
		is(201)["secret"].(string)
	w.as(secret).get("/api/admin/policy").refuses(403, "forbidden")
	secret = w.as(w.admin).do("POST", "/api/admin/keys", `{"name":"reader","scopes":["platform:read"]}`).
		is(201)["secret"].(string)
	w.as(secret).get("/api/admin/policy").is(200)
}
