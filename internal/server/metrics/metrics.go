package metrics

import (
	"net/http"
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/sentinel"
	"github.com/perdure/perdure/internal/server/store"
	"github.com/perdure/perdure/internal/server/watchdog"
	"github.com/perdure/perdure/internal/wire/release"
)

// Metrics has the metrics of one server. It implements the engine's Observer.
type Metrics struct {
	registry *prometheus.Registry
	now      func() perdure.Instant // the store's clock; nil before Look

	created, late, lost prometheus.Counter

	ended, detached, alerts, sent *named
	actions                       *named // by name of the rule
	aside                         *named
	timeouts, letters             *capped
	took                          map[perdure.State]prometheus.Observer
	lateness, cancel              prometheus.Observer

	batches, commits []prometheus.Observer // by lane
	operations       []prometheus.Counter
}

// New returns metrics that count from zero. Look adds the gauges of a server.
func New() *Metrics {
	m := &Metrics{registry: prometheus.NewRegistry(), took: make(map[perdure.State]prometheus.Observer)}
	m.created = m.counter(runsCreated).WithLabelValues()
	m.late = m.counter(lateResults).WithLabelValues()
	m.lost = m.counter(leasesLost).WithLabelValues()
	m.detached = m.named(detached, "timeout", "disconnect", "detached")
	m.alerts = m.named(alerts, "queued", "silent", "no_progress", "stale", "held")
	m.sent = m.named(attempts, "delivered", "refused", "unreachable", "stopped")
	m.timeouts, m.letters = newCapped(m.counter(runTimeouts), 2), newCapped(m.counter(letters), 1)
	for _, cause := range ownCauses {
		m.letters.add([2]string{string(cause)})
	}

	durations := m.histogram(runDuration,
		[]float64{.1, .5, 1, 5, 15, 60, 300, 900, 3600, 4 * 3600, 24 * 3600, 7 * 24 * 3600})
	var ends []string
	for _, s := range perdure.States {
		if s.Terminal() {
			ends = append(ends, string(s))
			m.took[s] = durations.WithLabelValues(string(s))
		}
	}
	m.ended = m.named(runsEnded, ends...)
	m.lateness = m.histogram(lateness,
		[]float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2, 5, 15, 60}).WithLabelValues()
	m.cancel = m.histogram(cancelTook,
		[]float64{.005, .025, .1, .25, 1, 2.5, 5, 15, 30, 60, 300, 600}).WithLabelValues()

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
	m.registry.MustRegister(collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	m.build()
	return m
}

// ownCauses lists the causes of dead letters that the server sets. They exist from the start, at 0,
// so that an alert sees the first one as an increase. Other causes come from workers.
var ownCauses = []perdure.Code{
	perdure.CodeAttemptsExhausted, perdure.CodeDispatchTimeout, perdure.CodeRejected, perdure.CodeSignatureInvalid,
	perdure.CodeHeartbeatLost, perdure.CodeDamaged, perdure.CodeOutcomeUnknown,
}

// Observe counts changes of runs.
func (m *Metrics) Observe(list []kernel.Change) {
	for i := range list {
		switch c := &list[i]; c.What {
		case perdure.LineCreated:
			m.created.Inc()
		case perdure.LineSlow:
			m.alerts.inc(c.Reason)
		case perdure.LineStale:
			m.alerts.inc("stale")
		case perdure.LineHeld:
			m.alerts.inc("held")
		case perdure.LineDeferred:
			m.detached.inc(c.Reason)
		case perdure.LineLateResult:
			m.late.Inc()
		case perdure.LineDeadLettered:
			m.letters.inc(string(c.Code))
		case kernel.WebhookAttempt:
			m.sent.inc(c.Reason)
		default:
			m.end(c)
		}
	}
}

// end counts the end of a run.
func (m *Metrics) end(c *kernel.Change) {
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

// Acted counts actions of the watchdog.
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

// Written counts a batch of the store.
func (m *Metrics) Written(w store.Written) {
	m.batches[w.Lane].Observe(w.Took.Seconds())
	m.commits[w.Lane].Observe(w.Commit.Seconds())
	m.operations[w.Lane].Add(float64(w.Operations))
}

// Look adds the gauges of a server: of its store, and of the attached clients. It is called once,
// before anything is counted.
func (m *Metrics) Look(e *engine.Engine, attached func() (by map[string]int64, limit int64)) {
	m.now = e.Store().Now
	m.registry.MustRegister(newCensus(e), newNode(e.Store(), attached))
}

// Certificate adds the gauge of the expiry of this node's TLS certificate. It is called once, if
// there is one.
func (m *Metrics) Certificate(expires func() time.Time) {
	r := row(certExpires)
	at := func() float64 { return float64(expires().Unix()) }
	m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: r.Name, Help: r.Help}, at))
}

// Processes adds the metrics of this node's workspace. It is called once, if there is one.
func (m *Metrics) Processes(read func() (c sentinel.Counts, writeFailures int64, scanMs float64)) {
	m.registry.MustRegister(workspace{read})
}

// workspace collects the metrics of a workspace.
type workspace struct {
	read func() (sentinel.Counts, int64, float64)
}

// Describe leaves the metrics unchecked: their names are those of the table.
func (workspace) Describe(chan<- *prometheus.Desc) {}

// Collect reads the counts.
func (w workspace) Collect(out chan<- prometheus.Metric) {
	c, failures, ms := w.read()
	send := func(name string, kind prometheus.ValueType, v float64, labels ...string) {
		r := row(name)
		out <- prometheus.MustNewConstMetric(prometheus.NewDesc(r.Name, r.Help, r.Labels, nil), kind, v, labels...)
	}
	send(processes, prometheus.CounterValue, float64(c.Reattached), "reattached")
	send(processes, prometheus.CounterValue, float64(c.Adopted), "adopted")
	send(processes, prometheus.CounterValue, float64(c.Dead), "dead")
	send(filesAside, prometheus.CounterValue, float64(c.SetAside))
	send(beatFailures, prometheus.GaugeValue, float64(failures))
	send(scanTook, prometheus.GaugeValue, ms/1000)
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

// build adds the metric of the version.
func (m *Metrics) build() {
	commit, _ := release.Commit()
	if commit == "" {
		commit = "unknown"
	}
	r := row(buildInfo)
	v := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: r.Name, Help: r.Help}, r.Labels)
	v.WithLabelValues(release.Version, commit, runtime.Version()).Set(1)
	m.registry.MustRegister(v)
}

// seconds returns the time from one instant to another, and 0 if the first is not set.
func seconds(from, to perdure.Instant) float64 {
	if from == 0 {
		return 0
	}
	return max(0, to.Sub(from)).Seconds()
}
