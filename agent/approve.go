package agent

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/perdure/perdure"
)

// An Approval is what a person is asked: may this be done?
type Approval struct {
	Name   string // of the wait; default "approve"; [ApprovePush] is one
	Title  string // one line for who decides
	Action any    // exactly what will be done, as JSON: the decision is bound to its hash
	Form   []perdure.FormField
	// Default is what silence counts as: perdure.Approve or perdure.Reject, which it is unless said.
	Default string
	Timeout time.Duration // default: 10 minutes; negative: it has passed, and the default counts
}

// A Decision is what was said to an [Approval].
type Decision struct {
	Approved bool
	TimedOut bool // nobody said anything, and the default counts
	By       *perdure.Decider
	At       perdure.Instant
	Comment  string
	Answer   json.RawMessage // to the form, as an object
}

// Approve asks a person and waits. Who decides sees the action with "perdure approve" or GET /api/v1/approvals; a key of a
// worker can't. A rejection is a decision and no error. What was approved is the action as it was shown: an agent
// whose code asks about another one the next time is contradicted.
func Approve(ctx *Context, a Approval) (Decision, error) {
	c := ctx.c
	if err := c.enter(); err != nil {
		return Decision{}, err
	}
	if a.Name == "" {
		a.Name = "approve"
	}
	key, err := c.name("approval", a.Name)
	if err != nil {
		return Decision{}, err
	}
	action, err := perdure.Encode(a.Action)
	if err != nil {
		return Decision{}, c.misuse("Approve: the action, a %T, can't be written as JSON: %v", a.Action, err)
	}
	hash, err := perdure.ActionHash(action)
	if err != nil {
		return Decision{}, Permanent(fmt.Errorf("approval %s: %w", key, err))
	}
	i, err := c.await("Approve", &perdure.WaitSpec{ID: "approval:" + key, Type: perdure.WaitApproval, Name: a.Name, Timeout: timeLeft(a.Timeout),
		Approval: &perdure.ApprovalSpec{Title: a.Title, Action: action, Form: a.Form, Default: a.Default}})
	if err != nil {
		return Decision{}, err
	}
	var said struct {
		Decision   string           `json:"decision"`
		ActionHash string           `json:"action_hash"`
		By         *perdure.Decider `json:"by"`
		At         perdure.Instant  `json:"at"`
		Comment    string           `json:"comment"`
		Answer     json.RawMessage  `json:"answer"`
	}
	if i.Type != perdure.ItemApproval && i.Type != perdure.ItemTimeout {
		return Decision{}, waitEnded(i, nil)
	}
	if err := json.Unmarshal(c.data(i), &said); err != nil {
		return Decision{}, Permanent(err)
	}
	if said.ActionHash != hash {
		c.fail(nondeterminism(key, "the decision is about the action %s, and this one is %s", said.ActionHash, hash))
	}
	return Decision{Approved: said.Decision == perdure.Approve, TimedOut: i.Type == perdure.ItemTimeout, By: said.By, At: said.At, Comment: said.Comment, Answer: said.Answer}, nil
}
