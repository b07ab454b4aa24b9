package metrics

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine"
	"github.com/perdure/perdure/internal/server/engine/dispatch"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/sentinel"
	"github.com/perdure/perdure/internal/server/store"
	"github.com/perdure/perdure/internal/server/watchdog"
	"github.com/perdure/perdure/internal/testkit/storetest"
)

// A family is a metric of a scrape.
type family struct {
	typ, help string
	samples   []sample
}

type sample struct {
	names, values []string // of the labels
	value         float64
}

// gather returns the metrics of a scrape, by name.
func gather(t *testing.T, m *Metrics) map[string]*family {
	t.Helper()
	list, err := m.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := make(map[string]*family)
	for _, f := range list {
		x := &family{typ: strings.ToLower(f.GetType().String()), help: f.GetHelp()}
		for _, metric := range f.GetMetric() {
			s := sample{value: metric.GetCounter().GetValue() + metric.GetGauge().GetValue()}
			for _, l := range metric.GetLabel() {
				s.names, s.values = append(s.names, l.GetName()), append(s.values, l.GetValue())
			}
			x.samples = append(x.samples, s)
		}
		out[f.GetName()] = x
	}
	return out
}

// sum returns the sum of a metric's values.
func (f *family) sum() (sum float64) {
	for _, s := range f.samples {
		sum += s.value
	}
	return sum
}

// looking returns the metrics of a server that has some of everything.
func looking(t *testing.T) *Metrics {
	t.Helper()
	m := New()
	at := storetest.Options(t)
	at.Observe = m.Written
	e, err := engine.New(storetest.Open(t, at), engine.Options{Counter: m})
	if err != nil {
		t.Fatal(err)
	}
	m.Look(e, func() (map[string]int64, int64) { return map[string]int64{"sse": 1}, 10 })
	m.Certificate(func() time.Time { return time.Unix(2e9, 0) })
	m.Processes(func() (sentinel.Counts, int64, float64) { return sentinel.Counts{Adopted: 1}, 2, 3 })
	dog := watchdog.New(e, nil)
	dog.OnActions = m.Acted
	now := e.Store().Now()
	do := func(op kernel.Op) {
		t.Helper()
		if err := e.Step(now, op)[0]; err != nil {
			t.Fatal(err)
		}
	}
	do(&life.Submit{Tenant: "t", Submission: perdure.Submission{Kind: "waits"}})
	do(&life.Submit{Tenant: "t", Submission: perdure.Submission{Kind: "late",
		Timeout: perdure.Duration(time.Second)}})
	do(&life.Submit{Tenant: "t", Submission: perdure.Submission{Kind: "bad"}})
	poll := &dispatch.Claim{Tenant: "t", Worker: "w", Kinds: []string{"bad"}, Slots: 1, Start: true}
	do(poll)
	g := poll.Grants[0]
	do(&life.Commit{Tenant: "t", Worker: "w", Commit: perdure.Commit{ID: "c", RunID: g.Run.ID, Epoch: g.Run.Epoch,
		Outcome: &perdure.Outcome{Type: perdure.OutcomeReject, Reason: "no"}}})
	now = now.Add(time.Second)
	do(dog.Pass())
	return m
}

func TestScrapeMatchesTheTable(t *testing.T) {
	found := gather(t, looking(t))
	for _, r := range Table {
		f := found[r.Name]
		if f == nil {
			t.Errorf("%s is in the table, but not in the scrape", r.Name)
			continue
		}
		if f.typ != string(r.Type) || f.help != r.Help {
			t.Errorf("%s is a %s with the help %q, want a %s with %q", r.Name, f.typ, f.help, r.Type, r.Help)
		}
		want := slices.Sorted(slices.Values(r.Labels))
		for _, s := range f.samples {
			if !slices.Equal(s.names, want) {
				t.Errorf("%s has the labels %v, want %v", r.Name, s.names, want)
			}
		}
		for _, l := range r.Labels {
			if slices.Contains([]string{"run", "run_id", "tenant", "thread", "thread_id", "worker", "worker_id"}, l) {
				t.Errorf("%s has the label %s, whose values are not limited", r.Name, l)
			}
		}
	}
	for name := range found {
		if strings.HasPrefix(name, "perdure_") && row(name) == nil {
			t.Errorf("%s is in the scrape, but not in the table", name)
		}
	}
	for _, prefix := range []string{"go_", "process_"} {
		any := false
		for name := range found {
			any = any || strings.HasPrefix(name, prefix)
		}
		if !any {
			t.Errorf("no metric begins with %s", prefix)
		}
	}
}

func TestNamesPassPromlint(t *testing.T) {
	list, err := looking(t).registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	problems, err := promlint.NewWithMetricFamilies(list).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

func TestEveryRuleIsCountedFromTheStart(t *testing.T) {
	f := gather(t, New())[actions]
	if n := len(f.samples); n != len(watchdog.Rules) || f.sum() != 0 {
		t.Errorf("%d rules with the sum %v, want %d rules at 0: %v", n, f.sum(), len(watchdog.Rules), f.samples)
	}
}

func TestLabelValuesOfCallersAreLimited(t *testing.T) {
	m := New()
	const many = 5000
	for i := range many {
		m.Observe([]kernel.Change{
			{What: perdure.LineTimedOut, State: perdure.TimedOut, Queue: fmt.Sprint("q", i), Kind: fmt.Sprint("k", i),
				Code: perdure.CodeDispatchTimeout},
			{What: perdure.LineDeadLettered, Code: perdure.Code(strings.Repeat("x", 1000) + fmt.Sprint(i))},
		})
	}
	m.Observe([]kernel.Change{{What: perdure.LineDeadLettered, Code: "half a rune: \xf0"}})
	found := gather(t, m)
	for name, want := range map[string]float64{runTimeouts: many, letters: many + 1} {
		if f := found[name]; len(f.samples) > maxLabels+1 || f.sum() != want {
			t.Errorf("%s has %d label values with the sum %v, want at most %d with %v",
				name, len(f.samples), f.sum(), maxLabels+1, want)
		}
	}
	loads := make(map[string]store.QueueLoad)
	for i := range many {
		loads[fmt.Sprint("q", i)] = store.QueueLoad{Claimable: i, Since: perdure.Instant(many - i)}
	}
	loads[other] = store.QueueLoad{Claimable: many, Since: 7}
	c := newCensus(nil)
	c.count = func() (*store.Census, perdure.Instant, error) { return &store.Census{Queues: loads}, many, nil }
	m.registry.MustRegister(c)
	f := gather(t, m)[queueDepth]
	if len(f.samples) > maxLabels+1 || f.sum() != many*(many-1)/2+many {
		t.Errorf("%d queues with %v runs, want at most %d with %d",
			len(f.samples), f.sum(), maxLabels+1, many*(many-1)/2+many)
	}
	deepest := fmt.Sprint("q", many-1)
	if !slices.ContainsFunc(f.samples, func(s sample) bool { return s.values[0] == deepest }) {
		t.Errorf("the deepest queue %s has no label of its own", deepest)
	}
}

func TestScrapeDoesNotWaitForAHangingStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release, counts := make(chan bool), new(atomic.Int32)
		c := newCensus(nil)
		c.count = func() (*store.Census, perdure.Instant, error) {
			counts.Add(1)
			<-release
			return &store.Census{}, 1, nil
		}
		m := New()
		m.registry.MustRegister(c)
		ok := func() float64 { return gather(t, m)[scrapeOK].sum() }
		for range 3 {
			begin := time.Now()
			if ok() != 0 || gather(t, m)[pastDeadline] != nil {
				t.Error("without a census: scrape_ok is not 0, or a gauge of the store is present")
			}
			if took := time.Since(begin); took > 3*scrapeTimeout {
				t.Errorf("two scrapes took %s, want at most %s", took, 3*scrapeTimeout)
			}
		}
		if n := counts.Load(); n != 1 {
			t.Errorf("%d censuses were started, want 1", n)
		}
		close(release)
		synctest.Wait()
		if ok() != 1 {
			t.Error("scrape_ok is not 1 after the census has ended")
		}
	})
}

func TestCensusTakesASmallPartOfTheTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		counts, took, fails := 0, time.Millisecond, error(nil)
		c := newCensus(nil)
		c.count = func() (*store.Census, perdure.Instant, error) {
			counts++
			time.Sleep(took)
			return &store.Census{}, 1, fails
		}
		looks := func(d time.Duration) int {
			before := counts
			for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
				c.look()
			}
			return counts - before
		}
		if n := looks(10 * time.Second); n > 10 {
			t.Errorf("%d censuses of 1 ms in ten seconds, want at most 10", n)
		}
		time.Sleep(time.Minute)
		took = time.Second
		if n := looks(time.Minute); n > 3 {
			t.Errorf("%d censuses of 1 s in a minute, want at most 3", n)
		}
		time.Sleep(time.Minute)
		fails = errors.New("away")
		if c.look() != nil {
			t.Error("look returns a census although the last one has failed")
		}
	})
}

// perdureMetric matches the name of a metric in an alert rule, with a histogram's suffix.
var perdureMetric = regexp.MustCompile(`perdure_\w+`)

func TestAlertsUseExistingMetrics(t *testing.T) {
	text, err := os.ReadFile("../../../deploy/alerts.yml")
	if err != nil {
		t.Fatal(err)
	}
	known := make(map[string]bool)
	for _, r := range Table {
		known[r.Name] = true
		if r.Type == Histogram {
			for _, suffix := range []string{"_bucket", "_sum", "_count"} {
				known[r.Name+suffix] = true
			}
		}
	}
	names := perdureMetric.FindAllString(string(text), -1)
	if len(names) < 10 {
		t.Fatalf("deploy/alerts.yml names %v, want at least 10 metrics", names)
	}
	for _, name := range names {
		if !known[name] {
			t.Errorf("deploy/alerts.yml names %s, which is not a metric", name)
		}
	}
}

func TestCountingDoesNotAllocate(t *testing.T) {
	m := New()
	life := []kernel.Change{
		{What: perdure.LineCreated, State: perdure.Queued},
		{What: perdure.LineCompleted, State: perdure.Completed, CreatedAt: 1, FinishedAt: 2},
	}
	acts := []watchdog.Action{{Rule: "W15", Name: "due"}}
	if n := testing.AllocsPerRun(100, func() {
		m.Observe(life)
		m.Acted(acts)
		m.Written(store.Written{Lane: store.LaneClaim, Operations: 3, Took: time.Millisecond})
	}); n != 0 {
		t.Errorf("%v allocations for counting a run, want 0", n)
	}
}

func TestAgesGrowWhileACensusIsCached(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const at = perdure.Instant(1e15)
		counts := 0
		c := newCensus(nil)
		c.count = func() (*store.Census, perdure.Instant, error) {
			counts++
			time.Sleep(time.Second) // so that it is cached for a while
			return &store.Census{SweptAt: at.Add(-time.Second), Quietest: at.Add(-2 * time.Second),
				Queues: map[string]store.QueueLoad{"q": {Claimable: 1, Since: at.Add(-3 * time.Second)}}}, at, nil
		}
		m := New()
		m.registry.MustRegister(c)
		for _, later := range []time.Duration{0, restFactor * time.Second / 2} {
			time.Sleep(later)
			found := gather(t, m)
			for name, age := range map[string]time.Duration{
				sweepAge: time.Second, quietest: 2 * time.Second, queueOldest: 3 * time.Second,
			} {
				if got, want := found[name].samples[0].value, (age + later).Seconds(); got != want {
					t.Errorf("%s = %v after %s, want %v", name, got, later, want)
				}
			}
		}
		if counts != 1 {
			t.Errorf("%d censuses, want 1", counts)
		}
	})
}
