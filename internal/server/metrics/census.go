package metrics

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine"
	"github.com/perdure/perdure/internal/server/store"
)

// A census is cached for freshFor, and for at least restFactor times as long as it took. So
// counting is only a small part of the store's work. A scrape waits for a census up to
// scrapeTimeout. The census then continues, and the next scrape can use it.
const (
	freshFor      = time.Second
	restFactor    = 20
	maxCensus     = time.Minute // limit of a census, and of the time for which it is cached
	scrapeTimeout = 2 * time.Second
)

// A census is the collector of the metrics that are computed from the store.
type census struct {
	count   func() (*store.Census, perdure.Instant, error)
	timeout time.Duration
	descs   map[string]*prometheus.Desc

	mu    sync.Mutex
	last  *counted
	until time.Time     // last is valid until then
	going chan struct{} // closed when the running census ends; nil if none runs
}

// counted is the result of a census.
type counted struct {
	*store.Census
	at    perdure.Instant // on the store's clock
	took  time.Duration
	ended time.Time // on this node's clock
}

func newCensus(e *engine.Engine) *census {
	return &census{timeout: scrapeTimeout,
		descs: describe(queueDepth, queueOldest, runs, runsDeferred, runsHeld, runTiers, pastDeadline, lettersHeld,
			workersSeen, quietest, sweepAge, fanOuts, scrapeOK, scrapeTook),
		count: func() (out *store.Census, now perdure.Instant, err error) {
			ctx, cancel := context.WithTimeout(context.Background(), maxCensus)
			defer cancel()
			err = e.Store().Count(ctx, func(v *store.View) (err error) {
				now = v.Now
				out, err = v.Census(e.Policy())
				return err
			})
			return out, now, err
		}}
}

func describe(names ...string) map[string]*prometheus.Desc {
	m := make(map[string]*prometheus.Desc)
	for _, name := range names {
		r := row(name)
		m[name] = prometheus.NewDesc(r.Name, r.Help, r.Labels, nil)
	}
	return m
}

func (c *census) Describe(out chan<- *prometheus.Desc) {
	for _, d := range c.descs {
		out <- d
	}
}

// look returns a valid census, or nil if there is none in time. It starts one if needed.
func (c *census) look() *counted {
	c.mu.Lock()
	if c.last != nil && time.Now().Before(c.until) {
		defer c.mu.Unlock()
		return c.last
	}
	if c.going == nil {
		done := make(chan struct{})
		c.going = done
		go c.run(done)
	}
	done := c.going
	c.mu.Unlock()
	t := time.NewTimer(c.timeout)
	defer t.Stop()
	select {
	case <-done:
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.last
	case <-t.C:
		return nil
	}
}

// run makes a census and closes done.
func (c *census) run(done chan struct{}) {
	begin := time.Now()
	found, at, err := c.count()
	ended := time.Now()
	took := ended.Sub(begin)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last, c.going = nil, nil
	if err == nil {
		c.last = &counted{found, at, took, ended}
	}
	c.until = time.Now().Add(min(maxCensus, max(freshFor, restFactor*took)))
	close(done)
}

// Collect sends the metrics of the current census.
func (c *census) Collect(out chan<- prometheus.Metric) {
	give := func(name string, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(c.descs[name], prometheus.GaugeValue, v, labels...)
	}
	n := c.look()
	if n == nil {
		give(scrapeOK, 0)
		return
	}
	now := n.at.Add(time.Since(n.ended)) // ages have grown since the census
	give(scrapeOK, 1)
	give(scrapeTook, n.took.Seconds())
	give(pastDeadline, float64(n.PastDeadline))
	give(runsDeferred, float64(n.Deferred))
	give(runsHeld, float64(n.Held))
	give(fanOuts, float64(n.FanOuts))
	for _, s := range perdure.States {
		if s.Live() {
			give(runs, float64(n.States[s]), string(s))
		}
	}
	for _, tier := range []string{perdure.TierFresh, perdure.TierStale, perdure.TierDead} {
		give(runTiers, float64(n.Tiers[tier]), tier)
	}
	deeper := func(a, b store.QueueLoad) int { return cmp.Compare(a.Claimable, b.Claimable) }
	add := func(a, b store.QueueLoad) store.QueueLoad {
		if a.Since == 0 || b.Since != 0 && b.Since < a.Since {
			a.Since = b.Since
		}
		a.Claimable += b.Claimable
		return a
	}
	for _, q := range largest(n.Queues, deeper, add) {
		give(queueDepth, float64(q.value.Claimable), q.name)
		give(queueOldest, seconds(q.value.Since, now), q.name)
	}
	held := make(map[string]int, len(n.DeadLetters)+len(ownCauses))
	for _, cause := range ownCauses {
		held[string(cause)] = 0
	}
	maps.Copy(held, n.DeadLetters)
	for _, l := range largest(held, cmp.Compare[int], func(a, b int) int { return a + b }) {
		give(lettersHeld, float64(l.value), l.name)
	}
	give(workersSeen, float64(n.Online), "online")
	give(workersSeen, float64(n.Offline), "offline")
	give(quietest, seconds(n.Quietest, now))
	if n.SweptAt != 0 {
		give(sweepAge, seconds(n.SweptAt, now))
	}
}

type labelled[T any] struct {
	name  string
	value T
}

// largest returns the maxLabels largest entries by name, and the sum of the others as one entry.
func largest[T any](all map[string]T, compare func(a, b T) int, sum func(a, b T) T) []labelled[T] {
	joined := make(map[string]T, len(all)) // names with the same label are one entry
	for name, v := range all {
		if before, ok := joined[label(name)]; ok {
			v = sum(before, v)
		}
		joined[label(name)] = v
	}
	var out []labelled[T]
	for _, name := range slices.Sorted(maps.Keys(joined)) {
		out = append(out, labelled[T]{name, joined[name]})
	}
	if len(out) <= maxLabels {
		return out
	}
	slices.SortStableFunc(out, func(a, b labelled[T]) int { return compare(b.value, a.value) })
	rest := labelled[T]{name: other}
	kept := out[:0:0]
	for i, x := range out {
		if i < maxLabels && x.name != other {
			kept = append(kept, x)
		} else {
			rest.value = sum(rest.value, x.value)
		}
	}
	return append(kept, rest)
}

// A node is the collector of the metrics of this process.
type node struct {
	store    *store.Store
	attached func() (map[string]int64, int64)
	descs    map[string]*prometheus.Desc
}

func newNode(s *store.Store, attached func() (map[string]int64, int64)) *node {
	return &node{s, attached, describe(streams, streamsLimit, writable, rowsAside, rowsLocked, standbys, mayLose)}
}

func (n *node) Describe(out chan<- *prometheus.Desc) {
	for _, d := range n.descs {
		out <- d
	}
}

func (n *node) Collect(out chan<- prometheus.Metric) {
	give := func(name string, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(n.descs[name], prometheus.GaugeValue, v, labels...)
	}
	by, limit := n.attached()
	for transport, count := range by {
		give(streams, float64(count), transport)
	}
	give(streamsLimit, float64(limit))
	ok := 1.0
	if n.store.Err() != nil || n.store.Away() != nil || n.store.Writable() != nil || n.store.Full() {
		ok = 0
	}
	give(writable, ok)
	give(rowsLocked, float64(len(n.store.LockedRows())+len(n.store.LockedTables())))
	out <- prometheus.MustNewConstMetric(n.descs[rowsAside], prometheus.CounterValue, float64(n.store.RowsSetAside()))
	r := n.store.Replication()
	if r == nil { // SQLite has no standbys, and no failover that could lose anything
		r = new(store.Replication)
	}
	for _, sync := range store.SyncStates {
		give(standbys, float64(r.Count(sync)), sync)
	}
	loses := 0.0
	if n.store.Replication() != nil && r.Loss() != "" {
		loses = 1
	}
	give(mayLose, loses)
}
