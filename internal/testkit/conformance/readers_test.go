package conformance

import (
	"context"
	"sync"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine"
	"github.com/perdure/perdure/internal/server/engine/access"
	"github.com/perdure/perdure/internal/server/fair"
	"github.com/perdure/perdure/internal/server/store"
	"github.com/perdure/perdure/internal/testkit/storetest"
)

// Other tenants' reads hold every reader, and a key is looked up all the same.
func TestKeysAreFoundWhileAllReadersAreHeld(t *testing.T) {
	s := storetest.Open(t, storetest.OnDisk(t))
	e, err := engine.New(s, engine.Options{})
	if err != nil {
		t.Fatal(err)
	}
	op := &access.CreateKey{Tenant: "b", Name: "k", Scopes: []perdure.Scope{perdure.ScopeRead}}
	if err := e.Do(t.Context(), op); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var held, done sync.WaitGroup
	held.Add(5)
	for _, tenant := range []perdure.TenantID{"a", "a", "a", "a", "c"} {
		done.Go(func() {
			err := s.View(fair.With(context.Background(), tenant), func(*store.View) error {
				held.Done()
				<-ctx.Done()
				return nil
			})
			if err != nil {
				t.Errorf("a reader of tenant %s: %v", tenant, err)
			}
		})
	}
	held.Wait()
	if k, err := e.Keys.Authenticate(t.Context(), op.Secret); err != nil || k.Tenant != "b" {
		t.Errorf("a key while all readers are held: %+v, %v, want the key of b", k, err)
	}
	if gone, err := e.Keys.Invalid(t.Context(), []string{op.Key.ID}); err != nil || len(gone) > 0 {
		t.Errorf("keys that are invalid while all readers are held: %v, %v, want none", gone, err)
	}
	stop()
	done.Wait()
}
