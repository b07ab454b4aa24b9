// Package metrics counts what happens and looks at what there is, for Prometheus.
//
// Counters are fed with what is durable: the engine's changes, the watchdog's actions, the store's batches. Each node counts
// what went through it. Gauges that are about runs are counted in the store when somebody asks, and not more often than the store can bear.
// No label has more values than a bound: never a run, a thread, a tenant or a worker.
//
// It decides nothing, and nothing waits for it. Package embedded wires it.
package metrics

import (
	"net/http"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/engine"
	"github.com/perdure/perdure/internal/store"
	"github.com/perdure/perdure/internal/watchdog"
)

// Metrics are those of one server. It is an engine's Observer.
type Metrics struct {
	registry *prometheus.Registry
	now      func() perdure.Instant // the store's clock; nil: it is not known yet

	created, late, lost prometheus.Counter

	ended, detached, alerts, sent *named
	actions                       *named // by the rule's name
	aside                         *named
	timeouts, letters             *capped
	took                          map[perdure.State]prometheus.Observer
	lateness, cancel              prometheus.Observer

	batches, commits []prometheus.Observer // by lane
	operations       []prometheus.Counter
}

// New makes metrics that count from zero. Look has them look at a server as well.
func New() *Metrics {
	m := &Metrics{registry: prometheus.NewRegistry(), took: make(map[perdure.State]prometheus.Observer)}
	m.created, m.late, m.lost = m.counter(runsCreated).WithLabelValues(), m.counter(lateResults).WithLabelValues(), m.counter(leasesLost).WithLabelValues()
	m.detached = m.named(detached, "timeout", "disconnect", "detached")
	m.alerts = m.named(alerts, "queued", "silent", "no_progress", "stale")
	m.sent = m.named(attempts, "delivered", "refused", "unreachable", "stopped")
	m.timeouts, m.letters = newCapped(m.counter(runTimeouts), 2), newCapped(m.counter(letters), 1)
	for _, cause := range ownCauses {
		m.letters.add([2]string{string(cause)})
	}

	durations := m.histogram(runDuration, []float64{.1, .5, 1, 5, 15, 60, 300, 900, 3600, 4 * 3600, 24 * 3600, 7 * 24 * 3600})
	var ends []string
	for _, s := range perdure.States {
		if s.Terminal() {
			ends = append(ends, string(s))
			m.took[s] = durations.WithLabelValues(string(s))
		}
	}
	m.ended = m.named(runsEnded, ends...)
	m.lateness = m.histogram(lateness, []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2, 5, 15, 60}).WithLabelValues()
	m.cancel = m.histogram(cancelTook, []float64{.005, .025, .1, .25, 1, 2.5, 5, 15, 30, 60, 300, 600}).WithLabelValues()

	acts := m.counter(actions)
	m.actions = &named{by: make(map[string]prometheus.Counter)}
	for _, r := range watchdog.Rules {
		m.actions.by[r.Name] = acts.WithLabelValues(r.ID, r.Name)
	}

	m.aside = m.named(setAside, watchdog.Parts()...)

	times := []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}
	whole, commit, ops := m.histogram(batches, times), m.histogram(commits, times), m.counter(operations)
	for _, l := range store.Lanes() {
		m.batches = append(m.batches, whole.WithLabelValues(l.String()))
		m.commits = append(m.commits, commit.WithLabelValues(l.String()))
		m.operations = append(m.operations, ops.WithLabelValues(l.String()))
	}
	m.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	m.build()
	return m
}

// ownCauses are those of dead letters that the server gives itself: they are there from the start, at 0, so that the first one is seen to
// rise. Workers make up others.
var ownCauses = []perdure.Code{perdure.CodeAttemptsExhausted, perdure.CodeDispatchTimeout, perdure.CodeRejected, perdure.CodeSignatureInvalid,
	perdure.CodeHeartbeatLost, perdure.CodeDamaged}

// Observe counts what happened to runs.
func (m *Metrics) Observe(list []engine.Change) {
	for i := range list {
		switch c := &list[i]; c.What {
		case perdure.LineCreated:
			m.created.Inc()
		case perdure.LineSlow:
			m.alerts.inc(c.Reason)
		case perdure.LineStale:
			m.alerts.inc("stale")
		case perdure.LineDeferred:
			m.detached.inc(c.Reason)
		case perdure.LineLateResult:
			m.late.Inc()
		case perdure.LineDeadLettered:
			m.letters.inc(string(c.Code))
		case engine.WebhookAttempt:
			m.sent.inc(c.Reason)
		default:
			m.end(c)
		}
	}
}

// end counts an end.
func (m *Metrics) end(c *engine.Change) {
	took := m.took[c.State]
	if took == nil {
		return
	}
	took.Observe(c.FinishedAt.Sub(c.CreatedAt).Seconds())
	m.ended.inc(string(c.State))
	if c.CancelAt != 0 {
		m.cancel.Observe(c.FinishedAt.Sub(c.CancelAt).Seconds())
	}
	if c.State == perdure.TimedOut {
		m.timeouts.inc(c.Queue, c.Kind)
	}
	if c.Code == perdure.CodeDeadline {
		at := c.FinishedAt
		if m.now != nil {
			at = max(at, m.now())
		}
		m.lateness.Observe(at.Sub(c.DeadlineAt).Seconds())
	}
}

// Acted counts what the watchdog did.
func (m *Metrics) Acted(list []watchdog.Action) {
	for i := range list {
		m.actions.inc(list[i].Name)
		if list[i].Name == "lost-worker" {
			m.lost.Inc()
		}
	}
}

// SetAside counts a row that the watchdog could not act on.
func (m *Metrics) SetAside(part string) { m.aside.inc(part) }

// Written counts a batch of the store's.
func (m *Metrics) Written(w store.Written) {
	m.batches[w.Lane].Observe(w.Took.Seconds())
	m.commits[w.Lane].Observe(w.Commit.Seconds())
	m.operations[w.Lane].Add(float64(w.Operations))
}

// Look has the metrics look at a server: at its store, and at who is attached. It is called once, before anything is counted.
func (m *Metrics) Look(e *engine.Engine, attached func() (by map[string]int64, limit int64)) {
	m.now = e.Store().Now
	m.registry.MustRegister(newCensus(e), newNode(e.Store(), attached))
}

// Certificate tells when the certificate that this node shows expires. It is called once, where there is one.
func (m *Metrics) Certificate(expires func() time.Time) {
	r := row(certExpires)
	m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: r.Name, Help: r.Help}, func() float64 { return float64(expires().Unix()) }))
}

// ServeHTTP answers a scrape.
func (m *Metrics) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError}).ServeHTTP(w, r)
}

// row finds a metric in the table.
func row(name string) *Metric {
	for i := range Table {
		if Table[i].Name == name {
			return &Table[i]
		}
	}
	panic("metrics: " + name + " is not in the table")
}

func (m *Metrics) counter(name string) *prometheus.CounterVec {
	r := row(name)
	v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: r.Name, Help: r.Help}, r.Labels)
	m.registry.MustRegister(v)
	return v
}

func (m *Metrics) histogram(name string, buckets []float64) *prometheus.HistogramVec {
	r := row(name)
	v := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: r.Name, Help: r.Help, Buckets: buckets}, r.Labels)
	m.registry.MustRegister(v)
	return v
}

// build says what runs.
func (m *Metrics) build() {
	version, commit := "unknown", "unknown"
	if info, ok := debug.ReadBuildInfo(); ok {
		if version = info.Main.Version; version == "" {
			version = "(devel)"
		}
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				commit = s.Value
			}
		}
	}
	r := row(buildInfo)
	v := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: r.Name, Help: r.Help}, r.Labels)
	v.WithLabelValues(version, commit, runtime.Version()).Set(1)
	m.registry.MustRegister(v)
}

// seconds from one instant to another; none if the first is not known.
func seconds(from, to perdure.Instant) float64 {
	if from == 0 {
		return 0
	}
	return max(0, to.Sub(from)).Seconds()
}
