package reads

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/dispatch"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/store"
)

// Attention: what may need a person.
//
// Each count is that of a list, read with the filter of the list, so that the numbers agree. A count
// ends at a bound and then says that there is more.

const (
	// attentionRuns bounds the runs of a count, attentionRows those that are looked at for it, and
	// attentionBytes their size.
	attentionRuns  = 1000
	attentionRows  = 5000
	attentionBytes = 4 << 20
	// attentionLive bounds the live runs among which those are counted that nobody polls for.
	attentionLive = 20_000
	// attentionPlaces bounds the queues and kinds that nobody polls for, causesMost the causes and
	// kindsMost the kinds of a cause.
	attentionPlaces = 20
	causesMost      = 20
	kindsMost       = 4
	// statRuns bounds the runs that a kind's figures are made of.
	statRuns = 500

	// failedFor is how long a failure counts. It begins at a whole minute, so that the answer changes
	// only with what it counts, and once a minute.
	failedFor = time.Hour
	// A run is near its deadline if less than endingIn is left and it is older than endingAfter: most
	// runs end before, and those that are meant to be short do not count.
	endingIn    = 5 * time.Minute
	endingAfter = 30 * time.Minute
)

// A Count is the number of entries of a list. More tells that there are more.
type Count struct {
	N    int
	More bool
}

// A Cause counts runs that ended with the same code, with the newest of them.
type Cause struct {
	Code   perdure.Code
	N      int
	Kinds  []string
	Newest perdure.Run
}

// UnservedRuns counts the queued runs of a queue and kind that no worker polls for.
type UnservedRuns struct {
	Queue, Kind string
	Count
	LastPolledAt perdure.Instant
}

// Attention says what may need a person.
type Attention struct {
	Since                   perdure.Instant
	Approvals, Failed, Held Count
	Causes                  []Cause
	Unserved                []UnservedRuns
	Ending, Silent          Count
	EndingCreated, EndingAt perdure.Instant
	SilentBefore            perdure.Instant
}

// Attention looks for what may need a person in a tenant.
func (q Runs) Attention(ctx context.Context, t perdure.TenantID) (a Attention, err error) {
	err = q.e.Store().View(ctx, func(v *store.View) error {
		minute := minuteOf(v.Now)
		a = Attention{Since: minute.Add(-failedFor), EndingCreated: minute.Add(-endingAfter),
			EndingAt: minute.Add(endingIn), SilentBefore: minute.Add(-q.e.Policy().StaleAfter)}
		open, more, err := v.Approvals.List(t, ApprovalFilter{State: perdure.ApprovalOpen, Limit: attentionRuns,
			Bytes: attentionBytes})
		if err != nil {
			return err
		}
		a.Approvals = Count{len(open), more}
		failed, err := v.Runs.Page(t, bounded(RunFilter{FinishedAfter: a.Since,
			Status: []string{string(perdure.Failed), string(perdure.TimedOut)}}))
		if err != nil {
			return err
		}
		a.Failed, a.Causes = countOf(&failed), causesOf(failed.Runs)
		held, err := v.Runs.Page(t, bounded(RunFilter{Held: true, Heads: true}))
		if err != nil {
			return err
		}
		a.Held = countOf(&held)
		ending, err := v.Runs.Page(t, bounded(RunFilter{DeadlineBefore: a.EndingAt, Heads: true,
			Before: perdure.RunID(perdure.FirstID(a.EndingCreated))}))
		if err != nil {
			return err
		}
		silent, err := v.Runs.Page(t, bounded(RunFilter{Class: perdure.Process, SeenBefore: a.SilentBefore,
			Heads: true}))
		if err != nil {
			return err
		}
		a.Ending, a.Silent = countOf(&ending), countOf(&silent)
		a.Unserved, err = unserved(q.e, v, t)
		return err
	})
	return a, err
}

// bounded gives a filter the bounds of a count.
func bounded(f RunFilter) RunFilter {
	f.Limit, f.Rows, f.Bytes = attentionRuns, attentionRows, attentionBytes
	return f
}

func countOf(p *store.RunPage) Count { return Count{len(p.Runs), p.Next != ""} }

// causesOf counts failed runs by their code, the most frequent first. runs are the newest first.
func causesOf(runs []perdure.Run) (out []Cause) {
	for i := range runs {
		r := &runs[i]
		code := perdure.Code(r.State)
		if r.Failure != nil {
			code = r.Failure.Code
		}
		at := slices.IndexFunc(out, func(c Cause) bool { return c.Code == code })
		if at < 0 {
			at, out = len(out), append(out, Cause{Code: code, Newest: *r})
		}
		c := &out[at]
		if c.N++; len(c.Kinds) < kindsMost && !slices.Contains(c.Kinds, r.Kind) {
			c.Kinds = append(c.Kinds, r.Kind)
		}
	}
	slices.SortStableFunc(out, func(a, b Cause) int { return cmp.Compare(b.N, a.N) })
	return out[:min(causesMost, len(out))]
}

// unserved counts the queued runs that no worker polls for, by queue and kind.
func unserved(e *kernel.Engine, v *store.View, t perdure.TenantID) (out []UnservedRuns, err error) {
	queued, more, err := v.TallyLive(t, RunFilter{State: []perdure.State{perdure.Queued}}, attentionLive)
	if err != nil || len(queued) == 0 {
		return nil, err
	}
	workers, err := dispatch.ServingNow(&v.Records, e.Policy(), t, v.Now)
	if err != nil {
		return nil, err
	}
	for _, c := range queued {
		at := slices.IndexFunc(out, func(u UnservedRuns) bool { return u.Queue == c.Queue && u.Kind == c.Kind })
		if at >= 0 { // deferred ones are counted apart
			out[at].N += c.N
			continue
		}
		// The runner of a process polls for it by itself.
		none := workers.Unserved(&perdure.Run{Queue: c.Queue, Kind: c.Kind})
		if none == nil || c.Queue == perdure.LocalQueue || len(out) == attentionPlaces {
			continue
		}
		out = append(out, UnservedRuns{c.Queue, c.Kind, Count{c.N, more}, none.LastPolledAt})
	}
	slices.SortStableFunc(out, func(a, b UnservedRuns) int { return cmp.Compare(b.N, a.N) })
	return out, nil
}

// KindStats says how the newest runs of a kind went.
type KindStats struct {
	Kind string
	Count
	Since    perdure.Instant
	Status   map[string]int
	LastHour int
	P50, P95 time.Duration
	Causes   []Cause
}

// Stats makes the figures of a kind from its newest runs. A kind that is not in the registry has some too.
func (q Kinds) Stats(ctx context.Context, t perdure.TenantID, kind string) (s KindStats, err error) {
	err = q.e.Store().View(ctx, func(v *store.View) error {
		p, err := v.Runs.Page(t, RunFilter{Kind: kind, Limit: statRuns, Bytes: attentionBytes})
		if err != nil {
			return err
		}
		s = KindStats{Kind: kind, Count: countOf(&p), Status: make(map[string]int)}
		hour := minuteOf(v.Now).Add(-time.Hour)
		var took []time.Duration
		var failed []perdure.Run
		for i := range p.Runs {
			r := &p.Runs[i]
			s.Since = r.CreatedAt
			s.Status[r.Status()]++
			if r.CreatedAt >= hour {
				s.LastHour++
			}
			switch r.State {
			case perdure.Completed:
				took = append(took, r.FinishedAt.Sub(cmp.Or(r.StartedAt, r.CreatedAt)))
			case perdure.Failed, perdure.TimedOut:
				failed = append(failed, *r)
			}
		}
		slices.Sort(took)
		if n := len(took); n > 0 {
			s.P50, s.P95 = took[(n-1)*50/100], took[(n-1)*95/100]
		}
		s.Causes = causesOf(failed)
		return nil
	})
	return s, err
}
