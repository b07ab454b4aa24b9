package httpd

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/server/httpd/stream"
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
	if err := c.s.engine.Health.Writable(); err != nil { // known from earlier writes
		return no("not ready", err.Error())
	}
	tables := c.s.lockedTables()
	if err := c.s.storeProbe.check(); err != nil {
		return no("not ready", cmp.Or(tables, err.Error()))
	}
	if c.s.engine.Health.Full() { // the node stays ready, so that runs under way can end
		detail := "the disk is full: runs under way can end, new work is not taken"
		return 0, &api.Health{Status: "full", Detail: detail}, nil
	}
	out := &api.Health{Status: "ready", Detail: tables}
	if ahead := c.s.engine.Health.ClockAhead(); ahead > 0 {
		out.Detail = "the store's clock is ahead of this machine's by " + ahead.Round(time.Second).String()
	}
	return 0, out, nil
}

// lockedTables names the tables that are locked as a whole. It is empty if there are none. Anybody may
// ask for readiness, so that it does not say by whom.
func (s *Server) lockedTables() string {
	var names []string
	for _, t := range s.engine.Health.LockedTables() {
		names = append(names, t.Table)
	}
	if len(names) == 0 {
		return ""
	}
	slices.Sort(names)
	return "another session holds whole tables of the database locked: " +
		strings.Join(slices.Compact(names), ", ") + " (perdure doctor says which session)"
}

const (
	// probeTTL is how long the result of a try is used.
	probeTTL = time.Second
	// probeWait bounds how long a check waits for a try.
	probeWait = time.Second
	// slowTolerance is how long the last result is used while a try is under way. A slow store is
	// thus not taken for an unusable one at once.
	slowTolerance = 5 * time.Second
)

// A probe tries the operations of the store that every call needs: a read, a decision and a write.
// A database that accepts connections may still refuse any of them, for example because a table is
// missing, it is read-only or its disk is full. All checks at one time share a try.
type probe struct {
	try func() error

	mu sync.Mutex
	// err is the result of the last try, and at is when it ended.
	err error
	at  time.Time
	// going is closed when the try under way has ended. It is nil if none is.
	going chan struct{}
}

var errNoReply = errors.New("the store does not answer")

// check returns the result of a try that is not older than probeTTL, or errNoReply if the store
// takes too long.
func (p *probe) check() error {
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

// run makes a try and stores its result.
func (p *probe) run(done chan struct{}) {
	err := p.try()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.err, p.at, p.going = err, time.Now(), nil
	close(done)
}

// tryStore is the try of the server's probe. An error is logged and its text is not shown, except
// that the store takes no writes.
func (s *Server) tryStore() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	err := s.engine.Health.Try(ctx)
	if no := s.engine.Health.Writable(); no != nil {
		return no // the engine logs it when it begins and when it ends
	}
	if err != nil {
		s.log.Warn("the store can't be used", "error", err)
		return errors.New("the store can't be used: see the server's log")
	}
	return nil
}
