package supervisor

import (
	"encoding/json"
	"fmt"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/api"
)

// AskHuman is a tool that asks a person a question, and waits for the answer. People see it among the
// approvals. Neither the model nor a tool can answer: that takes a key that a worker does not have.
// Every conversation has this tool, and workers have it if WorkerTools do.
func AskHuman() Tool { return askHuman{} }

type askHuman struct{}

func (askHuman) Spec() Spec {
	return Spec{Name: "ask_human", Repeatable: true,
		Description: "Asks a person a question that only a person can answer, and waits for the answer.",
		Parameters: json.RawMessage(`{"type":"object","properties":{"question":{"type":"string"}},` +
			`"required":["question"]}`)}
}

func (askHuman) Start(ctx *agent.Context, call Call) (Pending, error) {
	var in struct{ Question string }
	if err := decode(call.Arguments, &in); err != nil {
		return Done("error: " + err.Error()), nil
	}
	if in.Question == "" {
		return Done("error: there is no question"), nil
	}
	question := cut(clean(in.Question), maxQuestion)
	f := agent.OnApproval(ctx, agent.Approval{Name: "ask_human", Title: perdure.Excerpt(question, maxTitle),
		Action:  map[string]string{"question": question},
		Form:    []perdure.FormField{{Name: "answer", Label: "Your answer", Type: perdure.FieldText}},
		Timeout: call.SuspendTimeout})
	l, chats := call.loop, call.loop.limits.Rules > 0 && ctx.ThreadID() != ""
	if chats {
		if err := l.say(question,
			agent.MessageOptions{Metadata: map[string]bool{api.QuestionMetadata: true}}); err != nil {
			return Pending{}, err
		}
	}
	said := ""
	p := Await(f, func(v agent.Verdict, err error) string {
		var form struct{ Answer string }
		_ = json.Unmarshal(v.Answer, &form) // a rejection has none
		switch {
		case err != nil:
			return "error: " + err.Error()
		case v.TimedOut:
			return fmt.Sprintf("Nobody has answered within %s.", call.SuspendTimeout)
		case !v.Approved:
			return "The person has declined to answer. " + v.Comment
		}
		said = orElse(clean(form.Answer), clean(v.Comment))
		return orElse(said, "The person has agreed.")
	})
	p.spoken = func() string { return said }
	p.question, p.withdraw = chats, func() (bool, error) { return withdraw(call.loop, f) }
	return p, nil
}

// withdraw closes a question, and tells whether nobody has answered it before. That the time of the
// question has passed is no answer.
func withdraw(l *loop, f *agent.Future[agent.Verdict]) (bool, error) {
	if l.limits.Rules < 2 {
		return true, f.Cancel(l.ctx)
	}
	withdrawn, err := f.Withdraw(l.ctx)
	if err != nil || withdrawn {
		return withdrawn, err
	}
	v, err := f.Result()
	return err == nil && v.TimedOut, nil
}

// Limits of a question, in bytes, and of its title, in characters.
const (
	maxQuestion = 16 << 10
	maxTitle    = 100
)
