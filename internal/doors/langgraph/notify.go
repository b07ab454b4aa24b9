package langgraph

import (
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/doors"
)

// maxNotice bounds the bytes of messages, and of a result, in the body of a webhook.
const maxNotice = 256 << 10

// notify makes the body of a webhook, as the platform sends it, for a line that ends a run or asks a
// person. Other lines have none.
func notify(n *doors.Notice) ([]byte, error) {
	t := &translator{}
	asks := false
	for e, err := range n.Lines {
		if err != nil {
			return nil, err
		}
		was, open := t.interrupted(), len(t.open)
		t.follow(e, dataOf(e))
		asks = t.interrupted() && (!was || len(t.open) > open)
	}
	if t.state == "" && !asks || t.state != "" && endOf[n.Line.Type] == "" && n.Line.Type != perdure.LineCompleted {
		return nil, nil
	}
	thread, err := threadOf(n)
	if err != nil {
		return nil, err
	}
	t.question = func(id perdure.ApprovalID) any {
		a, fails := n.Approval(id)
		if fails != nil || a == nil {
			err = fails
			return nil
		}
		return showQuestion(a)
	}
	values, failed := messagesUpTo(n, thread, t.upTo)
	if failed != nil {
		return nil, failed
	}
	if len(t.result) <= maxNotice {
		addResult(values, t.result)
	}
	run := n.Shown()
	out := object{"run_id": run.RunID, "thread_id": nil, "assistant_id": idOfKind(run.Kind),
		"created_at": run.CreatedAt, "updated_at": n.Line.At, "status": orElse(ended[t.state], interrupted),
		"metadata":           metadataOf(run),
		"multitask_strategy": orElse(run.Metadata[strategyKey], "reject"), "run_started_at": run.StartedAt,
		"run_ended_at": n.Line.At, "webhook_sent_at": n.Line.At, "values": values}
	if thread != "" {
		out["thread_id"] = thread
	}
	if t.state == "" {
		values["__interrupt__"] = t.interrupts()
	}
	if t.error != nil && t.state != perdure.Cancelled {
		out["error"] = object{"error": string(t.error.Code), "message": t.error.Message}
	}
	if err != nil {
		return nil, err
	}
	return perdure.Marshal(out)
}

// threadOf is the id of the thread as its caller knows it.
func threadOf(n *doors.Notice) (string, error) {
	if n.Run.ThreadID == "" {
		return "", nil
	}
	names, err := n.Names()
	for _, name := range names {
		if id, ok := strings.CutPrefix(name, prefix); ok {
			return id, err
		}
	}
	return string(n.Run.ThreadID), err
}

// messagesUpTo are the values of the thread after its message of a number: the newest messages, as many as
// fit.
func messagesUpTo(n *doors.Notice, thread string, upTo int64) (object, error) {
	if n.Run.ThreadID == "" {
		return object{}, nil
	}
	var list []api.Message
	size := 0
	for after := max(0, upTo-maxMessages); after < upTo; {
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
	return object{"messages": showMessages(thread, list)}, nil
}
