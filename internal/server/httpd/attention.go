package httpd

import (
	"context"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/server/engine/reads"
)

// attention answers with what may need a person.
func attention(c *call, _ *none) (int, *api.Attention, error) {
	a, err := c.s.engine.Runs.Attention(c.Context(), c.tenant())
	if err != nil {
		return 0, nil, err
	}
	return 0, c.s.showAttention(&a), nil
}

// kindStats answers with how the newest runs of a kind went.
func kindStats(c *call, _ *none) (int, *api.KindStats, error) {
	kind := c.PathValue("kind")
	if err := perdure.CheckName("kind", kind); err != nil {
		return 0, nil, err
	}
	s, err := c.s.engine.Kinds.Stats(c.Context(), c.tenant(), kind)
	if err != nil {
		return 0, nil, err
	}
	return 0, c.s.showStats(&s), nil
}

func readAttention(s *Server, t perdure.TenantID, _ *api.WatchFilter, _ int) (listReader, error) {
	return func(ctx context.Context) (any, string, error) {
		a, err := s.engine.Runs.Attention(ctx, t)
		return []*api.Attention{s.showAttention(&a)}, "", err
	}, nil
}

func readStats(s *Server, t perdure.TenantID, f *api.WatchFilter, _ int) (listReader, error) {
	if err := perdure.CheckName("kind", f.Kind); err != nil {
		return nil, err
	}
	return func(ctx context.Context) (any, string, error) {
		stats, err := s.engine.Kinds.Stats(ctx, t, f.Kind)
		return []*api.KindStats{s.showStats(&stats)}, "", err
	}, nil
}

func showCount(c reads.Count) api.AttentionCount {
	return api.AttentionCount{Count: c.N, AtLeast: c.More}
}

func (s *Server) showAttention(a *reads.Attention) *api.Attention {
	out := &api.Attention{Since: a.Since, Approvals: showCount(a.Approvals), Failed: showCount(a.Failed),
		Held: showCount(a.Held), Ending: showCount(a.Ending), EndingCreated: a.EndingCreated, EndingAt: a.EndingAt,
		Causes: s.showCauses(a.Causes), Silent: showCount(a.Silent), SilentBefore: a.SilentBefore,
		Unserved: []api.UnservedRuns{}}
	for _, u := range a.Unserved {
		out.Unserved = append(out.Unserved, api.UnservedRuns{Queue: u.Queue, Kind: u.Kind, Count: u.N, AtLeast: u.More,
			LastPolledAt: optional(u.LastPolledAt)})
	}
	return out
}

func (s *Server) showStats(k *reads.KindStats) *api.KindStats {
	return &api.KindStats{Kind: k.Kind, Runs: k.N, AtLeast: k.More, Since: optional(k.Since), Status: k.Status,
		LastHour: k.LastHour, P50MS: k.P50.Milliseconds(), P95MS: k.P95.Milliseconds(), Causes: s.showCauses(k.Causes)}
}

// showCauses shows causes as the API shows their newest run.
func (s *Server) showCauses(list []reads.Cause) []api.FailureCause {
	out := []api.FailureCause{}
	for i := range list {
		c := &list[i]
		x := api.FailureCause{Code: c.Code, Count: c.N, Kinds: c.Kinds, RunID: c.Newest.ID}
		if r := s.showRow(&c.Newest, s.engine.Now()); r.Error != nil {
			x.Message = r.Error.Message
		}
		out = append(out, x)
	}
	return out
}
