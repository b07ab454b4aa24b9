package store

import (
	"bytes"
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/testkit/eventually"
	"github.com/perdure/perdure/internal/testkit/pgtest"
)

// A crashed server forgets the numbers of transactions that were not on disk, and gives them to
// others. The outcome of such a transaction says nothing about ours.
func TestReusedTransactionNumberIsNotTrusted(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		name  string
		again bool // another transaction gets the number before the session asks
		code  perdure.Code
		runs  int
	}{
		{"it has been given again", true, perdure.CodeUnknown, 1},
		{"it has been forgotten", false, "", 2},
	} {
		t.Run(x.name, func(t *testing.T) {
			// PostgreSQL also writes its log when it crosses certain boundaries. If that happens
			// during the transaction, its number is not forgotten. Then try again with more data in
			// the log.
			for before := 0; !crashedAmid(t, x.again, x.code, x.runs, before); before++ {
				if before == 4 {
					t.Fatal("the server remembered its open transaction five times")
				}
			}
		})
	}
}

// crashedAmid kills a server during a commit and checks the caller's error. It tells whether the
// server had forgotten the number of the transaction, if again requires that.
func crashedAmid(t *testing.T, again bool, code perdure.Code, runs, before int) (forgotten bool) {
	// Only commits make the server write its log.
	c, err := pgtest.Start(pgtest.Options{Settings: map[string]string{"wal_writer_delay": "10s"}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Stop()
	w := newWire(t, c.URL("postgres"))
	s := open(t, Options{URL: w.url})
	if err := s.Batch(s.Now(), insert("a"))[0]; err != nil {
		t.Fatal(err)
	}
	for i := range before {
		if err := s.Batch(s.Now(), insert(fmt.Sprint("before", i)))[0]; err != nil {
			t.Fatal(err)
		}
	}
	hit := false
	w.set(func(toServer bool, b []byte) cutting {
		if hit || !toServer || !bytes.Contains(b, []byte("COMMIT\x00")) {
			return forward
		}
		hit = true
		forgotten = crash(t, c, again)
		return cutBefore
	})
	began := time.Now()
	err = s.Batch(s.Now(), insert("b"))[0]
	w.set(nil)
	if hit && !forgotten {
		return false
	}
	// The store does not wait for a server that takes long to come back: nothing was written, and
	// the caller tries again.
	for perdure.CodeOf(err) == perdure.CodeUnavailable && time.Since(began) > awayAfter &&
		time.Since(began) < eventually.Within {
		err = s.Batch(s.Now(), insert("b"))[0]
	}
	if !hit || perdure.CodeOf(err) != code {
		t.Errorf("batch cut at its commit (cut: %t) = %v, want code %q", hit, err, code)
	}
	if n := count(t, s, "SELECT count(*) FROM runs"); n != runs+before {
		t.Errorf("%d runs are stored, want %d; the batch was answered with %v", n, runs+before, err)
	}
	if err := s.Batch(s.Now(), insert("c"))[0]; err != nil {
		t.Errorf("batch after the crash: %v", err)
	}
	return true
}

// crash kills a server with one open transaction. With again, another transaction takes its number.
// It tells whether that was possible.
func crash(t *testing.T, c *pgtest.Cluster, again bool) bool {
	ctx := context.Background()
	var open, number int64
	ask := func(to *int64, query string) {
		conn, err := pgx.Connect(ctx, c.URL("postgres"))
		if err == nil {
			defer conn.Close(ctx)
			err = conn.QueryRow(ctx, query).Scan(to)
		}
		if err != nil {
			t.Error(err)
		}
	}
	ask(&open, "SELECT max(backend_xid::text::bigint) FROM pg_stat_activity")
	if err := c.Restart(pgtest.Kill); err != nil {
		t.Error(err)
	}
	forgotten := true
	for first := true; again && number < open && !t.Failed(); first = false {
		ask(&number, "SELECT pg_current_xact_id()::text::bigint")
		// Another session may have taken the number in between, which counts as well.
		forgotten = forgotten && (!first || number <= open)
	}
	return forgotten
}
