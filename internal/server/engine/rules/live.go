package rules

import (
	"cmp"
	"sync"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/store"
)

// liveRuns enforces the limit of live runs of a tenant. Counting reads as many index rows as the
// tenant has live runs, so a count is used for several submissions.
//
// A count of n under a limit of m leaves m-n free places. The next count comes when a tenth of
// these is taken, or when none seems to be left. If other nodes submit as well, each submission
// within the last tenth of the limit is counted.
//
// With a limit of many thousands, counts have a minimum interval (see countEvery). A refusal may be
// as old as that.
type liveRuns struct {
	mu    sync.Mutex
	known map[perdure.TenantID]*counted
}

var liveCounts = kernel.NewPart(func(*kernel.Engine) *liveRuns { return &liveRuns{} })

// counted is the last count of a tenant's live runs.
type counted struct {
	// n is the number of live runs at the count.
	n int64
	// since is the number of submissions that were admitted after the count.
	since int64
	at    perdure.Instant
}

const (
	// countEvery is the minimum time between two counts, for each thousand of the limit. It bounds
	// counting to a few percent of the writer's time.
	countEvery = 2 * time.Millisecond
	// maxCounted bounds the tenants in the cache.
	maxCounted = 4096
)

// Admit admits one more live run of a tenant, or refuses it. Its row is empty if it is new.
func Admit(tx *kernel.Tx, row *store.TenantRow, t perdure.TenantID) error {
	limit := cmp.Or(row.Limits.MaxLiveRuns, options.Of(tx.Engine).MaxLiveRuns)
	return liveCounts.Of(tx.Engine).admit(tx, t, limit)
}

// admit admits one more live run of a tenant, or refuses it. A limit of zero is none.
func (l *liveRuns) admit(tx *kernel.Tx, t perdure.TenantID, limit int64) error {
	if limit <= 0 {
		return nil
	}
	l.mu.Lock()
	c := l.known[t]
	if c != nil && !c.due(limit, tx.Now, tx.Engine.Store().Shared()) {
		err := c.take(limit)
		l.mu.Unlock()
		return err
	}
	l.mu.Unlock()
	n, err := tx.DB.Runs.CountLive(t, int(limit)+1)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	c = &counted{n: int64(n), at: tx.Now}
	if len(l.known) >= maxCounted || l.known == nil {
		l.known = make(map[perdure.TenantID]*counted)
	}
	l.known[t] = c
	return c.take(limit)
}

// due tells whether the runs have to be counted again.
func (c *counted) due(limit int64, now perdure.Instant, shared bool) bool {
	if now.Sub(c.at) < time.Duration(limit/1000)*countEvery {
		return false
	}
	free := limit - c.n - c.since
	return free <= 0 || c.since*10 >= limit-c.n || shared && free*10 <= limit
}

// take admits one run within the limit, or refuses it.
func (c *counted) take(limit int64) error {
	if c.n+c.since >= limit {
		return perdure.Errorf(perdure.CodeQuota, "this tenant may have %d live runs, and has them", limit)
	}
	c.since++
	return nil
}

// forget drops a tenant's count.
func (l *liveRuns) forget(t perdure.TenantID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.known, t)
}
