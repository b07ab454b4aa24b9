package responses

import (
	"context"
	"encoding/json"
	"strconv"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/doors"
	"github.com/perdure/perdure/internal/doors/frame"
	"github.com/perdure/perdure/internal/doors/openai/shape"
	"github.com/perdure/perdure/internal/doors/openai/translate"
)

// find returns the run of a response.
func find(c *doors.Call, id string) (shape.Ref, *api.Run, error) {
	r, err := shape.ParseRef(id)
	if err != nil {
		return shape.Ref{}, nil, err
	}
	run, err := c.API.Get(c.Context(), r.Run)
	if err != nil {
		return shape.Ref{}, nil, err
	}
	return r, run, nil
}

// respond answers with a response: as a stream, at once, or when it has ended.
func respond(c *doors.Call, run *api.Run, r shape.Ref, stream, background bool, from frame.Cursor) error {
	head := run.LastSeq
	look := &Found{Call: c, Run: run.RunID}
	t := translate.New(run, r, look)
	switch {
	case stream:
		return c.Streaming(func(ctx context.Context, s *doors.Stream) error {
			look.Ctx = ctx
			return s.Follow(ctx, r.Run, head, from, func(e *api.Event) ([]frame.Frame, bool, error) {
				events, more, err := t.Line(e)
				if err != nil {
					return nil, false, err
				}
				out, err := translate.Frames(events)
				return out, more, err
			})
		})
	case background:
		return now(c, t)
	}
	return c.WaitingAfter(Hold(c), func(ctx context.Context, begin func() error) (any, error) {
		err := Wait(c, ctx, r.Run, look, begin, func(e *api.Event) (bool, error) {
			_, more, err := t.Line(e)
			return more, err
		})
		return t.Response, err
	})
}

// now answers with a response as it is.
func now(c *doors.Call, t *translate.Translator) error {
	t.Look = &Found{Call: c, Run: t.Ref.Run, Ctx: c.Context()}
	if err := past(c, t); err != nil {
		return err
	}
	return c.JSON(200, t.Response)
}

// past reads the lines that a log has already.
func past(c *doors.Call, t *translate.Translator) error {
	for e, err := range c.Past(c.Context(), t.Ref.Run, 0) {
		if err != nil {
			return err
		}
		if _, more, err := t.Line(e); err != nil || !more {
			return err
		}
	}
	if t.Part != t.Ref.After {
		return perdure.Errorf(perdure.CodeNotFound, "there is no such response")
	}
	return nil
}

// Retrieve is GET /v1/responses/{id}.
func Retrieve(c *doors.Call) error {
	r, run, err := find(c, c.Param("id"))
	if err != nil {
		return err
	}
	if stream, _ := strconv.ParseBool(c.Query("stream")); !stream {
		return now(c, translate.New(run, r, nil))
	}
	from, err := cursor(c.Query("starting_after"))
	if err != nil {
		return err
	}
	return respond(c, run, r, true, false, from)
}

// cursor is the place of an event's sequence number in the log.
func cursor(text string) (frame.Cursor, error) {
	if text == "" {
		return frame.Cursor{}, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 || n/shape.FramesPerLine > shape.MaxLine {
		return frame.Cursor{}, perdure.Invalid("starting_after", "takes the sequence_number of an event")
	}
	if n%shape.FramesPerLine == 0 {
		return frame.Cursor{Line: max(n/shape.FramesPerLine-1, 0)}, nil
	}
	return frame.Cursor{Line: n / shape.FramesPerLine, Frame: int(n % shape.FramesPerLine)}, nil
}

// exists refuses a part that a run does not have.
func exists(c *doors.Call, run *api.Run, r shape.Ref) error {
	if r.After == 0 {
		return nil
	}
	return past(c, translate.New(run, r, &Found{Call: c, Run: r.Run, Ctx: c.Context()}))
}

// Cancel is POST /v1/responses/{id}/cancel. A response that has ended stays as it is.
func Cancel(c *doors.Call) error {
	r, run, err := find(c, c.Param("id"))
	if err != nil {
		return err
	}
	if err := exists(c, run, r); err != nil {
		return err
	}
	if _, err := c.API.Cancel(c.Context(), r.Run, "", 0, c.Options()...); err != nil {
		return err
	}
	return now(c, translate.New(run, r, nil))
}

// Remove is DELETE /v1/responses/{id}.
func Remove(c *doors.Call) error {
	r, err := shape.ParseRef(c.Param("id"))
	if err != nil {
		return err
	}
	if r.After > 0 {
		_, run, err := find(c, c.Param("id"))
		if err != nil {
			return err
		}
		if err := exists(c, run, r); err != nil {
			return err
		}
	}
	if err := c.API.Delete(c.Context(), r.Run, c.Options()...); err != nil {
		return err
	}
	return c.JSON(200, map[string]any{"id": r.String(), "object": "response", "deleted": true})
}

// InputItems is GET /v1/responses/{id}/input_items.
func InputItems(c *doors.Call) error {
	r, run, err := find(c, c.Param("id"))
	if err != nil {
		return err
	}
	var in shape.RunInput
	data := []json.RawMessage{}
	if json.Unmarshal(run.Input, &in) == nil && json.Unmarshal(in.Input, &data) != nil && len(in.Input) > 0 {
		b, err := perdure.Marshal(map[string]any{"type": "message", "role": "user",
			"id":     "msg_" + shape.Bare(string(r.Run)),
			"status": "completed", "content": []any{map[string]any{"type": "input_text", "text": in.Input}}})
		if err != nil {
			return err
		}
		data = append(data, b)
	}
	return c.JSON(200, map[string]any{"object": "list", "data": data, "first_id": nil, "last_id": nil,
		"has_more": false})
}
