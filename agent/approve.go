package agent

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent/internal/journal"
)

// An Approval is a question to a person: may this be done?
type Approval struct {
	// Name of the wait, such as [ApprovePush]. The default is "approve".
	Name string
	// Title is one line for the person who decides.
	Title string
	// Action is exactly what will be done. It is written as JSON, and the decision is bound to its
	// hash.
	Action any
	// Form asks for more than yes or no.
	Form []perdure.FormField
	// Default is the decision if nobody decides in time: perdure.Approve or perdure.Reject. Without
	// it, that is a rejection.
	Default perdure.DecisionKind
	// Timeout is 10 minutes by default. A negative one has passed, so Default applies.
	Timeout time.Duration
	// Approvers says whose keys may decide: perdure.ApproversPlatform, or empty for those of the
	// tenant.
	Approvers perdure.ApprovalApprovers
}

// A Verdict is the answer to an [Approval].
type Verdict struct {
	Approved bool
	TimedOut bool // nobody decided in time, so the default applies
	By       *perdure.Decider
	At       perdure.Instant
	Comment  string
	Answer   json.RawMessage // the values of the form, as an object
	// ApprovalID is that of the approval. Results of before there was this field have none.
	ApprovalID perdure.ApprovalID
}

// Approve asks a person and waits for the decision. People see the action with "perdure approve" or
// GET /api/v1/approvals, and decide with a key that allows it; a worker's key does not. A rejection
// is a decision and not an error. The decision is about the action as it was shown. If the agent's
// code asks about another action in a later execution, the attempt fails with the code
// nondeterminism.
func Approve(ctx *Context, a Approval) (Verdict, error) {
	c := ctx.execution()
	if err := c.enter(); err != nil {
		return Verdict{}, err
	}
	if _, err := c.checkWaitable("Approve"); err != nil {
		return Verdict{}, err
	}
	return OnApproval(ctx, a).Join(ctx)
}

// OnApproval asks a person, as [Approve] does, and returns a future for the decision. The question is
// open from now on, whatever the agent does meanwhile, until [Future.Cancel] withdraws it.
func OnApproval(ctx *Context, a Approval) *Future[Verdict] {
	a.Name = cmp.Or(a.Name, "approve")
	f := newWait[Verdict](ctx, "OnApproval", "approval", a.Name)
	if f.err != nil {
		return f
	}
	c := f.c
	action, err := perdure.Encode(a.Action)
	if err != nil {
		f.err = malformed(err, "Approve: the action, a %T, can't be written as JSON", a.Action)
		return f
	}
	hash, err := perdure.ActionHash(action)
	if err != nil {
		f.err = perdure.Permanent(fmt.Errorf("approval %s: %w", f.wait, err))
		return f
	}
	f.spec = perdure.WaitSpec{
		ID: f.wait, Type: perdure.WaitApproval, Name: a.Name, Timeout: timeLeft(a.Timeout),
		Approval: &perdure.ApprovalSpec{Title: a.Title, Action: action, Form: a.Form, Default: a.Default,
			Approvers: a.Approvers}}
	f.read = func(i *journal.Item) (Verdict, error) { return c.verdict(f.wait, hash, i) }
	f.open()
	return f
}

// verdict reads a decision, and checks that it is about the action with this hash.
func (c *execution) verdict(wait, hash string, i *journal.Item) (Verdict, error) {
	var decided struct {
		Decision   perdure.DecisionKind `json:"decision"`
		ActionHash string               `json:"action_hash"`
		ApprovalID perdure.ApprovalID   `json:"approval_id"`
		By         *perdure.Decider     `json:"by"`
		At         perdure.Instant      `json:"at"`
		Comment    string               `json:"comment"`
		Answer     json.RawMessage      `json:"answer"`
	}
	if i.Type != perdure.ItemApproval && i.Type != perdure.ItemTimeout {
		return Verdict{}, waitEnded(i, nil)
	}
	if err := json.Unmarshal(c.dataOf(i), &decided); err != nil {
		return Verdict{}, perdure.Permanent(err)
	}
	if decided.ActionHash != hash {
		key := strings.TrimPrefix(wait, "approval:")
		c.fail(nondeterminism(key, "the decision is about the action %s, and this one is %s; ask about the "+
			"action that was shown, or announce another one with Version", decided.ActionHash, hash))
	}
	return Verdict{
		Approved: decided.Decision == perdure.Approve,
		TimedOut: i.Type == perdure.ItemTimeout,
		By:       decided.By,
		At:       decided.At,
		Comment:  decided.Comment,
		Answer:   decided.Answer,

		ApprovalID: decided.ApprovalID,
	}, nil
}
