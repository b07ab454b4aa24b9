package conformance

import (
	"context"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/dispatch"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/engine/rules"
	"github.com/perdure/perdure/internal/server/engine/upkeep"
	"github.com/perdure/perdure/internal/server/store"
)

// signingKey gives a private key that depends on the letter.
func signingKey(letter byte) []byte {
	der, err := x509.MarshalPKCS8PrivateKey(ed25519.NewKeyFromSeed([]byte(strings.Repeat(string(letter),
		ed25519.SeedSize))))
	if err != nil {
		panic(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}

// signWith restarts the server with signing keys, one per letter.
func (w *World) signWith(letters string) {
	w.t.Helper()
	w.Signer = nil
	if letters != "" {
		var keys [][]byte
		for i := range len(letters) {
			keys = append(keys, signingKey(letters[i]))
		}
		var err error
		if w.Signer, err = perdure.NewSigner(keys...); err != nil {
			w.t.Fatal(err)
		}
	}
	w.restart()
}

func (w *World) requireSignatures(yes bool) {
	w.t.Helper()
	w.do(&rules.ChangeTenant{Tenant: tenant, RequireSignatures: &yes})
}

// signed checks that a run's signature is valid.
func (w *World) signed(id perdure.RunID) {
	w.t.Helper()
	d := w.get(id)
	err := w.Signer.Trust().Verify(&perdure.SignedRun{Tenant: d.Tenant, RunID: d.ID, Kind: d.Kind,
		Queue: d.Queue, Input: []byte(d.InputText), DeadlineAt: d.DeadlineAt,
		OriginRunID: d.OriginID}, d.Signature)
	if err != nil {
		w.t.Fatalf("run %s of kind %s: %v", id, d.Kind, err)
	}
}

// unsigned checks that a run was rejected for its signature, with everything that such an end
// writes.
func (w *World) unsigned(id perdure.RunID) {
	w.t.Helper()
	r := w.ended(id, perdure.Failed, perdure.CodeSignatureInvalid)
	w.check(w.count(id, perdure.LineStarted) == 0, "it was started: %v", w.types(id))
	w.check(w.count(id, perdure.LineDeadLettered) == 1 && w.count(id, perdure.LineFailed) == 1, "lines: %v",
		w.types(id))
	w.view(func(v *store.View) error {
		d, ok, err := v.DeadLetters.Get(r.Tenant, id)
		w.check(ok && d.Cause == string(perdure.CodeSignatureInvalid), "dead letter: %+v", d)
		return err
	})
}

var signedScenarios = []Scenario{
	{"every way in which a run is born signs it", func(w *World) {
		w.signWith("a")
		w.requireSignatures(true)
		th := w.thread()
		big := json.RawMessage(`{ "much" : "` + strings.Repeat("x", 100_000) + `" }`)
		p := w.submit(perdure.Submission{Kind: "parent", ThreadID: th, Input: big})
		w.signed(p.ID)
		g := w.takeKind("parent")
		kid := w.commit(g, perdure.Commit{Children: []perdure.Spawn{{Key: "k", Kind: "kid",
			Input: json.RawMessage(`[1, 2]`)}},
			Outcome: &perdure.Outcome{Type: perdure.OutcomeComplete, Result: json.RawMessage(`1`),
				ContinueOn: []string{"k"}}}).Children[0].RunID
		w.signed(kid)
		w.commit(w.takeKind("kid"), perdure.Commit{Outcome: &perdure.Outcome{Type: perdure.OutcomeReject,
			Reason: "no"}})
		next := w.get(p.ID).ContinuedBy
		w.check(next != "", "it is continued")
		w.signed(next)
		w.complete(w.takeKind("parent"), `2`)
		outside := &life.Continue{Tenant: tenant, RunID: next, JobID: "j"}
		w.do(outside)
		w.signed(outside.Made)
		retried := &life.Retry{Tenant: tenant, RunID: kid}
		w.do(retried)
		w.signed(retried.Run.ID)
		redriven := &upkeep.Redrive{Tenant: tenant, RunID: kid}
		w.do(redriven)
		w.signed(redriven.Run.ID)
		w.check(w.get(redriven.Run.ID).ParentID == "" && w.get(redriven.Run.ID).RetryOf == kid, "a run of its own")
	}},
	{"a tenant that requires signatures gets nothing from a server without keys", func(w *World) {
		yes := true
		w.refuse(perdure.CodeWrongState, &rules.ChangeTenant{Tenant: tenant, RequireSignatures: &yes})
		before := w.task()
		w.signWith("a")
		after := w.task()
		w.requireSignatures(true)
		held := w.poll("w1", 10)
		w.check(len(held) == 1 && held[0].Run.ID == after.ID, "the one that is signed is granted: %+v", held)
		w.unsigned(before.ID)

		waiting := w.task()
		w.signWith("")
		w.refuse(perdure.CodeNoSigner, &life.Submit{Tenant: tenant, Submission: perdure.Submission{Kind: "job"}})
		w.refuse(perdure.CodeNoSigner, &life.Retry{Tenant: tenant, RunID: before.ID})
		w.refuse(perdure.CodeNoSigner, &upkeep.Redrive{Tenant: tenant, RunID: before.ID, Resign: true})
		w.refuse(perdure.CodeNoSigner, w.commitOf(held[0],
			perdure.Commit{Children: []perdure.Spawn{{Key: "k", Kind: "kid"}}}))
		w.refuse(perdure.CodeNoSigner, &dispatch.Claim{Tenant: tenant, Worker: "w1", Slots: 1})
		w.state(waiting.ID, perdure.Queued)
		other := &life.Submit{Tenant: "other", Submission: perdure.Submission{Kind: "job"}}
		w.do(other)
		all := &dispatch.Claim{Tenant: "other", AnyTenant: true, Worker: "w2", Slots: 10}
		w.do(all)
		w.check(len(all.Grants) == 1 && all.Grants[0].Run.ID == other.Run.ID, "others are granted: %+v", all.Grants)

		w.signWith("a")
		w.complete(w.take("w1"), `1`)
		w.state(waiting.ID, perdure.Completed)
		w.signWith("")
		w.complete(held[0], `1`) // what is under way may end
		w.signWith("a")
		w.requireSignatures(false)
		w.signWith("")
		w.complete(func() dispatch.Grant { w.task(); return w.take("w1") }(), `1`)
	}},
	{"an end without keys makes a continuation that is rejected", func(w *World) {
		w.signWith("a")
		w.requireSignatures(true)
		th := w.thread()
		p := w.submit(perdure.Submission{Kind: "parent", ThreadID: th})
		w.complete(w.take("w1"), `1`)
		w.signWith("")
		op := &life.Continue{Tenant: tenant, RunID: p.ID, JobID: "j"}
		w.do(op)
		w.check(w.get(op.Made).Signature.IsZero(), "it is not signed")
		w.signWith("a")
		w.check(len(w.poll("w1", 1)) == 0, "nothing is handed over")
		w.unsigned(op.Made)
		ms := w.messages(th)
		last := ms[len(ms)-1]
		w.check(strings.Contains(string(last.Content), "signature") && strings.Contains(string(last.Metadata),
			`"code":"signature_invalid"`), "the thread says so: %+v", last)
	}},
	{"a key is replaced while runs wait", func(w *World) {
		w.signWith("a")
		w.requireSignatures(true)
		w.announce("job", "1", perdure.KindDef{Class: perdure.Task}) // a class to settle would be signed anew
		first, second := w.task(), w.task()
		w.signWith("ba")
		third := w.task()
		w.check(w.get(third.ID).Signature.KeyID != w.get(first.ID).Signature.KeyID, "the first of the keys signs")
		g := w.take("w1")
		w.check(g.Run.ID == first.ID, "the old one verifies")
		w.complete(g, `1`)
		w.signWith("b")
		got := w.poll("w1", 10)
		w.check(len(got) == 1 && got[0].Run.ID == third.ID, "%+v", got)
		w.unsigned(second.ID)
		w.complete(got[0], `1`)
		w.refuse(perdure.CodeSignatureInvalid, &life.Retry{Tenant: tenant,
			RunID: first.ID}) // nobody can tell any more what it was
	}},
	{"a run that was turned away is redriven by whoever vouches for it", func(w *World) {
		r := w.submit(perdure.Submission{Kind: "job", Input: json.RawMessage(`{"n":1}`)})
		w.signWith("a")
		w.requireSignatures(true)
		w.check(len(w.poll("w1", 1)) == 0, "nothing is handed over")
		w.unsigned(r.ID)
		w.refuse(perdure.CodeSignatureInvalid, &upkeep.Redrive{Tenant: tenant, RunID: r.ID})
		w.refuse(perdure.CodeSignatureInvalid, &life.Retry{Tenant: tenant, RunID: r.ID})
		op := &upkeep.Redrive{Tenant: tenant, RunID: r.ID, Resign: true}
		w.do(op)
		w.check(op.Created, "made")
		w.signed(op.Run.ID)
		made := op.Run.ID
		w.do(op)
		w.check(!op.Created && op.Run.ID == made, "once")
		g := w.take("w1")
		w.check(g.Run.ID == made && string(g.Input) == `{"n":1}`, "%+v", g)
		w.complete(g, `1`)
	}},
	{"a worker rejects what it can't verify", func(w *World) {
		w.signWith("a")
		p := w.submit(perdure.Submission{Kind: "parent", Timeout: perdure.Duration(time.Hour)})
		kid := w.commit(w.takeKind("parent"), perdure.Commit{Children: []perdure.Spawn{{Key: "k", Kind: "kid"}},
			Waits: wait(perdure.WaitSpec{ID: "j", Type: perdure.WaitChildren, Keys: []string{"k"},
				Timeout: perdure.Never}), Outcome: suspend}).Children[0].RunID
		w.commit(w.takeKind("kid"), perdure.Commit{Outcome: &perdure.Outcome{Type: perdure.OutcomeReject,
			Reason: string(perdure.CodeSignatureInvalid)}})
		w.ended(kid, perdure.Failed, perdure.CodeSignatureInvalid)
		g := w.takeKind("parent")
		w.check(g.Run.ID == p.ID && g.Inbox[0].From == kid && g.Inbox[0].Outcome == string(perdure.Failed),
			"the parent is told: %+v", g.Inbox)
		w.complete(g, `1`)
	}},
	{"the configuration has runs signed whatever the store says", func(w *World) {
		before := w.task()
		w.Demanded = []perdure.TenantID{"none", tenant}
		w.signWith("a")
		no := false
		w.refuse(perdure.CodeWrongState, &rules.ChangeTenant{Tenant: tenant, RequireSignatures: &no})
		shown, err := w.E.Tenants.Get(context.Background(), tenant)
		w.check(err == nil && shown.Signed, "the tenant requires signatures: %+v, %v", shown, err)
		after := w.task()
		got := w.poll("w1", 10)
		w.check(len(got) == 1 && got[0].Run.ID == after.ID, "the one that is signed is granted: %+v", got)
		w.unsigned(before.ID)
		w.refuse(perdure.CodeSignatureInvalid, &life.Retry{Tenant: tenant, RunID: before.ID})
		other := &life.Submit{Tenant: "other", Submission: perdure.Submission{Kind: "job"}}
		w.do(other)
		w.Demanded = []perdure.TenantID{rules.AnyTenant}
		w.signWith("")
		w.refuse(perdure.CodeNoSigner, &life.Submit{Tenant: "other", Submission: perdure.Submission{Kind: "job"}})
		w.refuse(perdure.CodeNoSigner, &dispatch.Claim{Tenant: "other", Worker: "w2", Slots: 1})
		w.Demanded = nil
		w.signWith("")
		w.complete(got[0], `1`)
	}},
	{"without keys what a worker turned away is repeated in either way", func(w *World) {
		r := w.task()
		w.commit(w.take("w1"), perdure.Commit{Outcome: &perdure.Outcome{Type: perdure.OutcomeReject,
			Reason: string(perdure.CodeSignatureInvalid)}})
		w.refuse(perdure.CodeNoSigner, &upkeep.Redrive{Tenant: tenant, RunID: r.ID, Resign: true})
		w.signWith("a")
		w.refuse(perdure.CodeSignatureInvalid, &upkeep.Redrive{Tenant: tenant, RunID: r.ID})
		w.refuse(perdure.CodeSignatureInvalid, &life.Retry{Tenant: tenant, RunID: r.ID})
		w.signWith("")
		w.do(&life.Retry{Tenant: tenant, RunID: r.ID})
		redriven := &upkeep.Redrive{Tenant: tenant, RunID: r.ID}
		w.do(redriven)
		w.check(redriven.Created && redriven.Run.Signature.IsZero(), "it is made, and bears no signature: %+v",
			redriven.Run)
	}},
}
