package runs

import (
	"context"

	"github.com/perdure/perdure/internal/doors"
	"github.com/perdure/perdure/internal/doors/frame"
	"github.com/perdure/perdure/internal/doors/langgraph/frames"
	"github.com/perdure/perdure/internal/doors/langgraph/shape"
	"github.com/perdure/perdure/internal/doors/langgraph/threads"
)

// Translator makes the translation of the run's log.
func (p *Part) Translator(c *doors.Call, modes map[string]bool) *frames.Translator {
	t := &frames.Translator{Run: p.ID, Thread: p.Thread, Kind: p.Kind, From: p.From, Head: p.LastSeq, Modes: modes}
	t.Values = func(upTo int64) (shape.Object, error) {
		if p.ThreadID == "" {
			return shape.Object{}, nil
		}
		list, err := threads.Messages(c, p.ThreadID, upTo)
		return shape.Object{"messages": frames.ShowMessages(p.Thread, list)}, err
	}
	t.Message = func(seq int64) (shape.Object, error) {
		page, err := c.API.Messages(c.Context(), p.ThreadID, seq-1)
		if err != nil || len(page.Messages) == 0 || page.Messages[0].Seq != seq || page.Messages[0].Notice() {
			return nil, err
		}
		return frames.ShowMessage(p.Thread, &page.Messages[0]), nil
	}
	t.Question = threads.Questions(c)
	return t
}

// path is the path of the run below the door.
func (p *Part) path() string {
	if p.Thread == "" {
		return "/runs/" + p.ID
	}
	return "/threads/" + shape.Escape(p.Thread) + "/runs/" + p.ID
}

// Locate names the run in the headers. Clients attach again at Location.
func (p *Part) Locate(c *doors.Call, how string) {
	c.AnswerHeader().Set("Content-Location", p.path())
	if how != "" {
		c.AnswerHeader().Set("Location", p.path()+how)
	}
}

// Stream answers with the frames of a run. The answer of a call that has started the run begins at once:
// if it were refused, the caller would start another run.
func (p *Part) Stream(c *doors.Call, modes map[string]bool, started bool) error {
	from, err := frame.ParseCursor(c.Header.Get("Last-Event-ID"))
	if err != nil {
		return err
	}
	p.Locate(c, "/stream"+frames.ModeQuery(modes))
	t := p.Translator(c, modes)
	return c.Streaming(func(ctx context.Context, s *doors.Stream) error {
		if started {
			if err := s.Begin(); err != nil {
				return err
			}
		}
		return s.Follow(ctx, p.RunID, t.Head, from, t.Line)
	})
}

// Wait answers with the values at the end of a run. Started is as for stream.
func (p *Part) Wait(c *doors.Call, started bool) error {
	p.Locate(c, "/join")
	t := p.Translator(c, nil)
	return c.Waiting(func(ctx context.Context, begin func() error) (any, error) {
		begun := false
		if started {
			if err := begin(); err != nil {
				return nil, err
			}
			begun = true
		}
		for e, err := range c.Lines(ctx, p.RunID, 0) {
			if err == nil && !begun {
				begun, err = true, begin()
			}
			if err != nil {
				return nil, err
			}
			if t.Follow(e, frames.DataOf(e)); t.State != "" || t.Interrupted() && e.Seq >= max(t.Head, t.From) {
				break
			}
		}
		return t.Answer()
	})
}

// Join answers with the values at the end of a run.
func (d *Disconnects) Join(c *doors.Call) error {
	p, err := findRun(c)
	if err != nil {
		return err
	}
	return d.During(c, p, d.joining(c, p), func() error { return p.Wait(c, false) })
}

// Stream answers with the frames of a run.
func (d *Disconnects) Stream(c *doors.Call) error {
	p, err := findRun(c)
	if err != nil {
		return err
	}
	return d.During(c, p, d.joining(c, p), func() error {
		return p.Stream(c, frames.ModesOf(c.QueryList("stream_mode")), false)
	})
}
