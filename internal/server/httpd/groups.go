package httpd

import (
	"net/http"
	"slices"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/engine/reads"
	"github.com/perdure/perdure/internal/server/httpd/stream"
)

func createGroup(c *call, in *api.CreateGroup) (int, *api.Group, error) {
	key, err := c.idempotencyKey()
	if err != nil {
		return 0, nil, err
	}
	op := &life.CreateGroup{Tenant: c.tenant(), Mode: in.Mode, RunIDs: in.RunIDs, Timeout: in.Timeout,
		OnLosers: in.OnLosers, Key: key}
	if err := c.s.engine.Do(c.Context(), op); err != nil {
		return 0, nil, err
	}
	return createdStatus(op.Created), showGroup(&op.Group, op.Ends), nil
}

// showGroup returns a group as the API shows it, with its ended runs in the order of their ends.
func showGroup(g *perdure.Gathering, ends []life.End) *api.Group {
	out := &api.Group{GroupID: g.ID, Mode: g.Mode, State: g.State, OnLosers: g.OnLosers, Total: g.Total,
		Ended: g.Ended, Completed: g.OK, RunIDs: g.Members, EndedRuns: []api.EndedRun{},
		CreatedAt: g.CreatedAt, EndedAt: optional(g.EndedAt)}
	if g.State == perdure.GatheringOpen {
		out.DeadlineAt = optional(g.AlarmAt)
	}
	for _, e := range ends {
		out.EndedRuns = append(out.EndedRuns, api.EndedRun{RunID: e.ID, State: e.State, FinishedAt: e.At})
	}
	return out
}

func listGroups(c *call, _ *none) (int, *api.Groups, error) {
	limit, err := c.intParam("limit", 50, 1, maxPage)
	if err != nil {
		return 0, nil, err
	}
	before, err := c.cursorParam()
	if err != nil {
		return 0, nil, err
	}
	f := reads.GroupFilter{Limit: int(limit), State: perdure.GatheringState(c.URL.Query().Get("state")),
		Before: perdure.GroupID(before)}
	if err := checkGroupState(f.State); err != nil {
		return 0, nil, err
	}
	p, err := c.s.engine.Runs.Groups(c.Context(), c.tenant(), f)
	out := &api.Groups{Groups: listedGroups(p.Groups), NextCursor: string(p.Next)}
	if p.Cut {
		at := perdure.IDTime(string(p.Next))
		out.SearchedTo = &at
	}
	return 0, out, err
}

// groupStates are the states that a list of groups is filtered by.
var groupStates = append(slices.Clone(perdure.GroupStates), perdure.GroupEnded)

// checkGroupState checks the state that a list of groups is filtered by.
func checkGroupState(s perdure.GatheringState) error {
	if s != "" && !slices.Contains(groupStates, s) {
		return perdure.Invalid("state", "%q is none of %v", shortened(string(s), 100), groupStates)
	}
	return nil
}

// listedGroups returns groups as a list of the API shows them.
func listedGroups(list []perdure.Gathering) []api.ListedGroup {
	out := make([]api.ListedGroup, 0, len(list))
	for i := range list {
		g := showGroup(&list[i], nil)
		out = append(out, api.ListedGroup{GroupID: g.GroupID, Mode: g.Mode, State: g.State, OnLosers: g.OnLosers,
			Total: g.Total, Ended: g.Ended, Completed: g.Completed, CreatedAt: g.CreatedAt, DeadlineAt: g.DeadlineAt,
			EndedAt: g.EndedAt})
	}
	return out
}

func groupID(c *call) perdure.GroupID { return perdure.GroupID(c.PathValue("id")) }

func getGroup(c *call, _ *none) (int, *api.Group, error) {
	g, ends, err := c.s.engine.Runs.Group(c.Context(), c.tenant(), groupID(c))
	return 0, showGroup(&g, ends), err
}

// joinGroup waits for the end of a group. A group that is still open after the timeout is answered
// 202.
func joinGroup(c *call, _ *none) (int, *api.Group, error) {
	limit, err := c.durationParam("timeout", 10*time.Minute, maxWait)
	if err != nil {
		return 0, nil, err
	}
	limit, release := mayBlockFor(c, stream.Wait, limit)
	defer release()
	err = waitUntil(c, c.PathValue("id"), limit, func(bool) (bool, error) {
		return c.s.engine.Runs.GroupEnded(c.Context(), c.tenant(), groupID(c))
	})
	if err != nil {
		return 0, nil, err
	}
	_, out, err := getGroup(c, nil)
	if err == nil && out.State == perdure.GatheringOpen {
		return http.StatusAccepted, out, nil
	}
	return http.StatusOK, out, err
}
