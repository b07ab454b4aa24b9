package store

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/fair"
	"github.com/perdure/perdure/internal/testkit/eventually"
)

// withReaders runs a test on both databases that have separate readers.
func withReaders(t *testing.T, test func(t *testing.T, at Options)) {
	t.Helper()
	t.Run("SQLite", func(t *testing.T) {
		t.Parallel()
		test(t, Options{Path: filepath.Join(t.TempDir(), "p.db")})
	})
	t.Run("PostgreSQL", func(t *testing.T) {
		t.Parallel()
		test(t, Options{URL: pool.New(t)})
	})
}

func none(func(...any) error) error { return nil }

// onEachSession calls test once for each of n sessions, when that session is the next to be used:
// the ones before it are held meanwhile, each by a tenant of its own.
func onEachSession(t *testing.T, view func(context.Context, func(*View) error) error, n int, test func(i int)) {
	t.Helper()
	var at func(i int)
	at = func(i int) {
		test(i)
		if i+1 == n {
			return
		}
		holder := perdure.TenantID(fmt.Sprint("holder-", i))
		if err := view(fair.With(t.Context(), holder), func(*View) error { at(i + 1); return nil }); err != nil {
			t.Errorf("hold session %d of %d: %v", i+1, n, err)
		}
	}
	at(0)
}

func TestQueryThatTakesTooLongIsEnded(t *testing.T) {
	t.Parallel()
	const forEver = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n) "
	withReaders(t, func(t *testing.T, at Options) {
		at.QueryDeadline = 200 * time.Millisecond
		s := open(t, at)
		for _, x := range []struct {
			name string
			view func(context.Context, func(*View) error) error
			n    int // sessions
		}{{"View", s.View, readers}, {"Keep", s.Keep, 1}, {"Keys", s.Keys, keyReaders}} {
			queries := []struct{ name, text string }{
				{"before the first row", forEver + "SELECT count(*) FROM n"},
				{"after the first row", forEver + "SELECT i FROM n WHERE i<2"},
			}
			onEachSession(t, x.view, x.n, func(i int) {
				for ; i < len(queries); i += x.n {
					err := x.view(t.Context(), func(v *View) error { return v.Rows(queries[i].text, nil, none) })
					if perdure.CodeOf(err) != perdure.CodeQueryTimeout {
						t.Errorf("%s, a query that counts for ever %s: %v, want %s", x.name, queries[i].name, err,
							perdure.CodeQueryTimeout)
					}
				}
			})
			onEachSession(t, x.view, x.n, func(int) { // each of the sessions can be used again
				eventually.True(t, x.name+" reads after a query that was ended", func() bool {
					return x.view(t.Context(), func(v *View) error { return v.Rows("SELECT 1", nil, none) }) == nil
				})
			})
		}
	})
}

// holdReader makes a tenant hold one of the readers until the test ends.
func holdReader(t *testing.T, s *Store, tenant perdure.TenantID) {
	t.Helper()
	in, out := make(chan bool), make(chan bool)
	var wg sync.WaitGroup
	wg.Go(func() {
		err := s.View(fair.With(context.Background(), tenant), func(*View) error {
			close(in)
			<-out
			return nil
		})
		if err != nil {
			t.Errorf("a reader of tenant %s: %v", tenant, err)
		}
	})
	<-in
	t.Cleanup(func() {
		close(out)
		wg.Wait()
	})
}

func TestTenantDoesNotHoldAllReaders(t *testing.T) {
	t.Parallel()
	withReaders(t, func(t *testing.T, at Options) {
		at.QueryDeadline = 400 * time.Millisecond
		s := open(t, at)
		read := func(t perdure.TenantID, view func(context.Context, func(*View) error) error) error {
			return view(fair.With(context.Background(), t),
				func(v *View) error { return v.Rows("SELECT 1", nil, none) })
		}
		for range readerShare {
			holdReader(t, s, "a")
		}
		if err := read("b", s.View); err != nil {
			t.Errorf("a read of b while a holds its share: %v", err)
		}
		if err := read("a", s.View); perdure.CodeOf(err) != perdure.CodeTooMany {
			t.Errorf("a read of a over its share: %v, want %s", err, perdure.CodeTooMany)
		}
		holdReader(t, s, "c")
		if err := read("b", s.View); perdure.CodeOf(err) != perdure.CodeUnavailable {
			t.Errorf("a read of b while all readers are held: %v, want %s", err, perdure.CodeUnavailable)
		}
		for name, view := range map[string]func(context.Context, func(*View) error) error{"Keys": s.Keys,
			"Keep": s.Keep, "Count": s.Count} {
			if err := read("b", view); err != nil {
				t.Errorf("%s while all readers are held: %v", name, err)
			}
		}
	})
}
