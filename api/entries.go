package api

import (
	"encoding/json"

	"github.com/perdure/perdure"
)

// A ShownValue is a value of a journal or an inbox. A page has values of at most 4 KiB.
type ShownValue struct {
	// Size is the number of bytes of the value as JSON.
	Size  int             `json:"size"`
	Value json.RawMessage `json:"value,omitempty"`
	// Preview is the beginning of a value that the page leaves out.
	Preview string `json:"preview,omitempty"`
	// Damaged says that the stored value can't be read.
	Damaged bool `json:"damaged,omitempty"`
}

// A Step is an entry of a run's journal, as people read it.
type Step struct {
	Seq int64           `json:"seq"`
	Key string          `json:"key"`
	At  perdure.Instant `json:"at"`
	ShownValue
}

// Steps is a page of a run's journal.
type Steps struct {
	Entries []Step `json:"entries"`
	// NextAfter is where the next page begins. It is left out of the last one.
	NextAfter int64 `json:"next_after,omitempty"`
}

// An InboxItem is an item of a run's inbox, as people read it.
type InboxItem struct {
	Seq  int64  `json:"seq"`
	Type string `json:"type"`
	// Status is pending, processing, acked or skipped.
	Status  string        `json:"status"`
	Name    string        `json:"name,omitempty"`
	WaitID  string        `json:"wait_id,omitempty"`
	RunID   perdure.RunID `json:"run_id,omitempty"`  // the child that it is about
	Outcome string        `json:"outcome,omitempty"` // how the child ended, or the wait
	// MessageSeq is the number of a message in its thread.
	MessageSeq int64           `json:"message_seq,omitempty"`
	At         perdure.Instant `json:"at"`
	// WatchdogError says why the watchdog skipped the item, and WatchdogAt when.
	WatchdogError string           `json:"watchdog_error,omitempty"`
	WatchdogAt    *perdure.Instant `json:"watchdog_at,omitempty"`
	ShownValue
}

// InboxItems is a page of a run's inbox.
type InboxItems struct {
	Items []InboxItem `json:"items"`
	// NextAfter is where the next page begins. It is left out of the last one.
	NextAfter int64 `json:"next_after,omitempty"`
}
