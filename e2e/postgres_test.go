package e2e

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/perdure/perdure/internal/testkit/eventually"
	"github.com/perdure/perdure/internal/testkit/pgtest"
	"github.com/perdure/perdure/internal/testkit/stage"
	"github.com/perdure/perdure/internal/testkit/tcpline"
)

// leases is a policy with leases that are longer than a restart of the database, and short enough
// for lost grants.
var leases = []string{"--policy", "lease=4s", "--policy", "backoff_base=100ms", "--policy", "active_reap=1m",
	"--log-level", "error"}

// ownCluster starts a PostgreSQL for a test that disturbs it.
func ownCluster(t *testing.T) *pgtest.Cluster {
	t.Helper()
	c, err := pgtest.Start(pgtest.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func TestPostgreSQLRestartsUnderLoad(t *testing.T) {
	stage.Long(t)
	t.Parallel()
	c := ownCluster(t)
	f := newFleet(t, 2, c.URL("postgres"), leases...)
	l := f.load(12, 8)
	restarts := int(number("PERDURE_RESTARTS", 2))
	modes := []pgtest.Mode{pgtest.Fast, pgtest.Immediate, pgtest.Kill}
	away, back, lived := map[pgtest.Mode][]time.Duration{}, map[pgtest.Mode][]time.Duration{},
		map[pgtest.Mode][]time.Duration{}
	for i := range restarts * len(modes) {
		mode := modes[i%len(modes)]
		l.more(5 + rand.IntN(60))
		begin := time.Now()
		if err := c.Restart(mode); err != nil {
			t.Fatal(err)
		}
		up := time.Now()
		away[mode] = append(away[mode], up.Sub(begin))
		for at := range f.nodes {
			l.serves(at, fmt.Sprintf("probe-%d-%d", i, at))
			back[mode] = append(back[mode], time.Since(up))
		}
		for at := range f.nodes {
			l.lives(at, fmt.Sprintf("life-%d-%d", i, at))
		}
		lived[mode] = append(lived[mode], time.Since(up))
	}
	l.enough(10*restarts, 0)
	l.finish()
	for _, mode := range modes {
		most := quantile(back[mode], 1)
		t.Logf("%s, %d times: away for at most %s; after that each node had written within %s (p50), %s (max), and a "+
			"run had been worked on through each within %s",
			mode, restarts, quantile(away[mode], 1), quantile(back[mode], 0.5), most, quantile(lived[mode], 1))
		if most > 30*time.Second || quantile(lived[mode], 1) > 30*time.Second {
			t.Errorf("%s: writes were back after %s, and runs after %s; want both within 30 s",
				mode, most, quantile(lived[mode], 1))
		}
	}
	t.Logf("acknowledged: %d submits, %d results", len(l.submitted), len(l.completed))
}

// serves repeats a write until one node acknowledges it.
func (l *load) serves(at int, key string) (id string) {
	l.t.Helper()
	var r runView
	eventually.True(l.t, fmt.Sprintf("node %d takes a write", at), func() bool {
		s, err := l.call(at, "POST", "/api/v1/runs", key, obj{"kind": "job", "input": key, "max_attempts": 100}, &r)
		return err == nil && (s == 200 || s == 201)
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	l.submitted[key] = r.RunID
	return r.RunID
}

// lives submits a run at one node and waits there for its end.
func (l *load) lives(at int, key string) {
	l.t.Helper()
	id := l.serves(at, key)
	eventually.True(l.t, fmt.Sprintf("a run ends through node %d", at), func() bool {
		s, err := l.call(at, "GET", "/api/v1/runs/"+id+"/join?timeout=10s", "", nil, nil)
		return err == nil && s == 200
	})
}

func TestServerReportsMissingPostgreSQL(t *testing.T) {
	t.Parallel()
	u, err := url.Parse(pgtest.New(t))
	if err != nil {
		t.Fatal(err)
	}
	way := tcpline.New(t, u.Host)
	direct := u.String()
	u.Host = way.Addr()
	f := newFleet(t, 2, u.String(), leases...)
	f.store = direct
	l := f.load(4, 3)
	l.lives(0, "before-0")
	l.lives(1, "before-1")
	for round := range number("PERDURE_RESTARTS", 1) {
		way.Set(tcpline.State{Cut: true})
		cut := time.Now()
		for at := range f.nodes {
			f.ready(at, http.StatusServiceUnavailable)
		}
		noticed := time.Since(cut)
		l.refused(cut.Add(15 * time.Second))
		way.Set(tcpline.State{})
		mended := time.Now()
		for at := range f.nodes {
			f.ready(at, http.StatusOK)
		}
		ready := time.Since(mended)
		for at := range f.nodes {
			l.lives(at, fmt.Sprintf("after-%d-%d", round, at))
		}
		t.Logf("not ready after %s; ready again after %s, a run was worked on through each node after %s",
			noticed.Round(time.Millisecond), ready.Round(time.Millisecond), time.Since(mended).Round(time.Millisecond))
	}
	l.finish()
}

// refused checks that many calls to nodes without a database are all refused in time.
func (l *load) refused(by time.Time) {
	l.t.Helper()
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			if s, err := l.call(i%len(l.nodes), "POST", "/api/v1/runs", "", obj{"kind": "nobody"}, nil); err != nil ||
				s != http.StatusServiceUnavailable {
				l.t.Errorf("submit without a database: status %d (error %v), want 503", s, err)
			}
		})
	}
	wg.Wait()
	if late := time.Since(by); late > 0 {
		l.t.Errorf("refusals came %s after the limit, want within it", late)
	}
}

// ready waits until readyz of a node has a certain status.
func (f *fleet) ready(at, want int) {
	f.t.Helper()
	eventually.True(f.t, fmt.Sprintf("readyz of node %d is %d", at, want), func() bool {
		res, err := f.http.Get("http://" + f.nodes[at].addr + "/readyz")
		if err != nil {
			return false
		}
		res.Body.Close()
		return res.StatusCode == want
	})
}
