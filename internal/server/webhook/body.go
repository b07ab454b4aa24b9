package webhook

import (
	"encoding/json"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
)

// maxBody limits the bytes of a body, so that receivers need not accept more.
const maxBody = 20000

type body struct {
	Type      perdure.LineType `json:"type"`
	Timestamp perdure.Instant  `json:"timestamp"`
	Data      data             `json:"data"`
}

type data struct {
	RunID          perdure.RunID    `json:"run_id"`
	ThreadID       perdure.ThreadID `json:"thread_id,omitempty"`
	Kind           string           `json:"kind"`
	Queue          string           `json:"queue"`
	ParentID       perdure.RunID    `json:"parent_run_id,omitempty"`
	RootID         perdure.RunID    `json:"root_run_id"`
	ContinuationOf perdure.RunID    `json:"continuation_of_run_id,omitempty"`
	Metadata       json.RawMessage  `json:"metadata,omitempty"`
	StatusURL      string           `json:"status_url"`
	AttachURL      string           `json:"attach_url"`
	Event          perdure.Line     `json:"event"`
}

// omitted replaces a part that is too large. The receiver gets it from status_url.
type omitted struct {
	Omitted bool `json:"omitted"`
	Size    int  `json:"size"`
}

// Body returns the body of a message: the line, and the run that it belongs to. It uses only data
// that never changes, so that every attempt has the same body. Parts that make it too large are
// left out: first the result, then all data of the line, then the metadata.
func Body(base string, r *perdure.Run, l *perdure.Line) ([]byte, error) {
	status := base + api.Prefix + "/runs/" + string(r.ID)
	b := body{Type: l.Type, Timestamp: l.At, Data: data{
		RunID: r.ID, ThreadID: r.ThreadID, Kind: r.Kind, Queue: r.Queue,
		ParentID: r.ParentID, RootID: r.RootID, ContinuationOf: r.ContinuationOf,
		Metadata: json.RawMessage(r.Metadata), StatusURL: status, AttachURL: status + "/stream", Event: *l,
	}}
	for _, cut := range []func(*data) error{withoutResult, withoutEvent, withoutMetadata} {
		text, err := json.Marshal(b)
		if err != nil || len(text) <= maxBody {
			return text, err
		}
		if err := cut(&b.Data); err != nil {
			return nil, err
		}
	}
	return json.Marshal(b)
}

func withoutResult(d *data) error {
	var fields map[string]json.RawMessage
	if json.Unmarshal([]byte(d.Event.Data), &fields) != nil || fields["result"] == nil {
		return nil
	}
	short, err := json.Marshal(omitted{true, len(fields["result"])})
	if err != nil {
		return err
	}
	fields["result"] = short
	all, err := json.Marshal(fields)
	d.Event.Data = perdure.Value(all)
	return err
}

func withoutEvent(d *data) error {
	short, err := json.Marshal(omitted{true, len(d.Event.Data)})
	d.Event.Data = perdure.Value(short)
	return err
}

func withoutMetadata(d *data) error {
	d.Metadata = nil
	return nil
}
