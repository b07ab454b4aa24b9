package httpd

import (
	"context"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/server/engine/reads"
)

const (
	// historySpan is the span of a history without since, and maxPoints bounds its steps.
	historySpan = time.Hour
	maxPoints   = 1500
)

// history answers with what happened to the tenant's runs.
func history(c *call, _ *none) (int, *api.History, error) {
	q := c.URL.Query()
	read, err := c.s.historyReader(c.tenant(), q.Get("since"), q.Get("step"))
	if err != nil {
		return 0, nil, err
	}
	out, err := read(c.Context())
	return 0, out, err
}

// historyReader checks the parameters of a history, and returns a function that reads it. since is
// a time, or how long ago. Without a step it is a minute, or more if these would be too many.
func (s *Server) historyReader(
	t perdure.TenantID, since, step string,
) (func(context.Context) (*api.History, error), error) {
	span, from := historySpan, perdure.Instant(0)
	if since != "" {
		if d, err := time.ParseDuration(since); err == nil {
			span = d
		} else if at, err := time.Parse(time.RFC3339, since); err == nil {
			from = perdure.At(at)
			span = s.engine.Now().Sub(from)
		} else {
			return nil, perdure.Invalid("since", "takes a time such as 2026-01-31T12:00:00Z, or a duration such as 6h")
		}
	}
	if span < 0 || span > reads.HistoryKept+time.Hour {
		return nil, perdure.Invalid("since", "lies within the last %s", reads.HistoryKept)
	}
	every := time.Minute
	for every*maxPoints < span {
		every += time.Minute
	}
	if step != "" {
		d, err := time.ParseDuration(step)
		if err != nil || d < every || d > 24*time.Hour || d%time.Minute != 0 {
			return nil, perdure.Invalid("step", "takes whole minutes, from %s to 24h0m0s for this span", every)
		}
		every = d
	}
	return func(ctx context.Context) (*api.History, error) {
		from := from
		if from == 0 {
			from = s.engine.Now().Add(-span)
		}
		from -= from % perdure.Instant(every.Microseconds())
		minutes, err := s.engine.Tenants.History(ctx, t, from)
		if err != nil {
			return nil, err
		}
		return showHistory(minutes, from, every), nil
	}, nil
}

// showHistory adds minutes up to steps.
func showHistory(minutes []reads.Minute, from perdure.Instant, step time.Duration) *api.History {
	out := &api.History{Since: from, StepSeconds: int64(step / time.Second), Points: []api.HistoryPoint{}}
	length := perdure.Instant(step.Microseconds())
	for i := 0; i < len(minutes); {
		sum := reads.Minute{At: minutes[i].At - minutes[i].At%length}
		for ; i < len(minutes) && minutes[i].At < sum.At+length; i++ {
			sum.Add(&minutes[i])
		}
		p := api.HistoryPoint{At: sum.At, Created: sum.Created, Completed: sum.Completed, Failed: sum.Failed,
			Cancelled: sum.Cancelled, TimedOut: sum.TimedOut, Errors: sum.Errors, Late: sum.Late,
			LatenessMS: sum.Lateness / 1000}
		for _, n := range sum.Dispatched {
			p.Dispatched += n
		}
		p.DispatchP50MS = dispatchQuantile(&sum, p.Dispatched, 50)
		p.DispatchP99MS = dispatchQuantile(&sum, p.Dispatched, 99)
		out.Points = append(out.Points, p)
	}
	return out
}

// dispatchQuantile returns the upper bound, in milliseconds, of the class in which so many of a
// hundred runs have got a worker.
func dispatchQuantile(m *reads.Minute, total, percent int64) int64 {
	n := int64(0)
	for i, limit := range reads.DispatchLimits {
		if n += m.Dispatched[i]; n*100 >= total*percent {
			if total == 0 {
				return 0
			}
			return limit.Milliseconds()
		}
	}
	return reads.DispatchLimits[len(reads.DispatchLimits)-1].Milliseconds()
}
