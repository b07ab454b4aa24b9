package supervisor

import (
	"encoding/json"

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

// spentBefore returns what the runs since the last message of a user have used.
func spentBefore(history []api.Message) (out model.Usage) {
	reserved := make(map[string]Budget)
	for _, m := range history {
		switch {
		case m.Role == perdure.RoleUser:
			out = model.Usage{}
			clear(reserved)
		case m.Role == perdure.RoleAssistant && m.RunID != "" && len(m.Metadata) > 0:
			var b bill
			if json.Unmarshal(m.Metadata, &b) == nil && b.Usage.Total() >= out.Total() {
				out, reserved = b.Usage, b.Reserved
			}
		case m.Role == perdure.RoleTool:
			var child struct {
				Key    string  `json:"key"`
				Result *Result `json:"result"`
			}
			_ = json.Unmarshal(m.Content, &child) // the result of a child that is no worker has another form
			used := reserved[child.Key].usage()
			if r := child.Result; r != nil && r.Usage.Total() > 0 && r.Usage.Cost >= 0 {
				used = r.Usage
			}
			out = out.Add(used)
			delete(reserved, child.Key)
		}
	}
	return out
}
