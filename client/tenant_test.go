package client_test

import (
	"io"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/client/admin"
	"github.com/perdure/perdure/internal/testkit/servertest"
	"github.com/perdure/perdure/internal/wire/session"
)

// acme makes the tenant acme, and returns a client with a key of it and one of the platform for it.
func acme(t *testing.T, w *servertest.Server) (theirs, ours *client.Client) {
	t.Helper()
	in := api.CreateKey{Name: "own"}
	for _, s := range perdure.TenantScopes {
		in.Scopes = append(in.Scopes, string(s))
	}
	k := ok[*api.NewKey](t)(admin.New(w.Client()).CreateTenantKey(within(t), "acme", in))
	return client.New(w.URL, k.Secret, client.Options{Transport: w.Wire}),
		client.New(w.URL, w.Key(), client.Options{Transport: w.Wire, Tenant: "acme"})
}

func TestPlatformKeyActsForATenant(t *testing.T) {
	both(t, func(t *testing.T, w *servertest.Server) {
		ctx := within(t)
		theirs, ours := acme(t, w)
		run := ok[*api.Run](t)(ours.Start(ctx, perdure.Submission{Kind: "job"})).RunID
		ok[*api.Run](t)(theirs.Get(ctx, run))
		if _, err := w.Client().Get(ctx, run); client.CodeOf(err) != perdure.CodeNotFound {
			t.Errorf("the run in the tenant of the platform key: error %v, want not_found", err)
		}
		ok[*api.QueuePaused](t)(admin.New(ours).PauseQueue(ctx, "default", api.PauseQueue{}))
		if q := ok[[]api.Queue](t)(theirs.Queues(ctx)); len(q) != 1 || q[0].Paused == nil {
			t.Errorf("the tenant's queues = %+v, want a pause", q)
		}
		if q := ok[[]api.Queue](t)(w.Client().Queues(ctx)); len(q) != 0 {
			t.Errorf("the platform's queues = %+v, want none", q)
		}
		ok[*api.QueuePaused](t)(admin.New(ours).ResumeQueue(ctx, "default"))
		var streamed, polled []string
		done := make(chan error, 1)
		go func() {
			for e, err := range ours.Stream(ctx, run, 0) {
				if err != nil {
					done <- err
					return
				}
				streamed = append(streamed, string(e.Type))
			}
			done <- nil
		}()
		finish(t, theirs, `1`)
		if err := <-done; err != nil {
			t.Fatalf("stream of a run of the tenant: %v", err)
		}
		for e, err := range ours.Events(ctx, run, 0) {
			if err != nil {
				t.Fatal(err)
			}
			polled = append(polled, string(e.Type))
		}
		if len(streamed) < 3 || !reflect.DeepEqual(streamed, polled) {
			t.Errorf("streamed %q, and polled %q; want the same whole log", streamed, polled)
		}
		r, deferred, err := ours.Join(ctx, run, time.Minute)
		if err != nil || deferred || string(r.Result) != `1` {
			t.Errorf("join: %+v, deferred %t, %v; want the result", r, deferred, err)
		}
		if list := ok[*api.Runs](t)(ours.List(ctx, client.Filter{})); len(list.Runs) != 1 {
			t.Errorf("the tenant's runs = %+v, want one", list.Runs)
		}
	})
}

func TestTenantOfAClientIsRefusedWithAReason(t *testing.T) {
	w := open(t, false, nil)
	ctx := within(t)
	theirs, ours := acme(t, w)
	run := ok[*api.Run](t)(theirs.Start(ctx, perdure.Submission{Kind: "job"})).RunID
	with := func(key string, tenant perdure.TenantID) *client.Client {
		return client.New(w.URL, key, client.Options{Transport: w.Wire, Tenant: tenant})
	}
	k := ok[*api.NewKey](t)(admin.New(theirs).CreateKey(ctx, api.CreateKey{Name: "x", Scopes: []string{"runs:read"}}))
	g := ok[*api.Polled](t)(session.Of(theirs).Poll(ctx, "w", api.Poll{Slots: 1, Start: true})).Runs[0]
	opened := ok[[]api.CommitResult](t)(session.Of(theirs).Commit(ctx, "w", perdure.Commit{ID: "c", RunID: run,
		Epoch: g.Epoch,
		Waits: []perdure.WaitSpec{{ID: "cb", Type: perdure.WaitCallback}}}))
	if len(opened) != 1 || len(opened[0].Callbacks) != 1 {
		t.Fatalf("commit = %+v, want a callback", opened)
	}
	streamError := func(c *client.Client) (err error) {
		for _, err = range c.Stream(ctx, run, 0) {
		}
		return err
	}
	const refused = "takes no tenant, and this client is for acme"
	start := perdure.Submission{Kind: "job"}
	for _, x := range []struct {
		what string
		err  error
		code perdure.Code
		says string
	}{
		{"a tenant's key", second(with(k.Secret, "acme").List(ctx, client.Filter{})), "invalid", "no platform key"},
		{"a tenant's key, a stream", streamError(with(k.Secret, "acme")), "invalid", "no platform key"},
		{"an unknown tenant", second(with(w.Key(), "amce").List(ctx, client.Filter{})), "not_found", "tenant"},
		{"an unknown tenant, a start", second(with(w.Key(), "amce").Start(ctx, start)), "not_found", "tenant"},
		{"no name", second(with(w.Key(), "a&b").List(ctx, client.Filter{})), "invalid", `"a&b" is no name`},
		{"a worker's poll", second(session.Of(ours).Poll(ctx, "w", api.Poll{Slots: 1})), "invalid", "without a tenant"},
		{"a login", second(admin.New(ours).LoginLink(ctx, api.OpenSession{})), "invalid", "without a tenant"},
		{"a callback", second(ours.Callback(ctx, opened[0].Callbacks[0].Token, api.UseCallback{})), "invalid",
			"without a tenant"},
		{"the platform's audit log", second(admin.New(ours).PlatformAudit(ctx, "", admin.AuditFilter{})), "invalid",
			refused},
		{"another tenant's key", second(admin.New(ours).RevokeTenantKey(ctx, "other", k.ID)), "invalid", refused},
		{"a backup", second(admin.New(ours).Backup(ctx, io.Discard)), "invalid", refused},
		{"work outside", second(ours.Continue(ctx, run, api.ContinueRun{})), "invalid", refused},
	} {
		if client.CodeOf(x.err) != x.code || !strings.Contains(x.err.Error(), x.says) {
			t.Errorf("%s: error %v, want %s with %q", x.what, x.err, x.code, x.says)
		}
	}
	ok[*api.Health](t)(ours.Health(ctx)) // is about no tenant
	if list := ok[*api.Runs](t)(w.Client().List(ctx, client.Filter{})); len(list.Runs) != 0 {
		t.Errorf("runs in the tenant of the platform key = %+v, want none", list.Runs)
	}
}

// Every method for a tenant, also those of operators and workers, names the tenant, or sends nothing that is about one.
func TestEveryCallNamesTheTenant(t *testing.T) {
	var name string
	calls := 0
	refusing := servertest.Tripper(func(r *http.Request) (*http.Response, error) {
		switch q := r.URL.Query()["tenant"]; {
		case strings.HasPrefix(r.URL.Path, "/api/v1/"):
			if calls++; len(q) != 1 || q[0] != "acme" {
				t.Errorf("%s: %s %s, want the tenant in the query", name, r.Method, r.URL)
			}
		case r.URL.Path != "/healthz" && r.URL.Path != "/readyz":
			t.Errorf("%s: %s %s, want no such call for a tenant", name, r.Method, r.URL)
		}
		return &http.Response{StatusCode: 404, Header: http.Header{"Content-Type": {"application/problem+json"}},
			Request: r, Body: io.NopCloser(strings.NewReader(`{"code":"not_found"}`))}, nil
	})
	c := client.New("http://x", "k", client.Options{Transport: refusing, Tenant: "acme"})
	callAll(t, c, func(method string) { name = method })
	if calls < 70 {
		t.Errorf("%d calls, want those of all methods", calls)
	}
}
