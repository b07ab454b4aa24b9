package httpd

import (
	"strconv"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/server/engine/life"
)

func adoptLate(c *call, _ *none) (int, *api.Run, error)   { return decideLate(c, false) }
func discardLate(c *call, _ *none) (int, *api.Run, error) { return decideLate(c, true) }

func decideLate(c *call, discard bool) (int, *api.Run, error) {
	n, err := strconv.Atoi(c.PathValue("n"))
	if err != nil {
		return 0, nil, perdure.Errorf(perdure.CodeNotFound, "no such late result")
	}
	op := &life.Adopt{Tenant: c.tenant(), RunID: c.run(), N: n, Discard: discard}
	if err := c.s.engine.Do(c.Context(), op); err != nil {
		return 0, nil, err
	}
	return getRun(c, nil)
}

// runLateResults lists the late results of a run with their content, as many as a page has room
// for.
func runLateResults(c *call, _ *none) (int, *api.LateResults, error) {
	limit, err := c.intParam("limit", perdure.MaxLate, 1, maxPage)
	if err != nil {
		return 0, nil, err
	}
	after, err := c.intParam("cursor", 0, 0, 1<<31)
	if err != nil {
		return 0, nil, err
	}
	list, next, err := c.s.engine.Runs.LateResults(c.Context(), c.tenant(), c.run(), int(after), int(limit))
	out := &api.LateResults{LateResults: []api.LateResult{}}
	if next > 0 {
		out.NextCursor = strconv.Itoa(next)
	}
	for _, l := range list {
		out.LateResults = append(out.LateResults, api.LateResult{N: l.N, State: l.State, Epoch: l.Epoch,
			Attempt: l.Attempt, WorkerID: l.Worker, FromRunID: l.FromRun, Result: jsonValue(l.Result),
			Size: len(l.Result), Summary: l.Summary, At: l.At})
	}
	return 0, out, err
}
