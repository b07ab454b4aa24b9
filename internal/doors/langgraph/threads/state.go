package threads

import (
	"cmp"
	"encoding/json"
	"net/http"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/doors"
	"github.com/perdure/perdure/internal/doors/frame"
	"github.com/perdure/perdure/internal/doors/langgraph/frames"
	"github.com/perdure/perdure/internal/doors/langgraph/shape"
)

// The state of a thread has a checkpoint for each run that has ended. Its id is that of the run. They are in the
// order of the ends. A run that was cancelled before it began, in the queue of its thread, has none: it was
// created after the run before it, ended earlier, and changed nothing.

// checkpoints are the runs of a list that have one, the one that ended last first.
func checkpoints(runs []api.Run) (ended []*api.Run) {
	for i := range runs {
		if r := &runs[i]; r.State.Terminal() && (r.State != perdure.Cancelled || r.StartedAt != nil) {
			ended = append(ended, r)
		}
	}
	slices.SortStableFunc(ended, func(a, b *api.Run) int { return cmp.Compare(*b.FinishedAt, *a.FinishedAt) })
	return ended
}

func checkpoint(thread string, run any) shape.Object {
	return shape.Object{"thread_id": thread, "checkpoint_ns": "", "checkpoint_id": run, "checkpoint_map": nil}
}

// showState is a state in the shape of the protocol.
func showState(thread string, values shape.Object, run *api.Run, before *api.Run, at perdure.Instant) shape.Object {
	out := shape.Object{"values": values, "next": []string{}, "tasks": []any{}, "metadata": shape.Object{},
		"created_at": at, "checkpoint": checkpoint(thread, nil), "parent_checkpoint": nil}
	if run != nil {
		out["checkpoint"] = checkpoint(thread, run.RunID)
		out["metadata"] = shape.Object{"run_id": run.RunID, "source": "loop"}
	}
	if before != nil {
		out["parent_checkpoint"] = checkpoint(thread, before.RunID)
	}
	return out
}

// State answers with the state of a thread as it is now.
func State(c *doors.Call) error {
	th, err := Find(c, c.Param("thread"))
	if err != nil {
		return err
	}
	s, err := stateOf(c, th)
	if err != nil {
		return err
	}
	names, values := c.QueryList("select"), shape.Object{}
	if shape.Selects(names, "values") {
		if values, err = valuesOf(c, th, s.last); err != nil {
			return err
		}
	}
	at := th.CreatedAt
	var last *api.Run
	if last = s.last; last != nil {
		if at = last.CreatedAt; last.FinishedAt != nil {
			at = *last.FinishedAt
		}
	}
	out := showState(c.Param("thread"), values, last, nil, at)
	if last != nil && !last.State.Terminal() {
		task := shape.Object{"id": last.RunID, "name": last.Kind, "error": nil,
			"interrupts": shownInterrupts(c, s.asks), "checkpoint": nil, "state": nil, "result": nil}
		out["next"], out["tasks"] = []string{last.Kind}, []any{task}
	}
	return c.JSON(http.StatusOK, shape.Selected(out, names))
}

// AddToState appends messages to a thread.
func AddToState(c *doors.Call) error {
	var in struct {
		Values map[string]json.RawMessage `json:"values"`
	}
	if _, err := c.Decode(&in); err != nil {
		return err
	}
	var messages []perdure.Message
	for name, value := range in.Values {
		if name != "messages" {
			return shape.Unprocessable(perdure.CodeInvalid, "values."+name,
				"is no state of a thread, which has messages alone")
		}
		var err error
		if messages, err = frames.TakeMessages("values.messages", value); err != nil {
			return err
		}
	}
	if len(messages) > shape.MaxBatch {
		return shape.Unprocessable(perdure.CodeTooLarge, "values.messages", "has more than 100 messages")
	}
	th, err := Find(c, c.Param("thread"))
	if err != nil {
		return err
	}
	for i := range messages { // before the first one is appended
		if err := messages[i].Validate("values.messages." + shape.Itoa(i)); err != nil {
			return err
		}
	}
	for _, m := range messages {
		if _, err := c.API.AppendMessage(c.Context(), th.ThreadID, m); err != nil {
			return err
		}
	}
	return c.JSON(http.StatusOK, shape.Object{"checkpoint": checkpoint(c.Param("thread"), nil)})
}

// History answers with the checkpoints of a thread, the newest first.
func History(c *doors.Call) error {
	var in struct {
		Limit  int             `json:"limit"`
		Before json.RawMessage `json:"before"`
		Select []string        `json:"select"`
	}
	if _, err := c.Decode(&in); err != nil {
		return err
	}
	pg := shape.Page{Limit: in.Limit}
	if err := pg.Check(); err != nil {
		return err
	}
	before, err := checkpointID(in.Before)
	if err != nil {
		return err
	}
	th, err := Find(c, c.Param("thread"))
	if err != nil {
		return err
	}
	runs, err := Runs(c, th.ThreadID, shape.MaxOffset)
	if err != nil {
		return err
	}
	ended := checkpoints(runs)
	if i := slices.IndexFunc(ended, func(r *api.Run) bool { return string(r.RunID) == before }); i >= 0 {
		ended = ended[i+1:]
	} else if before != "" {
		ended = nil
	}
	messages, err := Messages(c, th.ThreadID, th.LastSeq)
	if err != nil {
		return err
	}
	out, size := []shape.Object{}, 0
	for i, r := range ended[:min(len(ended), pg.Limit)] {
		upTo := messagesOf(r, messages)
		for n := range upTo {
			size += len(upTo[n].Content)
		}
		if size > frame.MaxAnswer/2 && i > 0 {
			break
		}
		values := shape.Object{"messages": frames.ShowMessages(c.Param("thread"), upTo)}
		if r.State == perdure.Completed {
			whole, err := c.API.Get(c.Context(), r.RunID) // a list has no results
			if err != nil {
				return err
			}
			size += len(whole.Result)
			frames.AddResult(values, whole.Result)
		}
		var parent *api.Run
		if i+1 < len(ended) {
			parent = ended[i+1]
		}
		out = append(out, shape.Selected(showState(c.Param("thread"), values, r, parent, *r.FinishedAt), in.Select))
	}
	return c.JSON(http.StatusOK, out)
}

// checkpointID reads a checkpoint: its id, or an object that has it.
func checkpointID(raw json.RawMessage) (id string, err error) {
	if len(raw) == 0 || string(raw) == "null" || json.Unmarshal(raw, &id) == nil {
		return id, nil
	}
	var in struct {
		ID           string `json:"checkpoint_id"`
		Configurable struct {
			ID string `json:"checkpoint_id"`
		} `json:"configurable"`
	}
	if json.Unmarshal(raw, &in) != nil {
		return "", perdure.Invalid("before", "is a checkpoint")
	}
	return shape.OrElse(in.ID, in.Configurable.ID), nil
}

// messagesOf gives the messages of a thread as they were when a run had ended.
func messagesOf(r *api.Run, messages []api.Message) []api.Message {
	n := 0
	for i := range messages {
		if messages[i].RunID == r.RunID || messages[i].At <= *r.FinishedAt {
			n = i + 1
		}
	}
	return messages[:n]
}
