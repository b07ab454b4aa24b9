package perdure

import (
	"encoding/json"
	"slices"
	"time"
)

// A WaitType is the type of a wait: the thing that ends it.
type WaitType string

const (
	WaitChildren WaitType = "children"
	WaitSignal   WaitType = "signal"
	WaitTimer    WaitType = "timer"
	WaitCallback WaitType = "callback"
	WaitApproval WaitType = "approval"
	WaitMessage  WaitType = "message"
	// WaitLimit waits until the limits of a step have room. The next grant takes the slots.
	WaitLimit WaitType = "limit"
)

// WaitTypes are all of them.
var WaitTypes = []WaitType{WaitChildren, WaitSignal, WaitTimer, WaitCallback, WaitApproval, WaitMessage, WaitLimit}

// A Mode says which ends satisfy a wait for children, or a group.
type Mode string

const (
	ModeAll   Mode = "all"    // every one has ended
	ModeAllOK Mode = "all_ok" // every one has completed, or one has ended otherwise
	ModeAny   Mode = "any"    // one has ended
	ModeAnyOK Mode = "any_ok" // one has completed, or all have ended
)

// Modes are all of them.
var Modes = []Mode{ModeAll, ModeAllOK, ModeAny, ModeAnyOK}

// ValidMode tells whether m is one of the four modes.
func ValidMode(m Mode) bool { return slices.Contains(Modes, m) }

// Satisfied tells whether a mode is satisfied when, of total runs, some have ended and some of
// those have completed.
func Satisfied(mode Mode, total, ended, completed int) bool {
	switch mode {
	case ModeAll:
		return ended == total
	case ModeAllOK:
		return completed == total || ended > completed
	case ModeAny:
		return ended > 0 || total == 0
	case ModeAnyOK:
		return completed > 0 || ended == total
	}
	return false
}

// The states of a wait. It leaves WaitOpen once.
const (
	WaitOpen      = "open"
	WaitSatisfied = "satisfied"
	WaitTimedOut  = "timed_out"
	WaitStalled   = "stalled" // a child looks stuck, and the wait has on_stall
	WaitOrphaned  = "orphaned"
	WaitClosed    = "closed"
)

// A WaitSpec opens a wait. Children are named by their run ids or by their keys in the journal.
// With keys, one commit can both spawn a child and wait for it.
type WaitSpec struct {
	ID     string   `json:"id"`
	Type   WaitType `json:"type"`
	Mode   Mode     `json:"mode,omitempty"` // children: default all
	Keys   []string `json:"keys,omitempty"`
	RunIDs []RunID  `json:"run_ids,omitempty"`
	Name   string   `json:"name,omitempty"` // signal and approval: its name; limit: the key of the step
	// Limits are what the step of a limit wait takes.
	Limits []LimitTake `json:"limits,omitempty"`
	// Timeout is exact. Zero means the default of the wait's name, or else suspend_timeout. "never"
	// means until the run's deadline, which is the default of a limit wait.
	Timeout Duration `json:"timeout,omitempty"`
	OnStall bool     `json:"on_stall,omitempty"` // children: end the wait when a child looks stuck

	Tool     *ToolOptions  `json:"tool,omitempty"`
	Approval *ApprovalSpec `json:"approval,omitempty"`
}

// ToolOptions are those of the definition of a tool that a run waits for. They count for a wait without a timeout of
// its own: it lasts as long as they say, and never shorter than by default.
type ToolOptions struct {
	SuspendTimeout Duration `json:"suspend_timeout,omitempty"`
	Timeout        Duration `json:"timeout,omitempty"` // counts without a suspend_timeout
}

func (o *ToolOptions) validate(field string) error {
	const outside = "must lie between 0s and %s"
	if o.SuspendTimeout < 0 || time.Duration(o.SuspendTimeout) > MaxWait {
		return Invalid(field+".suspend_timeout", outside, MaxWait)
	}
	if o.Timeout < 0 || time.Duration(o.Timeout) > MaxWait {
		return Invalid(field+".timeout", outside, MaxWait)
	}
	return nil
}

// Validate checks the shape of a wait.
func (w *WaitSpec) Validate(field string) error {
	if err := checkName(field+".id", w.ID); err != nil {
		return err
	}
	switch w.Type {
	case WaitChildren:
		if w.Mode == "" {
			w.Mode = ModeAll
		}
		if err := oneOf(field+".mode", w.Mode, Modes); err != nil {
			return err
		}
		if len(w.Keys)+len(w.RunIDs) == 0 {
			return Invalid(field+".keys", "a children wait names at least one child")
		}
		if len(w.Keys)+len(w.RunIDs) > MaxList {
			return tooLarge(field+".keys", "a wait names at most 1000 children")
		}
	case WaitSignal:
		if err := checkName(field+".name", w.Name); err != nil {
			return err
		}
	case WaitTimer:
		if w.Timeout <= 0 {
			return Invalid(field+".timeout", "a timer needs a positive timeout")
		}
	case WaitLimit:
		if err := checkName(field+".name", w.Name); err != nil {
			return err
		}
		if err := CheckTakes(field+".limits", w.Limits); err != nil {
			return err
		}
		if w.Timeout == 0 {
			w.Timeout = Never
		}
	case WaitCallback, WaitMessage:
	case WaitApproval:
		if err := checkName(field+".name", w.Name); err != nil {
			return err
		}
		if w.Approval == nil {
			return Invalid(field+".approval", "is missing: say what is to be approved")
		}
		if err := w.Approval.validate(field + ".approval"); err != nil {
			return err
		}
	default:
		return oneOf(field+".type", w.Type, WaitTypes)
	}
	if w.Type != WaitChildren && (w.Mode != "" || len(w.Keys)+len(w.RunIDs) > 0 || w.OnStall) {
		return Invalid(field, "mode, keys, run_ids and on_stall belong to children waits")
	}
	if w.Type != WaitSignal && w.Type != WaitApproval && w.Type != WaitLimit && w.Name != "" {
		return Invalid(field+".name", "a name belongs to a signal, an approval or a limit wait")
	}
	if w.Type != WaitLimit && len(w.Limits) > 0 {
		return Invalid(field+".limits", "belongs to a limit wait")
	}
	if w.Type != WaitApproval && w.Approval != nil {
		return Invalid(field+".approval", "belongs to an approval wait")
	}
	if w.Tool != nil {
		if err := w.Tool.validate(field + ".tool"); err != nil {
			return err
		}
	}
	if time.Duration(w.Timeout) > MaxWait {
		return Invalid(field+".timeout", "%s is above the greatest wait, %s", w.Timeout, MaxWait)
	}
	return nil
}

// UnmarshalJSON reads a wait. A timeout that is given is exact: one of 0s passes at once, and is not taken for none.
// That of a timer stays what it is, and is refused.
func (w *WaitSpec) UnmarshalJSON(b []byte) error {
	type plain WaitSpec
	read := struct {
		*plain
		Timeout *Duration `json:"timeout"`
	}{plain: (*plain)(w)}
	if err := json.Unmarshal(b, &read); err != nil {
		return err
	}
	if read.Timeout == nil {
		return nil
	}
	if w.Timeout = *read.Timeout; w.Timeout == 0 && w.Type != WaitTimer {
		w.Timeout = shortest
	}
	return nil
}

// shortest is the least timeout that is none of the default. It is below what an instant can tell.
const shortest Duration = 1

// size estimates the bytes that a wait makes the store write.
func (w *WaitSpec) size() (n int) {
	for _, k := range w.Keys {
		n += len(k)
	}
	for _, id := range w.RunIDs {
		n += len(id)
	}
	if w.Approval != nil {
		n += len(w.Approval.Action)
	}
	return n
}

// MaxWait limits the timeout of a wait. The run's deadline limits it too.
const MaxWait = 366 * 24 * time.Hour

// A Wait is something that a run waits for, or can wait for when it suspends.
type Wait struct {
	Tenant    TenantID
	RunID     RunID
	ID        string
	Type      WaitType
	Mode      Mode
	Name      string
	Targets   []RunID // children waits
	OnStall   bool
	State     string
	Named     bool // the current suspend waits for it: its end queues the run
	OpenedAt  Instant
	TimeoutAt Instant // zero if only the run's deadline ends it
	EndedAt   Instant
	Ended     int   // children waits: targets that have ended
	OK        int   // children waits: targets that have completed
	Item      int64 // number of the inbox item that tells of its end; zero if it is open or closed
}

// Names tells whether a children wait has that run among its targets.
func (w *Wait) Names(id RunID) bool { return w.Type == WaitChildren && slices.Contains(w.Targets, id) }

// Satisfied tells whether enough targets of an open children wait have ended for its mode.
func (w *Wait) Satisfied() bool {
	return w.Type == WaitChildren && Satisfied(w.Mode, len(w.Targets), w.Ended, w.OK)
}

// The types of inbox items.
const (
	ItemChild    = "child"       // a child has ended
	ItemWait     = "wait"        // a children wait has ended: satisfied, stalled or orphaned
	ItemTimer    = "timer"       // a timer has expired
	ItemTimeout  = "timeout"     // a wait was not satisfied in time (code tool_timeout)
	ItemSignal   = "signal"      // a signal was sent
	ItemCallback = "callback"    // a callback token was used
	ItemApproval = "approval"    // an approval was decided
	ItemMessage  = "message"     // a user appended a message to the thread
	ItemContinue = "continue"    // external work has finished
	ItemLate     = "late_result" // a child's late result was adopted
	ItemLimit    = "limit"       // the limits of a step have room; nothing else depends on it
)

// The statuses of inbox items.
const (
	ItemPending    = "pending"
	ItemProcessing = "processing" // handed to the holder of an epoch; see Item.StatusOf
	ItemDone       = "done"       // acknowledged under that epoch
	ItemSkipped    = "skipped"    // no longer needed
)

// An Item is a durable message to a run. The inbox is the source of truth; a doorbell only wakes
// its reader.
type Item struct {
	Tenant  TenantID `json:"-"`
	RunID   RunID    `json:"-"`
	Seq     int64    `json:"seq"`
	Type    string   `json:"type"`
	Status  string   `json:"-"`
	Epoch   int64    `json:"-"`                 // the lease under which it was handed over
	WaitID  string   `json:"wait_id,omitempty"` // the wait that it ends
	Name    string   `json:"name,omitempty"`    // name of a signal or approval; journal key of a child or late_result
	From    RunID    `json:"run_id,omitempty"`  // child and late_result: the child
	Outcome string   `json:"outcome,omitempty"` // how the child ended, or the wait
	Data    Value    `json:"data,omitempty"`
	// MessageSeq is set for a message: its number in the thread. Data is its content.
	MessageSeq int64   `json:"message_seq,omitempty"`
	CreatedAt  Instant `json:"at"`
	AlarmAt    Instant `json:"-"` // when the watchdog checks it (W1, W9)
	// WatchdogError says why the watchdog skipped the item, and WatchdogAt when.
	WatchdogError string  `json:"-"`
	WatchdogAt    Instant `json:"-"`
}

// StatusOf returns the status of an item, given the current state of its run. An item is processing
// only while the epoch that it was handed to holds the run. After that it is pending again,
// although its row still says processing.
func (i *Item) StatusOf(r *Run) string {
	if i.Status == ItemProcessing && (i.Epoch != r.Epoch || !r.State.Leased()) {
		return ItemPending
	}
	return i.Status
}

// Journal keys that the server understands. A saga step that can be undone is recorded together
// with an entry of UndoPrefix and its key. An entry of UndonePrefix and its key says that it need
// not be undone any more, mostly because it was. The deliverable of a run without a result lists
// the rest as not_undone. An entry of ReportsPrefix lists messages and lines of the same commit. It is no
// progress: an agent that fails and says something new each time still runs out of attempts.
const (
	UndoPrefix    = "_undo:"
	UndonePrefix  = "_undone:"
	ReportsPrefix = "_said:"
	MaxNotUndone  = 100 // steps in a deliverable; the last ones are listed
)

// A JournalEntry is the recorded result of a step.
type JournalEntry struct {
	Key   string          `json:"key"`
	Value json.RawMessage `json:"value"`
}
