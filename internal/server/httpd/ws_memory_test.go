package httpd

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/httpd/feed"
	"github.com/perdure/perdure/internal/testkit/eventually"
)

// heap is what is in use after everything that can be freed was.
func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}

// A socket remembers little of each run that it watches, and nothing of the rows that it has read.
func TestSocketHoldsLittleMemory(t *testing.T) {
	const sockets, live, most = 12, feed.MaxPlain, 100 << 10
	w := newWorld(t, setup{})
	big := `"` + string(slices.Repeat([]byte("m"), 1000)) + `"`
	ops := make([]kernel.Op, live)
	for i := range ops {
		ops[i] = &life.Submit{Tenant: "a", Submission: perdure.Submission{Kind: "job", Input: []byte(big),
			Metadata: map[string]string{"what": big}}}
	}
	for part := range slices.Chunk(ops, 250) {
		if err := errors.Join(w.e.Step(w.e.Store().Now(), part...)...); err != nil {
			t.Fatal(err)
		}
	}
	clear(ops)
	hs := httptest.NewServer(w.s.Handler())
	t.Cleanup(hs.Close)
	w.watchAt(hs.URL, http.DefaultClient, "?limit=200") // what is made once is not counted
	before := heap()
	for range sockets {
		w.watchAt(hs.URL, http.DefaultClient, "?limit=200")
	}
	each := int64(0)
	eventually.True(t, "sockets hold little", func() bool {
		each = (heap() - before) / sockets
		return each <= most
	})
	t.Logf("%d bytes for each socket with %d live runs", each, live)
}
