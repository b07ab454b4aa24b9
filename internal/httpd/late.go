package httpd

import (
	"strconv"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/engine"
	"github.com/perdure/perdure/internal/store"
)

func runLateResults(c *call, _ *none) (int, *api.LateResults, error) {
	out := &api.LateResults{LateResults: []api.LateResult{}}
	err := c.s.engine.Store().View(c.Context(), func(v *store.View) error {
		if _, ok, err := v.Run(c.tenant(), c.run()); err != nil {
			return err
		} else if !ok {
			return perdure.Errorf(perdure.CodeNotFound, "no such run")
		}
		list, err := v.LateResults(c.tenant(), c.run())
		if err != nil {
			return err
		}
		for _, l := range list {
			result, err := v.Resolve(c.tenant(), l.Result)
			if err != nil {
				return err
			}
			out.LateResults = append(out.LateResults, api.LateResult{N: l.N, State: l.State, Epoch: l.Epoch, Attempt: l.Attempt, WorkerID: l.Worker,
				FromRunID: l.FromRun, Result: shown(result), Size: len(result), Summary: l.Summary, At: l.At})
		}
		return nil
	})
	if err != nil {
		return 0, nil, err
	}
	return 0, out, nil
}

func adoptLate(c *call, _ *none) (int, *api.Run, error)   { return c.decideLate(false) }
func discardLate(c *call, _ *none) (int, *api.Run, error) { return c.decideLate(true) }

func (c *call) decideLate(discard bool) (int, *api.Run, error) {
	n, err := strconv.Atoi(c.PathValue("n"))
	if err != nil {
		return 0, nil, perdure.Errorf(perdure.CodeNotFound, "no such late result")
	}
	if err := c.s.engine.Do(c.Context(), &engine.Adopt{Tenant: c.tenant(), RunID: c.run(), N: n, Discard: discard}); err != nil {
		return 0, nil, err
	}
	return getRun(c, nil)
}
