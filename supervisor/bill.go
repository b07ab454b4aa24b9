package supervisor

import (
	"encoding/json"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/supervisor/model"
)

// A question may take several runs: those that continue when a child has ended. They share one budget.
// The last message of each run has a bill as its metadata, with what was spent so far. The results of
// children that come later have their own usage. Texts of users, models and tools are not looked at, and
// neither are messages that no run has written.

// A bill is what a question has used, with the runs before.
type bill struct {
	Usage model.Usage `json:"usage"`
	// Reserved has the budgets of workers that go on, by name. A worker that fails has used it.
	Reserved map[string]Budget `json:"reserved,omitempty"`
}

// bill returns the bill of the run, as an option of its last message.
func (l *loop) bill() agent.MessageOptions {
	b := bill{}
	lost := l.reserved // what is reserved for workers that were stopped
	for _, c := range l.children {
		if c.worker && !c.settled {
			lost.Tokens -= c.budget.Tokens
			lost.Cost -= c.budget.Cost
			if b.Reserved == nil {
				b.Reserved = make(map[string]Budget)
			}
			b.Reserved[c.name] = c.budget
		}
	}
	b.Usage = l.spent().Add(lost.usage())
	return agent.MessageOptions{Metadata: b}
}

// spent returns what the question has used so far.
func (l *loop) spent() model.Usage { return l.before.Add(l.used) }

// usage returns a budget as if it was used.
func (b Budget) usage() model.Usage { return model.Usage{Input: b.Tokens, Cost: b.Cost} }

// A childBill is what a message of the thread tells about a child that has ended. Usage is nil if it does
// not say what the child has used.
type childBill struct {
	Key   string
	Usage *model.Usage
}

// maxBill limits the metadata that are read for a bill, in bytes.
const maxBill = 64 << 10

// billOf returns what a message tells about the budget.
func billOf(m *api.Message) (*bill, *childBill) {
	switch {
	case m.Role == perdure.RoleAssistant && m.RunID != "" && len(m.Metadata) > 0 && len(m.Metadata) <= maxBill:
		b := new(bill)
		if json.Unmarshal(m.Metadata, b) == nil {
			return b, nil
		}
	case m.Role == perdure.RoleTool:
		var child struct {
			Key    string `json:"key"`
			Result *struct {
				Usage model.Usage `json:"usage"`
			} `json:"result"`
		}
		_ = json.Unmarshal(m.Content, &child) // the result of a child that is no worker has another form
		out := &childBill{Key: strings.Clone(child.Key)}
		if r := child.Result; r != nil && r.Usage.Total() > 0 && r.Usage.Cost >= 0 {
			out.Usage = &r.Usage
		}
		return nil, out
	}
	return nil, nil
}

// spentBefore returns what the runs since the last message of a user have used.
func spentBefore(history []threadMessage) (out model.Usage) {
	reserved := make(map[string]Budget)
	for _, m := range history {
		switch {
		case m.role == perdure.RoleUser:
			out = model.Usage{}
			clear(reserved)
		case m.bill != nil && m.bill.Usage.Total() >= out.Total():
			out, reserved = m.bill.Usage, m.bill.Reserved
		case m.child != nil:
			used := reserved[m.child.Key].usage()
			if m.child.Usage != nil {
				used = *m.child.Usage
			}
			out = out.Add(used)
			delete(reserved, m.child.Key)
		}
	}
	return out
}
