package perdure

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// This file has the bodies of the two calls that write most: a caller's submission and a worker's
// commit. Validate checks their shape and limits; the engine checks them against stored data.

// Limits of the parts of a call.
const (
	MaxValue    = 1 << 20 // bytes of one value
	MaxBatch    = 1000    // entries of one list
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
)

// A Submission is the body of a request for a new run.
type Submission struct {
	Kind        string            `json:"kind"`
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
	// Messages are appended to the thread when the run becomes its active one.
	Messages          []Message `json:"messages,omitempty"`
	MultitaskStrategy string    `json:"multitask_strategy,omitempty"`
	OnDisconnect      string    `json:"on_disconnect,omitempty"`
	// Webhook is a URL that receives events of the run. WebhookEvents selects them; if it is empty,
	// the webhook receives NotifiedLines.
	Webhook       string   `json:"webhook,omitempty"`
	WebhookEvents []string `json:"webhook_events,omitempty"`
	// Foreground says that the caller waits for the run, or is about to.
	Foreground bool `json:"-"`
}

// The values of MultitaskStrategy: what happens when the thread already has an active run.
const (
	MultitaskEnqueue   = "enqueue"
	MultitaskReject    = "reject"
	MultitaskInterrupt = "interrupt"
)

// MultitaskStrategies are all of them.
var MultitaskStrategies = []string{MultitaskEnqueue, MultitaskReject, MultitaskInterrupt}

// Dispositions say what becomes of a run whose caller or parent is gone, or of a group's runs when the group is over.
var Dispositions = []string{OutliveParent, EndWithParent}

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

// DefaultQueue is the queue of runs that name none.
const DefaultQueue = "default"

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
	}
	return CheckEvents("webhook_events", s.WebhookEvents)
}

// checkSize limits the bytes and messages that one submission makes the store write.
func (s *Submission) checkSize() error {
	if len(s.Messages) > MaxBatch {
		return OverBound("messages", "has %d entries; a submission takes %d", len(s.Messages), MaxBatch)
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
	OnParentEnd string            `json:"on_parent_end,omitempty"`
	Metadata    map[string]string `json:"metadata,omitempty"`
}

func (s *Spawn) validate(field string) error {
	if err := checkName(field+".key", s.Key); err != nil {
		return err
	}
	if s.Class == "" {
		s.Class = Task
		if s.ThreadID != "" {
			s.Class = Agent
		}
	}
	s.OnParentEnd = cmp.Or(s.OnParentEnd, EndWithParent)
	if err := oneOf(field+".on_parent_end", s.OnParentEnd, Dispositions); err != nil {
		return err
	}
	if s.Delay < 0 || time.Duration(s.Delay) > MaxWait {
		return Invalid(field+".delay", "must lie between 0 and %s", MaxWait)
	}
	return checkWork(field+".", s.Kind, &s.Queue, s.Class, s.Priority, s.MaxAttempts, s.Input, s.Metadata)
}

// A Message is one message of a thread.
type Message struct {
	Role     string          `json:"role"`
	Content  json.RawMessage `json:"content"`
	Metadata json.RawMessage `json:"metadata,omitempty"`
}

// An Emitted event is a line that a worker writes to its run's log.
type Emitted struct {
	Type string          `json:"type"`
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
}

// The types of outcomes. Each of them ends the worker's hold on the run.
const (
	OutcomeComplete  = "complete"
	OutcomeFail      = "fail"
	OutcomeCancelled = "cancelled"
	OutcomeSuspend   = "suspend"
	OutcomeReject    = "reject"
)

// OutcomeTypes are all of them.
var OutcomeTypes = []string{OutcomeComplete, OutcomeFail, OutcomeCancelled, OutcomeSuspend, OutcomeReject}

// An Outcome ends an execution: the run completes, fails, is cancelled, suspends, or is rejected.
type Outcome struct {
	Type       string          `json:"type"`
	Result     json.RawMessage `json:"result,omitempty"`
	Summary    string          `json:"summary,omitempty"`
	ContinueOn []string        `json:"continue_on,omitempty"` // complete: children, by run id or journal key
	Error      *Failure        `json:"error,omitempty"`       // fail
	Retryable  *bool           `json:"retryable,omitempty"`   // fail: true if absent
	Reason     string          `json:"reason,omitempty"`      // reject
	Waits      []string        `json:"waits,omitempty"`       // suspend: all open waits if absent
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
		if l.n > MaxBatch {
			return tooLarge(l.name, "has %d entries; a commit takes %d", l.n, MaxBatch)
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
	if c.Outcome == nil {
		return nil
	}
	return c.Outcome.validate()
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
	n := len(c.Journal) + len(c.Children) + len(c.Close) + len(c.Messages) + len(c.Events) + len(c.Ack)
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
	for i := range c.Waits {
		n += c.Waits[i].size()
	}
	if c.Outcome != nil {
		n += len(c.Outcome.Result)
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
	}
	if len(o.ContinueOn) > MaxBatch {
		return tooLarge("outcome.continue_on", "names at most 1000 runs")
	}
	if len(o.Waits) > MaxBatch {
		return tooLarge("outcome.waits", "names at most 1000 waits")
	}
	if err := oneOf("outcome.type", o.Type, OutcomeTypes); err != nil {
		return err
	}
	if o.Type == OutcomeFail && (o.Error == nil || o.Error.Code == "") {
		return Invalid("outcome.error", "a failure says why: {code, message}")
	}
	switch {
	case o.Type != OutcomeComplete && (len(o.Result) > 0 || o.Summary != "" || len(o.ContinueOn) > 0):
		return Invalid("outcome", "result, summary and continue_on belong to complete")
	case o.Type != OutcomeFail && (o.Error != nil || o.Retryable != nil):
		return Invalid("outcome", "error and retryable belong to fail")
	case o.Type != OutcomeReject && o.Reason != "":
		return Invalid("outcome.reason", "belongs to reject")
	case o.Type != OutcomeSuspend && len(o.Waits) > 0:
		return Invalid("outcome.waits", "belongs to suspend")
	}
	return nil
}

// WorkerMayWrite tells whether a worker may write lines of a type.
func WorkerMayWrite(typ string) bool {
	switch typ {
	case LineProgress, LineToolStarted, LineToolCompleted, LineToolFailed, LineDelta:
		return true
	}
	// The type must be a name: a line break in it would split a frame of the event stream.
	return strings.HasPrefix(typ, "x:") && len(typ) > 2 && checkName("type", typ) == nil
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
	if err := checkName(field+".role", m.Role); err != nil {
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

var nameOK = regexp.MustCompile(`^[\pL\pN_][\pL\pN_.:/#@ +-]*$`)

// checkName checks kinds, queues, keys, wait ids, roles and signal names. They are printable,
// short, and free of characters that mean something in a path, a terminal or SQL.
func checkName(field, s string) error {
	switch {
	case s == "":
		return Invalid(field, "is missing")
	case len(s) > MaxName:
		return Invalid(field, "is longer than %d bytes", MaxName)
	case !utf8.ValidString(s) || !nameOK.MatchString(s) || strings.Contains(s, "..") || strings.HasSuffix(s, " "):
		return Invalid(field, "%q is not a name: letters, digits and _ . : / # @ + - and inner spaces, "+
			"beginning with a letter, digit or _", s)
	}
	return nil
}

// CheckName checks a name from outside: a kind, queue, key, wait id, role or signal.
func CheckName(field, s string) error { return checkName(field, s) }

func checkText(field, s string) error {
	if len(s) > MaxText {
		return tooLarge(field, "is longer than %d bytes", MaxText)
	}
	if !cleanText(s) {
		return Invalid(field, "is not valid UTF-8, or has a NUL byte")
	}
	return nil
}

// CheckText checks a text from outside: a reason, a summary, a comment.
func CheckText(field, s string) error { return checkText(field, s) }

// CheckCode checks the code of a failure from outside. It is short, because it is indexed.
func CheckCode(field string, code Code) error {
	if err := checkText(field, string(code)); err != nil {
		return err
	}
	if len(code) > MaxCode {
		return OverBound(field, "has %d bytes; a code takes %d", len(code), MaxCode)
	}
	return nil
}

// CheckEpoch checks that a worker names an epoch. Epochs begin at 1.
func CheckEpoch(field string, n int64) error {
	switch {
	case n == 0:
		return Invalid(field, "is missing")
	case n < 0:
		return Invalid(field, "%d is no epoch: they begin at 1", n)
	}
	return nil
}

func cleanText(s string) bool { return utf8.ValidString(s) && !strings.ContainsRune(s, 0) }

// CheckValue checks that a JSON value is within its limit and valid. It refuses NUL, invalid UTF-8
// and lone surrogates, which SQLite and PostgreSQL treat differently.
func CheckValue(field string, v json.RawMessage) error {
	switch {
	case len(v) == 0:
		return Invalid(field, "is missing")
	case len(v) > MaxValue:
		return tooLarge(field, "has %d bytes; a value takes %d: put larger things into an artifact", len(v), MaxValue)
	case !utf8.Valid(v):
		return Invalid(field, "is not valid UTF-8")
	case !json.Valid(v):
		return Invalid(field, "is not valid JSON")
	}
	if BadEscape(v) {
		return Invalid(field, `has an escaped NUL or a lone surrogate (\u0000, \ud800)`)
	}
	return nil
}

// BadEscape tells whether valid JSON contains \u0000 or a surrogate without its partner.
func BadEscape(v []byte) bool {
	if !bytes.Contains(v, []byte(`\u`)) {
		return false
	}
	for i := 0; i < len(v); i++ {
		if v[i] != '\\' {
			continue
		}
		i++
		if v[i] != 'u' {
			continue
		}
		c := hex4(v[i+1:])
		i += 4
		switch {
		case c == 0:
			return true
		case c >= 0xdc00 && c <= 0xdfff:
			return true
		case c >= 0xd800 && c <= 0xdbff:
			if i+6 >= len(v) || v[i+1] != '\\' || v[i+2] != 'u' {
				return true
			}
			if d := hex4(v[i+3:]); d < 0xdc00 || d > 0xdfff {
				return true
			}
			i += 6
		}
	}
	return false
}

// hex4 reads four hexadecimal digits.
func hex4(b []byte) (n int) {
	for _, c := range b[:4] {
		n <<= 4
		switch {
		case c >= 'a':
			n |= int(c-'a') + 10
		case c >= 'A':
			n |= int(c-'A') + 10
		default:
			n |= int(c - '0')
		}
	}
	return n
}
