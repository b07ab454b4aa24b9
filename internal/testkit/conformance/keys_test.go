package conformance

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/access"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/store"
	"github.com/perdure/perdure/internal/testkit/storetest"
)

// key makes a key that may log in.
func (w *World) key() *access.CreateKey {
	w.t.Helper()
	op := &access.CreateKey{Tenant: tenant, Name: "k", Scopes: []perdure.Scope{perdure.ScopeRead, perdure.ScopeKeys}}
	w.do(op)
	return op
}

// refusedWith has an operation refused while another node changes something.
func (w *World) refusedWith(code perdure.Code, op kernel.Op) {
	w.t.Helper()
	if err := w.E.Step(w.Now, op)[0]; perdure.CodeOf(err) != code {
		w.t.Errorf("%T: %v, want it refused with %s", op, err, code)
	}
}

// A link opens one session, also if two nodes are given it at once.
func TestLoginLinkOnTwoNodesOpensOneSession(t *testing.T) {
	storetest.OnBoth(t, func(t *testing.T, at store.Options) {
		a, b, between := pair(t, at)
		link := &access.OpenSession{With: b.key().Key, Link: true}
		b.do(link)
		first, second := &access.OpenSession{With: link.Key}, &access.OpenSession{With: link.Key}
		between.f = func() { b.do(first) }
		a.refusedWith(perdure.CodeNotFound, second)
		// In one batch, too.
		other := &access.OpenSession{With: first.Key, Link: true}
		b.do(other)
		errs := b.E.Step(b.Now, &access.OpenSession{With: other.Key}, &access.OpenSession{With: other.Key})
		if errs[0] != nil || perdure.CodeOf(errs[1]) != perdure.CodeNotFound {
			t.Errorf("two logins with one link in one batch: %v, want one", errs)
		}
		b.fsck()
	})
}

// A session ends with its key, also if it was opened on one node while the key was revoked on another.
func TestSessionOpenedDuringTheRevocationOfItsKeyIsNotValid(t *testing.T) {
	storetest.OnBoth(t, func(t *testing.T, at store.Options) {
		a, b, between := pair(t, at)
		k := b.key()
		opened := &access.OpenSession{With: k.Key}
		between.f = func() { b.do(opened) } // after a has read the sessions of the key
		a.do(&access.RevokeKey{Tenant: tenant, ID: k.Key.ID})
		for _, node := range []*World{a, b} {
			_, err := node.E.Keys.Authenticate(node.ctx(), opened.Secret)
			if perdure.CodeOf(err) != perdure.CodeNotFound {
				t.Errorf("a session of a revoked key: %v, want not_found", err)
			}
		}
		gone, err := b.E.Keys.Invalid(b.ctx(), []string{opened.Key.ID})
		if err != nil || !slices.Equal(gone, []string{opened.Key.ID}) {
			t.Errorf("the connections to be closed are those of %v (%v), want those of the session", gone, err)
		}
	})
}

// fill gives the tenant so many keys, or sessions of a key, without a call for each.
type fill struct {
	n       int
	parent  string
	expires perdure.Instant
}

func (fill) Needs() []store.Ref { return nil }

func (f fill) Do(tx *kernel.Tx) error {
	for i := range f.n {
		tx.DB.Keys.Put(perdure.Key{ID: fmt.Sprintf("%s-%d-%d", f.parent, f.expires, i), Tenant: tenant, Name: "k",
			Scopes: []perdure.Scope{perdure.ScopeRead}, CreatedAt: tx.Now, Parent: f.parent, ExpiresAt: f.expires})
	}
	return nil
}

// A tenant has 1000 keys and 1000 sessions at most, also if two nodes make the last one at once. Those that
// have ended don't count, and the table does not grow with them.
func TestKeysAndSessionsOfATenantAreBounded(t *testing.T) {
	storetest.OnBoth(t, func(t *testing.T, at store.Options) {
		a, b, between := pair(t, at)
		k := b.key()
		b.do(fill{n: perdure.MaxKeys - 2})
		b.do(fill{n: perdure.MaxKeys - 50, parent: "another"})
		b.do(fill{n: 49, parent: "another", expires: b.Now.Add(time.Hour)})
		make1 := func() *access.CreateKey {
			return &access.CreateKey{Tenant: tenant, Name: "k", Scopes: k.Scopes}
		}
		open := func() *access.OpenSession { return &access.OpenSession{With: k.Key} }
		between.f = func() { b.do(make1()) }
		a.refusedWith(perdure.CodeQuota, make1())
		between.f = func() { b.do(open()) }
		a.refusedWith(perdure.CodeQuota, open())
		errs := b.E.Step(b.Now, make1(), open(), &access.OpenSession{With: k.Key, Link: true})
		for _, err := range errs {
			if perdure.CodeOf(err) != perdure.CodeQuota {
				t.Errorf("one more than a tenant may have: %v, want quota_exceeded", err)
			}
		}
		b.do(&access.CreateKey{Tenant: "other", Name: "k", Scopes: k.Scopes}) // another tenant has its own

		b.Now = b.Now.Add(2 * time.Hour) // 49 sessions have expired
		b.do(open())
		b.do(&access.RevokeKey{Tenant: tenant, ID: k.Key.ID})
		b.do(make1())
		b.refuse(perdure.CodeQuota, make1())

		// Keys that last for a moment: those that ended first are removed.
		b.do(stage("UPDATE keys SET revoked_at=1 WHERE id LIKE '-0-%'"))
		for range perdure.MaxKeys / 100 {
			b.do(fill{n: 120, expires: b.Now})
			b.Now++
			b.do(make1())
		}
		for range 100 {
			b.do(make1())
		}
		rows := b.rowsOf("SELECT id FROM keys WHERE tenant='" + string(tenant) + "' AND parent=''")
		if n := len(rows); n > perdure.MaxKeys+perdure.MaxKeys/2 {
			t.Errorf("%d rows of keys, want about %d at most", n, perdure.MaxKeys)
		}
	})
}
