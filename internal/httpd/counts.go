package httpd

import (
	"sync"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/httpd/feed"
)

// countRuns counts runs. The answer is at most countTTL old.
func countRuns(c *call, _ *none) (int, *api.RunCounts, error) {
	f, err := c.runFilterParams()
	if err != nil {
		return 0, nil, err
	}
	key := countKey{c.tenant(), filterKey(&f)}
	if out := c.s.counts.get(key); out != nil {
		return 0, out, nil
	}
	// Thousands of rows are looked at. Calls that wait for their tenant's turn meanwhile use the same counts.
	end, err := c.turn(largePage)
	if err != nil {
		return 0, nil, err
	}
	defer end()
	if out := c.s.counts.get(key); out != nil {
		return 0, out, nil
	}
	live, err := c.s.engine.Runs.CountLive(c.Context(), c.tenant(), f)
	if err != nil {
		return 0, nil, err
	}
	ended, err := c.s.engine.Runs.CountEnded(c.Context(), c.tenant(), f)
	if err != nil {
		return 0, nil, err
	}
	out := feed.ShowCounts(c.s.engine.Now(), live, ended)
	c.s.counts.put(key, out)
	return 0, out, nil
}

const (
	// countTTL is how long counts are used again, so that many callers cost no more than one.
	countTTL = time.Second
	// maxCounts bounds the counts that are kept.
	maxCounts = 256
)

type countKey struct {
	tenant perdure.TenantID
	filter string
}

// A countCache keeps counts for a short time.
type countCache struct {
	mu   sync.Mutex
	kept map[countKey]keptCount
}

type keptCount struct {
	counts *api.RunCounts
	until  time.Time
}

// get returns counts that are fresh, or nil.
func (k *countCache) get(key countKey) *api.RunCounts {
	k.mu.Lock()
	defer k.mu.Unlock()
	if x, ok := k.kept[key]; ok && time.Now().Before(x.until) {
		return x.counts
	}
	return nil
}

// put keeps counts. When there are too many, all others are dropped.
func (k *countCache) put(key countKey, counts *api.RunCounts) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.kept == nil || len(k.kept) >= maxCounts {
		k.kept = make(map[countKey]keptCount)
	}
	k.kept[key] = keptCount{counts, time.Now().Add(countTTL)}
}
