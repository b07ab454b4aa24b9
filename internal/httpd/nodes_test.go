package httpd

import (
	"testing"
	"time"

	"github.com/perdure/perdure/internal/store"
	"github.com/perdure/perdure/internal/storetest"
)

// twoNodes makes two servers on one PostgreSQL. Neither hears the other's bell: what happens on one of them, the other
// finds by looking.
func twoNodes(t *testing.T) (a, b *world) {
	t.Helper()
	opt := setup{store: &store.Options{URL: storetest.Postgres(t)}, poll: 5 * time.Millisecond}
	a = newWorld(t, opt)
	opt.options = func(o *Options) { o.Node = "n2" }
	b = newWorld(t, opt)
	b.key = a.key
	return a, b
}
