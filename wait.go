package perdure

import (
	"encoding/json"
	"slices"
	"time"
)

// What a run can wait for.
const (
	WaitChildren = "children"
	WaitSignal   = "signal"
	WaitTimer    = "timer"
	WaitCallback = "callback"
	WaitApproval = "approval"
)

// WaitTypes are all of them.
var WaitTypes = []string{WaitChildren, WaitSignal, WaitTimer, WaitCallback, WaitApproval}

// How many ends of its children (or of a group's runs) satisfy a wait.
const (
	ModeAll   = "all"    // every one has ended
	ModeAllOK = "all_ok" // every one has completed, or the first that did not
	ModeAny   = "any"    // the first has ended
	ModeAnyOK = "any_ok" // the first has completed, or all have ended
)

// Modes are all of them.
var Modes = []string{ModeAll, ModeAllOK, ModeAny, ModeAnyOK}

// ValidMode tells whether m is one of the four modes.
func ValidMode(m string) bool { return slices.Contains(Modes, m) }

// Satisfied judges a mode by how many of total have ended, and how many of those completed.
func Satisfied(mode string, total, ended, completed int) bool {
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

// Where a wait stands. It leaves WaitOpen once.
const (
	WaitOpen      = "open"
	WaitSatisfied = "satisfied"
	WaitTimedOut  = "timed_out"
	WaitStalled   = "stalled" // a child looks stuck and the wait asked to be told
	WaitOrphaned  = "orphaned"
	WaitClosed    = "closed"
)

// A WaitSpec opens a wait. Children are named by their keys in the journal, so that a spawn and the wait
// for it can share a commit, or by their run ids.
type WaitSpec struct {
	ID      string   `json:"id"`
	Type    string   `json:"type"`
	Mode    string   `json:"mode,omitempty"` // children: default all
	Keys    []string `json:"keys,omitempty"`
	RunIDs  []RunID  `json:"run_ids,omitempty"`
	Name    string   `json:"name,omitempty"`    // signal and approval: which
	Timeout Duration `json:"timeout,omitempty"` // exact; none: what its name has, or suspend_timeout; "never": until the run's deadline
	OnStall bool     `json:"on_stall,omitempty"`

	Approval *ApprovalSpec `json:"approval,omitempty"`
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
		if len(w.Keys)+len(w.RunIDs) > MaxBatch {
			return &Error{Code: CodeTooLarge, Field: field + ".keys", Message: "a wait names at most 1000 children"}
		}
	case WaitSignal:
		if err := checkName(field+".name", w.Name); err != nil {
			return err
		}
	case WaitTimer:
		if w.Timeout <= 0 {
			return Invalid(field+".timeout", "a timer needs a positive timeout")
		}
	case WaitCallback:
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
	if w.Type != WaitSignal && w.Type != WaitApproval && w.Name != "" {
		return Invalid(field+".name", "a name belongs to a signal or an approval wait")
	}
	if w.Type != WaitApproval && w.Approval != nil {
		return Invalid(field+".approval", "belongs to an approval wait")
	}
	if time.Duration(w.Timeout) > MaxWait {
		return Invalid(field+".timeout", "%s is above the greatest wait, %s", w.Timeout, MaxWait)
	}
	return nil
}

// UnmarshalJSON reads a wait. A timeout that is given is exact: one of 0s passes at once, and is not taken for none. That of a
// timer stays what it is, and is refused.
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

// size is about how many bytes a wait makes the store write.
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

// MaxWait bounds a wait's own timeout; the run's deadline bounds it anyway.
const MaxWait = 366 * 24 * time.Hour

// A Wait is something a run is, or may be, suspended on.
type Wait struct {
	Tenant    TenantID
	RunID     RunID
	ID        string
	Type      string
	Mode      string
	Name      string
	Targets   []RunID // children waits
	OnStall   bool
	State     string
	Named     bool // the suspend that the run is in named it: its end queues the run
	OpenedAt  Instant
	TimeoutAt Instant // zero: only the run's deadline
	EndedAt   Instant
	Ended     int // children waits: how many of the targets have ended …
	OK        int // … and how many of those completed
}

// Names tells whether a children wait is about that run.
func (w *Wait) Names(id RunID) bool { return w.Type == WaitChildren && slices.Contains(w.Targets, id) }

// Satisfied judges an open children wait by its tallies.
func (w *Wait) Satisfied() bool {
	return w.Type == WaitChildren && Satisfied(w.Mode, len(w.Targets), w.Ended, w.OK)
}

// An inbox item's type.
const (
	ItemChild    = "child"       // a child has ended
	ItemWait     = "wait"        // a children wait is over: satisfied, stalled or orphaned
	ItemTimer    = "timer"       // a timer has rung
	ItemTimeout  = "timeout"     // a wait was not satisfied in time (code tool_timeout)
	ItemSignal   = "signal"      // somebody sent a signal
	ItemCallback = "callback"    // somebody used a callback token
	ItemApproval = "approval"    // somebody decided
	ItemContinue = "continue"    // work outside has finished
	ItemLate     = "late_result" // a child's late result was adopted
)

// An inbox item's status.
const (
	ItemPending    = "pending"
	ItemProcessing = "processing" // handed over under an epoch; see Item.StatusOf
	ItemDone       = "done"       // acknowledged under that epoch
	ItemSkipped    = "skipped"    // of no use to anybody any more
)

// An Item is a durable message to a run. The inbox is the source of truth; doorbells are hints.
type Item struct {
	Tenant    TenantID `json:"-"`
	RunID     RunID    `json:"-"`
	Seq       int64    `json:"seq"`
	Type      string   `json:"type"`
	Status    string   `json:"-"`
	Epoch     int64    `json:"-"`                 // of the lease it was handed over with
	WaitID    string   `json:"wait_id,omitempty"` // the wait that it ends
	Name      string   `json:"name,omitempty"`    // signal and approval: which; child and late_result: the journal key
	From      RunID    `json:"run_id,omitempty"`  // child and late_result: who
	Outcome   string   `json:"outcome,omitempty"` // child: how it ended; wait, timeout and approval: how the wait did
	Data      Value    `json:"data,omitempty"`
	CreatedAt Instant  `json:"at"`
	AlarmAt   Instant  `json:"-"` // when the watchdog looks at it (W1, W9)
	Error     string   `json:"-"` // why the watchdog skipped it
}

// StatusOf is an item's status in its run as that is now. An item is processing only under the epoch that it was handed
// over with, while that holds the run. After the epoch's end it is pending, although its row still says otherwise.
func (i *Item) StatusOf(r *Run) string {
	if i.Status == ItemProcessing && (i.Epoch != r.Epoch || !r.State.Leased()) {
		return ItemPending
	}
	return i.Status
}

// Journal entries that the server understands. One step of a saga is recorded together with UndoPrefix and its key, when it
// has something that undoes it, and UndonePrefix and its key says that this is not wanted any more: mostly because it was done.
// A run that ends without a result lists the rest in its deliverable, as not_undone.
const (
	UndoPrefix   = "_undo:"
	UndonePrefix = "_undone:"
	MaxNotUndone = 100 // names in a deliverable: the last ones
)

// A JournalEntry is the recorded result of a step.
type JournalEntry struct {
	Key   string          `json:"key"`
	Value json.RawMessage `json:"value"`
}
