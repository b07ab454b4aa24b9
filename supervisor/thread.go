package supervisor

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/supervisor/model"
	"github.com/perdure/perdure/worker"
)

// A thread may be far larger than the model's window, and than the memory. So it is read from its end,
// page by page, until the window is full. Of each message only the text that the model gets is kept.

// A threadMessage is a message of the thread, as far as a run needs it.
type threadMessage struct {
	seq  int64
	role perdure.Role
	// text is for the model. own tells that this run has written it.
	text string
	own  bool
	// bill is that of the last message of a run, and child the end of a child.
	bill  *bill
	child *childBill
}

const (
	// bytesPerToken is the most that a token has by the estimate of package model, and messageTokens what
	// a message costs beside its text.
	bytesPerToken = 4
	messageTokens = 4
	// maxRead limits the bytes of a thread that are read for a question, whatever the model gets of them.
	maxRead = 16 << 20
	// maxSought limits how many messages before the window are looked at for the last one of a user.
	maxSought = 200
)

// messagesAfter returns the messages of the thread after a number, the oldest first: as many of the last
// ones as fit the window, and the last one of a user. more tells that there are others before.
func (l *loop) messagesAfter(after int64) (out []threadMessage, more bool, err error) {
	if l.limits.Rules < 2 {
		history, err := l.ctx.History()
		for i := range history {
			if history[i].Seq > after {
				out = append(out, l.read(&history[i]))
			}
		}
		return out, false, err
	}
	tokens, bytes, sought, asked := l.limits.Window, maxRead, 0, false
	for m, err := range l.ctx.NewestMessages(after) {
		if err != nil {
			return nil, false, err
		}
		asks := m.Role == perdure.RoleUser
		bytes -= len(m.Content) + len(m.Metadata)
		if tokens <= 0 {
			more = true
			if sought++; sought == maxSought || bytes <= 0 {
				break
			}
			if !asks {
				continue
			}
		}
		x := l.read(&m)
		out = append(out, x)
		tokens -= messageTokens + model.EstimateTokens(x.text)
		if bytes <= 0 {
			tokens, bytes = 0, min(bytes, 0)+maxRead
		}
		if asked = asked || asks; tokens <= 0 && asked {
			more = more || m.Seq > after+1
			break
		}
	}
	slices.Reverse(out)
	return out, more, nil
}

// read takes what a run needs of a message.
func (l *loop) read(m *api.Message) threadMessage {
	x := threadMessage{seq: m.Seq, role: m.Role, own: m.RunID == l.ctx.RunID()}
	if x.text = textOf(m.Content); m.Role == perdure.RoleTool && x.text != "" {
		x.text = childResult(m.Content, l.limits.MaxResult)
	}
	if l.limits.Rules >= 2 {
		x.text = cut(x.text, l.limits.Window*bytesPerToken)
	}
	x.text = strings.Clone(x.text) // without the message that it is a part of
	x.bill, x.child = billOf(m)
	return x
}

// readThread begins the conversation with the messages of the thread.
func (l *loop) readThread() error {
	history, more, err := l.messagesAfter(0)
	if err != nil {
		return err
	}
	l.before = spentBefore(history)
	if more {
		l.add(model.Message{Role: model.User, Content: leftOut})
	}
	results := false // the message before was the result of a child
	for _, m := range history {
		l.lastSeq = m.seq
		switch {
		case m.text == "":
		case m.role == perdure.RoleTool:
			if !results {
				l.continued++
			}
			l.add(model.Message{Role: model.User, Content: m.text})
		case m.role == perdure.RoleAssistant || m.role == perdure.RoleSystem:
			l.add(model.Message{Role: string(m.role), Content: m.text})
		default:
			l.continued = 0
			l.add(model.Message{Role: model.User, Content: m.text})
		}
		results = m.role == perdure.RoleTool
	}
	if len(l.messages) == 1 {
		return perdure.Permanent(worker.Fail(perdure.CodeInvalid, "the thread has no message to answer"))
	}
	return nil
}

// leftOut tells the model that it does not see the whole thread.
const leftOut = "(This conversation is longer than what can be shown. Its earlier messages were left out.)"

// fetchNews reads what users have written since.
func (l *loop) fetchNews() error {
	if l.ctx.ThreadID() == "" {
		return nil
	}
	history, more, err := l.messagesAfter(l.lastSeq)
	if err != nil {
		return err
	}
	before := len(l.news)
	for _, m := range history {
		l.lastSeq = m.seq
		if m.role == perdure.RoleUser && m.text != "" && !m.own {
			l.news = append(l.news, model.Message{Role: model.User, Content: m.text})
		}
	}
	if more && len(l.news) > before {
		l.news[before].Content = leftOut + "\n" + l.news[before].Content
	}
	return nil
}

// textOf returns the text of a message of a thread. Content that is no string is shown as JSON.
func textOf(content json.RawMessage) string {
	var text string
	if json.Unmarshal(content, &text) != nil {
		text = string(content)
	}
	return strings.TrimSpace(clean(text))
}
