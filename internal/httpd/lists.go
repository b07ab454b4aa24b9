package httpd

import (
	"strconv"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/store"
)

// listPage reads limit and cursor of a list whose cursor is the id or the name of its last entry. Without a limit it is as many as a
// page may have.
func (c *call) listPage() (store.Page, error) {
	limit, err := c.whole("limit", 1000, 1, maxPage)
	if err != nil {
		return store.Page{}, err
	}
	after := c.URL.Query().Get("cursor")
	if len(after) > perdure.MaxName {
		return store.Page{}, perdure.Invalid("cursor", "takes the next_cursor of the page before")
	}
	return store.Page{After: after, Limit: int(limit)}, nil
}

func listWorkers(c *call, _ *none) (int, *api.Workers, error) {
	page, err := c.listPage()
	if err != nil {
		return 0, nil, err
	}
	out := &api.Workers{Workers: []perdure.Worker{}}
	err = c.s.engine.Store().View(c.Context(), func(v *store.View) error {
		list, next, err := v.WorkerPage(c.tenant(), page)
		out.Workers, out.NextCursor = append(out.Workers, list...), next
		return err
	})
	return 0, out, err
}

// maxThreads is how many threads a page has at most.
const maxThreads = 200

func listThreads(c *call, _ *none) (int, *api.Threads, error) {
	page, err := c.listPage()
	if err != nil {
		return 0, nil, err
	}
	limit, err := c.whole("limit", 50, 1, maxThreads)
	if err != nil {
		return 0, nil, err
	}
	page.Limit = int(limit)
	out := &api.Threads{Threads: []api.ListedThread{}}
	err = c.s.engine.Store().View(c.Context(), func(v *store.View) error {
		list, next, err := v.ThreadPage(c.tenant(), page)
		if err != nil {
			return err
		}
		var active []perdure.RunID
		ids := make([]perdure.ThreadID, len(list))
		for i := range list {
			if ids[i] = list[i].ID; list[i].Active != "" {
				active = append(active, list[i].Active)
			}
		}
		live, err := v.LiveRuns(c.tenant(), active)
		if err != nil {
			return err
		}
		last, err := v.LastMessages(c.tenant(), ids)
		for i := range list {
			out.Threads = append(out.Threads, listedThread(&list[i], last, live))
		}
		out.NextCursor = next
		return err
	})
	return 0, out, err
}

func listedThread(
	th *perdure.Thread, last map[perdure.ThreadID]store.LastMessage, live map[perdure.RunID]store.LiveRun,
) api.ListedThread {
	out := api.ListedThread{ThreadID: th.ID, Title: th.Title, CreatedAt: th.CreatedAt,
		UpdatedAt: max(th.UpdatedAt, th.CreatedAt), LastSeq: th.Seq}
	if m, ok := last[th.ID]; ok {
		out.LastMessage = &api.LastMessage{Role: m.Role, Text: m.Text, At: m.At}
	}
	if r, ok := live[th.Active]; ok {
		out.LiveRun = &api.LiveRun{RunID: r.ID, Kind: r.Kind, State: r.State}
	}
	return out
}

func listQueues(c *call, _ *none) (int, *api.Queues, error) {
	page, err := c.listPage()
	if err != nil {
		return 0, nil, err
	}
	out := &api.Queues{Queues: []api.Queue{}}
	err = c.s.engine.Store().View(c.Context(), func(v *store.View) error {
		list, next, err := v.QueuePage(c.tenant(), page, store.PageRows)
		for _, q := range list {
			x := api.Queue{Name: q.Name, Queued: q.Queued, Claimable: q.Claimable, Running: q.Running, Suspended: q.Suspended, AtLeast: q.AtLeast}
			if q.Oldest != 0 {
				x.OldestClaimable = v.Now.Sub(q.Oldest).Milliseconds()
			}
			out.Queues = append(out.Queues, x)
		}
		out.NextCursor = next
		return err
	})
	return 0, out, err
}

func listKeys(c *call, _ *none) (int, *api.Keys, error) {
	page, err := c.listPage()
	if err != nil {
		return 0, nil, err
	}
	out := &api.Keys{Keys: []perdure.Key{}}
	err = c.s.engine.Store().View(c.Context(), func(v *store.View) error {
		list, next, err := v.CredentialPage(c.tenant(), c.key.Platform, page)
		out.Keys, out.NextCursor = append(out.Keys, list...), next
		return err
	})
	return 0, out, err
}

// runLateResults lists the late results of a run, in full, up to the bytes of a page.
func runLateResults(c *call, _ *none) (int, *api.LateResults, error) {
	limit, err := c.whole("limit", perdure.MaxLate, 1, maxPage)
	if err != nil {
		return 0, nil, err
	}
	after, err := c.whole("cursor", 0, 0, 1<<31)
	if err != nil {
		return 0, nil, err
	}
	out := &api.LateResults{LateResults: []api.LateResult{}}
	err = c.s.engine.Store().View(c.Context(), func(v *store.View) error {
		if _, ok, err := v.Run(c.tenant(), c.run()); err != nil {
			return err
		} else if !ok {
			return perdure.Errorf(perdure.CodeNotFound, "no such run")
		}
		list, err := v.LateResults(c.tenant(), c.run())
		if err != nil {
			return err
		}
		return lateResults(v, list, int(after), int(limit), out)
	})
	if err != nil {
		return 0, nil, err
	}
	return 0, out, nil
}

func lateResults(v *store.View, list []perdure.LateResult, after, limit int, out *api.LateResults) error {
	left := store.PageBytes
	for _, l := range list {
		if l.N <= after {
			continue
		}
		n := len(out.LateResults)
		result, err := v.Resolve(l.Tenant, l.Result)
		if err != nil {
			return err
		}
		// The summary is a text, of which JSON makes up to six times as many bytes.
		if left -= len(result) + 6*len(l.Summary) + 1024; n == limit || n > 0 && left < 0 {
			out.NextCursor = strconv.Itoa(out.LateResults[n-1].N)
			return nil
		}
		out.LateResults = append(out.LateResults, api.LateResult{N: l.N, State: l.State, Epoch: l.Epoch, Attempt: l.Attempt, WorkerID: l.Worker,
			FromRunID: l.FromRun, Result: shown(result), Size: len(result), Summary: l.Summary, At: l.At})
	}
	return nil
}
