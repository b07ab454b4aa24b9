package start

import (
	"encoding/json"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/internal/doors"
	"github.com/perdure/perdure/internal/doors/langgraph/frames"
	"github.com/perdure/perdure/internal/doors/langgraph/runs"
	"github.com/perdure/perdure/internal/doors/langgraph/shape"
	"github.com/perdure/perdure/internal/doors/langgraph/threads"
)

// A command of a call that starts a run. Only resume has an equivalent here.
type command struct {
	Resume json.RawMessage `json:"resume"`
}

// CodeUnknownInterrupt refuses an answer to nothing that is open.
const CodeUnknownInterrupt perdure.Code = "UnknownInterruptError"

// resume decides what the active run of a thread, or a run below it, asks. The answer is a part of that
// run: it has an id of its own, and begins with the line of the decision.
func resume(c *doors.Call, in *runCreate, th *api.Thread) (*runs.Part, error) {
	r, err := newest(c, th)
	if err != nil {
		return nil, err
	}
	open, err := threads.Asked(c, r)
	if err != nil {
		return nil, err
	}
	answers, err := match(in.Command.Resume, open)
	if err != nil {
		return nil, err
	}
	if len(answers) == 0 && in.StrictResume {
		return nil, shape.Unprocessable(CodeUnknownInterrupt, "command.resume", "answers nothing that is open")
	}
	before := r.LastSeq
	for i, a := range answers {
		if err := a.give(c, r, c.OptionsOf(i)); err != nil {
			return nil, err
		}
	}
	from := before + 1
	if len(answers) > 0 {
		if from, err = lineOf(c, r.RunID, before, &answers[0].to); err != nil {
			return nil, err
		}
	}
	if r, err = c.API.Get(c.Context(), r.RunID); err != nil {
		return nil, err
	}
	if from = min(from, r.LastSeq+1); r.State.Terminal() { // its last frames are all that is left to tell
		from = min(from, r.LastSeq)
	}
	p := &runs.Part{Run: r, ID: partID(r.RunID, from), Thread: c.Param("thread"), From: from}
	_, err = c.API.NameRun(c.Context(), r.RunID, shape.Prefix+p.ID, api.NameRun{FromSeq: from})
	if doors.ProblemOf(err).Code == perdure.CodeTooLarge { // it has as many names as it may
		p.ID, p.From, err = string(r.RunID), 0, nil
	}
	return p, err
}

// partID is the id of the part of a run that begins with a line.
func partID(id perdure.RunID, from int64) string {
	return shape.UUIDOf([]byte(string(id) + "#" + shape.Itoa(from)))
}

// noRun refuses an answer on a thread that has not had a run.
const noRun = "answers nothing: the thread has no run"

// newest is the active run of a thread, or else the last one.
func newest(c *doors.Call, th *api.Thread) (*api.Run, error) {
	if th.ActiveRun != "" {
		return c.API.Get(c.Context(), th.ActiveRun)
	}
	runs, err := threads.Runs(c, th.ThreadID, 1)
	if err == nil && len(runs) == 0 {
		err = shape.Unprocessable(CodeUnknownInterrupt, "command.resume", noRun)
	}
	if err != nil {
		return nil, err
	}
	return &runs[0], nil
}

// An answer is what a caller says to one interrupt.
type answer struct {
	to    frames.Interrupt
	value json.RawMessage
}

// match finds what a value answers: a map by the ids of interrupts, or one value for all that is open.
// LangChain's decisions go to the interrupts in their order.
func match(value json.RawMessage, open []frames.Interrupt) (out []answer, err error) {
	var byID map[string]json.RawMessage
	if json.Unmarshal(value, &byID) == nil {
		known := 0
		for _, i := range open {
			if v, ok := byID[i.ID]; ok {
				known++
				out = append(out, answer{i, v})
			}
		}
		if known > 0 {
			return out, nil
		}
		var list []json.RawMessage
		if json.Unmarshal(byID["decisions"], &list) == nil && len(list) == len(open) {
			for n, i := range open {
				out = append(out, answer{i, list[n]})
			}
			return out, nil
		}
		if looksLikeIDs(byID) {
			return nil, nil
		}
	}
	if len(open) > 1 {
		return nil, shape.Unprocessable(CodeUnknownInterrupt, "command.resume",
			"does not say which of the open interrupts it answers: send a map by their ids")
	}
	for _, i := range open {
		out = append(out, answer{i, value})
	}
	return out, nil
}

// looksLikeIDs tells whether all keys are ids of approvals. Then none of them is open.
func looksLikeIDs(m map[string]json.RawMessage) bool {
	for id := range m {
		if len(id) < 4 || id[:4] != "apv_" {
			return false
		}
	}
	return len(m) > 0
}

// give gives the answer: a decision, a signal or a message.
func (a *answer) give(c *doors.Call, r *api.Run, opts []client.CallOptions) error {
	switch a.to.Kind {
	case perdure.WaitApproval:
		d, err := decisionOf(a.value)
		if err != nil {
			return err
		}
		_, err = c.API.Decide(c.Context(), a.to.Approval, d)
		return err
	case perdure.WaitSignal:
		_, err := c.API.Signal(c.Context(), r.RunID, a.to.Name, a.value, opts...)
		return err
	case perdure.WaitMessage:
		m := perdure.Message{Role: perdure.RoleUser, Content: a.value}
		_, err := c.API.AppendMessage(c.Context(), r.ThreadID, m, opts...)
		return err
	}
	return shape.Unprocessable(perdure.CodeInvalid, "command.resume",
		"can't answer a callback: it has an address of its own")
}

// words are texts that decide.
var words = map[string]perdure.DecisionKind{"approve": perdure.Approve, "approved": perdure.Approve,
	"accept": perdure.Approve, "yes": perdure.Approve, "true": perdure.Approve, "reject": perdure.Reject,
	"rejected": perdure.Reject, "ignore": perdure.Reject, "no": perdure.Reject, "false": perdure.Reject}

// decisionOf reads a decision: true or false, a word, {decision, comment, answer}, or LangChain's
// {decisions: [{type}]}.
func decisionOf(value json.RawMessage) (d api.Decide, err error) {
	var yes bool
	if json.Unmarshal(value, &yes) == nil {
		d.Decision = perdure.Reject
		if yes {
			d.Decision = perdure.Approve
		}
		return d, nil
	}
	var word string
	if json.Unmarshal(value, &word) == nil {
		if d.Decision = words[word]; d.Decision == "" { // a text is an answer to the form's only question
			return d, shape.Unprocessable(perdure.CodeInvalid, "command.resume", "is none of approve, reject")
		}
		return d, nil
	}
	var in struct {
		Decision  string            `json:"decision"`
		Type      string            `json:"type"`
		Comment   string            `json:"comment"`
		Message   string            `json:"message"`
		Answer    json.RawMessage   `json:"answer"`
		Decisions []json.RawMessage `json:"decisions"`
	}
	if json.Unmarshal(value, &in) != nil {
		return d, shape.Unprocessable(perdure.CodeInvalid, "command.resume", "is no decision")
	}
	if len(in.Decisions) == 1 {
		return decisionOf(in.Decisions[0])
	}
	if d.Decision = words[shape.OrElse(in.Decision, in.Type)]; d.Decision == "" {
		return d, shape.Unprocessable(perdure.CodeInvalid, "command.resume",
			"is no decision to approve or reject; an edited action is not taken")
	}
	d.Comment, d.Answer = shape.OrElse(in.Comment, in.Message), in.Answer
	return d, nil
}

// lineOf finds the line of a run's log that tells of an answer. If it is not there, the part begins after
// the last line from before.
func lineOf(c *doors.Call, id perdure.RunID, after int64, to *frames.Interrupt) (int64, error) {
	for e, err := range c.Past(c.Context(), id, after) {
		if err != nil {
			return 0, err
		}
		d := frames.DataOf(e)
		switch e.Type {
		case perdure.LineWaitSatisfied:
			if to.Run == "" && d.WaitID == to.Wait {
				return e.Seq, nil
			}
		case perdure.LineWorkerAnswered:
			if to.Run != "" && d.ApprovalID == to.Approval {
				return e.Seq, nil
			}
		}
	}
	return after + 1, nil
}
