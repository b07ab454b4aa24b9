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
	hookRuns      = 5000 // runs that end as quickly as possible
	hookRate      = 100  // ends a second, for the latency
	hooks         = 20   // endpoints
	hooksBad      = 2    // endpoints among them that always fail
	sinkBad       = "/bad/"
	whatDelivered = "deliveries"
	whatNotified  = "event to receipt"
)

// A hit is the arrival of a webhook.
type hit struct {
	At  int64         `json:"at"`
	Age time.Duration `json:"age"` // since the instant of its event
}

// A sink is a receiver of webhooks. Some of its addresses always fail.
type sink struct {
	url string

	mu   sync.Mutex
	seen map[string]bool // by the id of the delivery
	hits []hit
}

// listen returns the address of the sink. With a Count it returns the hits when there are that
// many.
func (c *clients) listen(a *clientRequest) (reply clientReply, err error) {
	if c.sink == nil {
		l, err := (&net.ListenConfig{}).Listen(c.ctx, "tcp", "127.0.0.1:0")
		if err != nil {
			return reply, err
		}
		c.sink = &sink{url: "http://" + l.Addr().String(), seen: make(map[string]bool)}
		go func() { c.fail((&http.Server{Handler: c.sink, ReadHeaderTimeout: time.Minute}).Serve(l)) }()
	}
	err = await(c.ctx, "all webhooks came", a.Limit, func() (bool, error) {
		return c.sink.count() >= a.Count, c.failed()
	})
	if err != nil {
		err = fmt.Errorf("%d of %d: %w", c.sink.count(), a.Count, err)
	}
	reply.URL = c.sink.url
	c.sink.mu.Lock()
	reply.Hits, c.sink.hits = c.sink.hits, nil
	c.sink.mu.Unlock()
	return reply, err
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
	if !s.seen[id] { // a notification may arrive more than once
		s.seen[id] = true
		s.hits = append(s.hits, hit{now, since(body.Timestamp)})
	}
}

// hook returns the address of the n-th run's webhook, and whether it works.
func hook(sink string, n int) (url string, good bool) {
	if n %= hooks; n < hooksBad {
		return fmt.Sprintf("%s%s%d", sink, sinkBad, n), false
	}
	return fmt.Sprintf("%s/good/%d", sink, n), true
}

// measureWebhooks measures notifications of ended runs, while a tenth of the endpoints always fail:
// first the throughput, and then the latency in an open loop.
func measureWebhooks(ctx context.Context, b *Bench, p *place, _ string) (f []Figure, err error) {
	p.leased, p.flags = true, []string{"--webhook-allow", "127.0.0.0/8"}
	c, err := startClients(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	reply, err := c.ask(ctx, clientRequest{Do: askSink})
	if err != nil {
		return nil, err
	}
	t, err := openServer(ctx, p, "node")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, t.close()) }()

	h := &hooked{b: b, t: t, c: c, sink: reply.URL}
	most, err := h.throughput(ctx, min(b.Backlog, hookRuns))
	if err != nil {
		return nil, err
	}
	steady, err := h.latency(ctx, b.rateOr(hookRate))
	return []Figure{most, steady}, err
}

// hooked is a measurement of runs with a webhook each.
type hooked struct {
	b    *Bench
	t    *httpTarget
	c    *clientProcess
	sink string
}

// take submits runs and leases them. good has those whose webhook works.
func (h *hooked) take(ctx context.Context, n int) (runs []grant, good map[string]bool, err error) {
	h.b.phase("submitting %d runs", n)
	good = make(map[string]bool)
	var mu sync.Mutex
	next := make(chan int, n)
	for i := range n {
		next <- i
	}
	close(next)
	err = parallel(min(h.b.Callers, n), func(int) error {
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
		if more, err = h.t.take(ctx, workerName, min(h.b.Slots, n-len(runs)), time.Second); err == nil &&
			len(more) == 0 {
			err = fmt.Errorf("only %d of %d runs could be claimed", len(runs), n)
		}
		runs = append(runs, more...)
	}
	return runs, good, err
}

// throughput ends all runs at once, and measures until all notifications have arrived.
func (h *hooked) throughput(ctx context.Context, n int) (f Figure, err error) {
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
	reply, err := h.c.ask(ctx, clientRequest{Do: askSink, Count: want, Limit: caughtUp})
	if err != nil {
		return f, err
	}
	cpu := h.t.cpu() - w.cpu
	last := begin
	for _, x := range reply.Hits {
		last = max(last, x.At)
	}
	took := time.Duration(last - begin).Seconds()
	return Figure{What: whatDelivered, Loop: closedLoops, Count: want, Seconds: took, Value: float64(want) / took,
		Unit: unitRate, CPU: float64(cpu.Microseconds()) / float64(want)}, nil
}

// latency ends runs in an open loop, and measures the age of each notification when it arrives.
func (h *hooked) latency(ctx context.Context, rate float64) (f Figure, err error) {
	mean := rate * h.b.Duration.Seconds()
	runs, good, err := h.take(ctx, int(mean+6*math.Sqrt(mean))+1) // the most that a random schedule may need
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
	reply, err := h.c.ask(ctx, clientRequest{Do: askSink, Count: int(want.Load()), Limit: caughtUp})
	if err != nil {
		return f, err
	}
	var s samples
	for _, x := range reply.Hits {
		s.add(x.Age)
	}
	return s.latencies(fmt.Sprintf("%s at %g/s", whatNotified, rate), openLoops), nil
}
