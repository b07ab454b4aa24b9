package runs

import (
	"net/http"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/doors"
	"github.com/perdure/perdure/internal/doors/langgraph/frames"
	"github.com/perdure/perdure/internal/doors/langgraph/shape"
	"github.com/perdure/perdure/internal/doors/langgraph/threads"
)

// A Part is a run, or the part of a run that began with an answer to it.
type Part struct {
	*api.Run
	ID     string // as the caller knows it
	Thread string // as the caller knows it; empty for a run without a thread
	From   int64
}

// findRun finds the run of a path.
func findRun(c *doors.Call) (*Part, error) {
	return runOf(c, c.Param("run"), c.Param("thread"))
}

// runOf finds a run, or a part of one, by its id. A run of another thread is not found.
func runOf(c *doors.Call, id, thread string) (*Part, error) {
	r, err := c.API.Get(c.Context(), perdure.RunID(id))
	if doors.Missing(err) || err != nil && doors.ProblemOf(err).Code == perdure.CodeInvalid {
		if r, err = c.API.RunByName(c.Context(), shape.Prefix+id); doors.Missing(err) {
			err = perdure.Errorf(perdure.CodeNotFound, "no such run")
		}
	}
	if err != nil {
		return nil, err
	}
	p := &Part{Run: r, ID: id, Thread: thread, From: r.FromSeq}
	if thread == "" {
		return p, nil
	}
	th, err := threads.Find(c, thread)
	if err != nil {
		return nil, err
	}
	if th.ThreadID != r.ThreadID {
		return nil, perdure.Errorf(perdure.CodeNotFound, "no such run")
	}
	return p, nil
}

// Get answers with a run.
func Get(c *doors.Call) error {
	p, err := findRun(c)
	if err != nil {
		return err
	}
	return p.Show(c)
}

// Delete removes a run that has ended.
func Delete(c *doors.Call) error {
	p, err := findRun(c)
	if err != nil {
		return err
	}
	if err := c.API.Delete(c.Context(), p.RunID); err != nil {
		return err
	}
	return c.Status(http.StatusNoContent)
}

// status is that of the run, as the protocol names it.
func (p *Part) status(c *doors.Call) (string, error) {
	if s := frames.Ended[p.State]; s != "" {
		return s, nil
	}
	if p.State == perdure.Queued || p.State == perdure.Dispatched {
		return frames.Pending, nil
	}
	asks, err := threads.Asked(c, p.Run)
	if len(asks) > 0 {
		return frames.Interrupted, err
	}
	return frames.Running, err
}

// Shown is the run in the shape of the protocol.
func (p *Part) Shown(c *doors.Call) (shape.Object, error) {
	status, err := p.status(c)
	if err != nil {
		return nil, err
	}
	updated := p.CreatedAt
	for _, at := range []*perdure.Instant{p.StartedAt, p.SeenAt, p.FinishedAt} {
		if at != nil {
			updated = max(updated, *at)
		}
	}
	out := shape.Object{"run_id": p.ID, "thread_id": nil, "assistant_id": shape.IDOfKind(p.Kind),
		"created_at": p.CreatedAt, "updated_at": updated, "status": status, "metadata": frames.MetadataOf(p.Run),
		"multitask_strategy": shape.OrElse(p.Metadata[frames.StrategyKey], "reject"),
		"kwargs":             shape.Object{"input": shape.OrNull(p.Input)}}
	if p.Thread != "" {
		out["thread_id"] = p.Thread
	} else if p.ThreadID != "" {
		out["thread_id"] = p.ThreadID
	}
	if p.Cancel != nil && p.Cancel.Reason != "" {
		out["cancel_reason"] = p.Cancel.Reason
	}
	return out, nil
}

// Show answers with the run.
func (p *Part) Show(c *doors.Call) error {
	out, err := p.Shown(c)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, out)
}
