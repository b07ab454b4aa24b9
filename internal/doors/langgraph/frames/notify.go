package frames

import (
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/doors/frame"
	"github.com/perdure/perdure/internal/doors/langgraph/shape"
)

// maxNotice bounds the bytes of messages, and of a result, in the body of a webhook.
const maxNotice = 256 << 10

// Notify makes the body of a webhook, as the platform sends it, for a line that ends a run or asks a
// person. Other lines have none.
func Notify(n *frame.Notice) ([]byte, error) {
	t := &Translator{}
	asks := false
	for e, err := range n.Lines {
		if err != nil {
			return nil, err
		}
		was, open := t.Interrupted(), len(t.open)
		t.Follow(e, DataOf(e))
		asks = t.Interrupted() && (!was || len(t.open) > open)
	}
	if t.State == "" && !asks || t.State != "" && endOf[n.Line.Type] == "" && n.Line.Type != perdure.LineCompleted {
		return nil, nil
	}
	thread, err := threadOf(n)
	if err != nil {
		return nil, err
	}
	t.Question = func(id perdure.ApprovalID) any {
		a, fails := n.Approval(id)
		if fails != nil || a == nil {
			err = fails
			return nil
		}
		return ShowQuestion(a)
	}
	values, failed := messagesUpTo(n, thread, t.upTo)
	if failed != nil {
		return nil, failed
	}
	if len(t.result) <= maxNotice {
		AddResult(values, t.result)
	}
	run := n.Shown()
	out := shape.Object{"run_id": run.RunID, "thread_id": nil, "assistant_id": shape.IDOfKind(run.Kind),
		"created_at": run.CreatedAt, "updated_at": n.Line.At, "status": shape.OrElse(Ended[t.State], Interrupted),
		"metadata": MetadataOf(run), "multitask_strategy": shape.OrElse(run.Metadata[StrategyKey], "reject"),
		"run_started_at": run.StartedAt, "run_ended_at": n.Line.At, "webhook_sent_at": n.Line.At, "values": values}
	if thread != "" {
		out["thread_id"] = thread
	}
	if t.State == "" {
		values["__interrupt__"] = t.interrupts()
	}
	if t.error != nil && t.State != perdure.Cancelled {
		out["error"] = shape.Object{"error": string(t.error.Code), "message": t.error.Message}
	}
	if err != nil {
		return nil, err
	}
	return perdure.Marshal(out)
}

// threadOf is the id of the thread as its caller knows it.
func threadOf(n *frame.Notice) (string, error) {
	if n.Run.ThreadID == "" {
		return "", nil
	}
	names, err := n.Names()
	for _, name := range names {
		if id, ok := strings.CutPrefix(name, shape.Prefix); ok {
			return id, err
		}
	}
	return string(n.Run.ThreadID), err
}

// messagesUpTo are the values of the thread after its message of a number: the newest messages, as many as
// fit.
func messagesUpTo(n *frame.Notice, thread string, upTo int64) (shape.Object, error) {
	if n.Run.ThreadID == "" {
		return shape.Object{}, nil
	}
	var list []api.Message
	size := 0
	for after := max(0, upTo-MaxMessages); after < upTo; {
		page, err := n.Messages(after)
		if err != nil {
			return nil, err
		}
		if len(page) == 0 {
			break
		}
		for _, m := range page {
			if after = m.Seq; m.Seq <= upTo && !m.Notice() {
				list, size = append(list, m), size+len(m.Content)
			}
		}
		for ; size > maxNotice; list = list[1:] {
			size -= len(list[0].Content)
		}
	}
	return shape.Object{"messages": ShowMessages(thread, list)}, nil
}
