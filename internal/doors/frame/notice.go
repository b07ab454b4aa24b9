package frame

import (
	"encoding/json"
	"iter"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
)

// A Notice is a line of a run's log that a webhook is told of in the form of a door. The body that is
// made of it is sent several times, and made anew each time, so that it depends on nothing else: no
// clock, no setting, no earlier call. Without a body nothing is sent.
type Notice struct {
	// ID is that of the delivery.
	ID   string
	Run  *perdure.Run
	Line *perdure.Line
	// Lines yields the lines of the log up to this one.
	Lines iter.Seq2[*api.Event, error]
	// Messages reads messages of the run's thread after a number.
	Messages func(after int64) ([]api.Message, error)
	// Names are those of the run's thread.
	Names func() ([]string, error)
	// Approval reads an approval, or returns nil if it is gone.
	Approval func(perdure.ApprovalID) (*perdure.Approval, error)
}

// Shown is the run as the API shows it, without its input and result, and without what changes after the
// line.
func (n *Notice) Shown() *api.Run {
	r := n.Run
	out := &api.Run{RunID: r.ID, ThreadID: r.ThreadID, Kind: r.Kind, CreatedAt: r.CreatedAt, RootRunID: r.RootID}
	if r.Metadata != "" {
		_ = json.Unmarshal([]byte(r.Metadata), &out.Metadata) // it was checked when the run was started
	}
	if at := r.StartedAt; at != 0 {
		out.StartedAt = &at
	}
	return out
}
