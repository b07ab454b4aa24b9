package bench

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/perdure/perdure/internal/wire/timer"
)

// samples collects latencies from many goroutines.
type samples struct {
	mu   sync.Mutex
	list []time.Duration
}

func (s *samples) add(d time.Duration) {
	s.mu.Lock()
	s.list = append(s.list, max(0, d))
	s.mu.Unlock()
}

func (s *samples) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.list)
}

// A spread is a distribution of latencies, in milliseconds.
type spread struct {
	P50 float64 `json:"p50"`
	P95 float64 `json:"p95"`
	P99 float64 `json:"p99"`
	Max float64 `json:"max"`
}

func (s *samples) spread() *spread {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.list) == 0 {
		return nil
	}
	slices.Sort(s.list)
	at := func(q float64) float64 {
		return float64(s.list[min(len(s.list)-1, int(q*float64(len(s.list))))].Nanoseconds()) / 1e6
	}
	return &spread{P50: at(.5), P95: at(.95), P99: at(.99), Max: at(1)}
}

// latencies returns a figure with latencies only.
func (s *samples) latencies(what, loop string) Figure {
	return Figure{What: what, Loop: loop, Count: s.count(), Latency: s.spread()}
}

// A stopwatch measures the time of a measurement, and the CPU time of its target.
type stopwatch struct {
	t     cpuMeter
	begin time.Time
	cpu   time.Duration
}

// A cpuMeter returns the CPU time of a process so far.
type cpuMeter interface{ cpu() time.Duration }

func startWatch(t cpuMeter) stopwatch { return stopwatch{t, time.Now(), t.cpu()} }

// throughput returns a figure of n operations since the start, with their latencies.
func (w stopwatch) throughput(what, loop string, n int, s *samples) Figure {
	took, cpu := time.Since(w.begin), w.t.cpu()-w.cpu
	return Figure{What: what, Loop: loop, Count: n, Seconds: took.Seconds(), Value: float64(n) / took.Seconds(),
		Unit: unitRate,
		CPU:  float64(cpu.Microseconds()) / float64(max(n, 1)), Latency: s.spread()}
}

// parallel calls f in n goroutines and returns the first error.
func parallel(n int, f func(i int) error) error {
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

// maxWaiting bounds the concurrent calls of an open loop. With more, the target can't keep up, and
// the latencies would only depend on the length of the measurement.
const maxWaiting = 20_000

// openLoop calls f at random instants with a rate, whether or not earlier calls have returned. f
// gets the instant at which the call was due. openLoop returns when all calls have returned.
func openLoop(ctx context.Context, rate float64, d time.Duration, f func(at time.Time) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	var waiting atomic.Int64
	begin := time.Now()
	for at := begin; at.Sub(begin) < d; at = at.Add(time.Duration(rand.ExpFloat64() / rate * float64(time.Second))) {
		timer.Sleep(ctx, time.Until(at))
		if ctx.Err() != nil {
			break
		}
		if waiting.Add(1) > maxWaiting {
			cancel(fmt.Errorf("%g a second is more than this machine can do: %d calls are waiting", rate, maxWaiting))
			break
		}
		wg.Add(1)
		go func() {
			defer wg.Done()
			defer waiting.Add(-1)
			if err := f(at); err != nil {
				cancel(err)
			}
		}()
	}
	wg.Wait()
	return context.Cause(ctx)
}

// A handoff is the way of a run from its caller to its worker.
type handoff struct{ due, returned, taken time.Time }

// A handoffTable combines the times that the caller and the worker of each run saw, in any order.
type handoffTable struct {
	mu   sync.Mutex
	half map[string]handoff
}

// submitted adds the caller's half: when the submit was due, and when it returned.
func (t *handoffTable) submitted(id string, due, returned time.Time) (handoff, bool) {
	return t.meet(id, handoff{due: due, returned: returned})
}

// taken adds the worker's half.
func (t *handoffTable) taken(id string, at time.Time) (handoff, bool) {
	return t.meet(id, handoff{taken: at})
}

func (t *handoffTable) meet(id string, mine handoff) (handoff, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.half == nil {
		t.half = make(map[string]handoff)
	}
	other, ok := t.half[id]
	if !ok {
		t.half[id] = mine
		return handoff{}, false
	}
	delete(t.half, id)
	if mine.taken.IsZero() {
		mine.taken = other.taken
	} else {
		mine.due, mine.returned = other.due, other.returned
	}
	return mine, true
}

// open returns the number of runs that only one side has seen so far.
func (t *handoffTable) open() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.half)
}

// await calls f until it returns true.
func await(ctx context.Context, what string, limit time.Duration, f func() (bool, error)) error {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("%s: not after %s", what, limit))
	defer cancel()
	for {
		ok, err := f()
		if ok || err != nil {
			return err
		}
		timer.Sleep(ctx, 20*time.Millisecond)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
}

// progress prints what is going on, once a second.
type progress struct {
	out       io.Writer
	overwrite bool // on a terminal each line replaces the one before

	mu    sync.Mutex
	title string
	doing string
	begin time.Time
	last  int64 // count when it was last printed
	count atomic.Int64
}

// show prints progress until stop is called.
func (p *progress) show(title string) (stop func()) {
	p.mu.Lock()
	p.title = title
	p.mu.Unlock()
	p.phase("")
	done, gone := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(gone)
		t := time.NewTicker(time.Second)
		defer t.Stop()
		for {
			select {
			case <-done:
				return
			case <-t.C:
				p.print()
			}
		}
	}()
	return func() {
		close(done)
		<-gone
		if p.overwrite {
			fmt.Fprint(p.out, "\r\x1b[K")
		}
	}
}

// phase sets what is done from now on.
func (p *progress) phase(format string, args ...any) {
	p.mu.Lock()
	p.doing, p.begin, p.last = fmt.Sprintf(format, args...), time.Now(), 0
	p.count.Store(0)
	p.mu.Unlock()
	p.print()
}

// did counts n more operations.
func (p *progress) did(n int) { p.count.Add(int64(n)) }

func (p *progress) print() {
	p.mu.Lock()
	defer p.mu.Unlock()
	text, n := p.title, p.count.Load()
	if p.doing != "" {
		text += ": " + p.doing
	}
	if n > 0 {
		text += fmt.Sprintf("  %.0f s  %d/s  %d", time.Since(p.begin).Seconds(), n-p.last, n)
	}
	p.last = n
	if p.overwrite {
		fmt.Fprintf(p.out, "\r\x1b[K%s", text)
	} else {
		fmt.Fprintln(p.out, text)
	}
}
