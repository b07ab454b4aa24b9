package httpd

import (
	"encoding/json"
	"net/http"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/engine"
)

// ---- threads

func showThread(th *perdure.Thread) *api.Thread {
	out := &api.Thread{ThreadID: th.ID, CreatedAt: th.CreatedAt, ActiveRun: th.Active, LastSeq: th.Seq}
	if th.Metadata != "" {
		out.Metadata, _ = th.Metadata.MarshalJSON()
	}
	return out
}

func createThread(c *call, in *api.CreateThread) (int, *api.Thread, error) {
	key, err := c.idempotencyKey()
	if err != nil {
		return 0, nil, err
	}
	op := &engine.CreateThread{Tenant: c.tenant(), Metadata: in.Metadata, Key: key}
	if err := c.s.engine.Do(c.Context(), op); err != nil {
		return 0, nil, err
	}
	out := showThread(&op.Thread)
	out.Metadata = in.Metadata // in full, however it is kept
	return createdOr(op.Created), out, nil
}

func getThread(c *call, _ *none) (int, *api.Thread, error) {
	th, _, err := c.s.engine.Thread(c.Context(), c.tenant(), perdure.ThreadID(c.PathValue("id")), 0, 1)
	if err != nil {
		return 0, nil, err
	}
	return 0, showThread(&th), nil
}

func threadMessages(c *call, _ *none) (int, *api.Messages, error) {
	after, err := c.whole("after", 0, 0, maxSeq)
	if err != nil {
		return 0, nil, err
	}
	limit, err := c.whole("limit", 100, 1, maxPage)
	if err != nil {
		return 0, nil, err
	}
	_, ms, err := c.s.engine.Thread(c.Context(), c.tenant(), perdure.ThreadID(c.PathValue("id")), after, int(limit))
	if err != nil {
		return 0, nil, err
	}
	return 0, showMessages(ms, after), nil
}

func showMessages(ms []perdure.ThreadMessage, after int64) *api.Messages {
	out := &api.Messages{Messages: []api.Message{}, NextAfter: after}
	for _, m := range ms {
		x := api.Message{Seq: m.Seq, Role: m.Role, RunID: m.RunID, At: m.At}
		x.Content, _ = m.Content.MarshalJSON()
		if m.Metadata != "" {
			x.Metadata, _ = m.Metadata.MarshalJSON()
		}
		out.Messages = append(out.Messages, x)
		out.NextAfter = m.Seq
	}
	return out
}

func appendMessage(c *call, in *perdure.Message) (int, *api.MessageAppended, error) {
	key, err := c.idempotencyKey()
	if err != nil {
		return 0, nil, err
	}
	op := &engine.AppendMessage{Tenant: c.tenant(), ThreadID: perdure.ThreadID(c.PathValue("id")), Message: *in, Key: key}
	if err := c.s.engine.Do(c.Context(), op); err != nil {
		return 0, nil, err
	}
	return createdOr(op.Created), &api.MessageAppended{ThreadID: op.ThreadID, Seq: op.Seq}, nil
}

// ---- groups

func createGroup(c *call, in *api.CreateGroup) (int, *api.Group, error) {
	key, err := c.idempotencyKey()
	if err != nil {
		return 0, nil, err
	}
	op := &engine.CreateGroup{Tenant: c.tenant(), Mode: in.Mode, RunIDs: in.RunIDs, Timeout: in.Timeout, OnLosers: in.OnLosers, Key: key}
	if err := c.s.engine.Do(c.Context(), op); err != nil {
		return 0, nil, err
	}
	return createdOr(op.Created), showGroup(&op.Group, op.Ends), nil
}

// showGroup is a group as callers see it: with those who have ended, the first of them first.
func showGroup(g *perdure.Group, ends []engine.End) *api.Group {
	out := &api.Group{GroupID: g.ID, Mode: g.Mode, State: g.State, OnLosers: g.OnLosers, Total: g.Total, Ended: g.Ended, Completed: g.OK,
		RunIDs: g.Members, EndedRuns: []api.EndedRun{}, CreatedAt: g.CreatedAt, EndedAt: set(g.EndedAt)}
	if g.State == perdure.GroupOpen {
		out.DeadlineAt = set(g.AlarmAt)
	}
	for _, e := range ends {
		out.EndedRuns = append(out.EndedRuns, api.EndedRun{RunID: e.ID, State: e.State, FinishedAt: e.At})
	}
	return out
}

func (c *call) groupID() perdure.GroupID { return perdure.GroupID(c.PathValue("id")) }

func getGroup(c *call, _ *none) (int, *api.Group, error) {
	g, ends, err := c.s.engine.Group(c.Context(), c.tenant(), c.groupID())
	return 0, showGroup(&g, ends), err
}

func joinGroup(c *call, _ *none) (int, *api.Group, error) {
	limit, err := c.span("timeout", 10*time.Minute, maxWait)
	if err != nil {
		return 0, nil, err
	}
	limit, leave := c.seated(byWait, limit)
	defer leave()
	err = c.watch(c.PathValue("id"), limit, func(bool) (bool, error) {
		return c.s.engine.GroupEnded(c.Context(), c.tenant(), c.groupID())
	})
	if err != nil {
		return 0, nil, err
	}
	_, out, err := getGroup(c, nil)
	if err == nil && out.State == perdure.GroupOpen {
		return http.StatusAccepted, out, nil
	}
	return http.StatusOK, out, err
}

// ---- the server itself

func healthz(*call, *none) (int, *api.Health, error) { return 0, &api.Health{Status: "ok"}, nil }

func openapi(c *call, _ *none) (int, *json.RawMessage, error) {
	doc := json.RawMessage(c.s.openapi)
	return 0, &doc, nil
}
