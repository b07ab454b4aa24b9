package runs

import (
	"net/http"
	"strconv"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/doors"
	"github.com/perdure/perdure/internal/doors/langgraph/frames"
	"github.com/perdure/perdure/internal/doors/langgraph/shape"
	"github.com/perdure/perdure/internal/doors/langgraph/threads"
)

// pageOfQuery reads limit and offset of a query.
func pageOfQuery(c *doors.Call) (p shape.Page, err error) {
	for name, to := range map[string]*int{"limit": &p.Limit, "offset": &p.Offset} {
		if text := c.Query(name); text != "" {
			if *to, err = strconv.Atoi(text); err != nil {
				return p, perdure.Invalid(name, "is no number")
			}
		}
	}
	return p, p.Check()
}

// List answers with a page of the runs of a thread.
func List(c *doors.Call) error {
	th, err := threads.Find(c, c.Param("thread"))
	if err != nil {
		return err
	}
	pg, err := pageOfQuery(c)
	if err != nil {
		return err
	}
	runs, err := threads.Runs(c, th.ThreadID, shape.MaxOffset+shape.MaxPage)
	if err != nil {
		return err
	}
	want, all := c.Query("status"), []shape.Object{}
	for i := range runs {
		if len(all) > pg.Offset+pg.Limit {
			break
		}
		p := &Part{Run: &runs[i], ID: string(runs[i].RunID), Thread: c.Param("thread")}
		shown, err := p.Shown(c)
		if err != nil {
			return err
		}
		if want == "" || shown["status"] == want {
			all = append(all, shown)
		}
	}
	list, more := shape.PartOf(pg, all)
	if more {
		c.AnswerHeader().Set("X-Pagination-Next", shape.Itoa(pg.Offset+pg.Limit))
	}
	for i := range list {
		list[i] = shape.Selected(list[i], c.QueryList("select"))
	}
	return c.JSON(http.StatusOK, list)
}

// liveWith lists the live runs of a thread with a status: pending, running or all.
func liveWith(c *doors.Call, thread, status string) (out []*Part, err error) {
	if thread == "" || status != frames.Pending && status != frames.Running && status != "all" {
		return nil, perdure.Invalid("status", "is pending, running or all, with a thread_id; or give run_ids")
	}
	th, err := threads.Find(c, thread)
	if err != nil {
		return nil, err
	}
	runs, err := threads.Runs(c, th.ThreadID, shape.MaxBatch)
	for i := range runs {
		p := &Part{Run: &runs[i], ID: string(runs[i].RunID), Thread: thread}
		if p.State.Terminal() {
			continue
		}
		is, err := p.status(c)
		if err != nil {
			return nil, err
		}
		if status == "all" || status == is {
			out = append(out, p)
		}
	}
	return out, err
}
