package conformance

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine"
	"github.com/perdure/perdure/internal/server/engine/access"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/engine/outbox"
	"github.com/perdure/perdure/internal/server/store"
)

func sealKey(letter string) []byte { return bytes.Repeat([]byte(letter), access.SealKeySize) }

// sealWith restarts the server with sealing keys, one per letter. It gives the error of the start.
func (w *World) sealWith(letters string) error {
	w.t.Helper()
	var keys [][]byte
	for _, l := range strings.Split(letters, "") {
		keys = append(keys, sealKey(l))
	}
	if _, err := engine.New(w.S, engine.Options{SealKeys: keys}); err != nil {
		return err
	}
	w.SealKeys = keys
	w.restart()
	return nil
}

// storedSecret reads the meta row of the root secret.
func (w *World) storedSecret() (text string) {
	w.t.Helper()
	w.view(func(v *store.View) error {
		return v.Rows("SELECT value FROM meta WHERE name='secret'", nil,
			func(scan func(...any) error) error { return scan(&text) })
	})
	return text
}

var secretScenarios = []Scenario{
	{"a sealed root secret opens with its key alone, and the key can be replaced", func(w *World) {
		plain := w.storedSecret()
		w.check(len(plain) == 64, "the root secret is %q", plain)
		hook, secret := w.hook("")
		err := w.sealWith("a")
		w.check(err == nil, "sealing: %v", err)
		sealed := w.storedSecret()
		w.check(strings.HasPrefix(sealed, "sealed:v1:") && !strings.Contains(sealed, plain), "sealed: %q", sealed)
		w.check(w.E.Webhooks.Secrets(&hook, w.Now)[0] == secret, "sealing changed the secret of a webhook")

		for letters, want := range map[string]string{"": "give that key", "b": "none of the seal_keys is that one"} {
			err := w.sealWith(letters)
			w.check(err != nil && strings.Contains(err.Error(), want), "start with the keys %q: %v", letters, err)
		}
		w.check(w.storedSecret() == sealed, "a start that was refused changed the row")
		w.check(w.sealWith("ba") == nil && w.storedSecret() != sealed, "a new key before the old one seals anew")
		w.check(w.sealWith("b") == nil && w.sealWith("a") != nil, "the new key alone opens it")
		w.check(w.E.Webhooks.Secrets(&hook, w.Now)[0] == secret, "another key changed the secret of a webhook")

		changed := w.storedSecret()
		broken := changed[:len(changed)-8] + "AAAAAAA="
		w.do(corrupt{"UPDATE meta SET value=? WHERE name='secret'", []any{broken}})
		err = w.sealWith("b")
		w.check(err != nil && strings.Contains(err.Error(), "was changed"), "a changed row: %v", err)
		w.do(corrupt{"UPDATE meta SET value=? WHERE name='secret'", []any{changed}})
	}},
	{"a rotated root secret leaves tokens and webhooks valid", func(w *World) {
		w.check(w.sealWith("a") == nil, "sealing")
		hook, first := w.hook("")
		w.task()
		g := w.take("w1")
		waits := func(id string) string {
			return w.commit(g, perdure.Commit{Waits: []perdure.WaitSpec{{ID: id,
				Type: perdure.WaitCallback}}}).Callbacks[0].Token
		}
		before, stale := waits("a"), waits("b")
		w.pass(time.Second)
		rotate := &access.RotateSecret{}
		w.do(rotate)
		w.check(len(rotate.Old) == 1 && rotate.Old[0].ID == hook.ID, "webhooks of the older root secret: %v",
			rotate.Old)
		for range 2 { // with the engine that rotated, and after a restart
			w.check(slices.Equal(w.E.Webhooks.Secrets(&hook, w.Now), []string{first}),
				"the rotation changed the secret of a webhook")
			w.restart()
		}
		after := waits("c")
		w.check(after != before, "another root secret makes tokens")
		w.do(&life.Callback{Token: before, Result: json.RawMessage(`1`)})
		w.do(&life.Callback{Token: after, Result: json.RawMessage(`1`)})

		w.pass(time.Second)
		made, fresh := w.hook("")
		renew := &outbox.RotateWebhook{Tenant: tenant, ID: hook.ID}
		w.do(renew)
		hook = renew.Webhook
		w.check(slices.Contains(w.E.Webhooks.Secrets(&hook, w.Now), first), "for a day the secret before signs too")
		w.pass(time.Second)
		for range 2 {
			w.do(&access.RotateSecret{})
			w.pass(time.Second)
		}
		w.restart()
		w.check(w.E.Webhooks.Secrets(&made, w.Now)[0] == fresh && w.E.Webhooks.Secrets(&hook,
			w.Now)[0] == renew.Secret, "webhooks made between rotations keep their secrets")
		w.refuse(perdure.CodeNotFound, &life.Callback{Token: stale,
			Result: json.RawMessage(`1`)}) // three rotations ago
	}},
	{"a root secret that webhooks need is not dropped", func(w *World) {
		hook, secret := w.hook("")
		n := 0
		var err error
		for ; n < 20 && err == nil; n++ {
			w.pass(time.Second)
			err = w.E.Step(w.Now, &access.RotateSecret{})[0]
		}
		w.check(n == 8 && err != nil && strings.Contains(err.Error(), string(hook.ID)),
			"after %d rotations: %v", n, err)
		w.restart()
		w.check(w.E.Webhooks.Secrets(&hook, w.Now)[0] == secret, "its secret is another")
		w.do(&outbox.RotateWebhook{Tenant: tenant, ID: hook.ID})
		w.do(&access.RotateSecret{})
	}},
}
