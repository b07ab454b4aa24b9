package main

import (
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/client/admin"
)

// theirs makes the tenant acme with one run, and returns a key of it and a client with that.
func theirs(t *testing.T, c *client.Client) (key, run string) {
	t.Helper()
	in := api.CreateKey{Name: "own"}
	for _, s := range perdure.TenantScopes {
		in.Scopes = append(in.Scopes, string(s))
	}
	k, err := admin.New(c).CreateTenantKey(t.Context(), "acme", in)
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("PERDURE_KEY", k.Secret)
	out, _ := mustRun(t, 0, "run", "job", "-d")
	t.Setenv("PERDURE_KEY", "")
	return k.Secret, strings.TrimSpace(out)
}

func TestCommandsAreAboutTheTenantThatIsNamed(t *testing.T) {
	c, _ := live(t)
	key, run := theirs(t, c)
	_, errs := mustRun(t, exitFail, "journal", run)
	has(t, errs, "not_found")
	mustRun(t, 0, "journal", run, "--tenant", "acme")
	has(t, first(mustRun(t, 0, "queues", "pause", "default", "--tenant", "acme")), "paused since")
	if out, _ := mustRun(t, 0, "queues"); !strings.HasPrefix(out, "No queues") {
		t.Errorf("queues of the key's own tenant = %s, want none", out)
	}
	t.Setenv("PERDURE_TENANT", "acme")
	has(t, first(mustRun(t, 0, "queues")), "by the platform")
	has(t, first(mustRun(t, 0, "queues", "resume", "default")), "default is not paused")
	has(t, first(mustRun(t, 0, "jobs")), run, "%1")
	has(t, first(mustRun(t, 0, "logs", "%1")), "run:created")
	has(t, first(mustRun(t, 0, "audit")), "acme", "queue.pause")
	has(t, first(mustRun(t, 0, "watchdog")), "The watchdog did nothing.")
	has(t, first(mustRun(t, exitFail, "doctor")), "BAD  workers          0 online, 1 claimable", "ok   invariants")
	has(t, first(mustRun(t, 0, "keys", "list")), "own")
	mustRun(t, 0, "kill", run)
	has(t, second(mustRun(t, 0, "keys", "create", "more")), "of tenant acme")
	has(t, second(mustRun(t, 0, "keys", "create", "more", "--tenant", "made")), "of tenant made")
	has(t, second(mustRun(t, 0, "keys", "create", "more", "--platform")), "of the platform")
	t.Setenv("PERDURE_TENANT", "")
	// The job belongs to the other tenant, and has no number in this one.
	_, errs = mustRun(t, exitFail, "logs", "%1")
	has(t, errs, "%1")
	t.Setenv("PERDURE_KEY", key)
	has(t, first(mustRun(t, 0, "jobs", "--status", "cancelled")), run)
}

func second[A, B any](_ A, b B) B { return b }

func TestTenantIsRefusedWithAReason(t *testing.T) {
	c, _ := live(t)
	key, run := theirs(t, c)
	for _, x := range []struct {
		args string
		says string
	}{
		{"jobs --tenant amce", "not_found"},
		{"run job -d --tenant amce", "not_found"},
		{"jobs --tenant a&b", `"a&b" is no name of a tenant`},
		{"tenants --tenant acme", "GET /api/admin/tenants takes no tenant"},
		{"recovery --tenant acme", "takes no tenant"},
		{"fsck --tenant acme", "takes no tenant"},
		{"dashboard --tenant acme", "takes no tenant here"},
		{"exec --tenant acme -- true", "runners work for the tenant of their key"},
		{"runner --tenant acme", "runners work for the tenant of their key"},
		{"keys create x --platform --tenant acme", "either of a tenant or of the platform"},
	} {
		code, out, errs := call(strings.Fields(x.args)...)
		if code == 0 || out != "" || !strings.Contains(errs, x.says) {
			t.Errorf("perdure %s: exit code %d, %q, %q; want it refused with %q", x.args, code, out, errs, x.says)
		}
	}
	list, err := c.List(t.Context(), client.Filter{})
	if err != nil || len(list.Runs) != 0 {
		t.Errorf("runs of the key's own tenant = %+v, %v; want none", list, err)
	}
	t.Setenv("PERDURE_KEY", key)
	_, errs := mustRun(t, exitFail, "kill", run, "--tenant", "acme")
	has(t, errs, "the key is no platform key")
}
