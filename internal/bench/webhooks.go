package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/perdure/perdure"
)

const (
	hookRuns      = 5000 // that end as quickly as they can
	hookRate      = 100  // ends a second, where latency is measured
	hooks         = 20   // endpoints
	hooksBad      = 2    // of them fail, always
	sinkBad       = "/bad/"
	whatDelivered = "deliveries"
	whatNotified  = "event to receipt"
)

// A hit is when a webhook came in.
type hit struct {
	At  int64         `json:"at"`
	Age time.Duration `json:"age"` // since the instant that its event bears
}

// A sink takes webhooks. Some of its addresses always fail.
type sink struct {
	url string

	mu   sync.Mutex
	seen map[string]bool // by the id of the delivery
	hits []hit
}

// listen gives the address of the sink, or what came in when there is so much of it.
func (c *clients) listen(a *crowdAsk) (told crowdTold, err error) {
	if c.sink == nil {
		l, err := (&net.ListenConfig{}).Listen(c.ctx, "tcp", "127.0.0.1:0")
		if err != nil {
			return told, err
		}
		c.sink = &sink{url: "http://" + l.Addr().String(), seen: make(map[string]bool)}
		go func() { c.fail((&http.Server{Handler: c.sink, ReadHeaderTimeout: time.Minute}).Serve(l)) }()
	}
	err = await(c.ctx, "all webhooks came", a.Limit, func() (bool, error) { return c.sink.count() >= a.Count, c.failed() })
	if err != nil {
		err = fmt.Errorf("%d of %d: %w", c.sink.count(), a.Count, err)
	}
	told.URL = c.sink.url
	c.sink.mu.Lock()
	told.Hits, c.sink.hits = c.sink.hits, nil
	c.sink.mu.Unlock()
	return told, err
}

func (s *sink) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.hits)
}

func (s *sink) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	now := monotonic()
	var body struct {
		Timestamp perdure.Instant `json:"timestamp"`
	}
	b, err := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	if err == nil {
		err = json.Unmarshal(b, &body)
	}
	id := r.Header.Get("webhook-id")
	switch {
	case err != nil || id == "" || r.Header.Get("webhook-signature") == "":
		http.Error(w, "not a webhook", http.StatusBadRequest)
		return
	case strings.HasPrefix(r.URL.Path, sinkBad):
		http.Error(w, "this one always fails", http.StatusInternalServerError)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.seen[id] { // it comes at least once
		s.seen[id] = true
		s.hits = append(s.hits, hit{now, since(body.Timestamp)})
	}
}

// hook is the address of the n-th run's webhook, and whether it works.
func hook(sink string, n int) (url string, good bool) {
	if n %= hooks; n < hooksBad {
		return fmt.Sprintf("%s%s%d", sink, sinkBad, n), false
	}
	return fmt.Sprintf("%s/good/%d", sink, n), true
}

// benchWebhooks has runs end that somebody wants to hear of, while a tenth of those who do can't be reached: first as
// many as there can be, and then by a schedule.
func measureWebhooks(ctx context.Context, b *Bench, p *place, _ string) (f []Figure, err error) {
	p.held, p.flags = true, []string{"--webhook-allow", "127.0.0.0/8"}
	c, err := startCrowd(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	told, err := c.ask(ctx, crowdAsk{Do: askSink})
	if err != nil {
		return nil, err
	}
	t, err := openServer(ctx, p, "node")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, t.close()) }()

	h := &hooked{b: b, t: t, c: c, sink: told.URL}
	most, err := h.most(ctx, min(b.Backlog, hookRuns))
	if err != nil {
		return nil, err
	}
	steady, err := h.steadily(ctx, b.rateOr(hookRate))
	return []Figure{most, steady}, err
}

// hooked are runs with a webhook each.
type hooked struct {
	b    *Bench
	t    *httpTarget
	c    *crowd
	sink string
}

// take submits runs and takes them; good are those whose webhook works.
func (h *hooked) take(ctx context.Context, n int) (runs []grant, good map[string]bool, err error) {
	h.b.phase("submitting %d runs", n)
	good = make(map[string]bool)
	var mu sync.Mutex
	next := make(chan int, n)
	for i := range n {
		next <- i
	}
	close(next)
	err = together(min(h.b.Callers, n), func(int) error {
		for i := range next {
			url, ok := hook(h.sink, i)
			id, err := h.t.submit(ctx, perdure.Submission{Kind: kind, Input: benchRun.Input, Webhook: url})
			if err != nil {
				return err
			}
			h.b.did(1)
			mu.Lock()
			good[id] = ok
			mu.Unlock()
		}
		return nil
	})
	for len(runs) < n && err == nil {
		var more []grant
		if more, err = h.t.take(ctx, workerName, min(h.b.Slots, n-len(runs)), time.Second); err == nil && len(more) == 0 {
			err = fmt.Errorf("only %d of %d runs could be claimed", len(runs), n)
		}
		runs = append(runs, more...)
	}
	return runs, good, err
}

// most ends all runs at once, and counts what is delivered until everything is.
func (h *hooked) most(ctx context.Context, n int) (f Figure, err error) {
	runs, good, err := h.take(ctx, n)
	if err != nil {
		return f, err
	}
	want := 0
	for _, ok := range good {
		if ok {
			want++
		}
	}
	h.b.phase("delivering %d", want)
	w, begin := startWatch(h.t), monotonic()
	for len(runs) > 0 {
		some := runs[:min(len(runs), h.b.Slots)]
		if err := h.t.finish(ctx, workerName, some); err != nil {
			return f, err
		}
		runs = runs[len(some):]
	}
	told, err := h.c.ask(ctx, crowdAsk{Do: askSink, Count: want, Limit: caughtUp})
	if err != nil {
		return f, err
	}
	cpu := h.t.cpu() - w.cpu
	last := begin
	for _, x := range told.Hits {
		last = max(last, x.At)
	}
	took := time.Duration(last - begin).Seconds()
	return Figure{What: whatDelivered, Loop: closedLoops, Count: want, Seconds: took, Value: float64(want) / took, Unit: unitRate, CPU: float64(cpu.Microseconds()) / float64(want)}, nil
}

// steadily ends runs by a schedule, and measures how old the news is when it comes.
func (h *hooked) steadily(ctx context.Context, rate float64) (f Figure, err error) {
	mean := rate * h.b.Duration.Seconds()
	runs, good, err := h.take(ctx, int(mean+6*math.Sqrt(mean))+1) // as many as chance may have come
	if err != nil {
		return f, err
	}
	left := make(chan grant, len(runs))
	for _, r := range runs {
		left <- r
	}
	h.b.phase("%g ends a second", rate)
	var want atomic.Int64
	err = openLoop(ctx, rate, h.b.Duration, func(time.Time) error {
		select {
		case l := <-left:
			if err := h.t.finish(ctx, workerName, []grant{l}); err != nil {
				return err
			}
			h.b.did(1)
			if good[l.id] {
				want.Add(1)
			}
		default:
		}
		return nil
	})
	if err != nil {
		return f, err
	}
	told, err := h.c.ask(ctx, crowdAsk{Do: askSink, Count: int(want.Load()), Limit: caughtUp})
	if err != nil {
		return f, err
	}
	var s samples
	for _, x := range told.Hits {
		s.add(x.Age)
	}
	return s.latencies(fmt.Sprintf("%s at %g/s", whatNotified, rate), openLoops), nil
}
