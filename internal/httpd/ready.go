package httpd

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/httpd/stream"
)

func healthz(*call, *none) (int, *api.Health, error) { return 0, &api.Health{Status: "ok"}, nil }

func readyz(c *call, _ *none) (int, *api.Health, error) {
	no := func(status, detail string) (int, *api.Health, error) {
		return http.StatusServiceUnavailable, &api.Health{Status: status, Detail: detail}, nil
	}
	if err := c.s.engine.Health.Failed(); err != nil {
		return no("failed", "the store takes no writes: it failed, and only a restart finds out what is stored")
	}
	if stream.Closed(c.s.closing) {
		return no("shutting down", "")
	}
	if err := c.s.engine.Health.Away(); err != nil {
		return no("not ready", err.Error())
	}
	if c.s.opt.Ready != nil {
		if err := c.s.opt.Ready(); err != nil {
			return no("not ready", err.Error())
		}
	}
	if err := c.s.engine.Health.Writable(); err != nil { // known without a try
		return no("not ready", err.Error())
	}
	if err := c.s.storeProbe.look(); err != nil {
		return no("not ready", err.Error())
	}
	if c.s.engine.Health.Full() { // runs under way need it: it should get traffic
		return 0, &api.Health{Status: "full", Detail: "the disk is full: runs under way can end, new work is not taken"}, nil
	}
	out := &api.Health{Status: "ready"}
	if ahead := c.s.engine.Health.ClockAhead(); ahead > 0 {
		out.Detail = "the store's clock is ahead of this machine's by " + ahead.Round(time.Second).String()
	}
	return 0, out, nil
}

// How the store is tried: not more often than once in probeTTL, and nobody waits longer than probeWait to hear of it. A store
// that is slow is believed to work for a while, since it is slow for its calls as well.
const (
	probeTTL      = time.Second
	probeWait     = time.Second
	slowTolerance = 5 * time.Second
)

// A probe tries what every call needs of the store: a read, a decision and a write. A database can be there and refuse any of
// them: its role may have no connection left, its tables may be gone, it may be read-only or its disk full.
type probe struct {
	try func() error

	mu    sync.Mutex
	err   error         // of the last try
	at    time.Time     // when it ended
	going chan struct{} // closed when the try under way has ended; nil: none is
}

var errNoReply = errors.New("the store does not answer")

func (p *probe) look() error {
	p.mu.Lock()
	if p.going == nil && time.Since(p.at) < probeTTL {
		defer p.mu.Unlock()
		return p.err
	}
	if p.going == nil {
		p.going = make(chan struct{})
		go p.run(p.going)
	}
	done := p.going
	p.mu.Unlock()
	t := time.NewTimer(probeWait)
	defer t.Stop()
	select {
	case <-done:
	case <-t.C:
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.going == done && time.Since(p.at) > slowTolerance {
		return errNoReply
	}
	return p.err
}

func (p *probe) run(done chan struct{}) {
	err := p.try()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.err, p.at, p.going = err, time.Now(), nil
	close(done)
}

// tryStore is what a probe tries. An error is logged and not told, unless it is that the store takes no writes.
func (s *Server) tryStore() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	err := s.engine.Health.Try(ctx)
	if no := s.engine.Health.Writable(); no != nil {
		return no // it is logged when it begins and when it ends
	}
	if err != nil {
		s.log.Warn("the store can't be used", "error", err)
		return errors.New("the store can't be used: see the server's log")
	}
	return nil
}
