package perdure

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
)

// DefaultQueue is the queue of runs that name none.
const DefaultQueue = "default"

// LocalQueue is the queue of processes that `perdure exec` starts: each has a runner already, which
// leases it by its id. No pool takes runs from it, so a process of this queue that nobody leases ends
// soon, and a retry needs somebody who brings a runner.
const LocalQueue = "exec-local"

// ExecKind is the kind of processes that are commands: their input is a command, and nothing else.
const ExecKind = "exec"

// A Submission is the body of a request for a new run.
type Submission struct {
	Kind string `json:"kind"`
	// Name is a name of the caller's choice, as long as the run is stored: the same submission under it
	// gives the same run, and another one is refused.
	Name        string            `json:"name,omitempty"`
	Input       json.RawMessage   `json:"input,omitempty"`
	ThreadID    ThreadID          `json:"thread_id,omitempty"`
	Class       Class             `json:"class,omitempty"`
	Queue       string            `json:"queue,omitempty"`
	Priority    int               `json:"priority,omitempty"`
	Timeout     Duration          `json:"timeout,omitempty"`
	RunAt       Instant           `json:"run_at,omitempty"`
	Delay       Duration          `json:"delay,omitempty"`
	MaxAttempts int               `json:"max_attempts,omitempty"`
	Metadata    map[string]string `json:"metadata,omitempty"`
	// Limits names limits that the run is under, beside those of its kind. LimitKey is its key under
	// limits with a count for each key, and Units is what a grant takes of their rates.
	Limits   []string `json:"limits,omitempty"`
	LimitKey string   `json:"limit_key,omitempty"`
	Units    int      `json:"units,omitempty"`
	// Messages are appended to the thread when the run becomes its active one.
	Messages          []Message         `json:"messages,omitempty"`
	MultitaskStrategy MultitaskStrategy `json:"multitask_strategy,omitempty"`
	OnDisconnect      Disposition       `json:"on_disconnect,omitempty"`
	// Webhook is a URL that receives events of the run. WebhookEvents selects them; if it is empty,
	// the webhook receives NotifiedLines.
	Webhook       string   `json:"webhook,omitempty"`
	WebhookEvents []string `json:"webhook_events,omitempty"`
	// WebhookFormat is the form of the bodies that the webhook receives; empty is Perdure's own.
	WebhookFormat WebhookFormat `json:"webhook_format,omitempty"`
	// Unique and Debounce are about other submissions of the kind with the same key.
	Unique   *Unique   `json:"unique,omitempty"`
	Debounce *Debounce `json:"debounce,omitempty"`
	// Foreground says that the caller waits for the run, or is about to.
	Foreground bool `json:"-"`
}

// A Disposition says what becomes of a run whose caller or parent is gone, or of a group's other runs
// when the group is over.
type Disposition string

const (
	DispositionContinue Disposition = "continue" // default of on_disconnect and on_losers
	DispositionCancel   Disposition = "cancel"   // default of on_parent_end
)

// Dispositions are both of them.
var Dispositions = []Disposition{DispositionContinue, DispositionCancel}

// A Spawn is the request for a child run.
type Spawn struct {
	Key         string            `json:"key"` // the child's name in the parent's journal
	Kind        string            `json:"kind"`
	Input       json.RawMessage   `json:"input,omitempty"`
	Class       Class             `json:"class,omitempty"`
	Queue       string            `json:"queue,omitempty"`
	ThreadID    ThreadID          `json:"thread_id,omitempty"`
	Priority    int               `json:"priority,omitempty"`
	Timeout     Duration          `json:"timeout,omitempty"`
	Delay       Duration          `json:"delay,omitempty"`
	MaxAttempts int               `json:"max_attempts,omitempty"`
	OnParentEnd Disposition       `json:"on_parent_end,omitempty"`
	Metadata    map[string]string `json:"metadata,omitempty"`
	// Limits, LimitKey and Units are those of a submission.
	Limits   []string `json:"limits,omitempty"`
	LimitKey string   `json:"limit_key,omitempty"`
	Units    int      `json:"units,omitempty"`
	// Unique is that of a submission. UniqueReturn is not among what it takes.
	Unique *Unique `json:"unique,omitempty"`
	// NewThread creates a thread for the child. Its metadata name the parent and the child's key.
	NewThread bool `json:"new_thread,omitempty"`

	// implied is set if the class was not given. That of the kind then has precedence.
	implied bool
}

// ClassGiven tells whether the request names a class. Validate fills in a default if it does not.
func (s *Spawn) ClassGiven() bool { return s.Class != "" && !s.implied }

// A Message is one message of a thread.
type Message struct {
	Role     Role            `json:"role"`
	Content  json.RawMessage `json:"content"`
	Metadata json.RawMessage `json:"metadata,omitempty"`
}

// oneOf refuses a word that is not in a list.
func oneOf[S ~string](field string, word S, list []S) error {
	if slices.Contains(list, word) {
		return nil
	}
	names := make([]string, len(list))
	for i, s := range list {
		names[i] = string(s)
	}
	return Invalid(field, "%q is none of %s", word, strings.Join(names, ", "))
}

// Validate checks a submission and fills in its defaults.
func (s *Submission) Validate() error {
	if s.Class == "" {
		s.Class = Task
		if s.ThreadID != "" {
			s.Class = Agent
		}
	}
	if err := checkWork("", s.Kind, &s.Queue, s.Class, s.Priority, s.MaxAttempts, s.Input, s.Metadata); err != nil {
		return err
	}
	if s.Name != "" {
		if err := CheckChosenName("name", s.Name); err != nil {
			return err
		}
	}
	if err := checkLimits("", s.Limits, s.LimitKey, s.Units); err != nil {
		return err
	}
	if s.RunAt != 0 && s.Delay != 0 {
		return Invalid("delay", "give run_at or delay, not both")
	}
	if s.Delay < 0 || time.Duration(s.Delay) > MaxWait {
		return Invalid("delay", "must lie between 0 and %s", MaxWait)
	}
	s.MultitaskStrategy = cmp.Or(s.MultitaskStrategy, MultitaskEnqueue)
	if err := oneOf("multitask_strategy", s.MultitaskStrategy, MultitaskStrategies); err != nil {
		return err
	}
	if s.OnDisconnect != "" {
		if err := oneOf("on_disconnect", s.OnDisconnect, Dispositions); err != nil {
			return err
		}
	}
	if s.Unique != nil { // the caller's stays as it is
		u := *s.Unique
		s.Unique = &u
	}
	if err := s.Unique.validate("unique", uniqueConflicts); err != nil {
		return err
	}
	if s.Unique != nil && s.Name != "" {
		return Unprocessable("unique", "does not go with name, which only one run ever has")
	}
	if err := s.checkDebounce(); err != nil {
		return err
	}
	if len(s.Messages) > 0 && s.ThreadID == "" {
		return Invalid("messages", "a run without a thread writes no messages")
	}
	if err := checkMessages("messages", s.Messages); err != nil {
		return err
	}
	if err := s.checkSize(); err != nil {
		return err
	}
	if s.Webhook != "" {
		if err := CheckURL("webhook", s.Webhook); err != nil {
			return err
		}
	} else if len(s.WebhookEvents) > 0 {
		return Invalid("webhook_events", "needs a webhook to send them to")
	} else if s.WebhookFormat != "" {
		return Invalid("webhook_format", "needs a webhook to send it to")
	}
	var err error
	s.WebhookFormat, s.WebhookEvents, err = CheckFormat("webhook_format", s.WebhookFormat, "webhook_events",
		s.WebhookEvents)
	return err
}

// checkSize limits the bytes and messages that one submission makes the store write.
func (s *Submission) checkSize() error {
	if len(s.Messages) > MaxList {
		return OverBound("messages", "has %d entries; a submission takes %d", len(s.Messages), MaxList)
	}
	if n := s.Size(); n > MaxCommitBytes {
		return OverBound("messages", "makes this a submission of %d bytes; one takes %d", n, MaxCommitBytes)
	}
	return nil
}

// Size estimates the bytes that a submission makes the store write.
func (s *Submission) Size() int {
	n := len(s.Input) + messageBytes(s.Messages)
	for k, v := range s.Metadata {
		n += len(k) + len(v)
	}
	return n
}

func messageBytes(ms []Message) (n int) {
	for i := range ms {
		n += len(ms[i].Content) + len(ms[i].Metadata)
	}
	return n
}

func (s *Spawn) validate(field string) error {
	if err := checkName(field+".key", s.Key); err != nil {
		return err
	}
	if s.Class == "" {
		s.implied, s.Class = true, Task
		if s.ThreadID != "" || s.NewThread {
			s.Class = Agent
		}
	}
	if s.ThreadID != "" && s.NewThread {
		return Invalid(field+".new_thread", "give thread_id or new_thread, not both")
	}
	s.OnParentEnd = cmp.Or(s.OnParentEnd, DispositionCancel)
	if err := oneOf(field+".on_parent_end", s.OnParentEnd, Dispositions); err != nil {
		return err
	}
	if s.Unique != nil {
		u := *s.Unique
		s.Unique = &u
	}
	if err := s.Unique.validate(field+".unique", childConflicts); err != nil {
		return err
	}
	if s.Delay < 0 || time.Duration(s.Delay) > MaxWait {
		return Invalid(field+".delay", "must lie between 0 and %s", MaxWait)
	}
	if err := checkLimits(field+".", s.Limits, s.LimitKey, s.Units); err != nil {
		return err
	}
	return checkWork(field+".", s.Kind, &s.Queue, s.Class, s.Priority, s.MaxAttempts, s.Input, s.Metadata)
}

func checkMessages(field string, ms []Message) error {
	for i := range ms {
		f := fmt.Sprintf("%s[%d]", field, i)
		if err := ms[i].Validate(f); err != nil {
			return err
		}
	}
	return nil
}

// Validate checks a message.
func (m *Message) Validate(field string) error {
	if err := checkName(field+".role", string(m.Role)); err != nil {
		return err
	}
	if err := CheckValue(field+".content", m.Content); err != nil {
		return err
	}
	if len(m.Metadata) > 0 {
		return CheckValue(field+".metadata", m.Metadata)
	}
	return nil
}
