package conformance

import (
	"encoding/base64"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/dispatch"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/engine/rules"
	"github.com/perdure/perdure/internal/server/store"
	"github.com/perdure/perdure/internal/testkit/storetest"
)

// A flip changes a bit of a run in the database: it says of which column, and what it is then.
type flip func(w *World, r *perdure.Run) (column string, value any)

func flipped(text string) string {
	b := []byte(text)
	b[len(b)-1] ^= 1
	return string(b)
}

func column(name string, value func(*perdure.Run) any) flip {
	return func(_ *World, r *perdure.Run) (string, any) { return name, value(r) }
}

// inSignature flips something of the signature, which stands among the rest.
func inSignature(change func(s *perdure.Signature)) flip {
	return func(w *World, r *perdure.Run) (string, any) {
		var rest map[string]json.RawMessage
		w.view(func(v *store.View) error {
			return v.Rows("SELECT rest FROM runs WHERE id=?", []any{string(r.ID)}, func(scan func(...any) error) error {
				var text string
				err := scan(&text)
				w.check(json.Unmarshal([]byte(text), &rest) == nil, "%s", text)
				return err
			})
		})
		s := r.Signature
		change(&s)
		rest["signature"], _ = json.Marshal(s)
		text, _ := json.Marshal(rest)
		return "rest", string(text)
	}
}

// A victim is a run that somebody has changed in the database, with a parent that waits for it.
type victim struct {
	id, parent perdure.RunID
	thread     perdure.ThreadID
	value      any // what was put in
}

func (w *World) victim(f flip) victim {
	w.t.Helper()
	v := victim{thread: w.thread()}
	v.parent = w.submit(perdure.Submission{Kind: "parent", Queue: "elsewhere", Timeout: perdure.Duration(time.Hour)}).ID
	claim := &dispatch.Claim{Tenant: tenant, Worker: "w1", Queues: []string{"elsewhere"}, Slots: 1, Start: true}
	w.do(claim)
	v.id = w.commit(claim.Grants[0], perdure.Commit{Children: []perdure.Spawn{{Key: "k", Kind: "kid",
		Input: json.RawMessage(`{"n":1}`), ThreadID: v.thread}},
		Waits: wait(perdure.WaitSpec{ID: "j", Type: perdure.WaitChildren, Keys: []string{"k"},
			Timeout: perdure.Never}),
		Outcome: suspend}).Children[0].RunID
	kid := w.get(v.id).Run
	name, value := f(w, &kid)
	v.value = value
	w.do(corrupt{"UPDATE runs SET " + name + "=? WHERE id=?", []any{value, string(v.id)}})
	return v
}

// handedOver has another server, which has not seen the runs before, hand over all there is.
func handedOver(t *testing.T, at store.Options) (*World, []dispatch.Grant) {
	t.Helper()
	w := node(t, at)
	w.signWith("a")
	all := &dispatch.Claim{Tenant: tenant, AnyTenant: true, Worker: "w2",
		Queues: []string{perdure.DefaultQueue, flipped(perdure.DefaultQueue)}, Slots: 100, Start: true}
	w.do(all)
	return w, all.Grants
}

// A signed run that has ended is not executed again, also when somebody sets its row back to what it was when it
// waited.
func TestEndedSignedRunIsNotReplayed(t *testing.T) {
	storetest.OnBoth(t, func(t *testing.T, at store.Options) {
		w := node(t, at)
		w.signWith("a")
		one, two := w.task(), w.task()
		for range 2 {
			w.complete(w.take("w1"), `1`)
		}
		replayed := map[string]perdure.RunID{", finished_at=0, started_at=0, result=''": one.ID, "": two.ID}
		for change, id := range replayed {
			w.do(corrupt{"UPDATE runs SET state='queued', ready=1, alarm_at=deadline_at, worker='', lease_until=0" +
				change + " WHERE id=?", []any{string(id)}})
		}
		waiting := w.task()
		later, grants := handedOver(t, at)
		if len(grants) != 1 || grants[0].Run.ID != waiting.ID {
			t.Errorf("handed over: %d runs, want %s alone: %+v", len(grants), waiting.ID, grants)
		}
		for change, id := range replayed {
			if r := later.get(id); r.State != perdure.Failed || r.Failure == nil ||
				r.Failure.Code != perdure.CodeSignatureInvalid {
				t.Errorf("run %s, set back with %q: is %s %+v, want failed with signature_invalid", id, change, r.State,
					r.Failure)
			}
		}
	})
}

// A signed run of which a bit is flipped in the database is not granted: it ends with a dead letter, its parent is
// told, and its thread has a notice that says why.
func TestAFlippedBitIsNotExecuted(t *testing.T) {
	storetest.OnBoth(t, func(t *testing.T, at store.Options) {
		w := node(t, at)
		w.signWith("a")
		w.requireSignatures(true)
		other := w.task()
		victims := make(map[string]victim)
		for name, f := range map[string]flip{
			"kind":  column("kind", func(r *perdure.Run) any { return flipped(r.Kind) }),
			"queue": column("queue", func(r *perdure.Run) any { return flipped(r.Queue) }),
			"input": column("input", func(r *perdure.Run) any {
				return strings.Replace(string(r.Input), "1", "0", 1)
			}),
			"no input":     column("input", func(*perdure.Run) any { return "" }),
			"deadline":     column("deadline_at", func(r *perdure.Run) any { return int64(r.DeadlineAt) ^ 1 }),
			"key id":       inSignature(func(s *perdure.Signature) { s.KeyID = flipped(s.KeyID) }),
			"no key id":    inSignature(func(s *perdure.Signature) { s.KeyID = "" }),
			"no signature": inSignature(func(s *perdure.Signature) { *s = perdure.Signature{} }),
			"signature": inSignature(func(s *perdure.Signature) {
				raw, _ := base64.StdEncoding.DecodeString(s.Value)
				raw[10] ^= 1
				s.Value = base64.StdEncoding.EncodeToString(raw)
			}),
			"another run's": inSignature(func(s *perdure.Signature) { *s = other.Signature }),
		} {
			victims[name] = w.victim(f)
		}
		later, grants := handedOver(t, at)
		if len(grants) != 1 || grants[0].Run.ID != other.ID {
			t.Errorf("handed over: %+v", grants)
		}
		for name, v := range victims {
			t.Log(name)
			later.unsigned(v.id)
			if p := later.state(v.parent, perdure.Queued); p.InboxOpen == 0 {
				t.Errorf("the parent is not told: %+v", p)
			}
			ms := later.messages(v.thread)
			if last := ms[len(ms)-1]; !strings.Contains(string(last.Content), "signature") {
				t.Errorf("the thread says %s", last.Content)
			}
		}
		later.fsck()
	})
}

// An attacker who can change a run can change its tenant's requirement too. A run with a signature is verified all
// the same. A run whose signature was removed is refused where the configuration requires one.
func TestAChangedRequirementHidesNothing(t *testing.T) {
	storetest.OnBoth(t, func(t *testing.T, at store.Options) {
		w := node(t, at)
		w.signWith("a")
		w.requireSignatures(true)
		changed := w.victim(column("input", func(r *perdure.Run) any {
			return strings.Replace(string(r.Input), "1", "0", 1)
		}))
		robbed := w.victim(inSignature(func(s *perdure.Signature) { *s = perdure.Signature{} }))
		w.do(corrupt{"UPDATE tenants SET require_signatures=0", nil})
		later := node(t, at)
		later.Demanded = []perdure.TenantID{tenant}
		later.signWith("a")
		if got := later.poll("w2", 100); len(got) != 0 {
			t.Errorf("handed over: %+v", got)
		}
		later.unsigned(changed.id)
		later.unsigned(robbed.id)
		other := w.task()
		w.do(corrupt{"UPDATE runs SET input=? WHERE id=?", []any{`{"n":2}`, string(other.ID)}})
		last, grants := handedOver(t, at)
		if len(grants) != 0 {
			t.Errorf("handed over: %+v", grants)
		}
		last.unsigned(other.ID)
		last.fsck()
	})
}

// A run that is moved to another tenant, or is given another's name, is not executed there either.
func TestAMovedRunIsNotExecuted(t *testing.T) {
	storetest.OnBoth(t, func(t *testing.T, at store.Options) {
		w := node(t, at)
		w.signWith("a")
		w.requireSignatures(true)
		yes := true
		w.do(&rules.ChangeTenant{Tenant: "bcme", RequireSignatures: &yes})
		moved := w.victim(column("tenant", func(*perdure.Run) any { return "bcme" }))
		renamed := w.victim(column("id", func(r *perdure.Run) any { return flipped(string(r.ID)) }))
		later, grants := handedOver(t, at)
		if len(grants) != 0 {
			t.Errorf("handed over: %+v", grants)
		}
		later.unsignedRow("bcme", moved.id)
		later.unsignedRow(tenant, perdure.RunID(renamed.value.(string)))
	})
}

// unsignedRow checks the end of a run that lost its surroundings.
func (w *World) unsignedRow(t perdure.TenantID, id perdure.RunID) {
	w.t.Helper()
	w.view(func(v *store.View) error {
		r, ok, err := v.Runs.Get(t, id)
		w.check(ok && r.State == perdure.Failed && r.Failure.Code == perdure.CodeSignatureInvalid &&
			r.StartedAt == 0, "%+v", r)
		if _, ok, _ := v.DeadLetters.Get(t, id); !ok {
			w.t.Error("no dead letter")
		}
		return err
	})
}

// Signature Fail Test: a run whose signature is not valid goes to the dead letters; it is not stuck in queued.
func TestSignatureFail(t *testing.T) {
	storetest.OnBoth(t, func(t *testing.T, at store.Options) {
		w := node(t, at)
		w.signWith("a")
		w.requireSignatures(true)
		const forged = 30
		var ids []perdure.RunID
		for range forged {
			ids = append(ids, w.task().ID)
		}
		for _, id := range ids {
			w.do(corrupt{"UPDATE runs SET input=? WHERE id=?", []any{`{"n":2}`, string(id)}})
		}
		good := w.task()
		other := node(t, at)
		other.signWith("a")
		polls := 0
		// those in front don't hide the one behind them for long
		for got := []dispatch.Grant(nil); len(got) == 0; polls++ {
			if got = other.poll("w1", 10); polls > forged/10+1 {
				t.Fatal("the good one does not come")
			} else if len(got) > 0 && got[0].Run.ID != good.ID {
				t.Fatalf("%+v is handed over", got[0].Run)
			}
		}
		for _, id := range ids {
			other.unsigned(id)
		}
		if n := len(other.letters(store.LetterFilter{Cause: string(perdure.CodeSignatureInvalid)})); n != forged {
			t.Errorf("%d dead letters", n)
		}
		other.fsck()
	})
}

// A large input is kept by its hash. A change of the stored bytes, or of the hash, is a change of the input.
func TestALargeInputIsCoveredToo(t *testing.T) {
	storetest.OnBoth(t, func(t *testing.T, at store.Options) {
		w := node(t, at)
		w.signWith("a")
		w.requireSignatures(true)
		big := func(c string) json.RawMessage { return json.RawMessage(`"` + strings.Repeat(c, 50_000) + `"`) }
		changed := w.submit(perdure.Submission{Kind: "job", Input: big("x")})
		swapped := w.submit(perdure.Submission{Kind: "job", Input: big("y")})
		another := w.submit(perdure.Submission{Kind: "other", Input: big("z")})
		hash, _, ok := changed.Input.Ref()
		if !ok {
			t.Fatal("it is kept as it is")
		}
		w.do(corrupt{"UPDATE blobs SET content=? WHERE hash=?", []any{string(big("w")), hash}})
		w.do(corrupt{"UPDATE runs SET input=? WHERE id=?", []any{string(another.Input), string(swapped.ID)}})
		other := node(t, at)
		other.signWith("a")
		got := other.poll("w1", 10)
		if len(got) != 1 || got[0].Run.ID != another.ID {
			t.Errorf("%d are handed over", len(got))
		}
		other.unsignedRow(tenant, changed.ID)
		other.unsigned(swapped.ID)
		// One that can't be read is looked at all the same.
		if l, err := other.E.DeadLetters.Get(other.ctx(), tenant, changed.ID); err != nil || l.Run.ID != changed.ID {
			t.Errorf("%+v %v", l, err)
		}
	})
}

// A continuation takes its kind and queue from the run that it continues. If somebody has changed those, it is not
// signed.
func TestAContinuationOfAChangedRunIsNotExecuted(t *testing.T) {
	storetest.OnBoth(t, func(t *testing.T, at store.Options) {
		w := node(t, at)
		w.signWith("a")
		w.requireSignatures(true)
		p := w.submit(perdure.Submission{Kind: "parent", ThreadID: w.thread()})
		w.commit(w.takeKind("parent"), perdure.Commit{Children: []perdure.Spawn{{Key: "k", Kind: "kid"}},
			Outcome: &perdure.Outcome{Type: perdure.OutcomeComplete, Result: json.RawMessage(`1`),
				ContinueOn: []string{"k"}}})
		w.do(corrupt{"UPDATE runs SET kind='rm' WHERE id=?", []any{string(p.ID)}})
		other := node(t, at)
		other.signWith("a")
		other.complete(other.takeKind("kid"), `1`)
		next := other.get(p.ID).ContinuedBy
		if next == "" || other.get(next).Kind != "rm" {
			t.Fatal("it is not continued")
		}
		if got := other.poll("w1", 10); len(got) != 0 {
			t.Errorf("%+v", got)
		}
		other.unsigned(next)
		other.refuse(perdure.CodeSignatureInvalid, &life.Retry{Tenant: tenant, RunID: p.ID})
		other.fsck()
	})
}

// A requirement that one node sets counts on the others within a second.
func TestAnotherNodeLearnsThatATenantRequiresSignatures(t *testing.T) {
	storetest.OnBoth(t, func(t *testing.T, at store.Options) {
		a, b := node(t, at), node(t, at)
		r := b.task()
		if len(b.poll("w1", 1)) != 1 {
			t.Fatal("nobody requires anything yet")
		}
		unsigned := b.task()
		a.signWith("a")
		a.requireSignatures(true)
		b.signWith("a")
		b.Now = b.Now.Add(time.Second)
		if got := b.poll("w1", 5); len(got) != 0 {
			t.Errorf("%+v", got)
		}
		b.unsigned(unsigned.ID)
		b.state(r.ID, perdure.Dispatched)
	})
}
