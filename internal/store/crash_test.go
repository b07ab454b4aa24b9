package store

import (
	"bytes"
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/eventually"
	"github.com/perdure/perdure/internal/pgtest"
)

// A server that crashes forgets the numbers of transactions of which nothing was on disk, and gives them to
// others. What became of one of these says nothing about ours.
func TestANumberThatACrashedServerGivesAgainIsNotBelieved(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		name  string
		again bool // another transaction has the number before it is asked for
		code  perdure.Code
		runs  int
	}{
		{"it has been given again", true, perdure.CodeUnknown, 1},
		{"it has been forgotten", false, "", 2},
	} {
		t.Run(x.name, func(t *testing.T) {
			// Nothing but a commit has the server write its log.
			c, err := pgtest.Start(pgtest.Options{Settings: map[string]string{"wal_writer_delay": "10s"}})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Stop()
			w := tapped(t, c.URL("postgres"))
			s := open(t, Options{URL: w.url})
			if err := s.Batch(s.Now(), insert("a"))[0]; err != nil {
				t.Fatal(err)
			}
			hit := false
			w.set(func(toServer bool, b []byte) cutting {
				if hit || !toServer || !bytes.Contains(b, []byte("COMMIT\x00")) {
					return forward
				}
				hit = true
				crash(t, c, x.again)
				return cutBefore
			})
			began := time.Now()
			err = s.Batch(s.Now(), insert("b"))[0]
			w.set(nil)
			// A server that takes long to come back is not waited for: nothing was written, and the caller tries again.
			for perdure.CodeOf(err) == perdure.CodeUnavailable && time.Since(began) > awayAfter && time.Since(began) < eventually.Within {
				err = s.Batch(s.Now(), insert("b"))[0]
			}
			if !hit || perdure.CodeOf(err) != x.code {
				t.Errorf("crashed: %v, %v", hit, err)
			}
			if n := count(t, s, "SELECT count(*) FROM runs"); n != x.runs {
				t.Errorf("%d runs, and the batch was answered with %v", n, err)
			}
			if err := s.Batch(s.Now(), insert("c"))[0]; err != nil {
				t.Error(err)
			}
		})
	}
}

// crash kills a server in which one transaction is open, and has another one take its number, if it is to.
func crash(t *testing.T, c *pgtest.Cluster, again bool) {
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
	for again && number < open && !t.Failed() {
		ask(&number, "SELECT pg_current_xact_id()::text::bigint")
		if number > open {
			t.Errorf("transaction %d was not forgotten, the next one is %d", open, number)
		}
	}
}
