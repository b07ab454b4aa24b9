package httpd

import (
	"net/http"
	"slices"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/engine/reads"
)

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
	op := &life.CreateThread{Tenant: c.tenant(), Metadata: in.Metadata, Name: in.Name, Of: in.CopyOf, Key: key}
	if err := c.s.engine.Do(c.Context(), op); err != nil {
		return 0, nil, err
	}
	if !op.Created && op.Name != "" || in.CopyOf != "" { // the thread may have other metadata
		_, out, err := readThread(c, op.Thread.ID)
		return createdStatus(op.Created), out, err
	}
	out := showThread(&op.Thread)
	out.Metadata = in.Metadata // the row may have a reference to large content
	if op.Name != "" {
		out.Names = []string{op.Name}
	}
	return createdStatus(op.Created), out, nil
}

func getThread(c *call, _ *none) (int, *api.Thread, error) {
	return readThread(c, perdure.ThreadID(c.PathValue("id")))
}

func getThreadByName(c *call, _ *none) (int, *api.Thread, error) {
	id, err := c.s.engine.Threads.ByName(c.Context(), c.tenant(), c.PathValue("name"))
	if err != nil {
		return 0, nil, err
	}
	return readThread(c, id)
}

func readThread(c *call, id perdure.ThreadID) (int, *api.Thread, error) {
	th, _, err := c.s.engine.Threads.Get(c.Context(), c.tenant(), id, 0, 1)
	if err != nil {
		return 0, nil, err
	}
	out := showThread(&th)
	if out.Names, err = c.s.engine.Threads.Names(c.Context(), c.tenant(), id); err != nil || th.Active == "" {
		return http.StatusOK, out, err
	}
	waits, err := c.s.engine.Runs.OpenWaits(c.Context(), c.tenant(), th.Active)
	for i := range waits {
		out.Waits = append(out.Waits, showOpenWait(&waits[i]))
	}
	return http.StatusOK, out, err
}

func changeThread(c *call, in *api.ChangeThread) (int, *api.Thread, error) {
	key, err := c.idempotencyKey()
	if err != nil {
		return 0, nil, err
	}
	op := &life.ChangeThread{Tenant: c.tenant(), ThreadID: perdure.ThreadID(c.PathValue("id")),
		Metadata: in.Metadata, Key: key}
	if err := c.s.engine.Do(c.Context(), op); err != nil {
		return 0, nil, err
	}
	return getThread(c, nil)
}

func nameThread(c *call, _ *none) (int, *api.Name, error) {
	key, err := c.idempotencyKey()
	if err != nil {
		return 0, nil, err
	}
	op := &life.NameThread{Tenant: c.tenant(), ThreadID: perdure.ThreadID(c.PathValue("id")),
		Name: c.PathValue("name"), Key: key}
	if err := c.s.engine.Do(c.Context(), op); err != nil {
		return 0, nil, err
	}
	return createdStatus(op.Created), &api.Name{Name: op.Name, ThreadID: op.ThreadID}, nil
}

func threadMessages(c *call, _ *none) (int, *api.Messages, error) {
	after, err := c.intParam("after", 0, 0, maxSeq)
	if err != nil {
		return 0, nil, err
	}
	limit, err := c.intParam("limit", 100, 1, maxPage)
	if err != nil {
		return 0, nil, err
	}
	_, ms, err := c.s.engine.Threads.Get(c.Context(), c.tenant(), perdure.ThreadID(c.PathValue("id")), after,
		int(limit))
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
	op := &life.AppendMessage{Tenant: c.tenant(), ThreadID: perdure.ThreadID(c.PathValue("id")), Message: *in,
		Key: key}
	if err := c.s.engine.Do(c.Context(), op); err != nil {
		return 0, nil, err
	}
	return createdStatus(op.Created), &api.MessageAppended{ThreadID: op.ThreadID, Seq: op.Seq}, nil
}

// maxThreads bounds the threads of a page.
const maxThreads = 200

func listThreads(c *call, _ *none) (int, *api.Threads, error) {
	page, err := c.listPage()
	if err != nil {
		return 0, nil, err
	}
	limit, err := c.intParam("limit", 50, 1, maxThreads)
	if err != nil {
		return 0, nil, err
	}
	page.Limit = int(limit)
	f, err := threadFilter(c)
	if err != nil {
		return 0, nil, err
	}
	began := time.Now()
	f.Over = func() bool { return c.Context().Err() != nil || time.Since(began) > c.s.pageTime }
	list, next, err := c.s.engine.Threads.Page(c.Context(), c.tenant(), page, f)
	out := &api.Threads{Threads: []api.ListedThread{}, NextCursor: next}
	for i := range list {
		out.Threads = append(out.Threads, listedThread(&list[i]))
	}
	return 0, out, err
}

// threadFilter reads the parameters that select threads.
func threadFilter(c *call) (f reads.ThreadFilter, err error) {
	q := c.URL.Query()
	children := q.Get("children")
	if children != "" && children != "true" && children != "false" {
		return f, perdure.Invalid("children", "takes true or false")
	}
	f = reads.ThreadFilter{WithoutChildren: children == "false", Status: perdure.ThreadStatus(q.Get("status"))}
	if f.Status != "" && !slices.Contains(perdure.ThreadStatuses, f.Status) {
		return f, perdure.Invalid("status", "%q is none of %v", shortened(string(f.Status), 100),
			perdure.ThreadStatuses)
	}
	f.Metadata = metadataParams(q)
	return f, checkEntries(f.Metadata)
}

func listedThread(th *reads.ListedThread) api.ListedThread {
	out := api.ListedThread{ThreadID: th.ID, Names: th.Names, Title: th.Title, CreatedAt: th.CreatedAt,
		UpdatedAt: max(th.UpdatedAt, th.CreatedAt), LastSeq: th.Seq, Status: th.Status,
		ParentRunID: th.Parent}
	if m := th.Last; m != nil {
		out.LastMessage = &api.LastMessage{Role: m.Role, Text: m.Text, At: m.At}
	}
	if r := th.Live; r != nil {
		out.LiveRun = &api.LiveRun{RunID: r.ID, Kind: r.Kind, State: r.State}
	}
	return out
}
