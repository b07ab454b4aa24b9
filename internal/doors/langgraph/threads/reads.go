package threads

import (
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/internal/doors"
	"github.com/perdure/perdure/internal/doors/frame"
	"github.com/perdure/perdure/internal/doors/langgraph/frames"
	"github.com/perdure/perdure/internal/doors/langgraph/shape"
)

// Messages reads the messages of a thread up to a number, the newest thousand of them, without the
// notices of the server.
func Messages(c *doors.Call, thread perdure.ThreadID, upTo int64) (out []api.Message, err error) {
	size := 0
	for after := max(0, upTo-frames.MaxMessages); after < upTo; {
		part, err := c.API.Messages(c.Context(), thread, after)
		if err != nil {
			return nil, err
		}
		for _, m := range part.Messages {
			if m.Seq > upTo {
				return out, nil
			}
			if size += len(m.Content); !m.Notice() && size < frame.MaxAnswer/2 {
				out = append(out, m)
			}
		}
		if len(part.Messages) == 0 {
			break
		}
		after = part.NextAfter
	}
	return out, nil
}

// Asked gives what people are asked by a live run and by the runs below it, if it is suspended.
func Asked(c *doors.Call, r *api.Run) (out []frames.Interrupt, err error) {
	if r.State != perdure.Suspended {
		return nil, nil
	}
	a, err := c.API.Activity(c.Context(), r.RunID)
	if err != nil {
		return nil, err
	}
	for i := range a.Waits {
		w := &a.Waits[i]
		if w.Type != perdure.WaitApproval && slices.Contains(frames.AsksPeople, w.Type) {
			out = append(out, frames.Interrupt{ID: w.WaitID, Wait: w.WaitID, Kind: w.Type, Name: w.Name})
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
			out = append(out, frames.Interrupt{ID: string(q.ID), Wait: q.WaitID, Run: below, Kind: perdure.WaitApproval,
				Name: q.Name, Approval: q.ID, Title: q.Title})
		}
		if f.Cursor = page.NextCursor; f.Cursor == "" || len(out) >= perdure.MaxQuestionLines {
			return out, nil
		}
	}
}

// Runs lists the runs of a thread, newest first: as many as a page may need.
func Runs(c *doors.Call, id perdure.ThreadID, most int) (out []api.Run, err error) {
	f := client.Filter{ThreadID: id, Limit: min(most, shape.MaxPage)}
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

// Find finds a thread by its id, or by the id that the caller chose for it.
func Find(c *doors.Call, id string) (*api.Thread, error) {
	th, err := c.API.Thread(c.Context(), perdure.ThreadID(id))
	if err == nil || !doors.Missing(err) && doors.ProblemOf(err).Code != perdure.CodeInvalid {
		return th, err
	}
	if th, err = c.API.ThreadByName(c.Context(), shape.Prefix+id); doors.Missing(err) {
		err = perdure.Errorf(perdure.CodeNotFound, "no such thread")
	}
	return th, err
}

// shownInterrupts gives what people are asked, in the shape of the protocol.
func shownInterrupts(c *doors.Call, asks []frames.Interrupt) []shape.Object {
	return frames.ShowInterrupts(asks, Questions(c))
}

// Questions reads what a person sees of an approval. It is nil for one that is gone.
func Questions(c *doors.Call) func(perdure.ApprovalID) any {
	return func(id perdure.ApprovalID) any {
		a, err := c.API.Approval(c.Context(), id)
		if err != nil {
			return nil
		}
		return frames.ShowQuestion(a)
	}
}
