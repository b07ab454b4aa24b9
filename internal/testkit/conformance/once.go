package conformance

import (
	"fmt"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/access"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/engine/outbox"
)

// A keyed is an operation under an idempotency key. other is the same operation with another body.
// made names what it created.
type keyed struct {
	name      string
	op, other kernel.Op
	made      func(kernel.Op) string
}

// keyed gives new operations that create something, all under one key.
func (w *World) keyed(key string, th perdure.ThreadID, ids []perdure.RunID) []keyed {
	return []keyed{
		{"thread", &life.CreateThread{Tenant: tenant, Key: key}, &life.CreateThread{Tenant: tenant,
			Key: key, Metadata: []byte(`1`)},
			func(op kernel.Op) string { return string(op.(*life.CreateThread).Thread.ID) }},
		{"message", &life.AppendMessage{Tenant: tenant, ThreadID: th, Message: user("x")[0], Key: key},
			&life.AppendMessage{Tenant: tenant, ThreadID: th, Message: user("y")[0], Key: key},
			func(op kernel.Op) string { return fmt.Sprint(op.(*life.AppendMessage).Seq) }},
		{"group", &life.CreateGroup{Tenant: tenant, RunIDs: ids, Key: key},
			&life.CreateGroup{Tenant: tenant, RunIDs: ids[:1], Key: key},
			func(op kernel.Op) string {
				g := op.(*life.CreateGroup)
				return fmt.Sprint(g.Group.ID, g.Ends)
			}},
		{"webhook", &outbox.CreateWebhook{Tenant: tenant, URL: sink, Key: key},
			&outbox.CreateWebhook{Tenant: tenant, URL: sink + "/other", Key: key},
			func(op kernel.Op) string {
				return string(op.(*outbox.CreateWebhook).Webhook.ID) + op.(*outbox.CreateWebhook).Secret
			}},
		{"key", &access.CreateKey{Tenant: tenant, Name: "k", Scopes: perdure.Scopes, Once: key},
			&access.CreateKey{Tenant: tenant, Name: "l", Scopes: perdure.Scopes, Once: key},
			func(op kernel.Op) string { return op.(*access.CreateKey).Key.ID }},
	}
}

var onceScenarios = []Scenario{
	{"whatever is made under an idempotency key is made once, for as long as the key is kept", func(w *World) {
		th, ids := w.thread(), []perdure.RunID{w.task().ID, w.task().ID}
		w.complete(w.take("w1"), `1`)
		first := w.keyed("k", th, ids)
		for i, x := range first {
			name := x.name
			w.do(x.op)
			again := w.keyed("k", th, ids)[i]
			w.do(again.op)
			w.check(x.made(x.op) != "" && x.made(x.op) == x.made(again.op), "%s: %s, then %s", name,
				x.made(x.op), x.made(again.op))
			w.refuse(perdure.CodeReused, again.other)
			other := w.keyed("another", th, ids)[i]
			w.do(other.op)
			w.check(x.made(x.op) != x.made(other.op), "%s: another key is another one", name)
			if k, ok := again.op.(*access.CreateKey); ok {
				w.check(!k.Created && k.Secret == "" && x.op.(*access.CreateKey).Secret != "", "a secret is shown once")
			}
		}
		w.check(len(w.messages(th)) == 2, "%d messages", len(w.messages(th)))
		w.Now = w.Now.Add(w.E.Policy().IdempotencyTTL)
		w.sweep()
		for i, x := range first {
			later := w.keyed("k", th, ids)[i]
			w.do(later.op)
			w.check(x.made(x.op) != x.made(later.op), "%s: the key is forgotten", x.name)
		}
	}},
	{"two who ask at once under one key get the same", func(w *World) {
		th, ids := w.thread(), []perdure.RunID{w.task().ID, w.task().ID}
		for i, a := range w.keyed("k", th, ids) {
			b := w.keyed("k", th, ids)[i]
			for _, err := range w.E.Step(w.Now, a.op, b.op) {
				w.check(err == nil, "%s: %v", a.name, err)
			}
			w.check(a.made(a.op) == a.made(b.op), "%s: %s and %s", a.name, a.made(a.op), a.made(b.op))
		}
	}},
	{"runs that are submitted together are one each per key, and one that is refused hurts no other", func(w *World) {
		submit := func(key, kind string) *life.Submit {
			return &life.Submit{Tenant: tenant, Key: key, Submission: perdure.Submission{Kind: kind}}
		}
		known := submit("known", "a")
		w.do(known)
		for _, first := range []bool{true, false} {
			ops := []*life.Submit{submit("k1", "a"), submit("known", "a"), submit("k2", ""), submit("k1", "a"),
				submit("k1", "b"), submit("known", "b"), submit("k2", "c"), submit("", "d")}
			list := make([]kernel.Op, len(ops))
			for i, op := range ops {
				list[i] = op
			}
			errs := w.E.Step(w.Now, list...)
			for i, code := range []perdure.Code{"", "", perdure.CodeInvalid, "", perdure.CodeReused, perdure.CodeReused,
				"", ""} {
				w.check(perdure.CodeOf(errs[i]) == code, "submission %d: %v, want the code %q", i, errs[i], code)
			}
			w.check(ops[0].Created == first && !ops[1].Created && !ops[3].Created && ops[6].Created == first &&
				ops[7].Created,
				"created: %t %t %t %t %t", ops[0].Created, ops[1].Created, ops[3].Created, ops[6].Created,
				ops[7].Created)
			w.check(ops[1].Run.ID == known.Run.ID && ops[3].Run.ID == ops[0].Run.ID, "the runs of a key differ")
		}
		w.check(w.rows("runs") == 5, "%d runs, want 5", w.rows("runs"))
	}},
	{"a cancel that is sent again drops no chord", func(w *World) {
		r := w.on(w.thread(), perdure.Submission{Kind: "boss"})
		g := w.takeKind("boss")
		ask := func() kernel.Op { return &life.Cancel{Tenant: tenant, RunID: r.ID, Reason: "enough", Key: "k"} }
		w.do(ask())
		o := done(`1`)
		o.ContinueOn = []string{"a"}
		kid := w.commit(g, perdure.Commit{Children: []perdure.Spawn{{Key: "a", Kind: "kid"}},
			Outcome: o}).Children[0].RunID
		w.do(ask())
		w.state(kid, perdure.Queued)
		w.refuse(perdure.CodeReused, &life.Cancel{Tenant: tenant, RunID: r.ID, Reason: "other", Key: "k"})
		w.do(&life.Cancel{Tenant: tenant, RunID: r.ID, Reason: "enough", Key: "another"}) // this one means it
		w.ended(kid, perdure.Cancelled, perdure.CodeCancelled)
	}},
}
