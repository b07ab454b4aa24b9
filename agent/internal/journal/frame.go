package journal

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/perdure/perdure"
)

// The journal has four kinds of entries. A step's entry has the step's key and its record; see step.go.
// A frame lists what else a commit carried: children by key, inbox items, and the times and ids that were
// handed out. An entry about reports has what the agent wrote outside of steps; see reports.go. The
// other entries have a prefix of their own: the token of a callback, the end of a saga, data that a frame
// has no room for.

// Prefixes of keys. The names of steps don't begin with an underscore.
const (
	FramePrefix   = "_frame:"
	ReportsPrefix = perdure.ReportsPrefix
	DataPrefix    = "_data:"
	TokenPrefix   = "_token:"
	SagaPrefix    = "_saga:"
	UndoPrefix    = perdure.UndoPrefix
	UndonePrefix  = perdure.UndonePrefix
	// HistoryPrefix and NewestPrefix begin the keys of the messages that the agent has read.
	HistoryPrefix = "_history:"
	NewestPrefix  = "_newest:"
)

// Prefixes of the ids of waits.
const (
	// AgainPrefix begins the ids of waits that end at once. They replace the waits of a commit that was
	// to suspend the run on a refused child: the next execution sees the refusal.
	AgainPrefix = "_again:"
	// LimitPrefix begins the ids of the waits of steps for their limits. The journal has none of them.
	LimitPrefix = "limit:"
	// MapPrefix begins the ids of a map's waits.
	MapPrefix = "map:"
	// JoinPrefix begins the ids of the waits for children.
	JoinPrefix = "join:"
)

const (
	// Data of more than apartBytes gets an entry of its own. The store keeps such content once by
	// its hash, so the entry shares it with the child's result.
	apartBytes = 8 << 10
	// Data that is nested deeper than apartDepth gets an entry of its own, and beyond quotedDepth
	// it is quoted. A frame adds levels of its own, and the server limits the depth of JSON.
	apartDepth  = 40
	quotedDepth = 60
)

// version is that of the format which this library writes and reads. docs/journal.md describes it.
const version = 1

// newer returns the error of an entry in a format of a later release.
func newer(v int) error {
	return fmt.Errorf("it has version %d, and this library reads up to %d: a worker with a newer library is needed", v,
		version)
}

// A Frame is the journal entry that lists what a commit carries beside the results of steps.
type Frame struct {
	// V is the version of the format. It is left out: this library writes version 1.
	V        int               `json:"v,omitempty"`
	In       []Item            `json:"in,omitempty"`
	Spawned  map[string]string `json:"spawned,omitempty"`
	Aside    []string          `json:"aside,omitempty"` // keys in Spawned that other goroutines spawned
	Versions map[string]int    `json:"versions,omitempty"`
	// Now has times by key, in microseconds since 1970, and UUID has ids by key.
	Now  map[string]int64  `json:"now,omitempty"`
	UUID map[string]string `json:"uuid,omitempty"`

	// Branches has the keys of branches that were begun, in their order.
	Branches []string `json:"branches,omitempty"`
	// Timers has when timers end, by the id of the wait, in microseconds since 1970.
	Timers map[string]int64 `json:"timers,omitempty"`

	// Ignored has the fields of the run's input that the first execution did not know; see Record.Ignored.
	Ignored *[]string `json:"ignored,omitempty"`
	// Unfit has the children, by key, and the callbacks, by the id of their wait, whose results did not fit
	// the type that the agent asked for. It got an error.
	Unfit []string `json:"unfit,omitempty"`

	// Frames of the old form have these, and new frames do not. Messages and Lines count the reports of
	// the commit. Times, in nanoseconds since 1970, and UUIDs have values without names, in order. Due is
	// Timers in nanoseconds.
	Messages int              `json:"messages,omitempty"`
	Lines    int              `json:"lines,omitempty"`
	Times    []int64          `json:"times,omitempty"`
	UUIDs    []string         `json:"uuids,omitempty"`
	Due      map[string]int64 `json:"due,omitempty"`

	Opened    []string           `json:"opened,omitempty"`
	Closed    []string           `json:"closed,omitempty"`
	Winners   map[string]*Winner `json:"winners,omitempty"`
	Cancelled []string           `json:"cancelled,omitempty"`
	Mapped    map[string]*Mapped `json:"mapped,omitempty"`
}

func (f *Frame) empty() bool {
	return len(f.In)+len(f.Spawned)+len(f.Now)+len(f.UUID)+len(f.Versions)+
		len(f.Branches)+len(f.Opened)+len(f.Closed)+len(f.Winners)+len(f.Timers)+len(f.Cancelled)+len(f.Mapped)+
		len(f.Unfit) == 0 && f.Ignored == nil
}

// An Item is an inbox item as a frame keeps it.
type Item struct {
	Seq     int64           `json:"seq"`
	Type    string          `json:"type"`
	Wait    string          `json:"wait,omitempty"`
	Name    string          `json:"name,omitempty"`
	From    perdure.RunID   `json:"run,omitempty"`
	Outcome string          `json:"outcome,omitempty"`
	Data    json.RawMessage `json:"data,omitempty"`
	// Apart tells that the data is in a journal entry of its own.
	Apart bool `json:"apart,omitempty"`
	// Quoted tells that the data is a JSON string there, with the JSON of the data in it.
	Quoted bool `json:"quoted,omitempty"`
	// Failure is set if a callback was answered with an error. Otherwise Data is its result.
	Failure *perdure.Failure `json:"failure,omitempty"`

	// Unfit tells that the data of a signal or message did not fit the type that the agent asked for.
	Unfit bool `json:"unfit,omitempty"`

	// Order is the item's place among all. Numbers of the inbox can't be compared across a retry of
	// the run, which begins a new inbox.
	Order int64 `json:"-"`
	// Loaded tells that an earlier execution has put it into the journal.
	Loaded bool `json:"-"`
}

func (i *Item) dataKey() string { return fmt.Sprintf("%s%d", DataPrefix, i.Seq) }

// refusal returns the error with which the server refused a child.
func (i *Item) refusal() error {
	var why struct {
		Reason  perdure.Code `json:"reason"`
		Message string       `json:"message"`
	}
	_ = json.Unmarshal(i.Data, &why)
	return perdure.Permanent(perdure.Errorf(why.Reason, "spawn of %s: %s", i.Name, why.Message))
}

// A Winner is the result of a call that waits for the first of several futures.
type Winner struct {
	// First are those that the call waited for, by id and in the order in which they came.
	First []string `json:"first,omitempty"`
	// Over are those that had ended without a result before.
	Over []string `json:"over,omitempty"`
}

// Mapped is the note about the children of a map.
type Mapped struct {
	// N is how many were spawned, and Sum a digest of their inputs.
	N   int    `json:"n"`
	Sum string `json:"sum"`
	// Stopped tells that an item has failed, and the rest was asked to stop.
	Stopped bool `json:"stopped,omitempty"`

	// Original is how many the original of this run had spawned. Those without an end are spawned
	// again.
	Original int `json:"-"`
}

// set sets a value in a map that may be nil.
func set[V any](m *map[string]V, key string, v V) {
	if *m == nil {
		*m = map[string]V{}
	}
	(*m)[key] = v
}

// Compact removes white space from JSON, as a frame writes it.
func Compact(v json.RawMessage) json.RawMessage {
	var b bytes.Buffer
	if err := json.Compact(&b, v); err != nil {
		return v
	}
	return b.Bytes()
}

// nesting returns how deep a JSON value is nested.
func nesting(v json.RawMessage) (deepest int) {
	depth, inString := 0, false
	for n := 0; n < len(v); n++ {
		switch {
		case inString && v[n] == '\\':
			n++
		case v[n] == '"':
			inString = !inString
		case inString:
		case v[n] == '{' || v[n] == '[':
			depth++
			deepest = max(deepest, depth)
		case v[n] == '}' || v[n] == ']':
			depth--
		}
	}
	return deepest
}

// Encode encodes a value without escaping HTML, so that JSON in it stays as it is. It returns nil if
// the value can't be encoded.
func Encode(v any) json.RawMessage {
	b, err := perdure.Marshal(v)
	if err != nil {
		return nil
	}
	return b
}
