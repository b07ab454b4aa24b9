package httpd

import (
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/engine"
)

func listRuns(c *call, _ *none) (int, *api.Runs, error) {
	f, err := c.runFilter(50)
	if err != nil {
		return 0, nil, err
	}
	if f.Before, err = c.cursorParam(); err != nil {
		return 0, nil, err
	}
	return c.page(f)
}

// runFilters are the parameters that select runs.
var runFilters = []string{"status", "state", "kind", "queue", "thread_id", "parent_run_id", "root_run_id", "limit",
	"metadata.*"}

// runFilter reads the parameters that select runs.
func (c *call) runFilter(def int64) (f engine.RunFilter, err error) {
	limit, err := c.intParam("limit", def, 1, maxPage)
	if err != nil {
		return f, err
	}
	q := c.URL.Query()
	f = engine.RunFilter{Status: q.Get("status"), State: perdure.State(q.Get("state")), Kind: q.Get("kind"),
		Queue: q.Get("queue"), ThreadID: perdure.ThreadID(q.Get("thread_id")),
		ParentID: perdure.RunID(q.Get("parent_run_id")), RootID: perdure.RunID(q.Get("root_run_id")), Limit: int(limit)}
	for name := range q {
		if key, ok := strings.CutPrefix(name, "metadata."); ok {
			if err := perdure.CheckName(name, key); err != nil {
				return f, err
			}
			if f.Metadata == nil {
				f.Metadata = make(map[string]string)
			}
			f.Metadata[key] = q.Get(name)
			if len(f.Metadata) > perdure.MaxMetadata {
				return f, perdure.Errorf(perdure.CodeTooLarge,
					"a list is filtered by at most %d entries of metadata", perdure.MaxMetadata)
			}
		}
	}
	if f.State != "" && !f.State.Live() && !f.State.Terminal() {
		return f, perdure.Invalid("state", "%q is none of %v", f.State, perdure.States)
	}
	if s := perdure.State(f.Status); f.Status != "" && f.Status != perdure.StatusDeferred && !s.Live() &&
		!s.Terminal() {
		return f, perdure.Invalid("status", "%q is neither deferred nor one of %v", f.Status, perdure.States)
	}
	return f, nil
}

// pageTime bounds the search for the rows of a page. The caller continues with the cursor.
const pageTime = 250 * time.Millisecond

// page reads a page of runs. It may be short, or empty, and still have a cursor.
func (c *call) page(f engine.RunFilter) (int, *api.Runs, error) {
	began := time.Now()
	f.Over = func() bool { return c.Context().Err() != nil || time.Since(began) > pageTime }
	p, err := c.s.engine.Runs.Page(c.Context(), c.tenant(), f)
	if err != nil {
		return 0, nil, err
	}
	out := &api.Runs{Runs: []api.Run{}, NextCursor: string(p.Next)}
	now := c.s.engine.Now()
	for i := range p.Runs {
		out.Runs = append(out.Runs, *c.s.show(&engine.Detail{Run: p.Runs[i]}, now))
	}
	return 0, out, nil
}

func runTree(c *call, _ *none) (int, *api.Runs, error) {
	limit, err := c.intParam("limit", 200, 1, maxPage)
	if err != nil {
		return 0, nil, err
	}
	before, err := c.cursorParam()
	if err != nil {
		return 0, nil, err
	}
	d, err := c.s.engine.Runs.Get(c.Context(), c.tenant(), c.run())
	if err != nil {
		return 0, nil, err
	}
	return c.page(engine.RunFilter{RootID: d.RootID, Before: before, Limit: int(limit)})
}
