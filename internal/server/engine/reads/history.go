package reads

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/store"
)

// History counts what happens in each minute.
//
// Operations count into memory once their batch is durable. FlushHistory adds the numbers of
// minutes that are over to the rows of the store, for all tenants in one operation if they are few.
// Several nodes add to the same rows. A node that is killed loses what it has counted since its
// last flush: at most a minute.

const (
	// HistoryKept is how long minutes are kept.
	HistoryKept = 7 * 24 * time.Hour
	// maxMinutes bounds the minutes that wait to be stored. Beyond it, nothing is counted.
	maxMinutes = 10_000
	// flushRows bounds the minutes that one operation adds, and trimRows those that it removes.
	flushRows = 200
	trimRows  = 2_000
)

// DispatchLimits are the upper bounds of the classes of times that runs wait for a worker. The last
// class has no bound.
var DispatchLimits = [store.DispatchBuckets - 1]time.Duration{5 * time.Millisecond, 25 * time.Millisecond,
	100 * time.Millisecond, 500 * time.Millisecond, 2 * time.Second, 10 * time.Second, time.Minute}

// A Minute counts what happened in one minute; see the store's.
type Minute = store.Minute

// A minuteRef is a minute of a tenant.
type minuteRef struct {
	tenant perdure.TenantID
	at     perdure.Instant
}

// historyCounts are the numbers that wait to be stored.
type historyCounts struct {
	mu      sync.Mutex
	minutes map[minuteRef]*Minute
}

// minuteOf gives the beginning of the minute of an instant.
func minuteOf(at perdure.Instant) perdure.Instant {
	return at - at%perdure.Instant(time.Minute/time.Microsecond)
}

// add adds numbers to those of a minute.
func (h *historyCounts) add(m *Minute) {
	h.mu.Lock()
	defer h.mu.Unlock()
	k := minuteRef{m.Tenant, m.At}
	x := h.minutes[k]
	if x == nil {
		if len(h.minutes) >= maxMinutes {
			return
		}
		if h.minutes == nil {
			h.minutes = make(map[minuteRef]*Minute)
		}
		x = &Minute{Tenant: m.Tenant, At: m.At}
		h.minutes[k] = x
	}
	x.Add(m)
}

// take removes and gives the minutes that began before an instant.
func (h *historyCounts) take(before perdure.Instant) (out []Minute) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for k, m := range h.minutes {
		if k.at < before {
			out = append(out, *m)
			delete(h.minutes, k)
		}
	}
	return out
}

// of gives the minutes of a tenant that wait to be stored.
func (h *historyCounts) of(t perdure.TenantID, from perdure.Instant) (out []Minute) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for k, m := range h.minutes {
		if k.at >= from && (t == kernel.AllTenants || k.tenant == t) {
			out = append(out, *m)
		}
	}
	return out
}

var history = kernel.NewPart(func(*kernel.Engine) *historyCounts { return &historyCounts{} })

// countedIn has the numbers of an operation, which are added once the batch is durable.
var countedIn = kernel.NewScratch[[]Minute]()

// countHistory counts what an event has done to a run. It is added when the batch is durable.
func countHistory(tx *kernel.Tx, before, r *perdure.Run, lines []perdure.Line) {
	m := Minute{Tenant: r.Tenant, At: minuteOf(tx.Now)}
	for i := range lines {
		switch lines[i].Type {
		case perdure.LineCreated:
			m.Created++
		case perdure.LineRetrying, perdure.LineReclaimed:
			m.Errors++
		case perdure.LineCompleted:
			m.Completed++
		case perdure.LineFailed:
			m.Failed++
			m.Errors++
		case perdure.LineCancelled:
			m.Cancelled++
		case perdure.LineTimedOut:
			m.TimedOut++
			m.Errors++
		}
	}
	if before.State == perdure.Queued && (r.State == perdure.Dispatched || r.State == perdure.Running) {
		waited := tx.Now.Sub(max(before.ReadyAt, before.CreatedAt))
		m.Dispatched[bucketOf(waited)]++
	}
	if before.State.Live() && r.State.Terminal() && r.FinishedAt > r.DeadlineAt {
		m.Late, m.Lateness = 1, int64(r.FinishedAt-r.DeadlineAt)
	}
	if m != (Minute{Tenant: m.Tenant, At: m.At}) {
		s := countedIn.Of(tx)
		*s = append(*s, m)
	}
}

// bucketOf gives the class of a time.
func bucketOf(d time.Duration) int {
	for i, limit := range DispatchLimits {
		if d <= limit {
			return i
		}
	}
	return len(DispatchLimits)
}

// addHistory adds minutes to those of the store, and removes old ones.
type addHistory struct{ minutes []Minute }

func (*addHistory) Needs() []store.Ref { return nil }

// Do stages the rows.
func (op *addHistory) Do(tx *kernel.Tx) error {
	for _, m := range op.minutes {
		if err := tx.DB.History.Add(m); err != nil {
			return err
		}
	}
	return tx.DB.History.Trim(tx.Now.Add(-HistoryKept), trimRows)
}

// FlushHistory stores what was counted in minutes that are over; with all set, also in this one. It
// does nothing if nothing was counted.
func FlushHistory(ctx context.Context, e *kernel.Engine, all bool) error {
	before := minuteOf(e.Now())
	if all {
		before = perdure.Instant(1<<63 - 1)
	}
	minutes := history.Of(e).take(before)
	for part := range slices.Chunk(minutes, flushRows) {
		if err := e.Do(ctx, &addHistory{part}); err != nil {
			return err // the numbers may have been stored: adding them again would be worse
		}
	}
	return nil
}

// History gives the minutes of a tenant from an instant on, oldest first, with what this node has
// counted and not stored yet. AllTenants adds up the minutes of all tenants.
func (q Tenants) History(ctx context.Context, t perdure.TenantID, from perdure.Instant) (out []Minute, err error) {
	err = q.e.Store().View(ctx, func(v *store.View) error {
		out, err = v.History.Since(t, from, int(HistoryKept/time.Minute)+1)
		return err
	})
	if err != nil {
		return nil, err
	}
	for _, m := range history.Of(q.e).of(t, from) {
		i, found := slices.BinarySearchFunc(out, m.At, func(x Minute, at perdure.Instant) int { return int(x.At - at) })
		if !found {
			out = slices.Insert(out, i, Minute{Tenant: t, At: m.At})
		}
		out[i].Add(&m)
	}
	return out, nil
}
