package engine

import (
	"sync"
	"time"

	"github.com/perdure/perdure"
)

// liveRuns holds tenants to their number of live runs. Counting costs as many index rows as the tenant has live
// runs, so a count is used for more than one submission. After a count of n under a limit of m, the next one
// comes when a tenth of the m-n free places is taken, or when none seems to be left. Where other nodes submit as
// well, each submission within the last tenth of the limit is counted for. A limit of many thousands is counted
// only once in a while (see countEvery); a refusal may be as old as that.
type liveRuns struct {
	mu    sync.Mutex
	known map[perdure.TenantID]*counted
}

// counted is what is known of a tenant's live runs.
type counted struct {
	n     int64 // live runs when they were counted
	since int64 // submissions that were let in since then
	at    perdure.Instant
}

const (
	// countEvery is the least time between two counts for each thousand of the limit. It bounds counting to a few
	// percent of the writer's time.
	countEvery = 2 * time.Millisecond
	// maxCounted is how many tenants are remembered.
	maxCounted = 4096
)

// admit lets one more run of a tenant in, or refuses it. Limit zero is none.
func (l *liveRuns) admit(tx *Tx, t perdure.TenantID, limit int64) error {
	if limit <= 0 {
		return nil
	}
	l.mu.Lock()
	c := l.known[t]
	if c != nil && !c.due(limit, tx.Now, tx.e.store.Shared()) {
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

func (c *counted) take(limit int64) error {
	if c.n+c.since >= limit {
		return perdure.Errorf(perdure.CodeQuota, "this tenant may have %d live runs, and has them", limit)
	}
	c.since++
	return nil
}

// forget has a tenant's runs counted anew.
func (l *liveRuns) forget(t perdure.TenantID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.known, t)
}
