package conformance

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/engine/outbox"
	"github.com/perdure/perdure/internal/server/store"
	"github.com/perdure/perdure/internal/testkit/storetest"
)

func TestABatchThatIsDecidedAgainLooksForWebhooksAgain(t *testing.T) {
	storetest.OnBoth(t, func(t *testing.T, at store.Options) {
		a, b, between := pair(t, at)
		r := a.task() // a has looked, and found none
		g := a.take("w1")
		var hook perdure.Webhook
		between.f = func() {
			hook, _ = b.hook("")
			b.do(&life.Signal{Tenant: tenant, RunID: r.ID, Name: "a"}) // somebody is quicker with the run
		}
		a.complete(g, `1`)
		if got := b.lineTypes(r.ID, hook.ID); got != "completed" {
			t.Errorf("it was told %q", got)
		}
		b.fsck()
	})
}

func TestABatchThatIsOldWhenItIsWrittenIsDecidedAgain(t *testing.T) {
	storetest.OnBoth(t, func(t *testing.T, at store.Options) {
		var age time.Duration
		between := &once{}
		b := node(t, at)
		at.Hooks.BeforeWrite, at.Hooks.Age = between.call, func() time.Duration { return age }
		a := node(t, at)
		r := a.task()
		g := a.take("w1")
		age = store.MaxAge
		hook, _ := b.hook("", "x:*", "run:completed")
		a.commit(g, perdure.Commit{Events: []perdure.Emitted{{Type: "x:mine"}}}) // what is not too old is written
		// and a node that is always slow gets on
		between.f = func() { age++ }
		a.complete(g, `1`)
		if got := b.lineTypes(r.ID, hook.ID); got != "completed" {
			t.Errorf("it was told %q", got)
		}
		b.fsck()
	})
}

// aside is an operation in a lane that it shares with few others, on both stores.
type aside struct{ *life.Submit }

func (aside) Lane() store.Lane { return store.LaneSweep }

// Lanes decide at the same time. What one has decided before a webhook was made is not written after that is answered.
func TestAWebhookIsMadeWhileAnotherLaneDecides(t *testing.T) {
	for name, at := range map[string]func(*testing.T) store.Options{
		"SQLite":     func(t *testing.T) store.Options { return store.Options{Path: t.TempDir() + "/perdure.db"} },
		"PostgreSQL": func(t *testing.T) store.Options { return store.Options{URL: storetest.Postgres(t)} },
	} {
		t.Run(name, func(t *testing.T) {
			between, at := &once{}, at(t)
			at.Hooks.BeforeWrite = between.call
			w := node(t, at)
			w.task()
			hook := &outbox.CreateWebhook{Tenant: tenant, URL: sink, Events: []string{"run:created"}}
			between.f = func() {
				if err := w.E.Do(context.Background(), hook); err != nil {
					t.Error(err)
				}
			}
			op := &life.Submit{Tenant: tenant, Submission: perdure.Submission{Kind: "x"}}
			if err := w.E.Do(t.Context(), aside{op}); err != nil {
				t.Fatal(err)
			}
			if got := w.lineTypes(op.Run.ID, hook.Webhook.ID); got != "created" {
				t.Errorf("it was told %q", got)
			}
		})
	}
}

// counting counts the queries that have a word in them.
type counting struct {
	store.Conn
	word string
	n    *int
}

func (s counting) Query(q string, args []any, row func(func(...any) error) error) error {
	if strings.Contains(q, s.word) {
		*s.n++
	}
	return s.Conn.Query(q, args, row)
}

func TestTenantsWithoutWebhooksCostOneLookTogether(t *testing.T) {
	storetest.OnBoth(t, func(t *testing.T, at store.Options) {
		n := 0
		b := node(t, at)
		at.Hooks.Wrap = func(s store.Conn) store.Conn { return counting{s, "FROM webhooks", &n} }
		a := node(t, at)
		submit := func(from, to int) {
			t.Helper()
			for i := from; i < to; i++ {
				a.do(&life.Submit{Tenant: perdure.TenantID(fmt.Sprint("t", i)),
					Submission: perdure.Submission{Kind: "x"}})
			}
		}
		submit(0, 50)
		if n != 1 {
			t.Errorf("%d looks for 50 tenants", n)
		}
		for _, x := range []perdure.TenantID{"t7", "t7", "t8"} {
			b.do(&outbox.CreateWebhook{Tenant: x, URL: sink})
		}
		n, a.Now = 0, a.Now.Add(time.Second)
		submit(0, 50)
		submit(0, 50)
		if n != 3 {
			t.Errorf("%d looks where two of 50 tenants have webhooks", n)
		}
	})
}

func TestMoreTenantsWithWebhooksThanAreKnownAsASet(t *testing.T) {
	storetest.OnBoth(t, func(t *testing.T, at store.Options) {
		w := node(t, at)
		var ops []kernel.Op
		for i := range 1001 {
			ops = append(ops, &outbox.CreateWebhook{Tenant: perdure.TenantID(fmt.Sprintf("a%04d", i)), URL: sink})
		}
		for i, err := range w.E.Step(w.Now, ops...) {
			if err != nil {
				t.Fatalf("%d: %v", i, err)
			}
		}
		hook, _ := w.hook("") // its tenant comes after all these
		w.endedRun(hook.ID)
	})
}

func TestALostAnswerWithASecretIsGivenAgain(t *testing.T) {
	storetest.OnBoth(t, func(t *testing.T, at store.Options) {
		w := node(t, at)
		submit := func(key string) string {
			t.Helper()
			op := &life.Submit{Tenant: tenant, Submission: perdure.Submission{Kind: "x", Webhook: sink}, Key: key}
			w.do(op)
			return op.WebhookSecret
		}
		secret := submit("first")
		w.Now = w.Now.Add(time.Millisecond)
		if again := submit("first"); again != secret || secret == "" {
			t.Errorf("%q, and again %q", secret, again)
		}
		if other, again := submit("second"), submit("second"); other+again != "" {
			t.Errorf("another run was shown %q, and again %q", other, again)
		}
		id := perdure.RunWebhookID(tenant, sink, "")
		w.do(&outbox.DeleteWebhook{Tenant: tenant, ID: id})
		w.Now = w.Now.Add(time.Millisecond)
		if got := submit("first"); got != "" {
			t.Errorf("of one that is deleted: %q", got)
		}
		if back, again := submit("third"), submit("third"); back != again || back == "" || back == secret {
			t.Errorf("one that came back: %q, and again %q", back, again)
		}
		w.do(&outbox.RotateWebhook{Tenant: tenant, ID: id})
		if got := submit("third") + submit("first"); got != "" {
			t.Errorf("after a rotation: %q", got)
		}
	})
}

func TestASecretOfATryThatWasNotWrittenIsNotShown(t *testing.T) {
	storetest.OnBoth(t, func(t *testing.T, at store.Options) {
		a, b, between := pair(t, at)
		here := &life.Submit{Tenant: tenant, Submission: perdure.Submission{Kind: "x", Webhook: sink}, Key: "k"}
		between.f = func() {
			b.do(&life.Submit{Tenant: tenant, Submission: perdure.Submission{Kind: "other"}, Key: "k"})
		}
		if err := a.E.Step(a.Now, here)[0]; perdure.CodeOf(err) != perdure.CodeReused || here.WebhookSecret != "" {
			t.Errorf("%v, %q", err, here.WebhookSecret)
		}
	})
}
