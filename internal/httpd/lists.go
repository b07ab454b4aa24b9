package httpd

import (
	"strconv"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/engine"
)

// listPage reads limit and cursor of a list whose cursor is the id or the name of its last entry. Without a limit it is as many as a
// page may have.
func (c *call) listPage() (engine.Page, error) {
	limit, err := c.whole("limit", 1000, 1, maxPage)
	if err != nil {
		return engine.Page{}, err
	}
	after := c.URL.Query().Get("cursor")
	if len(after) > perdure.MaxName {
		return engine.Page{}, perdure.Invalid("cursor", "takes the next_cursor of the page before")
	}
	return engine.Page{After: after, Limit: int(limit)}, nil
}

func listWorkers(c *call, _ *none) (int, *api.Workers, error) {
	page, err := c.listPage()
	if err != nil {
		return 0, nil, err
	}
	list, next, err := c.s.engine.Workers(c.Context(), c.tenant(), page)
	return 0, &api.Workers{Workers: append([]perdure.Worker{}, list...), NextCursor: next}, err
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
	list, next, err := c.s.engine.Threads(c.Context(), c.tenant(), page)
	out := &api.Threads{Threads: []api.ListedThread{}, NextCursor: next}
	for i := range list {
		out.Threads = append(out.Threads, listedThread(&list[i]))
	}
	return 0, out, err
}

func listedThread(th *engine.ListedThread) api.ListedThread {
	out := api.ListedThread{ThreadID: th.ID, Title: th.Title, CreatedAt: th.CreatedAt,
		UpdatedAt: max(th.UpdatedAt, th.CreatedAt), LastSeq: th.Seq}
	if m := th.Last; m != nil {
		out.LastMessage = &api.LastMessage{Role: m.Role, Text: m.Text, At: m.At}
	}
	if r := th.Live; r != nil {
		out.LiveRun = &api.LiveRun{RunID: r.ID, Kind: r.Kind, State: r.State}
	}
	return out
}

func listQueues(c *call, _ *none) (int, *api.Queues, error) {
	page, err := c.listPage()
	if err != nil {
		return 0, nil, err
	}
	list, next, err := c.s.engine.Queues(c.Context(), c.tenant(), page)
	out := &api.Queues{Queues: []api.Queue{}, NextCursor: next}
	for _, q := range list {
		out.Queues = append(out.Queues, api.Queue{Name: q.Name, Queued: q.Queued, Claimable: q.Claimable, Running: q.Running,
			Suspended: q.Suspended, AtLeast: q.AtLeast, OldestClaimable: q.OldestFor.Milliseconds()})
	}
	return 0, out, err
}

func listKeys(c *call, _ *none) (int, *api.Keys, error) {
	page, err := c.listPage()
	if err != nil {
		return 0, nil, err
	}
	list, next, err := c.s.engine.Keys(c.Context(), c.tenant(), c.key.Platform, page)
	return 0, &api.Keys{Keys: append([]perdure.Key{}, list...), NextCursor: next}, err
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
	list, next, err := c.s.engine.LateResults(c.Context(), c.tenant(), c.run(), int(after), int(limit))
	out := &api.LateResults{LateResults: []api.LateResult{}}
	if next > 0 {
		out.NextCursor = strconv.Itoa(next)
	}
	for _, l := range list {
		out.LateResults = append(out.LateResults, api.LateResult{N: l.N, State: l.State, Epoch: l.Epoch, Attempt: l.Attempt, WorkerID: l.Worker,
			FromRunID: l.FromRun, Result: shown(l.Result), Size: len(l.Result), Summary: l.Summary, At: l.At})
	}
	return 0, out, err
}
