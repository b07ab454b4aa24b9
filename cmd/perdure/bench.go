package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// A benchTarget is something to measure: the engine in this process, or a server over HTTP.
type benchTarget interface {
	name() string
	submit(ctx context.Context) error
	// take leases and starts up to slots runs, waiting for some.
	take(ctx context.Context, worker string, slots int, wait time.Duration) ([]benchLease, error)
	finish(ctx context.Context, worker string, l []benchLease) error
	close() error
}

type benchLease struct {
	id    string
	epoch int64
}

// A benchResult is one line of the table.
type benchResult struct {
	Target   string  `json:"target"`
	Scenario string  `json:"scenario"`
	Count    int     `json:"count"`
	Seconds  float64 `json:"seconds"`
	PerSec   float64 `json:"per_second,omitempty"`
	P50      float64 `json:"p50_ms"`
	P95      float64 `json:"p95_ms"`
	P99      float64 `json:"p99_ms"`
	Max      float64 `json:"max_ms"`
}

type benchScenario struct {
	name, about string
	run         func(ctx context.Context, b *bench, t benchTarget) (benchResult, error)
}

var benchScenarios = []benchScenario{
	{"submit", "submits of many callers at once, each durable when it returns", benchSubmit},
	{"drain", "a backlog taken and finished by workers", benchDrain},
	{"life", "whole lives: submitted, leased and started by the grant, completed, all at once", benchLife},
	{"idle", "idle dispatch: from a submit that returned to a waiting worker that has the run", benchIdle},
}

type bench struct {
	duration time.Duration
	callers  int
	backlog  int
}

func benchCommand(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	f := flags("bench", "Measures the engine in this process and a server over HTTP, both on real files with every write durable.\nFigures depend on the machine: it is printed beside them.", stderr)
	b := &bench{}
	f.DurationVar(&b.duration, "duration", 5*time.Second, "how long a scenario runs")
	f.IntVar(&b.callers, "callers", 64, "callers and workers at once")
	f.IntVar(&b.backlog, "backlog", 5000, "runs of the backlog")
	only := f.String("scenario", "", "only these `names`, separated by commas: submit, drain, life, idle")
	target := f.String("target", "process,http", "`where`: process, http, or both")
	dir := f.String("dir", "", "`folder` for the data (default: a temporary one)")
	asJSON := f.Bool("json", false, "print JSON")
	profile := f.String("cpuprofile", "", "write a CPU profile to a `file`")
	if err := parse(f, args); err != nil {
		return err
	}
	if b.duration <= 0 || b.callers < 1 || b.backlog < 1 {
		fmt.Fprintln(stderr, "perdure bench: duration, callers and backlog have to be positive")
		return errUsage
	}
	if *profile != "" {
		out, err := os.Create(*profile)
		if err != nil {
			return err
		}
		defer out.Close()
		if err := pprof.StartCPUProfile(out); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	var results []benchResult
	for _, name := range strings.Split(*target, ",") {
		for _, s := range benchScenarios {
			if *only != "" && !slices.Contains(strings.Split(*only, ","), s.name) {
				continue
			}
			fmt.Fprintf(stderr, "%s: %s …\n", name, s.about)
			r, err := b.measure(ctx, name, *dir, s)
			if err != nil {
				return err
			}
			results = append(results, r)
		}
	}
	settings := map[string]any{"cores": runtime.NumCPU(), "go": runtime.Version(), "platform": runtime.GOOS + "/" + runtime.GOARCH, "store": "sqlite, WAL, synchronous=FULL",
		"callers": b.callers, "duration": b.duration.String(), "backlog": b.backlog}
	if *asJSON {
		return printJSON(stdout, map[string]any{"settings": settings, "results": results})
	}
	fmt.Fprintf(stdout, "%-8s %-8s %9s %12s %9s %9s %9s %9s\n", "target", "scenario", "count", "per second", "p50 ms", "p95 ms", "p99 ms", "max ms")
	for _, r := range results {
		rate := "-"
		if r.PerSec > 0 {
			rate = fmt.Sprintf("%.0f", r.PerSec)
		}
		fmt.Fprintf(stdout, "%-8s %-8s %9d %12s %9.2f %9.2f %9.2f %9.2f\n", r.Target, r.Scenario, r.Count, rate, r.P50, r.P95, r.P99, r.Max)
	}
	fmt.Fprintf(stdout, "\n%d cores, %s, %s/%s, SQLite with WAL and synchronous=FULL; %d callers, %s a scenario\n", runtime.NumCPU(), runtime.Version(), runtime.GOOS, runtime.GOARCH, b.callers, b.duration)
	return nil
}

// measure runs a scenario on a fresh store.
func (b *bench) measure(ctx context.Context, target, dir string, s benchScenario) (benchResult, error) {
	folder, err := os.MkdirTemp(dir, "perdure-bench-")
	if err != nil {
		return benchResult{}, err
	}
	defer os.RemoveAll(folder)
	var t benchTarget
	switch target {
	case "process":
		t, err = newProcessTarget(folder)
	case "http":
		t, err = newHTTPTarget(folder)
	default:
		return benchResult{}, fmt.Errorf("there is no target %q: process or http", target)
	}
	if err != nil {
		return benchResult{}, err
	}
	r, err := s.run(ctx, b, t)
	r.Target, r.Scenario = t.name(), s.name
	if cerr := t.close(); err == nil {
		err = cerr
	}
	return r, err
}

// samples collects latencies of many goroutines.
type samples struct {
	mu   sync.Mutex
	list []time.Duration
}

func (s *samples) add(d time.Duration) {
	s.mu.Lock()
	s.list = append(s.list, d)
	s.mu.Unlock()
}

func (s *samples) result(took time.Duration, n int) benchResult {
	slices.Sort(s.list)
	at := func(q float64) float64 {
		if len(s.list) == 0 {
			return 0
		}
		return float64(s.list[min(len(s.list)-1, int(q*float64(len(s.list))))].Microseconds()) / 1000
	}
	return benchResult{Count: n, Seconds: took.Seconds(), PerSec: float64(n) / took.Seconds(), P50: at(.5), P95: at(.95), P99: at(.99), Max: at(1)}
}

// together runs f in n goroutines until it fails or says that it is done.
func together(n int, f func(i int) error) error {
	errs := make(chan error, n)
	for i := range n {
		go func() { errs <- f(i) }()
	}
	var first error
	for range n {
		if err := <-errs; err != nil && first == nil {
			first = err
		}
	}
	return first
}

func benchSubmit(ctx context.Context, b *bench, t benchTarget) (benchResult, error) {
	var s samples
	begin := time.Now()
	err := together(b.callers, func(int) error {
		for time.Since(begin) < b.duration && ctx.Err() == nil {
			at := time.Now()
			if err := t.submit(ctx); err != nil {
				return err
			}
			s.add(time.Since(at))
		}
		return ctx.Err()
	})
	return s.result(time.Since(begin), len(s.list)), err
}

func benchDrain(ctx context.Context, b *bench, t benchTarget) (benchResult, error) {
	var left atomic.Int64
	left.Store(int64(b.backlog))
	if err := together(b.callers, func(int) error {
		for left.Add(-1) >= 0 {
			if err := t.submit(ctx); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		return benchResult{}, err
	}
	var s samples
	var done atomic.Int64
	begin := time.Now()
	err := together(8, func(i int) error {
		worker := fmt.Sprint("w", i)
		for done.Load() < int64(b.backlog) && ctx.Err() == nil {
			at := time.Now()
			l, err := t.take(ctx, worker, 64, 0)
			if err != nil {
				return err
			}
			if len(l) == 0 {
				return nil
			}
			if err := t.finish(ctx, worker, l); err != nil {
				return err
			}
			done.Add(int64(len(l)))
			s.add(time.Since(at))
		}
		return ctx.Err()
	})
	return s.result(time.Since(begin), int(done.Load())), err
}

func benchLife(ctx context.Context, b *bench, t benchTarget) (benchResult, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var s samples
	var submitted, done atomic.Int64
	begin := time.Now()
	// Callers keep a bounded number under way, as those who wait for their answers do.
	window := int64(b.callers * 8)
	err := together(b.callers+8, func(i int) error {
		if i >= 8 {
			for time.Since(begin) < b.duration {
				if submitted.Load()-done.Load() >= window {
					runtime.Gosched()
					time.Sleep(200 * time.Microsecond)
					continue
				}
				submitted.Add(1)
				if err := t.submit(ctx); err != nil {
					return err
				}
			}
			return nil
		}
		worker := fmt.Sprint("w", i)
		for time.Since(begin) < b.duration {
			at := time.Now()
			l, err := t.take(ctx, worker, 64, 20*time.Millisecond)
			if err != nil {
				return err
			}
			if len(l) == 0 {
				continue
			}
			if err := t.finish(ctx, worker, l); err != nil {
				return err
			}
			done.Add(int64(len(l)))
			s.add(time.Since(at))
		}
		return nil
	})
	return s.result(time.Since(begin), int(done.Load())), err
}

func benchIdle(ctx context.Context, b *bench, t benchTarget) (benchResult, error) {
	var s samples
	begin := time.Now()
	for time.Since(begin) < b.duration && ctx.Err() == nil {
		have := make(chan error, 1)
		var l []benchLease
		var at time.Time
		go func() {
			var err error
			l, err = t.take(ctx, "w", 1, 10*time.Second)
			at = time.Now()
			have <- err
		}()
		time.Sleep(5 * time.Millisecond) // the worker waits before there is anything
		if err := t.submit(ctx); err != nil {
			return benchResult{}, err
		}
		returned := time.Now()
		if err := <-have; err != nil {
			return benchResult{}, err
		}
		s.add(max(0, at.Sub(returned)))
		if err := t.finish(ctx, "w", l); err != nil {
			return benchResult{}, err
		}
	}
	r := s.result(time.Since(begin), len(s.list))
	r.PerSec = 0
	return r, ctx.Err()
}
