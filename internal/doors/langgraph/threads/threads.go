package threads

import (
	"encoding/json"
	"iter"
	"net/http"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/internal/doors"
	"github.com/perdure/perdure/internal/doors/langgraph/frames"
	"github.com/perdure/perdure/internal/doors/langgraph/shape"
)

// idOfThread is the id that a caller knows a thread by.
func idOfThread(id perdure.ThreadID, names []string) string {
	for _, name := range names {
		if len(name) > len(shape.Prefix) && name[:len(shape.Prefix)] == shape.Prefix {
			return name[len(shape.Prefix):]
		}
	}
	return string(id)
}

// Create makes a thread, perhaps under an id of the caller.
func Create(c *doors.Call) error {
	var in struct {
		Thread     string          `json:"thread_id"`
		Metadata   json.RawMessage `json:"metadata"`
		IfExists   string          `json:"if_exists"`
		Supersteps json.RawMessage `json:"supersteps"`
	}
	if _, err := c.Decode(&in); err != nil {
		return err
	}
	switch {
	case in.IfExists != "" && in.IfExists != "raise" && in.IfExists != "do_nothing":
		return perdure.Invalid("if_exists", "is raise or do_nothing")
	case len(in.Supersteps) > 0 && string(in.Supersteps) != "null" && string(in.Supersteps) != "[]":
		return shape.Unprocessable(perdure.CodeInvalid, "supersteps",
			"are not taken: append messages to the state instead")
	}
	if string(in.Metadata) == "null" {
		in.Metadata = nil
	}
	if in.Thread == "" {
		th, err := c.API.CreateThread(c.Context(), in.Metadata, c.Options()...)
		if err != nil {
			return err
		}
		return showThread(c, th)
	}
	created := false
	th, err := Find(c, in.Thread)
	if doors.Missing(err) { // another call may create it in between
		opts := append(c.Options(), client.CallOptions{Created: &created})
		th, err = c.API.CreateNamedThread(c.Context(), shape.Prefix+in.Thread, in.Metadata, opts...)
	}
	if err == nil && !created && in.IfExists != "do_nothing" {
		err = perdure.Errorf(perdure.CodeNameTaken, "there is a thread of this id")
	}
	if err != nil {
		return err
	}
	return showThread(c, th)
}

// Copy makes a thread with the messages of another one.
func Copy(c *doors.Call) error {
	th, err := Find(c, c.Param("thread"))
	if err == nil {
		th, err = c.API.CopyThread(c.Context(), th.ThreadID, nil, c.Options()...)
	}
	if err != nil {
		return err
	}
	return showThread(c, th)
}

// A threadState is what a thread is at now.
type threadState struct {
	status string
	asks   []frames.Interrupt
	last   *api.Run // the active run, or the last one; nil without any
}

func stateOf(c *doors.Call, th *api.Thread) (s threadState, err error) {
	s.status = "idle"
	if th.ActiveRun != "" {
		if s.last, err = c.API.Get(c.Context(), th.ActiveRun); err != nil {
			if doors.Missing(err) { // it ended just now, and is gone
				return s, nil
			}
			return s, err
		}
		s.status = "busy"
		if s.asks, err = Asked(c, s.last); len(s.asks) > 0 {
			s.status = frames.Interrupted
		}
		return s, err
	}
	runs, err := Runs(c, th.ThreadID, shape.DefaultPage)
	if ended := checkpoints(runs); err == nil && len(ended) > 0 {
		if s.last, err = c.API.Get(c.Context(), ended[0].RunID); err != nil { // with its result
			return s, err
		}
		if st := s.last.State; st == perdure.Failed || st == perdure.TimedOut {
			s.status = "error"
		}
	}
	return s, err
}

// valuesOf gives the values of a thread: its messages, and the fields of the last result.
func valuesOf(c *doors.Call, th *api.Thread, last *api.Run) (shape.Object, error) {
	list, err := Messages(c, th.ThreadID, th.LastSeq)
	out := shape.Object{"messages": frames.ShowMessages(idOfThread(th.ThreadID, th.Names), list)}
	if last != nil && last.State == perdure.Completed {
		frames.AddResult(out, last.Result)
	}
	return out, err
}

func threadObject(c *doors.Call, th *api.Thread, withValues bool) (shape.Object, error) {
	s, err := stateOf(c, th)
	if err != nil {
		return nil, err
	}
	updated := th.CreatedAt
	if s.last != nil {
		updated = max(updated, s.last.CreatedAt)
		if s.last.FinishedAt != nil {
			updated = max(updated, *s.last.FinishedAt)
		}
	}
	metadata := any(shape.Object{})
	if len(th.Metadata) > 0 && th.Metadata[0] == '{' {
		metadata = th.Metadata
	}
	interrupts := shape.Object{}
	if len(s.asks) > 0 {
		interrupts[string(s.last.RunID)] = shownInterrupts(c, s.asks)
	}
	out := shape.Object{"thread_id": idOfThread(th.ThreadID, th.Names), "created_at": th.CreatedAt,
		"updated_at": updated, "state_updated_at": updated, "metadata": metadata, "status": s.status,
		"values": shape.Object{}, "interrupts": interrupts}
	if withValues {
		out["values"], err = valuesOf(c, th, s.last)
	}
	return out, err
}

func showThread(c *doors.Call, th *api.Thread) error {
	out, err := threadObject(c, th, true)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, out)
}

// Get answers with a thread.
func Get(c *doors.Call) error {
	th, err := Find(c, c.Param("thread"))
	if err != nil {
		return err
	}
	return showThread(c, th)
}

// Change merges fields into a thread's metadata.
func Change(c *doors.Call) error {
	var in struct {
		Metadata json.RawMessage `json:"metadata"`
	}
	if _, err := c.Decode(&in); err != nil {
		return err
	}
	th, err := Find(c, c.Param("thread"))
	if err != nil {
		return err
	}
	if len(in.Metadata) > 0 && string(in.Metadata) != "null" {
		if th, err = c.API.ChangeThread(c.Context(), th.ThreadID, in.Metadata, c.Options()...); err != nil {
			return err
		}
	}
	return showThread(c, th)
}

// Delete removes a thread.
func Delete(c *doors.Call) error {
	th, err := Find(c, c.Param("thread"))
	if err == nil {
		err = c.API.DeleteThread(c.Context(), th.ThreadID)
	}
	if err != nil {
		return err
	}
	return c.Status(http.StatusNoContent)
}

// threadSearch is the body of a search for threads.
type threadSearch struct {
	shape.Page
	IDs      []string        `json:"ids"`
	Status   string          `json:"status"`
	Metadata map[string]any  `json:"metadata"`
	Values   json.RawMessage `json:"values"`
	Select   []string        `json:"select"`
}

// matches tells whether a thread is what is searched for.
func (s *threadSearch) matches(th shape.Object) bool {
	if s.Status != "" && th["status"] != s.Status {
		return false
	}
	if len(s.Metadata) == 0 {
		return true
	}
	var have map[string]any
	raw, _ := th["metadata"].(json.RawMessage)
	if json.Unmarshal(raw, &have) != nil {
		return false
	}
	for name, want := range s.Metadata {
		a, _ := json.Marshal(want)
		b, _ := json.Marshal(have[name])
		if string(a) != string(b) {
			return false
		}
	}
	return true
}

// maxReads bounds the pages of the API that a search reads. Each of them ends after 5 000 threads or 30 ms.
const maxReads = 20

// statuses are those of threads, as the API names them.
var statuses = map[string]perdure.ThreadStatus{"idle": perdure.ThreadIdle, "busy": perdure.ThreadBusy,
	frames.Interrupted: perdure.ThreadWaiting, "error": perdure.ThreadError}

// filter is what the API selects by. It compares texts, and matches looks at the rest.
func (s *threadSearch) filter() (f client.ThreadFilter, err error) {
	f = client.ThreadFilter{Limit: shape.MaxPage, WithoutChildren: true, Status: statuses[s.Status]}
	if s.Status != "" && f.Status == "" {
		return f, shape.Unprocessable(perdure.CodeInvalid, "status", "is none of idle, busy, interrupted, error")
	}
	scalars := make(map[string]string)
	frames.AddScalars(scalars, s.Metadata)
	for name, value := range scalars {
		if perdure.CheckName(name, name) == nil && perdure.CheckText(name, value) == nil {
			if f.Metadata == nil {
				f.Metadata = make(map[string]string)
			}
			f.Metadata[name] = value
		}
	}
	return f, nil
}

// candidates are the ids of the threads that may be what is searched for: the given ones, or those that the
// API finds, the one with the last activity first.
func (s *threadSearch) candidates(c *doors.Call) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		for _, id := range s.IDs {
			if !yield(id, nil) {
				return
			}
		}
		if len(s.IDs) > 0 {
			return
		}
		f, err := s.filter()
		for n := 0; err == nil && n < maxReads; n++ {
			var list *api.Threads
			if list, err = c.API.Threads(c.Context(), f); err != nil {
				break
			}
			for i := range list.Threads {
				if !yield(string(list.Threads[i].ThreadID), nil) {
					return
				}
			}
			if f.Cursor = list.NextCursor; f.Cursor == "" {
				return
			}
		}
		if err != nil {
			yield("", err)
		}
	}
}

// Search answers with a page of threads.
func Search(c *doors.Call) error {
	var s threadSearch
	if _, err := c.Decode(&s); err != nil {
		return err
	}
	if err := s.Check(); err != nil {
		return err
	}
	if len(s.Values) > 0 && string(s.Values) != "null" && string(s.Values) != "{}" {
		return shape.Unprocessable(perdure.CodeInvalid, "values", "can't be searched by")
	}
	if len(s.IDs) > shape.MaxPage {
		return shape.Unprocessable(perdure.CodeTooLarge, "ids", "has more than 100 ids")
	}
	found := []shape.Object{}
	for id, err := range s.candidates(c) {
		if err != nil {
			return err
		}
		if len(found) > s.Offset+s.Limit {
			break
		}
		th, err := Find(c, id)
		if doors.Missing(err) {
			continue
		}
		if err != nil {
			return err
		}
		out, err := threadObject(c, th, false)
		if err != nil {
			return err
		}
		if s.matches(out) {
			found = append(found, out)
		}
	}
	part, more := shape.PartOf(s.Page, found)
	if more {
		c.AnswerHeader().Set("X-Pagination-Next", shape.Itoa(s.Offset+s.Limit))
	}
	for i := range part {
		part[i] = shape.Selected(part[i], s.Select)
	}
	return c.JSON(http.StatusOK, part)
}
