package openai

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/internal/doors"
)

// maxWait is how long an answer waits for the end of a run. The run goes on after it.
const maxWait = time.Hour

// create is POST /v1/responses.
func create(c *doors.Call) error {
	var in request
	raw, err := c.Decode(&in)
	if err != nil {
		return err
	}
	list, err := items(in.Input)
	if err != nil {
		return err
	}
	for _, x := range list {
		if x.Type == "mcp_approval_response" {
			return answer(c, &in, list)
		}
	}
	run, err := in.start(c, raw, list)
	if err != nil {
		return err
	}
	raw, list, in.Input = nil, nil, nil // they may be large, and the wait long
	return respond(c, run, ref{run: run.RunID}, in.Stream, in.Background, doors.Cursor{})
}

// start starts the run of a request.
func (in *request) start(c *doors.Call, raw []byte, list []inputItem) (*api.Run, error) {
	kind := cmp.Or(in.Model, api.SupervisorKind)
	if err := checkKind(c, kind); err != nil {
		return nil, err
	}
	thread, err := in.thread(c)
	if err != nil {
		return nil, err
	}
	body, err := perdure.Marshal(runInput{in.Input, in.Instructions})
	if err != nil {
		return nil, perdure.Invalid("input", "is no JSON")
	}
	s := &start{digest: digestOf(c, raw), newThread: thread == "", ignored: in.ignored(),
		echo: echo{Metadata: in.Metadata, Previous: in.Previous, Background: in.Background},
		sub: perdure.Submission{Kind: kind, Input: body, ThreadID: thread,
			Messages: messages(in.Instructions, list)}}
	return s.run(c)
}

// thread is the thread of the response or conversation that a request goes on from, or empty.
func (in *request) thread(c *doors.Call) (perdure.ThreadID, error) {
	var id string
	if json.Unmarshal(in.Conversation, &id) != nil {
		var object conversation
		if len(in.Conversation) > 0 && json.Unmarshal(in.Conversation, &object) != nil {
			return "", perdure.Invalid("conversation", "takes an id, or an object with an id")
		}
		id = object.ID
	}
	switch {
	case id != "" && in.Previous != "":
		return "", perdure.Invalid("conversation", "does not go with previous_response_id")
	case id != "":
		thread, ok := dashed(strings.TrimPrefix(id, conversationPrefix))
		if !ok {
			return "", perdure.Errorf(perdure.CodeNotFound, "there is no such conversation")
		}
		return perdure.ThreadID(thread), nil
	case in.Previous != "":
		_, run, err := find(c, in.Previous)
		if err != nil {
			return "", err
		}
		return run.ThreadID, nil
	}
	return "", nil
}

// find returns the run of a response.
func find(c *doors.Call, id string) (ref, *api.Run, error) {
	r, err := parseRef(id)
	if err != nil {
		return ref{}, nil, err
	}
	run, err := c.API.Get(c.Context(), r.run)
	if err != nil {
		return ref{}, nil, err
	}
	return r, run, nil
}

// respond answers with a response: as a stream, at once, or when it has ended.
func respond(c *doors.Call, run *api.Run, r ref, stream, background bool, from doors.Cursor) error {
	head := run.LastSeq
	look := &found{call: c, run: run.RunID}
	t := newTranslator(run, r, look)
	switch {
	case stream:
		return c.Streaming(func(ctx context.Context, s *doors.Stream) error {
			look.ctx = ctx
			return s.Follow(ctx, r.run, head, from, func(e *api.Event) ([]doors.Frame, bool, error) {
				events, more, err := t.line(e)
				if err != nil {
					return nil, false, err
				}
				out, err := frames(events)
				return out, more, err
			})
		})
	case background:
		return now(c, t)
	}
	return c.WaitingAfter(hold(c), func(ctx context.Context, begin func() error) (any, error) {
		err := wait(c, ctx, r.run, look, begin, func(e *api.Event) (bool, error) {
			_, more, err := t.line(e)
			return more, err
		})
		return t.resp, err
	})
}

// held is how long the headers of a waiting answer are held back. It is shorter than the silence that
// proxies allow.
const held = 25 * time.Second

// hold is how long the headers of an answer are held back. The clients post again while they have none,
// at first twice, and give an answer up that breaks off later. The last time they get them at once, so that
// their timeouts and those of proxies end.
func hold(c *doors.Call) time.Duration {
	if retries(c) >= 2 {
		return 0
	}
	return held
}

// errWaited ends the longest wait.
var errWaited = errors.New("the wait is over")

// wait reads the log of a run until line says that there is no more to read, or the longest wait is
// over. begin is called once the run can't be refused.
func wait(c *doors.Call, ctx context.Context, run perdure.RunID, look *found, begin func() error,
	line func(*api.Event) (more bool, err error)) error {
	ctx, cancel := context.WithTimeoutCause(ctx, maxWait, errWaited)
	defer cancel()
	look.ctx = ctx
	begun := false
	for e, err := range c.Lines(ctx, run, 0) {
		if err == nil && !begun {
			begun, err = true, begin()
		}
		if errors.Is(err, errWaited) {
			return nil
		}
		if err != nil {
			return err
		}
		if more, err := line(e); err != nil || !more {
			return err
		}
	}
	return nil
}

// now answers with a response as it is.
func now(c *doors.Call, t *translator) error {
	t.look = &found{call: c, run: t.ref.run, ctx: c.Context()}
	if err := past(c, t); err != nil {
		return err
	}
	return c.JSON(200, t.resp)
}

// past reads the lines that a log has already.
func past(c *doors.Call, t *translator) error {
	for e, err := range c.Past(c.Context(), t.ref.run, 0) {
		if err != nil {
			return err
		}
		if _, more, err := t.line(e); err != nil || !more {
			return err
		}
	}
	if t.part != t.ref.after {
		return perdure.Errorf(perdure.CodeNotFound, "there is no such response")
	}
	return nil
}

// retrieve is GET /v1/responses/{id}.
func retrieve(c *doors.Call) error {
	r, run, err := find(c, c.Param("id"))
	if err != nil {
		return err
	}
	if stream, _ := strconv.ParseBool(c.Query("stream")); !stream {
		return now(c, newTranslator(run, r, nil))
	}
	from, err := cursor(c.Query("starting_after"))
	if err != nil {
		return err
	}
	return respond(c, run, r, true, false, from)
}

// cursor is the place of an event's sequence number in the log.
func cursor(text string) (doors.Cursor, error) {
	if text == "" {
		return doors.Cursor{}, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 || n/framesPerLine > maxLine {
		return doors.Cursor{}, perdure.Invalid("starting_after", "takes the sequence_number of an event")
	}
	if n%framesPerLine == 0 {
		return doors.Cursor{Line: max(n/framesPerLine-1, 0)}, nil
	}
	return doors.Cursor{Line: n / framesPerLine, Frame: int(n % framesPerLine)}, nil
}

// cancel is POST /v1/responses/{id}/cancel. A response that has ended stays as it is.
func cancel(c *doors.Call) error {
	r, run, err := find(c, c.Param("id"))
	if err != nil {
		return err
	}
	if _, err := c.API.Cancel(c.Context(), r.run, "", 0, c.Options()...); err != nil {
		return err
	}
	return now(c, newTranslator(run, r, nil))
}

// remove is DELETE /v1/responses/{id}.
func remove(c *doors.Call) error {
	r, err := parseRef(c.Param("id"))
	if err != nil {
		return err
	}
	if err := c.API.Delete(c.Context(), r.run, c.Options()...); err != nil {
		return err
	}
	return c.JSON(200, map[string]any{"id": r.String(), "object": "response", "deleted": true})
}

// inputItems is GET /v1/responses/{id}/input_items.
func inputItems(c *doors.Call) error {
	r, run, err := find(c, c.Param("id"))
	if err != nil {
		return err
	}
	var in runInput
	data := []json.RawMessage{}
	if json.Unmarshal(run.Input, &in) == nil && json.Unmarshal(in.Input, &data) != nil && len(in.Input) > 0 {
		b, err := perdure.Marshal(map[string]any{"type": "message", "role": "user", "id": "msg_" + bare(string(r.run)),
			"status": "completed", "content": []any{map[string]any{"type": "input_text", "text": in.Input}}})
		if err != nil {
			return err
		}
		data = append(data, b)
	}
	return c.JSON(200, map[string]any{"object": "list", "data": data, "first_id": nil, "last_id": nil,
		"has_more": false})
}

// answer decides about the approvals that the previous response asks for, and gives the response for the
// part of the run that follows.
func answer(c *doors.Call, in *request, list []inputItem) error {
	if in.Previous == "" {
		return perdure.Invalid("previous_response_id", "is missing: it says which response asked for the approval")
	}
	r, run, err := find(c, in.Previous)
	if err != nil {
		return err
	}
	t := newTranslator(run, r, &found{call: c, run: r.run, ctx: c.Context()})
	if err := past(c, t); err != nil {
		return err
	}
	asked := make(map[string]bool)
	for _, x := range t.resp.Output {
		asked[x.ID] = x.Type == "mcp_approval_request"
	}
	for i, x := range list {
		at := "input[" + strconv.Itoa(i) + "]"
		switch {
		case x.Type != "mcp_approval_response":
			return perdure.Invalid(at, "does not go with an answer to an approval")
		case !t.ended || !asked[x.Approval]:
			return perdure.Invalid(at+".approval_request_id", "is no approval that this response asks for")
		}
	}
	for _, x := range list {
		d := api.Decide{Decision: perdure.Reject, Comment: x.Reason}
		if x.Approve {
			d.Decision = perdure.Approve
		}
		if _, err := c.API.Decide(c.Context(), approvalID(x.Approval), d); err != nil {
			return err
		}
	}
	return respond(c, run, ref{run: r.run, after: t.seq}, in.Stream, in.Background, doors.Cursor{})
}

// found looks things up with the calls of the API.
type found struct {
	call *doors.Call
	run  perdure.RunID
	ctx  context.Context
}

func (f *found) approval(id perdure.ApprovalID) (*perdure.Approval, error) {
	a, err := f.call.API.Approval(f.ctx, id)
	if client.CodeOf(err) == perdure.CodeNotFound {
		return nil, nil
	}
	return a, err
}

func (f *found) result() (json.RawMessage, error) {
	run, err := f.call.API.Get(f.ctx, f.run)
	if err != nil {
		return nil, err
	}
	return run.Result, nil
}
