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
	"github.com/perdure/perdure/internal/engine"
	"github.com/perdure/perdure/internal/store"
	"github.com/perdure/perdure/internal/storetest"
	"github.com/perdure/perdure/internal/watchdog"
)

// A family is a metric as a scrape has it.
type family struct {
	typ, help string
	samples   []sample
}

type sample struct {
	names, values []string // of its labels
	value         float64
}

// gather gives what a scrape would, by name.
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

// sum adds the values of a metric up.
func (f *family) sum() (sum float64) {
	for _, s := range f.samples {
		sum += s.value
	}
	return sum
}

// looking makes metrics that look at a server with something of everything.
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
	dog := watchdog.New(e, nil)
	dog.Told = m.Acted
	now := e.Store().Now()
	do := func(op engine.Op) {
		t.Helper()
		if err := e.Step(now, op)[0]; err != nil {
			t.Fatal(err)
		}
	}
	do(&engine.Submit{Tenant: "t", Submission: perdure.Submission{Kind: "waits"}})
	do(&engine.Submit{Tenant: "t", Submission: perdure.Submission{Kind: "late", Timeout: perdure.Duration(time.Second)}})
	do(&engine.Submit{Tenant: "t", Submission: perdure.Submission{Kind: "bad"}})
	poll := &engine.Claim{Tenant: "t", Worker: "w", Kinds: []string{"bad"}, Slots: 1, Start: true}
	do(poll)
	g := poll.Grants[0]
	do(&engine.Commit{Tenant: "t", Worker: "w", Commit: perdure.Commit{ID: "c", RunID: g.Run.ID, Epoch: g.Run.Epoch,
		Outcome: &perdure.Outcome{Type: perdure.OutcomeReject, Reason: "no"}}})
	now = now.Add(time.Second)
	do(dog.Pass())
	return m
}

func TestWhatIsServedIsWhatTheTableSays(t *testing.T) {
	found := gather(t, looking(t))
	for _, r := range Table {
		f := found[r.Name]
		if f == nil {
			t.Errorf("%s is in the table and not served", r.Name)
			continue
		}
		if f.typ != string(r.Type) || f.help != r.Help {
			t.Errorf("%s is a %s: %s", r.Name, f.typ, f.help)
		}
		want := slices.Sorted(slices.Values(r.Labels))
		for _, s := range f.samples {
			if !slices.Equal(s.names, want) {
				t.Errorf("%s has the labels %v, not %v", r.Name, s.names, want)
			}
		}
		for _, l := range r.Labels {
			if slices.Contains([]string{"run", "run_id", "tenant", "thread", "thread_id", "worker", "worker_id"}, l) {
				t.Errorf("%s has the label %s, which has no bound", r.Name, l)
			}
		}
	}
	for name := range found {
		if strings.HasPrefix(name, "perdure_") && row(name) == nil {
			t.Errorf("%s is served and not in the table", name)
		}
	}
	for _, prefix := range []string{"go_", "process_"} {
		any := false
		for name := range found {
			any = any || strings.HasPrefix(name, prefix)
		}
		if !any {
			t.Errorf("nothing begins with %s", prefix)
		}
	}
}

func TestNamesAreAsPrometheusWantsThem(t *testing.T) {
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
		t.Errorf("%d rules are counted, of %d: %v", n, len(watchdog.Rules), f.samples)
	}
}

func TestLabelsThatCallersMakeUpAreBounded(t *testing.T) {
	m := New()
	const many = 5000
	for i := range many {
		m.Observe([]engine.Change{
			{What: perdure.LineTimedOut, State: perdure.TimedOut, Queue: fmt.Sprint("q", i), Kind: fmt.Sprint("k", i), Code: perdure.CodeDispatchTimeout},
			{What: perdure.LineDeadLettered, Code: perdure.Code(strings.Repeat("x", 1000) + fmt.Sprint(i))},
		})
	}
	m.Observe([]engine.Change{{What: perdure.LineDeadLettered, Code: "half a rune: \xf0"}})
	found := gather(t, m)
	for name, want := range map[string]float64{runTimeouts: many, letters: many + 1} {
		if f := found[name]; len(f.samples) > maxLabels+1 || f.sum() != want {
			t.Errorf("%s has %d values that count %v", name, len(f.samples), f.sum())
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
		t.Errorf("%d queues with %v runs", len(f.samples), f.sum())
	}
	if deepest := fmt.Sprint("q", many-1); !slices.ContainsFunc(f.samples, func(s sample) bool { return s.values[0] == deepest }) {
		t.Error("the deepest queue is not shown")
	}
}

func TestAScrapeDoesNotWaitForAStoreThatHangs(t *testing.T) {
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
				t.Error("it says what it does not know")
			}
			if took := time.Since(begin); took > 3*patience {
				t.Errorf("two scrapes took %s", took)
			}
		}
		if n := counts.Load(); n != 1 {
			t.Errorf("%d counts were begun while one was under way", n)
		}
		close(release)
		synctest.Wait()
		if ok() != 1 {
			t.Error("the store answers, and it does not say so")
		}
	})
}

func TestCountingTakesAPartOfTheTimeOnly(t *testing.T) {
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
			t.Errorf("counted %d times in ten seconds", n)
		}
		time.Sleep(time.Minute)
		took = time.Second
		if n := looks(time.Minute); n > 3 {
			t.Errorf("a count that takes a second was made %d times in a minute", n)
		}
		time.Sleep(time.Minute)
		fails = errors.New("away")
		if c.look() != nil {
			t.Error("an old count is given for a new one")
		}
	})
}

// perdureMetric is a name of ours in a rule, with what Prometheus makes of a histogram.
var perdureMetric = regexp.MustCompile(`perdure_\w+`)

func TestTheAlertsAreAboutMetricsThatThereAre(t *testing.T) {
	text, err := os.ReadFile("../../docs/alerts.yml")
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
		t.Fatalf("%v", names)
	}
	for _, name := range names {
		if !known[name] {
			t.Errorf("%s is not a metric", name)
		}
	}
}

func TestCountingALifeAllocatesNothing(t *testing.T) {
	m := New()
	life := []engine.Change{{What: perdure.LineCreated, State: perdure.Queued}, {What: perdure.LineCompleted, State: perdure.Completed, CreatedAt: 1, FinishedAt: 2}}
	acts := []watchdog.Action{{Rule: "W15", Name: "due"}}
	if n := testing.AllocsPerRun(100, func() {
		m.Observe(life)
		m.Acted(acts)
		m.Written(store.Written{Lane: store.LaneClaim, Operations: 3, Took: time.Millisecond})
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// A count is kept for a while; what it says the age of grows older meanwhile.
func TestAgesGrowWhileACountIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const at = perdure.Instant(1e15)
		counts := 0
		c := newCensus(nil)
		c.count = func() (*store.Census, perdure.Instant, error) {
			counts++
			time.Sleep(time.Second) // so that it is good for a while
			return &store.Census{SweptAt: at.Add(-time.Second), Quietest: at.Add(-2 * time.Second),
				Queues: map[string]store.QueueLoad{"q": {Claimable: 1, Since: at.Add(-3 * time.Second)}}}, at, nil
		}
		m := New()
		m.registry.MustRegister(c)
		for _, later := range []time.Duration{0, share * time.Second / 2} {
			time.Sleep(later)
			found := gather(t, m)
			for name, age := range map[string]time.Duration{sweepAge: time.Second, quietest: 2 * time.Second, queueOldest: 3 * time.Second} {
				if got, want := found[name].samples[0].value, (age + later).Seconds(); got != want {
					t.Errorf("%s: %v, not %v", name, got, want)
				}
			}
		}
		if counts != 1 {
			t.Errorf("%d counts", counts)
		}
	})
}
