package perdure

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// This file has the body of the call that writes most: a worker's commit. A caller's submission is in
// submission.go, and the checks of single fields are in check.go. Validate checks shape and limits;
// the engine checks a body against stored data.

// Limits of the parts of a call.
const (
	MaxValue    = 1 << 20 // bytes of one value
	MaxList     = 1000    // entries of one list
	MaxName     = 200     // bytes of a kind, queue, key or name
	MaxText     = 4096    // bytes of a summary, reason or message
	MaxMetadata = 16      // entries of a run's metadata
	MaxLate     = 16      // late results kept of one run
	MaxCode     = 200     // bytes of a failure's code
	MaxPriority = 100     // of a run, and the least is as far below zero
	MaxAttempts = 1000    // that a run may have

	MaxCommitEntries = 1000    // entries of all lists of one commit together
	MaxCommitBytes   = 8 << 20 // bytes of one commit or submission
	MaxOpenWaits     = 1000    // open waits of one run
	MaxOpenTargets   = 10000   // children named by all open waits of one run together

	MaxViews = 16       // names of views of one run
	MaxView  = 64 << 10 // bytes of one view's value
)

// A MultitaskStrategy says what happens to a new run when its thread already has an active one.
type MultitaskStrategy string

const (
	MultitaskEnqueue   MultitaskStrategy = "enqueue"   // default: it waits for its turn
	MultitaskReject    MultitaskStrategy = "reject"    // it is refused
	MultitaskInterrupt MultitaskStrategy = "interrupt" // the active one is cancelled, and it goes first
)

// MultitaskStrategies are all of them.
var MultitaskStrategies = []MultitaskStrategy{MultitaskEnqueue, MultitaskReject, MultitaskInterrupt}

// An Emitted event is a line that a worker writes to its run's log.
type Emitted struct {
	Type LineType        `json:"type"`
	Data json.RawMessage `json:"data,omitempty"`
}

// A Commit is a worker's report about a run. All of it is written in one transaction.
type Commit struct {
	ID        string         `json:"commit_id"`
	RunID     RunID          `json:"run_id"`
	Epoch     int64          `json:"epoch"`
	Journal   []JournalEntry `json:"journal,omitempty"`
	Children  []Spawn        `json:"children,omitempty"`
	Waits     []WaitSpec     `json:"waits,omitempty"`
	Close     []string       `json:"close,omitempty"`
	Messages  []Message      `json:"messages,omitempty"`
	Events    []Emitted      `json:"events,omitempty"`
	Ack       []int64        `json:"ack,omitempty"`
	CancelAck bool           `json:"cancel_ack,omitempty"`
	Outcome   *Outcome       `json:"outcome,omitempty"`

	// Views has new values of named views. Each replaces the value before.
	Views []View `json:"views,omitempty"`
	// Cancel names children that are asked to stop, by run id or journal key.
	Cancel []string `json:"cancel,omitempty"`
	// Limits closes limits for everybody, because somebody else has refused work for a while.
	Limits []LimitClosure `json:"limits,omitempty"`
}

// A View is a named value that a run publishes. Only the latest value is kept.
type View struct {
	Name  string          `json:"name"`
	Value json.RawMessage `json:"value"`
}

// An OutcomeType is the type of an outcome. Each of them ends the worker's hold on the run.
type OutcomeType string

const (
	OutcomeComplete  OutcomeType = "complete"
	OutcomeFail      OutcomeType = "fail"
	OutcomeCancelled OutcomeType = "cancelled"
	OutcomeSuspend   OutcomeType = "suspend"
	OutcomeReject    OutcomeType = "reject"
)

// OutcomeTypes are all of them.
var OutcomeTypes = []OutcomeType{OutcomeComplete, OutcomeFail, OutcomeCancelled, OutcomeSuspend, OutcomeReject}

// An Outcome ends an execution: the run completes, fails, is cancelled, suspends, or is rejected.
type Outcome struct {
	Type       OutcomeType     `json:"type"`
	Result     json.RawMessage `json:"result,omitempty"`
	Summary    string          `json:"summary,omitempty"`
	ContinueOn []string        `json:"continue_on,omitempty"` // complete: children, by run id or journal key
	Error      *Failure        `json:"error,omitempty"`       // fail
	Retryable  *bool           `json:"retryable,omitempty"`   // fail: true if absent
	Defect     bool            `json:"defect,omitempty"`      // fail: the fault is the code's, so the run is held
	Reason     string          `json:"reason,omitempty"`      // reject
	Waits      []string        `json:"waits,omitempty"`       // suspend: all open waits if absent
	// ReadSeq is the number of the last message of the thread that a run which completes has read. A
	// chat is continued if a user has written more.
	ReadSeq int64 `json:"read_seq,omitempty"`
	// ContinueWith makes a run that continues the completed one, in the same transaction.
	ContinueWith *ContinueWith `json:"continue_with,omitempty"`
}

// ContinueWith is the request of a run that completes for one that continues it: the same kind and
// thread, a fresh timeout, and an empty journal.
type ContinueWith struct {
	Input json.RawMessage `json:"input,omitempty"`
}

// Validate checks the shape of a commit and fills in its defaults.
func (c *Commit) Validate() error {
	if err := checkName("commit_id", c.ID); err != nil {
		return err
	}
	if c.RunID == "" {
		return Invalid("run_id", "is missing")
	}
	for _, l := range c.lists() {
		if l.n > MaxList {
			return tooLarge(l.name, "has %d entries; a commit takes %d", l.n, MaxList)
		}
	}
	if err := c.checkSize(); err != nil {
		return err
	}
	keys := make(map[string]bool, len(c.Journal)+len(c.Children))
	for i := range c.Journal {
		f := fmt.Sprintf("journal[%d]", i)
		if err := checkName(f+".key", c.Journal[i].Key); err != nil {
			return err
		}
		if keys[c.Journal[i].Key] {
			return Invalid(f+".key", "%q stands twice in this commit", c.Journal[i].Key)
		}
		keys[c.Journal[i].Key] = true
		if err := CheckValue(f+".value", c.Journal[i].Value); err != nil {
			return err
		}
	}
	for i := range c.Limits {
		if err := c.Limits[i].Validate(fmt.Sprintf("limits[%d]", i)); err != nil {
			return err
		}
	}
	clear(keys)
	for i := range c.Children {
		f := fmt.Sprintf("children[%d]", i)
		if err := c.Children[i].validate(f); err != nil {
			return err
		}
		if keys[c.Children[i].Key] {
			return Invalid(f+".key", "%q stands twice in this commit", c.Children[i].Key)
		}
		keys[c.Children[i].Key] = true
	}
	clear(keys)
	for i := range c.Waits {
		f := fmt.Sprintf("waits[%d]", i)
		if err := c.Waits[i].Validate(f); err != nil {
			return err
		}
		if keys[c.Waits[i].ID] {
			return Invalid(f+".id", "%q stands twice in this commit", c.Waits[i].ID)
		}
		keys[c.Waits[i].ID] = true
	}
	if err := checkMessages("messages", c.Messages); err != nil {
		return err
	}
	for i := range c.Events {
		f := fmt.Sprintf("events[%d]", i)
		if len(c.Events[i].Type) > MaxName {
			return Invalid(f+".type", "is longer than %d bytes", MaxName)
		}
		if !WorkerMayWrite(c.Events[i].Type) {
			return Invalid(f+".type", "%q is not for workers: run:progress, worker:tool_started, "+
				"worker:tool_completed, worker:tool_failed, llm:delta and x:… are", c.Events[i].Type)
		}
		if len(c.Events[i].Data) > 0 {
			if err := CheckValue(f+".data", c.Events[i].Data); err != nil {
				return err
			}
		}
	}
	if err := checkViews(c.Views); err != nil {
		return err
	}
	for i, name := range c.Cancel {
		if err := checkName(fmt.Sprintf("cancel[%d]", i), name); err != nil {
			return err
		}
	}
	if c.Outcome == nil {
		return nil
	}
	return c.Outcome.validate()
}

// CheckViewName checks the name of a view. It is one segment of a path.
func CheckViewName(field, s string) error {
	if err := checkName(field, s); err != nil {
		return err
	}
	if strings.Contains(s, "/") {
		return Invalid(field, "%q has a slash, which the name of a view can't have", s)
	}
	return nil
}

// checkViews checks the views of one commit. The engine limits those of a run.
func checkViews(views []View) error {
	names := make(map[string]bool, len(views))
	for i, v := range views {
		f := fmt.Sprintf("views[%d]", i)
		if err := CheckViewName(f+".name", v.Name); err != nil {
			return err
		}
		if names[v.Name] {
			return Invalid(f+".name", "%q stands twice in this commit", v.Name)
		}
		names[v.Name] = true
		if len(v.Value) > MaxView {
			return tooLarge(f+".value", "has %d bytes; a view takes %d: put larger things into an artifact",
				len(v.Value), MaxView)
		}
		if err := CheckValue(f+".value", v.Value); err != nil {
			return err
		}
	}
	return nil
}

// A listLen is the length of one of a commit's lists.
type listLen struct {
	name string
	n    int
}

func (c *Commit) lists() []listLen {
	return []listLen{
		{"journal", len(c.Journal)}, {"children", len(c.Children)}, {"waits", len(c.Waits)},
		{"close", len(c.Close)}, {"messages", len(c.Messages)}, {"events", len(c.Events)}, {"ack", len(c.Ack)},
		{"views", len(c.Views)}, {"cancel", len(c.Cancel)}, {"limits", len(c.Limits)},
	}
}

// checkSize limits the entries and bytes of one commit, because the store never splits a commit.
func (c *Commit) checkSize() error {
	if n := c.Entries(); n > MaxCommitEntries {
		longest := slices.MaxFunc(c.lists(), func(a, b listLen) int { return a.n - b.n })
		return OverBound(longest.name, "the commit has %d entries in all its lists, "+
			"the children that its waits name included; one takes %d: send several", n, MaxCommitEntries)
	}
	if n := c.Size(); n > MaxCommitBytes {
		return OverBound("", "the commit has %d bytes; one takes %d: send several", n, MaxCommitBytes)
	}
	return nil
}

// Entries counts the entries of all lists of a commit. A wait counts once per child that it names,
// and at least once.
func (c *Commit) Entries() int {
	n := len(c.Journal) + len(c.Children) + len(c.Close) + len(c.Messages) + len(c.Events) + len(c.Ack) +
		len(c.Views) + len(c.Cancel)
	for i := range c.Waits {
		n += max(1, len(c.Waits[i].Keys)+len(c.Waits[i].RunIDs))
	}
	if c.Outcome != nil {
		n += len(c.Outcome.ContinueOn)
	}
	return n
}

// Size estimates the bytes that a commit makes the store write.
func (c *Commit) Size() int {
	n := messageBytes(c.Messages)
	for i := range c.Journal {
		n += len(c.Journal[i].Key) + len(c.Journal[i].Value)
	}
	for i := range c.Children {
		n += len(c.Children[i].Key) + len(c.Children[i].Input)
		for k, v := range c.Children[i].Metadata {
			n += len(k) + len(v)
		}
	}
	for i := range c.Events {
		n += len(c.Events[i].Data)
	}
	for i := range c.Views {
		n += len(c.Views[i].Name) + len(c.Views[i].Value)
	}
	for i := range c.Waits {
		n += c.Waits[i].size()
	}
	if c.Outcome != nil {
		n += len(c.Outcome.Result)
		if with := c.Outcome.ContinueWith; with != nil {
			n += len(with.Input)
		}
	}
	return n
}

func (o *Outcome) validate() error {
	if len(o.Result) > 0 {
		if err := CheckValue("outcome.result", o.Result); err != nil {
			return err
		}
	}
	if err := checkText("outcome.summary", o.Summary); err != nil {
		return err
	}
	if err := checkText("outcome.reason", o.Reason); err != nil {
		return err
	}
	if o.Error != nil {
		if err := checkText("outcome.error.message", o.Error.Message); err != nil {
			return err
		}
		if err := CheckCode("outcome.error.code", o.Error.Code); err != nil {
			return err
		}
		if o.Error.CauseKey != "" {
			if err := checkName("outcome.error.cause_key", o.Error.CauseKey); err != nil {
				return err
			}
		}
	}
	if len(o.ContinueOn) > MaxList {
		return tooLarge("outcome.continue_on", "names at most 1000 runs")
	}
	if len(o.Waits) > MaxList {
		return tooLarge("outcome.waits", "names at most 1000 waits")
	}
	if err := oneOf("outcome.type", o.Type, OutcomeTypes); err != nil {
		return err
	}
	if with := o.ContinueWith; with != nil {
		switch {
		case o.Type != OutcomeComplete:
			return Invalid("outcome.continue_with", "belongs to complete")
		case len(o.ContinueOn) > 0:
			return Invalid("outcome.continue_with", "give continue_on or continue_with, not both: a run has one "+
				"continuation")
		case len(with.Input) > 0:
			if err := CheckValue("outcome.continue_with.input", with.Input); err != nil {
				return err
			}
		}
	}
	if o.Type == OutcomeFail && (o.Error == nil || o.Error.Code == "") {
		return Invalid("outcome.error", "a failure says why: {code, message}")
	}
	switch {
	case o.Type != OutcomeComplete && (len(o.Result) > 0 || o.Summary != "" || len(o.ContinueOn) > 0):
		return Invalid("outcome", "result, summary and continue_on belong to complete")
	case o.Type != OutcomeFail && (o.Error != nil || o.Retryable != nil):
		return Invalid("outcome", "error and retryable belong to fail")
	case o.Type != OutcomeComplete && o.ReadSeq != 0:
		return Invalid("outcome.read_seq", "belongs to complete")
	case o.ReadSeq < 0:
		return Invalid("outcome.read_seq", "is negative")
	case o.Type != OutcomeFail && o.Defect:
		return Invalid("outcome.defect", "belongs to fail")
	case o.Defect && o.Retryable != nil && !*o.Retryable:
		return Invalid("outcome.retryable", "a defect is retried: leave it out, or set it to true")
	case o.Type != OutcomeReject && o.Reason != "":
		return Invalid("outcome.reason", "belongs to reject")
	case o.Type != OutcomeSuspend && len(o.Waits) > 0:
		return Invalid("outcome.waits", "belongs to suspend")
	}
	return nil
}

// WorkerMayWrite tells whether a worker may write lines of a type.
func WorkerMayWrite(typ LineType) bool {
	switch typ {
	case LineProgress, LineToolStarted, LineToolCompleted, LineToolFailed, LineDelta:
		return true
	}
	// The type must be a name: a line break in it would split a frame of the event stream.
	return strings.HasPrefix(string(typ), "x:") && len(typ) > 2 && checkName("type", string(typ)) == nil
}

// checkWork checks the fields that a submission and a spawn share.
func checkWork(
	prefix, kind string, queue *string, class Class, priority, attempts int,
	input json.RawMessage, metadata map[string]string,
) error {
	if err := checkName(prefix+"kind", kind); err != nil {
		return err
	}
	if *queue == "" {
		*queue = DefaultQueue
	}
	if err := checkName(prefix+"queue", *queue); err != nil {
		return err
	}
	if err := oneOf(prefix+"class", class, Classes); err != nil {
		return err
	}
	if priority < -MaxPriority || priority > MaxPriority {
		return Invalid(prefix+"priority", "%d does not lie between %d and %d", priority, -MaxPriority, MaxPriority)
	}
	if attempts < 0 || attempts > MaxAttempts {
		return Invalid(prefix+"max_attempts", "%d does not lie between 1 and %d", attempts, MaxAttempts)
	}
	if len(input) > 0 {
		if err := CheckValue(prefix+"input", input); err != nil {
			return err
		}
	}
	return checkMetadata(prefix+"metadata", metadata)
}

var nameOK = regexp.MustCompile(`^[\pL\pN_][\pL\pN_.:/#@ +-]*$`)
