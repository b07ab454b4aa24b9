package translate

import (
	"encoding/json"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/doors/frame"
	"github.com/perdure/perdure/internal/doors/openai/shape"
)

// A notification is the body of a webhook, as OpenAI sends it. The receiver gets the response by its id.
type notification struct {
	ID        string  `json:"id"`
	Object    string  `json:"object"`
	CreatedAt int64   `json:"created_at"`
	Type      string  `json:"type"`
	Data      subject `json:"data"`
}

type subject struct {
	ID string `json:"id"`
}

// Notify makes the notification of a line: of the end of a run, or of a part of it that ends with a
// question. Other lines have none.
func Notify(n *frame.Notice) ([]byte, error) {
	// A translator of the part that follows the line mutes all lines up to it, and says where parts begin.
	t := New(n.Shown(), shape.Ref{Run: n.Run.ID, After: n.Line.Seq}, nothing{})
	part, typ := int64(0), ""
	for e, err := range n.Lines {
		if err != nil {
			return nil, err
		}
		part = t.Part
		if typ = ends[e.Type]; typ != "" && e.Seq == n.Line.Seq {
			if t.concludes(e) {
				typ = "response.incomplete"
			}
			break
		}
		if _, more, err := t.Line(e); err != nil || !more {
			return nil, err
		}
		if t.Part == n.Line.Seq {
			typ = "response.completed"
		}
	}
	if typ == "" {
		return nil, nil
	}
	return perdure.Marshal(notification{ID: "evt_" + n.ID, Object: "event", CreatedAt: int64(n.Line.At) / 1_000_000,
		Type: typ, Data: subject{shape.Ref{Run: n.Run.ID, After: part}.String()}})
}

// concludes tells the result of a run that a line completes, and tells whether the text is too large.
func (t *Translator) concludes(e *api.Event) (tooLarge bool) {
	var d struct {
		Result json.RawMessage `json:"result"`
	}
	if e.Type == perdure.LineCompleted && json.Unmarshal(e.Data, &d) == nil {
		t.Seq = e.Seq
		t.conclude(resultText(d.Result))
	}
	return e.Type == perdure.LineCompleted && t.Response.Incomplete != nil
}

// ends are the types of notifications of the ends of runs.
var ends = map[perdure.LineType]string{perdure.LineCompleted: "response.completed",
	perdure.LineFailed: "response.failed", perdure.LineTimedOut: "response.failed",
	perdure.LineCancelled: "response.cancelled"}

// nothing finds nothing. Lines that are muted need nothing to be found.
type nothing struct{}

func (nothing) Approval(perdure.ApprovalID) (*perdure.Approval, error) { return nil, nil }

func (nothing) Result() (json.RawMessage, error) { return nil, nil }
