package httpd

import (
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/engine/reads"
)

// limitValues reads the values of a body. A concurrency of 0 is refused: it would read like a limit that
// lets nothing through, and it is none.
func limitValues(concurrency *int, rate *perdure.LimitRate) (v perdure.LimitValues, err error) {
	v.Rate = rate
	if concurrency != nil {
		if v.Concurrency = *concurrency; v.Concurrency == 0 {
			return v, perdure.Unprocessable("concurrency", "is 0: close the limit if nothing is to be granted")
		}
	}
	return v, nil
}

func putLimit(c *call, in *api.PutLimit) (int, *api.Limit, error) {
	key, err := c.idempotencyKey()
	if err != nil {
		return 0, nil, err
	}
	values, err := limitValues(in.Concurrency, in.Rate)
	if err != nil {
		return 0, nil, err
	}
	op := &life.PutLimit{Tenant: c.tenant(), Name: c.PathValue("name"), Values: values, PerKey: in.PerKey,
		Description: in.Description, Key: key}
	if err := c.s.engine.Do(c.Context(), op); err != nil {
		return 0, nil, err
	}
	_, out, err := getLimit(c, nil)
	status := http.StatusOK
	if op.Created {
		status = http.StatusCreated
	}
	return status, out, err
}

func listLimits(c *call, _ *none) (int, *api.Limits, error) {
	page, err := c.listPage()
	if err != nil {
		return 0, nil, err
	}
	list, next, err := c.s.engine.Limits.Page(c.Context(), c.tenant(), page)
	out := &api.Limits{Limits: []api.Limit{}, NextCursor: next}
	for i := range list {
		out.Limits = append(out.Limits, *c.s.showLimit(&list[i]))
	}
	return 0, out, err
}

func getLimit(c *call, _ *none) (int, *api.Limit, error) {
	out, err := c.s.limitWithRuns(c.Context(), c.tenant(), c.PathValue("name"))
	return 0, out, err
}

// limitWithRuns reads a limit, with some of the runs that hold slots and of those that wait.
func (s *Server) limitWithRuns(ctx context.Context, t perdure.TenantID, name string) (*api.Limit, error) {
	l, err := s.engine.Limits.Get(ctx, t, name)
	if err != nil {
		return nil, err
	}
	out := s.showLimit(&l)
	holders, waiters, err := s.engine.Limits.Runs(ctx, t, perdure.LimitRef{Limit: l.Name}, true)
	for i := range holders {
		x := limitedRun(&holders[i], l.Name)
		x.Worker, x.Since = holders[i].Worker, holders[i].GrantedAt
		out.Holders = append(out.Holders, x)
	}
	for i := range waiters {
		x := limitedRun(&waiters[i], l.Name)
		x.Since = waiters[i].Limited.Since
		out.Waiters = append(out.Waiters, x)
	}
	return out, err
}

// limitedRun shows a run at a limit, and the step because of which it is there.
func limitedRun(r *perdure.Run, limit string) api.LimitedRun {
	x := api.LimitedRun{RunID: r.ID, Kind: r.Kind}
	if u := r.Options.Limits; u != nil && slices.Contains(u.Names, limit) {
		x.Key = u.Key
		return x
	}
	for i := range r.Limited.Steps {
		for _, ref := range r.Limited.Steps[i].Refs {
			if ref.Limit == limit {
				x.Step, x.Key = r.Limited.Steps[i].Step, ref.Key
			}
		}
	}
	for i := range r.Wants {
		for _, t := range r.Wants[i].Limits {
			if t.Name == limit && r.AtLimit() {
				x.Step, x.Key = r.Wants[i].Step, t.Key
			}
		}
	}
	return x
}

func deleteLimit(c *call, _ *none) (int, *none, error) {
	key, err := c.idempotencyKey()
	if err != nil {
		return 0, nil, err
	}
	return 0, &none{}, c.s.engine.Do(c.Context(),
		&life.DeleteLimit{Tenant: c.tenant(), Name: c.PathValue("name"), Key: key})
}

func closeLimit(c *call, in *api.CloseLimit) (int, *api.Limit, error) {
	op := &life.CloseLimit{LimitKey: in.Key, For: time.Duration(in.For), Reason: in.Reason}
	if in.Until != nil {
		if op.Until = *in.Until; op.Until == 0 {
			return 0, nil, perdure.Invalid("until", "has passed")
		}
	}
	return setClosed(c, op)
}

func openLimit(c *call, in *api.OpenLimit) (int, *api.Limit, error) {
	return setClosed(c, &life.CloseLimit{LimitKey: in.Key, Open: true})
}

func setClosed(c *call, op *life.CloseLimit) (int, *api.Limit, error) {
	key, err := c.idempotencyKey()
	if err != nil {
		return 0, nil, err
	}
	op.Tenant, op.Name, op.Key = c.tenant(), c.PathValue("name"), key
	if err := c.s.engine.Do(c.Context(), op); err != nil {
		return 0, nil, err
	}
	return getLimit(c, nil)
}

func listLimitKeys(c *call, _ *none) (int, *api.LimitKeys, error) {
	page, err := c.listPage()
	if err != nil {
		return 0, nil, err
	}
	list, next, err := c.s.engine.Limits.Keys(c.Context(), c.tenant(), c.PathValue("name"), page)
	out := &api.LimitKeys{Keys: []api.LimitKey{}, NextCursor: next}
	for i := range list {
		out.Keys = append(out.Keys, *c.s.showLimitKey(&list[i]))
	}
	return 0, out, err
}

func putLimitKey(c *call, in *api.PutLimitKey) (int, *api.LimitKey, error) {
	values, err := limitValues(in.Concurrency, in.Rate)
	if err != nil {
		return 0, nil, err
	}
	if in.Concurrency == nil && in.Rate == nil {
		return 0, nil, perdure.Invalid("concurrency", "give a concurrency, a rate, or both")
	}
	return setLimitKey(c, values)
}

func deleteLimitKey(c *call, _ *none) (int, *api.LimitKey, error) {
	return setLimitKey(c, perdure.LimitValues{})
}

func setLimitKey(c *call, values perdure.LimitValues) (int, *api.LimitKey, error) {
	key, err := c.idempotencyKey()
	if err != nil {
		return 0, nil, err
	}
	op := &life.PutLimitKey{Tenant: c.tenant(), Name: c.PathValue("name"), LimitKey: c.PathValue("key"),
		Values: values, Key: key}
	if err := c.s.engine.Do(c.Context(), op); err != nil {
		return 0, nil, err
	}
	return 0, c.s.showLimitKey(&op.Row), nil
}

// showLimit shows a limit.
func (s *Server) showLimit(l *reads.Limit) *api.Limit {
	values := l.Values()
	out := &api.Limit{Name: l.Name, Description: l.Description, Concurrency: values.Concurrency, Rate: values.Rate,
		PerKey: l.PerKey, Leased: l.Total.Leased, Offered: l.Total.Offered, Waiting: l.Total.Waiting,
		Keys: l.Total.Keys, AtLeast: l.Total.AtLeast, CreatedAt: l.CreatedAt, ChangedAt: l.ChangedAt}
	until, reason := l.ClosedUntil, l.CloseReason
	if l.Key.ClosedUntil > until {
		until, reason = l.Key.ClosedUntil, l.Key.CloseReason
	}
	if until > s.engine.Now() {
		out.ClosedUntil, out.CloseReason = &until, reason
	}
	return out
}

// showLimitKey shows a key of a limit.
func (s *Server) showLimitKey(k *reads.LimitKey) *api.LimitKey {
	values := k.Values()
	out := &api.LimitKey{Key: k.Key, Concurrency: values.Concurrency, Rate: values.Rate, Leased: k.Leased,
		Offered: k.Offered, Waiting: k.Waiting}
	if k.ClosedUntil > s.engine.Now() {
		out.ClosedUntil, out.CloseReason = &k.ClosedUntil, k.CloseReason
	}
	return out
}

// readLimits reads the limits of a tenant, or one of them with its runs.
func readLimits(s *Server, t perdure.TenantID, f *api.WatchFilter, limit int) (listReader, error) {
	return func(ctx context.Context) (any, string, error) {
		out := []api.Limit{}
		if f.Name != "" {
			one, err := s.limitWithRuns(ctx, t, f.Name)
			if perdure.CodeOf(err) == perdure.CodeNotFound {
				return out, "", nil // it may have been deleted meanwhile
			}
			if err == nil {
				out = append(out, *one)
			}
			return out, "", err
		}
		list, next, err := s.engine.Limits.Page(ctx, t, kernel.Page{Limit: limit})
		for i := range list {
			out = append(out, *s.showLimit(&list[i]))
		}
		return out, next, err
	}, nil
}

// readLimitKeys reads the keys of a limit.
func readLimitKeys(s *Server, t perdure.TenantID, f *api.WatchFilter, limit int) (listReader, error) {
	if f.Name == "" {
		return nil, perdure.Invalid("name", "names the limit")
	}
	return func(ctx context.Context) (any, string, error) {
		out := []api.LimitKey{}
		list, next, err := s.engine.Limits.Keys(ctx, t, f.Name, kernel.Page{Limit: limit})
		if perdure.CodeOf(err) == perdure.CodeNotFound {
			return out, "", nil // it may have been deleted meanwhile
		}
		for i := range list {
			out = append(out, *s.showLimitKey(&list[i]))
		}
		return out, next, err
	}, nil
}
