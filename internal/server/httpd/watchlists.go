package httpd

import (
	"cmp"
	"context"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/reads"
	"github.com/perdure/perdure/internal/server/httpd/feed"
)

// Lists that a socket can watch beside those of runs. Each is read as its call of the API reads it,
// and sent whole when it has changed. Some of them change without a ring, so they are also read at
// an interval while somebody watches them.

const (
	// listEvery is the least time between two looks at a list, and listFallback the interval without
	// a ring.
	listEvery    = time.Second
	listFallback = 5 * time.Second
	// figuresEvery is that for figures that are made of many runs.
	figuresEvery = 2 * time.Second
	// attentionFallback is the interval for what needs a person: a worker that polls no more rings no bell.
	attentionFallback = time.Second
	// sendFallback is the interval for webhooks and deliveries: an attempt to send rings no bell.
	sendFallback = 2 * time.Second
	// waitingFallback is that for why a run waits: a pause, or a worker that comes, rings no bell of a
	// run.
	waitingFallback = 2 * time.Second
	// maxListed bounds the entries of a list that is watched.
	maxListed = 200
)

// A watchedList is a kind of list that a socket can watch.
type watchedList struct {
	// fields are those of the filter.
	fields []string
	scope  perdure.Scope
	// platform is set if the list takes a key of the platform, and shows all tenants.
	platform bool
	// anyTenant is set if the list can be shown over all tenants.
	anyTenant bool
	// every is the least time between two looks, if it is not listEvery.
	every time.Duration
	// fallback is the interval without a ring, if it is not listFallback.
	fallback time.Duration
	// read checks the filter, and returns a function that reads the list.
	read func(s *Server, t perdure.TenantID, f *api.WatchFilter, limit int) (listReader, error)
}

// A listReader reads the entries of a list, and the cursor of the next page.
type listReader func(context.Context) (items any, next string, err error)

var watchedLists = map[string]watchedList{
	api.WatchHistory: {scope: perdure.ScopeRead, anyTenant: true, fields: []string{"since", "step"},
		read: readHistory},
	api.WatchWorkers:     {scope: perdure.ScopeRead, read: readWorkers},
	api.WatchQueues:      {scope: perdure.ScopeRead, read: readQueues},
	api.WatchApprovals:   {scope: perdure.ScopeRead, fields: []string{"state", "run_id"}, read: readApprovals},
	api.WatchDeadLetters: {scope: perdure.ScopeRead, fields: []string{"cause", "kind", "queue"}, read: readLetters},
	api.WatchWebhooks:    {scope: perdure.ScopeWebhooks, fallback: sendFallback, read: readWebhooks},
	api.WatchDeliveries: {scope: perdure.ScopeWebhooks, fallback: sendFallback, fields: []string{"webhook_id", "state"},
		read: readDeliveries},
	api.WatchWatchdog: {scope: perdure.ScopePlatformRead, platform: true, fields: []string{"rule", "run_id", "tenant"},
		read: readWatchdog},
	api.WatchAttention: {scope: perdure.ScopeRead, fallback: attentionFallback, read: readAttention},
	api.WatchKindStats: {scope: perdure.ScopeRead, every: figuresEvery, fields: []string{"kind"}, read: readStats},
	api.WatchWaiting: {scope: perdure.ScopeRead, fallback: waitingFallback, fields: []string{"run_id"},
		read: readWaiting},
	api.WatchJournal:   {scope: perdure.ScopeRead, fields: []string{"run_id"}, read: readSteps},
	api.WatchSchedules: {scope: perdure.ScopeRead, fallback: listEvery, read: readSchedules},
	api.WatchLimits:    {scope: perdure.ScopeRead, fallback: listEvery, fields: []string{"name"}, read: readLimits},
	api.WatchLimitKeys: {scope: perdure.ScopeRead, fallback: listEvery, fields: []string{"name"}, read: readLimitKeys},
	api.WatchKinds:     {scope: perdure.ScopeRead, read: readKinds},
	api.WatchThreads: {scope: perdure.ScopeRead, fallback: listEvery, fields: []string{"children"},
		read: readThreads},
	api.WatchGroups: {scope: perdure.ScopeRead, fallback: listEvery, fields: []string{"group_id", "state"},
		read: readGroups},
}

// watchList is the question of a list.
func (w *socket) watchList(t perdure.TenantID, m *api.Watch) (q feed.Question, err error) {
	l := watchedLists[m.Of]
	switch {
	case l.platform && !w.key.Platform:
		return q, perdure.Errorf(api.CodeForbidden, "this takes a key of the platform")
	case !w.key.Allows(l.scope):
		return q, perdure.Errorf(api.CodeForbidden, "the key lacks the scope %s", l.scope)
	case l.platform:
		t = kernel.AllTenants
	case t == kernel.AllTenants && !l.anyTenant:
		return q, perdure.Invalid("tenant", "name one: %s are not shown over all tenants", m.Of)
	}
	limit, err := limitOf(m.Limit, maxListed)
	if err != nil {
		return q, err
	}
	read, err := l.read(w.s, t, &m.Filter, limit)
	if err != nil {
		return q, within("filter", err)
	}
	return feed.Question{Tenant: t, Key: keyOf(m.Of, m.Filter, limit), Every: cmp.Or(l.every, listEvery),
		Fallback: cmp.Or(l.fallback, listFallback), New: func() feed.Looker {
			return &feed.List{Kind: api.SocketList, Read: func(ctx context.Context) (any, error) {
				items, next, err := read(ctx)
				return &api.SocketItems{Of: m.Of, Items: items, NextCursor: next}, err
			}}
		}}, nil
}

func readWorkers(s *Server, t perdure.TenantID, _ *api.WatchFilter, limit int) (listReader, error) {
	return func(ctx context.Context) (any, string, error) {
		list, next, err := s.engine.Workers(ctx, t, kernel.Page{Limit: limit})
		return append([]perdure.Worker{}, list...), next, err
	}, nil
}

func readQueues(s *Server, t perdure.TenantID, _ *api.WatchFilter, limit int) (listReader, error) {
	return func(ctx context.Context) (any, string, error) {
		list, next, err := s.engine.Queues(ctx, t, kernel.Page{Limit: limit})
		out := showQueues(list)
		for i := range out {
			// The age grows all the time. A second more is no reason to send the list.
			out[i].OldestClaimable -= out[i].OldestClaimable % (10 * time.Second).Milliseconds()
		}
		return out, next, err
	}, nil
}

func readApprovals(s *Server, t perdure.TenantID, f *api.WatchFilter, limit int) (listReader, error) {
	filter := reads.ApprovalFilter{State: perdure.ApprovalOpen, RunID: f.RunID, Limit: limit, Bytes: feed.LookBytes}
	switch len(f.State) {
	case 0:
	case 1:
		if filter.State = perdure.ApprovalState(f.State[0]); filter.State == perdure.ApprovalAll {
			filter.State = ""
		}
	default:
		return nil, perdure.Invalid("state", "takes one state, or all")
	}
	return func(ctx context.Context) (any, string, error) {
		list, next, err := s.engine.Runs.Approvals(ctx, t, filter)
		return append([]perdure.Approval{}, list...), string(next), err
	}, nil
}

func readLetters(s *Server, t perdure.TenantID, f *api.WatchFilter, limit int) (listReader, error) {
	filter := reads.LetterFilter{Cause: f.Cause, Kind: f.Kind, Queue: f.Queue, Limit: limit}
	return func(ctx context.Context) (any, string, error) {
		list, next, err := s.engine.DeadLetters.Page(ctx, t, filter)
		return append([]perdure.DeadLetter{}, list...), string(next), err
	}, checkLetters(f.Cause, f.Kind, f.Queue)
}

func readWebhooks(s *Server, t perdure.TenantID, _ *api.WatchFilter, limit int) (listReader, error) {
	return func(ctx context.Context) (any, string, error) {
		list, next, err := s.engine.Webhooks.Page(ctx, t, kernel.Page{Limit: limit})
		return showWebhooks(list), next, err
	}, nil
}

func readSchedules(s *Server, t perdure.TenantID, _ *api.WatchFilter, limit int) (listReader, error) {
	return func(ctx context.Context) (any, string, error) {
		list, next, err := s.engine.Schedules.Page(ctx, t, kernel.Page{Limit: limit})
		if err != nil {
			return nil, "", err
		}
		out, err := showSchedules(list)
		return out, next, err
	}, nil
}

func readKinds(s *Server, t perdure.TenantID, _ *api.WatchFilter, limit int) (listReader, error) {
	return func(ctx context.Context) (any, string, error) {
		list, next, err := s.engine.Kinds.Page(ctx, t, kernel.Page{Limit: limit})
		out := make([]api.Kind, 0, len(list))
		for i := range list {
			k := showKind(&list[i])
			k.LastPolledAt = nil // a poll is no reason to send the list
			out = append(out, *k)
		}
		return out, next, err
	}, nil
}

func readThreads(s *Server, t perdure.TenantID, f *api.WatchFilter, limit int) (listReader, error) {
	if f.Children != "" && f.Children != "true" && f.Children != "false" {
		return nil, perdure.Invalid("children", "takes true or false")
	}
	return func(ctx context.Context) (any, string, error) {
		list, next, err := s.engine.Threads.Page(ctx, t, kernel.Page{Limit: limit},
			reads.ThreadFilter{WithoutChildren: f.Children == "false"})
		out := make([]api.ListedThread, 0, len(list))
		for i := range list {
			out = append(out, listedThread(&list[i]))
		}
		return out, next, err
	}, nil
}

func readGroups(s *Server, t perdure.TenantID, f *api.WatchFilter, limit int) (listReader, error) {
	filter := reads.GroupFilter{Limit: limit}
	if len(f.State) > 1 {
		return nil, perdure.Invalid("state", "takes one state")
	}
	for _, state := range f.State {
		filter.State = perdure.GatheringState(state)
	}
	if err := checkGroupState(filter.State); err != nil {
		return nil, err
	}
	if f.GroupID != "" {
		return func(ctx context.Context) (any, string, error) {
			g, err := s.engine.Runs.GroupHead(ctx, t, f.GroupID)
			if perdure.CodeOf(err) == perdure.CodeNotFound {
				return []api.ListedGroup{}, "", nil // it may have been removed meanwhile
			}
			return listedGroups([]perdure.Gathering{g}), "", err
		}, nil
	}
	return func(ctx context.Context) (any, string, error) {
		p, err := s.engine.Runs.Groups(ctx, t, filter)
		return listedGroups(p.Groups), string(p.Next), err
	}, nil
}

func readDeliveries(s *Server, t perdure.TenantID, f *api.WatchFilter, limit int) (listReader, error) {
	if f.WebhookID == "" {
		return nil, perdure.Invalid("webhook_id", "names the webhook")
	}
	if len(f.State) > 1 {
		return nil, perdure.Invalid("state", "takes one state")
	}
	state := ""
	if len(f.State) == 1 {
		state = f.State[0]
	}
	return func(ctx context.Context) (any, string, error) {
		list, err := s.engine.Webhooks.Deliveries(ctx, t, f.WebhookID, state, "", limit)
		out, next := showDeliveries(list, limit)
		return out, next, err
	}, nil
}

func readHistory(s *Server, t perdure.TenantID, f *api.WatchFilter, _ int) (listReader, error) {
	read, err := s.historyReader(t, f.Since, f.Step)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) (any, string, error) {
		out, err := read(ctx)
		if err != nil {
			return nil, "", err
		}
		return out.Points, "", nil
	}, nil
}

func readWatchdog(s *Server, _ perdure.TenantID, f *api.WatchFilter, limit int) (listReader, error) {
	filter := reads.WatchFilter{Rule: f.Rule, Tenant: perdure.TenantID(f.Tenant), Run: f.RunID, Limit: limit}
	if err := s.checkWatchFilter(&filter); err != nil {
		return nil, err
	}
	return func(ctx context.Context) (any, string, error) {
		list, err := s.engine.WatchdogLog(ctx, filter, filter.Tenant)
		next := ""
		if n := len(list); n == limit {
			next = list[n-1].ID
		}
		return append([]perdure.WatchdogAction{}, list...), next, err
	}, nil
}

func readWaiting(s *Server, t perdure.TenantID, f *api.WatchFilter, _ int) (listReader, error) {
	if f.RunID == "" {
		return nil, perdure.Invalid("run_id", "names the run")
	}
	return func(ctx context.Context) (any, string, error) {
		a, err := s.engine.Runs.Activity(ctx, t, f.RunID)
		if perdure.CodeOf(err) == perdure.CodeNotFound {
			return []api.RunWaiting{}, "", nil // it may have been deleted meanwhile
		}
		if err != nil {
			return nil, "", err
		}
		shown := s.showActivity(&a)
		return []api.RunWaiting{{RunID: shown.RunID, WaitingFor: shown.WaitingFor, Waits: shown.Waits,
			Skipped: shown.Skipped}}, "", nil
	}, nil
}

// maxWatchedSteps bounds the entries of a journal that is watched. Each is shown with up to 4 KiB.
const maxWatchedSteps = 50

// readSteps reads the newest entries of a run's journal. A watcher has the older ones already, or reads
// their pages.
func readSteps(s *Server, t perdure.TenantID, f *api.WatchFilter, limit int) (listReader, error) {
	if f.RunID == "" {
		return nil, perdure.Invalid("run_id", "names the run")
	}
	return func(ctx context.Context) (any, string, error) {
		list, err := s.engine.Runs.NewestSteps(ctx, t, f.RunID, min(limit, maxWatchedSteps))
		out := make([]api.Step, 0, len(list))
		for i := range list {
			out = append(out, showStep(&list[i]))
		}
		if perdure.CodeOf(err) == perdure.CodeNotFound {
			err = nil // it may have been deleted meanwhile
		}
		return out, "", err
	}, nil
}

// limitOf checks the limit of a watch. The default is 50.
func limitOf(n, most int) (int, error) {
	if n == 0 {
		return 50, nil
	}
	if n < 1 || n > most {
		return 0, perdure.Invalid("limit", "takes a whole number from 1 to %d", most)
	}
	return n, nil
}
