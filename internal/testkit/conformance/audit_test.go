package conformance

import (
	"errors"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/access"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/store"
	"github.com/perdure/perdure/internal/testkit/storetest"
)

// manyAudits adds so many old entries of the audit log, all of one tenant. Their ids are numbers with eight digits.
func manyAudits(n int64) corrupt {
	return corrupt{"INSERT INTO audit (id,tenant,at,key_id,key_name,platform,action,target,detail,remote) " +
		"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i<CAST(? AS BIGINT)) " +
		"SELECT substr('0000000' || CAST(i AS TEXT), length(CAST(i AS TEXT))), 'acme', i, 'k', 'key', 0, " +
		"'run.cancel', 'r', '', '' FROM n", []any{n}}
}

func (w *World) audited(f store.AuditFilter) (out []perdure.AuditEntry, next string) {
	w.t.Helper()
	if f.Limit == 0 {
		f.Limit = 100_000
	}
	w.view(func(v *store.View) (err error) { out, next, err = v.AuditLog.Page(f); return err })
	return out, next
}

// by does an operation as an actor.
func (w *World) by(a kernel.Actor, op kernel.Op) error { return w.E.StepBy(a, w.Now, op)[0] }

var actor = kernel.Actor{KeyID: "k-ada", Name: "ada", Remote: "10.0.0.1"}

func TestOldAuditEntriesAreRemovedInSteps(t *testing.T) {
	storetest.OnBoth(t, func(t *testing.T, at store.Options) {
		at.Hooks.Clock = func() perdure.Instant { return dawn }
		w := NewWorld(t, storetest.Open(t, at))
		w.do(manyAudits(2100))
		r := w.task()
		if err := w.by(actor, &life.Cancel{Tenant: r.Tenant, RunID: r.ID}); err != nil {
			t.Fatal(err)
		}
		dog := w.W
		for _, left := range []int{1101, 101, 1, 1} {
			step := dog.Retire()
			w.do(step)
			if list, _ := w.audited(store.AuditFilter{}); len(list) != left {
				t.Errorf("%d entries are left, want %d", len(list), left)
			}
			if left > 101 && !step.More {
				t.Error("the retention says that nothing is left to remove")
			}
		}
		w.Now = w.Now.Add(w.E.Policy().AuditRetention - time.Second)
		w.do(dog.Retire())
		if list, _ := w.audited(store.AuditFilter{}); len(list) != 1 {
			t.Errorf("%d entries are left before their time, want 1", len(list))
		}
		w.Now = w.Now.Add(2 * time.Second)
		w.do(dog.Retire())
		if list, _ := w.audited(store.AuditFilter{}); len(list) != 0 {
			t.Errorf("%d entries are left after their time, want 0", len(list))
		}
	})
}

// A page looks at a bounded number of entries, and says where to go on.
func TestAPageOfTheAuditLogLooksAtABoundedPart(t *testing.T) {
	storetest.OnBoth(t, func(t *testing.T, at store.Options) {
		at.Hooks.Clock = func() perdure.Instant { return dawn }
		w := NewWorld(t, storetest.Open(t, at))
		w.do(manyAudits(10_050))
		w.do(corrupt{"UPDATE audit SET target='this one' WHERE id='00000020'", nil})
		f := store.AuditFilter{Target: "this one", Limit: 10}
		list, next := w.audited(f)
		if len(list) != 0 || next != "00000051" {
			t.Fatalf("the first page has %d entries and goes on at %q, want none and 00000051", len(list), next)
		}
		f.Before = next
		if list, next = w.audited(f); len(list) != 1 || next != "" {
			t.Errorf("the second page has %d entries and goes on at %q, want 1 and no more", len(list), next)
		}
	})
}

// An entry is written with the change, or not at all; the detail is bounded.
func TestAnAuditEntryIsWrittenWithItsChange(t *testing.T) {
	storetest.OnBoth(t, func(t *testing.T, at store.Options) {
		at.Hooks.Clock = func() perdure.Instant { return dawn }
		w := NewWorld(t, storetest.Open(t, at))
		r, other := w.task(), w.task()
		errs := w.E.StepBy(actor, w.Now, &life.Cancel{Tenant: r.Tenant, RunID: r.ID},
			&life.Cancel{Tenant: r.Tenant, RunID: "none"},
			&life.Cancel{Tenant: r.Tenant, RunID: r.ID}, &life.Cancel{Tenant: other.Tenant, RunID: other.ID})
		if perdure.CodeOf(errs[1]) != perdure.CodeNotFound || errors.Join(errs[0], errs[2], errs[3]) != nil {
			t.Fatal(errs)
		}
		list, _ := w.audited(store.AuditFilter{})
		if len(list) != 2 || list[0].Target != string(other.ID) || list[1].Target != string(r.ID) ||
			list[1].KeyID != actor.KeyID || list[1].Remote != actor.Remote || list[1].At != w.Now {
			t.Errorf("%+v", list)
		}
		if err := w.by(actor, &access.AddAuditEntry{Action: "backup", Target: "store",
			Detail: []any{"x", string(make([]byte, perdure.MaxAuditDetail))}}); err != nil {
			t.Fatal(err)
		}
		if list, _ := w.audited(store.AuditFilter{Action: "backup"}); len(list) != 1 || len(list[0].Detail) > 100 {
			t.Errorf("%+v", list)
		}
		w.fsck()
	})
}

// A store makes its first key once, whichever node asks, and another one if that is asked for.
func TestAStoreMakesItsFirstKeyOnce(t *testing.T) {
	storetest.OnBoth(t, func(t *testing.T, at store.Options) {
		a, b, between := pair(t, at)
		first, second := &access.Bootstrap{Tenant: "default", Name: "a"},
			&access.Bootstrap{Tenant: "default", Name: "b"}
		between.f = func() { b.do(second) }
		a.do(first)
		if (first.Secret == "") == (second.Secret == "") {
			t.Errorf("of two nodes that start at once %t and %t have made a key, want one of them", first.Secret != "",
				second.Secret != "")
		}
		again := &access.Bootstrap{Tenant: "default", Name: "c"}
		a.do(again)
		another := &access.Bootstrap{Tenant: "default", Name: "d", Another: true}
		a.do(another)
		if again.Secret != "" || another.Secret == "" {
			t.Errorf("a later start has made a key: %t; the offline command: %t", again.Secret != "",
				another.Secret != "")
		}
		n := 0
		a.view(func(v *store.View) (err error) { n, err = v.Keys.CountPlatform(); return err })
		if n != 2 {
			t.Errorf("the store has %d platform keys, want 2", n)
		}
	})
}
