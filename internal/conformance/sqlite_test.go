package conformance

import (
	"testing"

	"github.com/perdure/perdure/internal/store"
)

func TestSQLite(t *testing.T) {
	Run(t, func(t *testing.T) *store.Store {
		s, err := store.Open(store.Options{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		return s
	})
}
