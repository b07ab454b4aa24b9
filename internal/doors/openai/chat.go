package openai

import (
	"cmp"
	"context"
	"encoding/json"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/doors"
	"github.com/perdure/perdure/internal/doors/body"
	"github.com/perdure/perdure/internal/doors/frame"
	"github.com/perdure/perdure/internal/doors/openai/again"
	"github.com/perdure/perdure/internal/doors/openai/input"
	"github.com/perdure/perdure/internal/doors/openai/responses"
	"github.com/perdure/perdure/internal/doors/openai/shape"
	"github.com/perdure/perdure/internal/doors/openai/translate"
)

// A completion is the body of POST /v1/chat/completions.
type completion struct {
	Model    string            `json:"model"`
	Messages []input.Item      `json:"messages"`
	Metadata map[string]string `json:"metadata"`
	Stream   bool              `json:"stream"`

	StreamOptions struct {
		Usage bool `json:"include_usage"`
	} `json:"stream_options"`

	input.Others
}

// A chunk is a chat completion, or a piece of one.
type chunk struct {
	ID      string   `json:"id"`
	Object  string   `json:"object"`
	Created int64    `json:"created"`
	Model   string   `json:"model"`
	Choices []choice `json:"choices"`
	Usage   *tokens  `json:"usage,omitempty"`
}

type choice struct {
	Index   int          `json:"index"`
	Message *chatMessage `json:"message,omitempty"`
	Delta   *chatMessage `json:"delta,omitempty"`
	Finish  *string      `json:"finish_reason"`
}

type chatMessage struct {
	Role    string  `json:"role,omitempty"`
	Content *string `json:"content,omitempty"`
	Refusal *string `json:"refusal,omitempty"`
}

// tokens are those of a completion.
type tokens struct {
	Prompt     int `json:"prompt_tokens"`
	Completion int `json:"completion_tokens"`
	Total      int `json:"total_tokens"`
}

// complete is POST /v1/chat/completions.
func complete(c *doors.Call) error {
	var in completion
	raw, err := c.Decode(&in)
	if err != nil {
		return err
	}
	run, err := in.start(c, raw)
	if err != nil {
		return err
	}
	raw, in.Messages = nil, nil
	c.AnswerHeader().Set(runHeader, string(run.RunID))
	look := &responses.Found{Call: c, Run: run.RunID}
	out := &talk{t: translate.New(run, shape.Ref{Run: run.RunID}, look)}
	out.base = chunk{ID: "chatcmpl-" + shape.Bare(string(run.RunID)), Created: out.t.Response.CreatedAt,
		Model: run.Kind}
	if in.Stream {
		out.usage = in.StreamOptions.Usage
		head := run.LastSeq
		return c.Streaming(func(ctx context.Context, s *doors.Stream) error {
			look.Ctx = ctx
			return s.Follow(ctx, out.t.Ref.Run, head, frame.Cursor{}, out.line)
		})
	}
	return c.WaitingAfter(responses.Hold(c), func(ctx context.Context, begin func() error) (any, error) {
		err := responses.Wait(c, ctx, out.t.Ref.Run, look, begin, func(e *api.Event) (bool, error) {
			_, more, err := out.line(e)
			return more, err
		})
		return out.whole(), err
	})
}

// start starts the run of a completion.
func (in *completion) start(c *doors.Call, raw []byte) (*api.Run, error) {
	if len(in.Messages) == 0 || len(in.Messages) > input.MaxItems {
		return nil, perdure.Invalid("messages", "takes 1 to %d messages", input.MaxItems)
	}
	kind := cmp.Or(in.Model, api.SupervisorKind)
	if err := again.CheckKind(c, kind); err != nil {
		return nil, err
	}
	var asked struct {
		Messages json.RawMessage `json:"messages"`
	}
	if err := body.Decode(raw, &asked); err != nil {
		return nil, err
	}
	body, err := perdure.Marshal(asked)
	if err != nil {
		return nil, err
	}
	for i := range in.Messages {
		in.Messages[i].Type = ""
	}
	s := &again.Start{Digest: again.Digest(c, raw), NewThread: true, Ignored: in.Ignored(),
		Echo: shape.Echo{Metadata: in.Metadata}, Submission: perdure.Submission{Kind: kind, Input: body,
			Messages: input.Messages(nil, in.Messages)}}
	return s.Run(c)
}

// A talk turns the events of a response into the text of a chat completion. A text can't be taken back:
// of one that is told again, only what is new is told.
type talk struct {
	t    *translate.Translator
	base chunk

	said  strings.Builder // all that was told
	again string          // of the text that is told again: what was told before, and not yet again
	begun bool
	fresh bool // a message has begun, and nothing of it was told
	usage bool // the last piece of a stream counts the tokens
}

func (k *talk) line(e *api.Event) (out []frame.Frame, more bool, err error) {
	events, more, err := k.t.Line(e)
	if err != nil {
		return nil, false, err
	}
	text := ""
	for i := range events {
		switch x := &events[i]; x.Type {
		case "response.output_item.added":
			k.fresh = true
		case "response.output_item.done":
			if x.Item.Type == "message" && x.Item.Status == "incomplete" && more {
				k.again = (*x.Item.Content)[0].Text
			}
		case "response.output_text.delta":
			text += k.tell(*x.Delta)
		}
	}
	k.said.WriteString(text)
	if !k.begun && len(events) > 0 {
		k.begun = true
		out = append(out, k.frame(&chatMessage{Role: "assistant", Content: new(string)}, nil))
	}
	if text != "" {
		out = append(out, k.frame(&chatMessage{Content: &text}, nil))
	}
	if !more {
		out = append(out, k.last()...)
	}
	return out, more, nil
}

// tell returns what is new of a piece of text.
func (k *talk) tell(text string) string {
	if k.again != "" {
		k.fresh = false
		n := 0
		for n < len(text) && n < len(k.again) && text[n] == k.again[n] {
			n++
		}
		if n == len(text) || n == len(k.again) {
			k.again = k.again[n:]
			return text[n:]
		}
		k.again = ""
		return "\n\n" + strings.ToValidUTF8(text[n:], "")
	}
	if k.fresh && k.said.Len() > 0 {
		text = "\n\n" + text
	}
	k.fresh = false
	return text
}

// last are the frames of the end.
func (k *talk) last() (out []frame.Frame) {
	if why := k.failed(); why != "" {
		b, _ := perdure.Marshal(map[string]any{"error": errorBody{Message: why, Type: "server_error",
			Code: "run_failed"}})
		out = append(out, frame.Frame{Data: b, Bare: true})
	} else {
		stop := "stop"
		out = append(out, k.frame(&chatMessage{}, &stop))
	}
	if k.usage {
		c := k.base
		c.Object, c.Choices, c.Usage = "chat.completion.chunk", []choice{}, k.tokens()
		b, _ := perdure.Marshal(c) // never fails: it has texts and numbers
		out = append(out, frame.Frame{Data: b, Bare: true})
	}
	return append(out, frame.Frame{Data: []byte("[DONE]"), Bare: true})
}

// failed says why the run has ended without an answer, or that it waits for a person.
func (k *talk) failed() string {
	switch r := k.t.Response; r.Status {
	case "failed":
		return r.Error.Code + ": " + r.Error.Message
	case "cancelled":
		return "the run was cancelled"
	case "completed":
		for _, x := range r.Output {
			if x.Type == "mcp_approval_request" {
				return "the run waits for the approval " + string(shape.ApprovalID(x.ID)) + ": " + x.Name
			}
		}
		return ""
	}
	return "the run goes on: " + string(k.t.Ref.Run)
}

func (k *talk) frame(delta *chatMessage, finish *string) frame.Frame {
	c := k.base
	c.Object = "chat.completion.chunk"
	c.Choices = []choice{{Delta: delta, Finish: finish}}
	b, _ := perdure.Marshal(c) // never fails: it has texts and numbers
	return frame.Frame{Data: b, Bare: true}
}

// whole is the completion of a caller who waited. A run without an answer is a refusal.
func (k *talk) whole() *chunk {
	c := k.base
	c.Object, c.Usage = "chat.completion", k.tokens()
	stop, text := "stop", k.said.String()
	m := &chatMessage{Role: "assistant", Content: &text}
	if why := k.failed(); why != "" {
		m.Refusal = &why
	}
	c.Choices = []choice{{Message: m, Finish: &stop}}
	return &c
}

// tokens are those that the run's result counts.
func (k *talk) tokens() *tokens {
	u := k.t.Response.Usage
	if u == nil {
		return &tokens{}
	}
	return &tokens{Prompt: u.Input, Completion: u.Output, Total: u.Total}
}
