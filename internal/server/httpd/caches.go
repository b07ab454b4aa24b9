package httpd

import (
	"context"
	"sync"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/server/webhook"
)

// runTenants caches the tenants of runs that were leased to workers of the platform. A run's tenant
// never changes, and every heartbeat and commit of such a worker needs it. The cache has two
// generations: when the current one is full, it becomes the previous one, which is dropped.
type runTenants struct {
	mu                sync.Mutex
	current, previous map[perdure.RunID]perdure.TenantID
}

const maxRunTenants = 1 << 16

func (o *runTenants) put(id perdure.RunID, t perdure.TenantID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.current == nil || len(o.current) >= maxRunTenants {
		o.current, o.previous = make(map[perdure.RunID]perdure.TenantID), o.current
	}
	o.current[id] = t
}

func (o *runTenants) get(id perdure.RunID) (perdure.TenantID, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	t, ok := o.current[id]
	if !ok {
		t, ok = o.previous[id]
	}
	return t, ok
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

// A urlCache caches URLs that the guard has allowed. Many runs name the same URL, and a slow name
// server must not delay each of them. The cache does not affect security: the guard checks every
// address again when it is dialled.
type urlCache struct {
	mu   sync.Mutex
	good map[string]time.Time // the time until which a URL is cached
}

const (
	goodURLTTL  = time.Minute
	maxGoodURLs = 1000
)

func (a *urlCache) check(ctx context.Context, g *webhook.Guard, url string) error {
	a.mu.Lock()
	until, ok := a.good[url]
	a.mu.Unlock()
	if ok && time.Now().Before(until) {
		return nil
	}
	if err := g.CheckURL(ctx, url); err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.good == nil || len(a.good) >= maxGoodURLs {
		a.good = make(map[string]time.Time)
	}
	a.good[url] = time.Now().Add(goodURLTTL)
	return nil
}
