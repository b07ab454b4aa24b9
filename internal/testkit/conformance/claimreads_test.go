package conformance

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/dispatch"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/store"
	"github.com/perdure/perdure/internal/testkit/storetest"
)

// readCounter counts the rows that queries read, and the searches that find none.
//
// PostgreSQL counts them itself: the query is executed once more under EXPLAIN ANALYZE. SQLite has no
// such count. There every query has to be a search of an index that gives its order, without
// conditions on other columns, so that it reads the rows that it gives.
type readCounter struct {
	store.Conn
	t       testing.TB
	shared  bool
	on      *atomic.Bool
	reads   *atomic.Int64
	queries *[]string
}

func (c readCounter) Query(query string, args []any, row func(scan func(...any) error) error) error {
	if !c.on.Load() || !strings.HasPrefix(query, "SELECT") && !strings.HasPrefix(query, "WITH") {
		return c.Conn.Query(query, args, row)
	}
	n := 0
	err := c.Conn.Query(query, args, func(scan func(...any) error) error {
		n++
		return row(scan)
	})
	if err != nil {
		return err
	}
	if c.shared {
		if n, err = c.analyzed(query, args); err != nil {
			return err
		}
	} else if err = c.searches(query, args); err != nil {
		return err
	}
	c.reads.Add(int64(max(1, n)))
	*c.queries = append(*c.queries, fmt.Sprintf("%d rows: %.200s %.100v", n, query, args))
	return nil
}

var (
	scanned = regexp.MustCompile(`Scan.* on .*actual.* rows=([0-9.]+) loops=([0-9]+)`)
	removed = regexp.MustCompile(`Rows Removed by .*: ([0-9]+)`)
)

// analyzed gives the rows that the scans of a query have read.
func (c readCounter) analyzed(query string, args []any) (int, error) {
	total, loops := 0, 0.0
	err := c.Conn.Query("EXPLAIN (ANALYZE, TIMING OFF) "+query, args, func(scan func(...any) error) error {
		line := ""
		if err := scan(&line); err != nil {
			return err
		}
		if strings.Contains(line, " on w ") || strings.Contains(line, "Function Scan") {
			loops = 0 // a scan of the statement's own relations
			return nil
		}
		if m := scanned.FindStringSubmatch(line); m != nil {
			rows, _ := strconv.ParseFloat(m[1], 64)
			loops, _ = strconv.ParseFloat(m[2], 64)
			total += int(loops * max(1, rows))
		} else if m := removed.FindStringSubmatch(line); m != nil {
			rows, _ := strconv.ParseFloat(m[1], 64)
			total += int(loops * rows)
		}
		return nil
	})
	return total, err
}

// searches checks the plan of a query on SQLite.
func (c readCounter) searches(query string, args []any) error {
	return c.Conn.Query("EXPLAIN QUERY PLAN "+query, args, func(scan func(...any) error) error {
		var a, b, d int
		line := ""
		err := scan(&a, &b, &d, &line)
		// The pauses of a tenant are few, and sorted.
		if (strings.HasPrefix(line, "SCAN runs") || strings.Contains(line, "TEMP B-TREE")) &&
			!strings.Contains(query, "queue_pauses") {
			c.t.Errorf("%s: the plan of %s", line, query)
		}
		return err
	})
}

// A claim reads a bounded number of rows, whatever it polls for and whatever is there. PostgreSQL plans
// queries by its statistics, which autovacuum renews at a time of its own. So polls are tried with the
// statistics of an empty table, and with those of the moment.
func TestClaimReadsFewRows(t *testing.T) {
	t.Run("SQLite", func(t *testing.T) { claimReads(t, store.Options{}, func() {}) })
	t.Run("PostgreSQL", func(t *testing.T) {
		url := storetest.Postgres(t)
		claimReads(t, store.Options{URL: url}, func() {
			conn, err := pgx.Connect(t.Context(), url)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close(context.Background())
			if _, err := conn.Exec(t.Context(), "ANALYZE"); err != nil {
				t.Fatal(err)
			}
		})
	})
}

func claimReads(t *testing.T, at store.Options, analyze func()) {
	const queues, kinds, tenants = 100, 12, 40
	var on atomic.Bool
	var reads atomic.Int64
	var asked []string
	at.Hooks.Clock = func() perdure.Instant { return dawn }
	at.Hooks.Wrap = func(s store.Conn) store.Conn {
		return readCounter{s, t, at.URL != "", &on, &reads, &asked}
	}
	w := NewWorld(t, storetest.Open(t, at))
	name := func(prefix string, n int) (out []string) {
		for i := range n {
			out = append(out, fmt.Sprintf("%s%03d", prefix, i))
		}
		return out
	}
	all, each := name("q", queues), name("k", kinds)
	var ops []kernel.Op
	for _, q := range all {
		for _, k := range each {
			ops = append(ops, &life.Submit{Tenant: tenant, Submission: perdure.Submission{Kind: k, Queue: q}})
		}
	}
	for i := range tenants {
		for n := range 8 {
			ops = append(ops, &life.Submit{Tenant: perdure.TenantID(fmt.Sprintf("t%03d", i)),
				Submission: perdure.Submission{Kind: each[n], Queue: all[0]}})
		}
	}
	for range 500 {
		ops = append(ops, &life.Submit{Tenant: "deep", Submission: perdure.Submission{Kind: "job", Queue: "deep"}})
	}
	for part := range slices.Chunk(ops, 500) {
		for _, err := range w.E.Step(w.Now, part...) {
			w.check(err == nil, "submit: %v", err)
		}
	}
	claim := func(what string, op dispatch.Claim) int {
		t.Helper()
		op.Worker = "w"
		reads.Store(0)
		asked = asked[:0]
		on.Store(true)
		w.do(&op)
		on.Store(false)
		// The rows of a granted run are its place in the index and itself.
		if n := int(reads.Load()) - 2*len(op.Grants); n > 200 {
			t.Errorf("%s: %d grants, and %d rows read beside them, want 200 at most\n%s", what, len(op.Grants), n,
				strings.Join(asked[:min(len(asked), 12)], "\n"))
		}
		return len(op.Grants)
	}
	none := name("none", 10)
	between := make([]string, 0, 10) // each lies behind a kind that has runs
	for _, k := range each[:10] {
		between = append(between, k+"x")
	}
	for _, slots := range []int{1, 20, 1000} {
		n := claim("many queues", dispatch.Claim{Tenant: tenant, Queues: all, Slots: slots})
		w.check(n > 0, "%d slots: nothing was granted", slots)
		n = claim("many queues with kinds", dispatch.Claim{Tenant: tenant, Queues: all, Kinds: each[:10], Slots: slots})
		w.check(n > 0, "%d slots: nothing was granted", slots)
		claim("kinds that have nothing", dispatch.Claim{Tenant: tenant, Queues: all, Kinds: none, Slots: slots})
		claim("kinds between others", dispatch.Claim{Tenant: tenant, Queues: all, Kinds: between, Slots: slots})
		claim("queues that have nothing", dispatch.Claim{Tenant: tenant, Queues: none, Slots: slots})
		n = claim("all tenants", dispatch.Claim{Tenant: "ops", AnyTenant: true, Queues: all, Slots: slots})
		w.check(n > 0, "%d slots: nothing was granted", slots)
		claim("all tenants, with kinds", dispatch.Claim{Tenant: "ops", AnyTenant: true, Queues: all,
			Kinds: between, Slots: slots})
		// A poll with little room reads ahead in vain.
		claim("one deep queue", dispatch.Claim{Tenant: "deep", Queues: []string{"deep"}, Kinds: []string{"job"},
			Slots: slots, Room: 2000})
		claim("one deep queue without kinds", dispatch.Claim{Tenant: "deep", Queues: []string{"deep"},
			Slots: slots, Room: 2000})
		analyze()
	}
	for i, q := range all {
		if i%2 == 0 {
			w.pause(q, "toggled")
		}
	}
	claim("half of the queues paused", dispatch.Claim{Tenant: tenant, Queues: all, Slots: 1})
	w.resume(all[0])
	w.pause(all[0], "again")
	claim("half of the queues paused, by all tenants",
		dispatch.Claim{Tenant: "ops", AnyTenant: true, Queues: all, Slots: 1})
	w.resume(all[0])
	for _, q := range all {
		w.pause(q, "all")
	}
	claim("all queues paused", dispatch.Claim{Tenant: tenant, Queues: all, Slots: 1, Build: "b"})
	claim("all queues paused, by all tenants",
		dispatch.Claim{Tenant: "ops", AnyTenant: true, Queues: all, Slots: 1})
}
