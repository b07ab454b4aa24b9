package responses

import (
	"cmp"
	"encoding/json"
	"strconv"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/doors"
	"github.com/perdure/perdure/internal/doors/frame"
	"github.com/perdure/perdure/internal/doors/openai/again"
	"github.com/perdure/perdure/internal/doors/openai/input"
	"github.com/perdure/perdure/internal/doors/openai/shape"
	"github.com/perdure/perdure/internal/doors/openai/translate"
)

// A request is the body of POST /v1/responses. Fields that the door does not know are ignored.
type request struct {
	Model        string            `json:"model"`
	Input        json.RawMessage   `json:"input"`
	Instructions json.RawMessage   `json:"instructions"`
	Metadata     map[string]string `json:"metadata"`
	Background   bool              `json:"background"`
	Stream       bool              `json:"stream"`
	Previous     string            `json:"previous_response_id"`
	Conversation json.RawMessage   `json:"conversation"`

	input.Others
}

// Create is POST /v1/responses.
func Create(c *doors.Call) error {
	var in request
	raw, err := c.Decode(&in)
	if err != nil {
		return err
	}
	list, err := input.Items(in.Input)
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
	return respond(c, run, shape.Ref{Run: run.RunID}, in.Stream, in.Background, frame.Cursor{})
}

// start starts the run of a request.
func (in *request) start(c *doors.Call, raw []byte, list []input.Item) (*api.Run, error) {
	kind := cmp.Or(in.Model, api.SupervisorKind)
	if err := again.CheckKind(c, kind); err != nil {
		return nil, err
	}
	thread, err := in.thread(c)
	if err != nil {
		return nil, err
	}
	body, err := perdure.Marshal(shape.RunInput{Input: in.Input, Instructions: in.Instructions})
	if err != nil {
		return nil, perdure.Invalid("input", "is no JSON")
	}
	s := &again.Start{Digest: again.Digest(c, raw), NewThread: thread == "", Ignored: in.Ignored(),
		Echo: shape.Echo{Metadata: in.Metadata, Previous: in.Previous, Background: in.Background},
		Submission: perdure.Submission{Kind: kind, Input: body, ThreadID: thread,
			Messages: input.Messages(in.Instructions, list)}}
	return s.Run(c)
}

// thread is the thread of the response or conversation that a request goes on from, or empty.
func (in *request) thread(c *doors.Call) (perdure.ThreadID, error) {
	var id string
	if json.Unmarshal(in.Conversation, &id) != nil {
		var object shape.Conversation
		if len(in.Conversation) > 0 && json.Unmarshal(in.Conversation, &object) != nil {
			return "", perdure.Invalid("conversation", "takes an id, or an object with an id")
		}
		id = object.ID
	}
	switch {
	case id != "" && in.Previous != "":
		return "", perdure.Invalid("conversation", "does not go with previous_response_id")
	case id != "":
		thread, ok := shape.Dashed(strings.TrimPrefix(id, shape.ConversationPrefix))
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

// answer decides about the approvals that the previous response asks for, and gives the response for the
// part of the run that follows.
func answer(c *doors.Call, in *request, list []input.Item) error {
	if in.Previous == "" {
		return perdure.Invalid("previous_response_id", "is missing: it says which response asked for the approval")
	}
	r, run, err := find(c, in.Previous)
	if err != nil {
		return err
	}
	t := translate.New(run, r, &Found{Call: c, Run: r.Run, Ctx: c.Context()})
	if err := past(c, t); err != nil {
		return err
	}
	asked := make(map[string]bool)
	for _, x := range t.Response.Output {
		asked[x.ID] = x.Type == "mcp_approval_request"
	}
	for i, x := range list {
		at := "input[" + strconv.Itoa(i) + "]"
		switch {
		case x.Type != "mcp_approval_response":
			return perdure.Invalid(at, "does not go with an answer to an approval")
		case !t.Ended || !asked[x.Approval]:
			return perdure.Invalid(at+".approval_request_id", "is no approval that this response asks for")
		}
	}
	for _, x := range list {
		d := api.Decide{Decision: perdure.Reject, Comment: x.Reason}
		if x.Approve {
			d.Decision = perdure.Approve
		}
		if _, err := c.API.Decide(c.Context(), shape.ApprovalID(x.Approval), d); err != nil {
			return err
		}
	}
	return respond(c, run, shape.Ref{Run: r.Run, After: t.Seq}, in.Stream, in.Background, frame.Cursor{})
}
