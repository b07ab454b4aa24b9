package conformance

import (
	"testing"

	"github.com/perdure/perdure/internal/store"
	"github.com/perdure/perdure/internal/storetest"
)

func TestSQLite(t *testing.T) {
	Run(t, func(t *testing.T) *store.Store { return storetest.Open(t, store.Options{}) })
}

func TestPostgreSQL(t *testing.T) {
	Run(t, func(t *testing.T) *store.Store { return storetest.Open(t, store.Options{URL: storetest.Postgres(t)}) })
}
