package e2e

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/perdure/perdure/internal/testkit/eventually"
	"github.com/perdure/perdure/internal/testkit/pgtest"
	"github.com/perdure/perdure/internal/testkit/stage"
)

// victims is the number of rows of each table that are locked.
const victims = 12

// TestLockedRowsHoldUpNobodyElse: somebody forgets a transaction that holds a dozen rows of each table.
// Calls that need these rows wait. The nodes stay ready, their sweeps go on, and other runs are as fast as
// before.
func TestLockedRowsHoldUpNobodyElse(t *testing.T) {
	stage.Long(t)
	t.Parallel()
	hold := time.Duration(number("PERDURE_LOCKED_SECONDS", 8)) * time.Second
	store := pgtest.New(t)
	log := &record{}
	f := &fleet{t: t, store: store, http: &http.Client{Timeout: time.Minute}}
	for range 3 {
		n := prepareNode(t, "--store", store, "--policy", "lease=2m", "--policy", "active_reap=10m")
		n.log = log
		n.start()
		f.nodes, f.key = append(f.nodes, n), n.key
	}
	ids := f.sleepers(victims)
	l := f.load(0, 3)
	calm := f.pace(hold/2, ids, "calm", nil)

	conn := lockRows(t, store)
	began := time.Now()
	refused := 0
	locked := f.pace(hold, ids, "locked", &refused)
	if err := conn.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	held, released := time.Since(began), time.Now()
	eventually.True(t, "the runs whose rows were locked go on", func() bool {
		for i, id := range ids {
			status, err := f.call(i%3, "POST", "/api/v1/runs/"+id+"/signals/go", "after-"+id, obj{"data": 1}, nil)
			if err != nil || status >= 300 {
				return false
			}
		}
		return true
	})
	wentOn := time.Since(released)
	l.stopWorkers()
	l.workers.Wait()
	f.nodes[0].sound()

	before, during := quantile(calm, 0.99), quantile(locked, 0.99)
	t.Logf("%d rows of each table were locked for %s; %d signals to their runs were refused; other runs took %s "+
		"(p50), %s (p99) before, and %s, %s meanwhile; the locked ones went on after %s", victims,
		held.Round(time.Second), refused, quantile(calm, 0.5), before, quantile(locked, 0.5), during,
		wentOn.Round(time.Millisecond))
	if refused == 0 {
		t.Error("no signal to a locked run was refused: nothing was tested")
	}
	slack := time.Second // lanes meet the lock, on a busy machine
	if hold >= time.Minute {
		slack = 0 // the campaign has the machine alone
		if wentOn > time.Second {
			t.Errorf("the runs whose rows were locked went on after %s, want a second at most", wentOn)
		}
	}
	if most := 2*before + slack; during > most {
		t.Errorf("p99 of other runs while rows are locked = %s, want at most %s", during, most)
	}
	if bad := log.lines("a sweep failed", "no sweep can be written", "level=ERROR"); len(bad) > 0 {
		t.Errorf("lines about failed sweeps, or errors: %q", bad)
	}
	if got := log.lines("rows are locked by another session"); len(got) == 0 ||
		!strings.Contains(got[0], "idle in transaction") {
		t.Errorf("lines about locked rows = %q, want one that names the session", got)
	}
}

// sleepers gives runs that wait for a signal, in a queue of their own.
func (f *fleet) sleepers(many int) (ids []string) {
	f.t.Helper()
	n := f.nodes[0]
	for range many {
		n.submit(obj{"kind": "sleeper", "queue": "sleepers", "max_attempts": 100})
	}
	for len(ids) < many {
		var p polled
		if s := n.insist("POST", "/api/v1/workers/holder/poll", "",
			obj{"slots": many, "start": true, "wait": "1s", "queues": []string{"sleepers"}}, &p); s != 200 {
			f.t.Fatalf("poll for sleepers: %d", s)
		}
		for _, r := range p.Runs {
			if s := n.insist("POST", "/api/v1/workers/holder/commit", "", obj{"commits": []obj{{"run_id": r.RunID,
				"epoch": r.Epoch, "commit_id": "c-" + r.RunID,
				"waits":   []obj{{"id": "w", "type": "signal", "name": "never"}},
				"outcome": obj{"type": "suspend"}}}}, nil); s != 200 {
				f.t.Fatalf("commit of a sleeper: %d", s)
			}
			ids = append(ids, r.RunID)
		}
	}
	for _, id := range ids { // an inbox item each
		if s := n.insist("POST", "/api/v1/runs/"+id+"/signals/go", "before-"+id, obj{"data": 0}, nil); s >= 300 {
			f.t.Fatalf("signal: %d", s)
		}
	}
	return ids
}

// lockRows locks a dozen rows of each table, in a transaction that stays open: those of the sleepers, and
// the oldest ones of tables that have no runs. Workers that are busy with other runs are left out.
func lockRows(t *testing.T, store string) *pgx.Conn {
	t.Helper()
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, store)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(ctx) })
	rows, _ := conn.Query(ctx, "SELECT t.table_name, max(CASE WHEN column_name='run_id' THEN column_name "+
		"ELSE '' END) FROM information_schema.tables t JOIN information_schema.columns c "+
		"USING (table_schema, table_name) WHERE t.table_schema='public' GROUP BY 1")
	type owned struct{ Table, Column string }
	tables, err := pgx.CollectRows(rows, pgx.RowToStructByPos[owned])
	if err != nil || len(tables) < 30 {
		t.Fatalf("tables: %v, %v", tables, err)
	}
	if _, err := conn.Exec(ctx, "BEGIN"); err != nil {
		t.Fatal(err)
	}
	const sleepers = "(SELECT id FROM runs WHERE queue='sleepers')"
	for _, x := range tables {
		where := "true"
		switch {
		case x.Table == "runs":
			where = "queue='sleepers'"
		case x.Table == "workers":
			where = "id='holder'"
		case x.Column != "":
			where = x.Column + " IN " + sleepers
		}
		if _, err := conn.Exec(ctx, fmt.Sprintf("SELECT 1 FROM %s WHERE %s LIMIT %d FOR UPDATE", x.Table, where,
			victims)); err != nil {
			t.Fatal(err)
		}
	}
	return conn
}

// pace submits runs and waits for their ends, at each node in turn, for a while, and gives how long each
// took. Meanwhile every node has to stay ready, and signals go to the sleepers if refused is set.
func (f *fleet) pace(long time.Duration, ids []string, name string, refused *int) (took []time.Duration) {
	f.t.Helper()
	done := make(chan struct{})
	stop := make(chan struct{})
	go func() {
		defer close(done)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			if status, detail := f.nodes[i%3].health("/readyz"); status != 200 {
				f.t.Errorf("%s: /readyz of node %d = %d %s, want 200", name, i%3, status, detail)
			}
			if refused == nil {
				continue
			}
			id := ids[i%len(ids)]
			begin := time.Now()
			status, err := f.call(i%3, "POST", "/api/v1/runs/"+id+"/signals/go", fmt.Sprint(name, i),
				obj{"data": i}, nil)
			if err != nil || status != 503 {
				f.t.Errorf("a signal to a run whose rows are locked = %d, %v, after %s, want 503", status, err,
					time.Since(begin))
			}
			*refused++
		}
	}()
	for i, began := 0, time.Now(); time.Since(began) < long; i++ {
		begin := time.Now()
		var r runView
		if s, _ := f.insist("POST", "/api/v1/runs", fmt.Sprintf("%s-%d", name, i), obj{"kind": "other", "input": i,
			"wait": "30s"}, &r); s >= 300 {
			f.t.Errorf("%s: submit = %d", name, s)
		}
		took = append(took, time.Since(begin))
	}
	close(stop)
	<-done
	return took
}
