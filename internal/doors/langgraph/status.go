package langgraph

import (
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/internal/doors"
)

// Statuses of runs, as the protocol names them.
const (
	pending     = "pending"
	running     = "running"
	interrupted = "interrupted"
)

var ended = map[perdure.State]string{perdure.Completed: "success", perdure.Failed: "error",
	perdure.TimedOut: "timeout", perdure.Cancelled: interrupted}

// asked gives what people are asked by a live run and by the runs below it, if it is suspended.
func asked(c *doors.Call, r *api.Run) (out []interrupt, err error) {
	if r.State != perdure.Suspended {
		return nil, nil
	}
	a, err := c.API.Activity(c.Context(), r.RunID)
	if err != nil {
		return nil, err
	}
	for i := range a.Waits {
		w := &a.Waits[i]
		if w.Type != perdure.WaitApproval && slices.Contains(asksPeople, w.Type) {
			out = append(out, interrupt{id: w.WaitID, wait: w.WaitID, kind: w.Type, name: w.Name})
		}
	}
	f := client.ApprovalFilter{RootRunID: r.RunID, Limit: perdure.MaxQuestionLines}
	if r.RootRunID != "" && r.RootRunID != r.RunID { // a continuation
		f = client.ApprovalFilter{ThreadID: r.ThreadID, Limit: perdure.MaxQuestionLines}
	}
	for {
		page, err := c.API.Approvals(c.Context(), f)
		if err != nil {
			return nil, err
		}
		for i := range page.Approvals {
			q := &page.Approvals[i]
			below := q.RunID
			if below == r.RunID {
				below = ""
			}
			out = append(out, interrupt{id: string(q.ID), wait: q.WaitID, run: below, kind: perdure.WaitApproval,
				name: q.Name, approval: q.ID, title: q.Title})
		}
		if f.Cursor = page.NextCursor; f.Cursor == "" || len(out) >= perdure.MaxQuestionLines {
			return out, nil
		}
	}
}

// status is that of the run, as the protocol names it.
func (p *part) status(c *doors.Call) (string, error) {
	if s := ended[p.State]; s != "" {
		return s, nil
	}
	if p.State == perdure.Queued || p.State == perdure.Dispatched {
		return pending, nil
	}
	asks, err := asked(c, p.Run)
	if len(asks) > 0 {
		return interrupted, err
	}
	return running, err
}

// shown is the run in the shape of the protocol.
func (p *part) shown(c *doors.Call) (object, error) {
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
	out := object{"run_id": p.id, "thread_id": nil, "assistant_id": idOfKind(p.Kind), "created_at": p.CreatedAt,
		"updated_at": updated, "status": status, "metadata": metadataOf(p.Run),
		"multitask_strategy": orElse(p.Metadata[strategyKey], "reject"), "kwargs": object{"input": orNull(p.Input)}}
	if p.thread != "" {
		out["thread_id"] = p.thread
	} else if p.ThreadID != "" {
		out["thread_id"] = p.ThreadID
	}
	if p.Cancel != nil && p.Cancel.Reason != "" {
		out["cancel_reason"] = p.Cancel.Reason
	}
	return out, nil
}

func orNull(raw json.RawMessage) any {
	if len(raw) == 0 {
		return nil
	}
	return raw
}

// ownKeys are the keys of the door in the metadata of a run, which its callers don't see.
var ownKeys = []string{strategyKey, onDisconnectKey, modesKey, doors.Ignored}

// metadataOf is the metadata as it was sent, or else the run's.
func metadataOf(r *api.Run) any {
	if whole := r.Metadata[wholeMetadata]; whole != "" && json.Valid([]byte(whole)) {
		return json.RawMessage(whole)
	}
	out := object{}
	for name, value := range r.Metadata {
		if !slices.Contains(ownKeys, name) {
			out[name] = value
		}
	}
	return out
}

func (p *part) show(c *doors.Call) error {
	out, err := p.shown(c)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, out)
}

func escape(segment string) string { return url.PathEscape(segment) }

// pageOfQuery reads limit and offset of a query.
func pageOfQuery(c *doors.Call) (p page, err error) {
	for name, to := range map[string]*int{"limit": &p.Limit, "offset": &p.Offset} {
		if text := c.Query(name); text != "" {
			if *to, err = strconv.Atoi(text); err != nil {
				return p, perdure.Invalid(name, "is no number")
			}
		}
	}
	return p, p.check()
}

// runsOnThread lists the runs of a thread, newest first: as many as a page may need.
func runsOnThread(c *doors.Call, id perdure.ThreadID, most int) (out []api.Run, err error) {
	f := client.Filter{ThreadID: id, Limit: min(most, maxPage)}
	for len(out) < most {
		page, err := c.API.List(c.Context(), f)
		if err != nil {
			return nil, err
		}
		out = append(out, page.Runs...)
		if f.Cursor = page.NextCursor; f.Cursor == "" {
			break
		}
	}
	return out[:min(most, len(out))], nil
}

func listRuns(c *doors.Call) error {
	th, err := findThread(c, c.Param("thread"))
	if err != nil {
		return err
	}
	pg, err := pageOfQuery(c)
	if err != nil {
		return err
	}
	runs, err := runsOnThread(c, th.ThreadID, maxOffset+maxPage)
	if err != nil {
		return err
	}
	want, all := c.Query("status"), []object{}
	for i := range runs {
		if len(all) > pg.Offset+pg.Limit {
			break
		}
		p := &part{Run: &runs[i], id: string(runs[i].RunID), thread: c.Param("thread")}
		shown, err := p.shown(c)
		if err != nil {
			return err
		}
		if want == "" || shown["status"] == want {
			all = append(all, shown)
		}
	}
	list, more := of(pg, all)
	if more {
		c.AnswerHeader().Set("X-Pagination-Next", itoa(pg.Offset+pg.Limit))
	}
	for i := range list {
		list[i] = selected(list[i], c.QueryList("select"))
	}
	return c.JSON(http.StatusOK, list)
}

// cancelWait bounds how long a cancel waits for the end.
const cancelWait = time.Hour

// cancelReason is the reason that is recorded: that of the caller, or the action.
func cancelReason(c *doors.Call) (string, error) {
	action := orElse(c.Query("action"), "interrupt")
	if action != "interrupt" && action != "rollback" {
		return "", perdure.Invalid("action", "is interrupt or rollback")
	}
	switch reason := c.Query("reason"); reason {
	case "":
		return action, nil
	case "taken":
		return "taken:" + action, nil
	default:
		return "", perdure.Invalid("reason", "is taken, or nothing")
	}
}

func cancelRun(c *doors.Call) error {
	wait := c.Query("wait")
	if _, err := strconv.Atoi(orElse(wait, "0")); err != nil && wait != "true" && wait != "false" {
		return perdure.Invalid("wait", "is 0 or 1")
	}
	reason, err := cancelReason(c)
	if err != nil {
		return err
	}
	p, err := findRun(c)
	if err != nil {
		return err
	}
	if wait == "" || wait == "0" || wait == "false" {
		if _, err := c.API.Cancel(c.Context(), p.RunID, reason, 0); err != nil {
			return err
		}
		return c.Status(http.StatusAccepted)
	}
	if _, err := c.API.Cancel(c.Context(), p.RunID, reason, cancelWait); err != nil {
		return err
	}
	return c.Status(http.StatusNoContent)
}

func cancelRuns(c *doors.Call) error {
	var in struct {
		Thread string   `json:"thread_id"`
		Runs   []string `json:"run_ids"`
		Status string   `json:"status"`
	}
	if _, err := c.Decode(&in); err != nil {
		return err
	}
	reason, err := cancelReason(c)
	if err != nil {
		return err
	}
	if len(in.Runs) > maxBatch {
		return unprocessable(perdure.CodeTooLarge, "run_ids", "has more than 100 ids")
	}
	var list []*part
	for _, id := range in.Runs {
		p, err := runOf(c, id, in.Thread)
		if err != nil {
			return err
		}
		list = append(list, p)
	}
	if len(in.Runs) == 0 {
		if list, err = liveWith(c, in.Thread, in.Status); err != nil {
			return err
		}
	}
	for _, p := range list {
		if _, err := c.API.Cancel(c.Context(), p.RunID, reason, 0); err != nil {
			return err
		}
	}
	return c.Status(http.StatusNoContent)
}

// liveWith lists the live runs of a thread with a status: pending, running or all.
func liveWith(c *doors.Call, thread, status string) (out []*part, err error) {
	if thread == "" || status != pending && status != running && status != "all" {
		return nil, perdure.Invalid("status", "is pending, running or all, with a thread_id; or give run_ids")
	}
	th, err := findThread(c, thread)
	if err != nil {
		return nil, err
	}
	runs, err := runsOnThread(c, th.ThreadID, maxBatch)
	for i := range runs {
		p := &part{Run: &runs[i], id: string(runs[i].RunID), thread: thread}
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
