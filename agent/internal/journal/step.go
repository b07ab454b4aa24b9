package journal

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/perdure/perdure"
)

// A Step is the record of a step: its journal entry.
type Step struct {
	// Aside tells that another goroutine than the agent's own executed the step. The field is the
	// first, so that IsAside finds it without reading the record.
	Aside bool             `json:"aside,omitempty"`
	Error *perdure.Failure `json:"error,omitempty"`
	// Of is the digest of what the step is about, if the code says that.
	Of string `json:"of,omitempty"`
	// As tells which texts in the result are bytes.
	As []string `json:"as,omitempty"`
	// Loose tells that the type of the result does not read back all that it writes.
	Loose bool            `json:"loose,omitempty"`
	OK    json.RawMessage `json:"ok,omitempty"`
	// Ignored is as that of a Frame.
	Ignored *[]string `json:"ignored,omitempty"`
	// V is as that of a Frame.
	V int `json:"v,omitempty"`
}

// ReadStep reads the entry of a step.
func ReadStep(key string, entry json.RawMessage) (rec Step, err error) {
	if err := json.Unmarshal(entry, &rec); err != nil {
		return rec, Contradiction(key, "the journal has something else under this name")
	}
	if rec.V > version {
		return rec, Contradiction(key, "%v", newer(rec.V))
	}
	return rec, nil
}

const asideRecord = `{"aside":true`

// IsAside tells whether an encoded record has Aside set.
func IsAside(record json.RawMessage) bool { return bytes.HasPrefix(record, []byte(asideRecord)) }

// withIgnored returns an encoded record with a list of fields in it.
func withIgnored(record json.RawMessage, ignored []string) json.RawMessage {
	head, rest := []byte(`{`), record[1:]
	if IsAside(record) {
		head, rest = []byte(asideRecord+`,`), bytes.TrimPrefix(record[len(asideRecord):], []byte(`,`))
	}
	list, _ := json.Marshal(ignored) // strings can always be written
	return slices.Concat(head, []byte(`"ignored":`), list, []byte(`,`), rest)
}

// Encode returns the record as JSON. OK is JSON already and is copied as it is.
func (r *Step) Encode() json.RawMessage {
	if r.Error == nil {
		head := []byte(`{`)
		if r.Aside {
			head = []byte(asideRecord + `,`)
		}
		if r.Of != "" { // a digest needs no escapes
			head = append(head, `"of":"`+r.Of+`",`...)
		}
		if len(r.As) > 0 {
			list, _ := json.Marshal(r.As) // strings can always be written
			head = append(append(append(head, `"as":`...), list...), ',')
		}
		if r.Loose {
			head = append(head, `"loose":true,`...)
		}
		return slices.Concat(head, []byte(`"ok":`), r.OK, []byte(`}`))
	}
	b, err := perdure.Encode(r)
	if err != nil { // can't happen: the texts were cut and checked
		panic(fmt.Sprintf("agent: an error can't be recorded: %v", err))
	}
	return b
}

// SetError makes the record that of a step that failed.
func (r *Step) SetError(why perdure.Failure) {
	r.Error, r.OK, r.Loose, r.As = &why, nil, false, nil
}

// A Saga is the record of a saga: how it ended. A saga ends once, so the code of a later release can't
// turn a saga that succeeded into one that failed, or the other way round.
type Saga struct {
	// Aside is as that of a Step.
	Aside bool             `json:"aside,omitempty"`
	OK    bool             `json:"ok,omitempty"`
	Error *perdure.Failure `json:"error,omitempty"`
}

// ReadSaga reads the entry of a saga. It is zero for a saga without an entry, which has not ended.
func ReadSaga(entry json.RawMessage) (rec Saga, ok bool) {
	if entry == nil {
		return rec, true
	}
	if err := json.Unmarshal(entry, &rec); err != nil {
		return Saga{}, false
	}
	return rec, rec.OK != (rec.Error != nil)
}

// Encode returns the record as JSON.
func (r *Saga) Encode() json.RawMessage {
	step := Step{Aside: r.Aside, Error: r.Error}
	if r.OK {
		step.OK = json.RawMessage(`true`)
	}
	return step.Encode()
}

// The entry of a step that need not be undone any more, because it was, or because its saga has
// succeeded. These are two facts. The server reads only that there is an entry.
const (
	UndoneEntry = `{"ok":true}`
	KeptEntry   = `{"kept":true}`
)

// IsKept tells whether the entry of a step says that the step is kept.
func IsKept(entry json.RawMessage) bool {
	var is struct {
		Kept bool `json:"kept"`
	}
	return json.Unmarshal(entry, &is) == nil && is.Kept
}

// ItemKey returns the key of an item's step in a call of Parallel with a key.
func ItemKey(key string, n int) string { return fmt.Sprintf("%s/%d", key, n) }

// itemCounts has how many items each Parallel had at least, by the key of the call. The records of
// its items tell: their keys are that of the call, a slash and the index.
type itemCounts map[string]int

// note takes the key of a step's record into account.
func (n itemCounts) note(stepKey string) {
	if call, index, ok := cutItem(stepKey); ok {
		n[call] = max(n[call], index+1)
	}
}

// cutItem cuts the key of an item's step into the key of the call and the index.
func cutItem(stepKey string) (call string, index int, ok bool) {
	slash := strings.LastIndexByte(stepKey, '/')
	if slash < 0 || strings.LastIndexByte(stepKey, '#') > slash {
		return "", 0, false // a slash in the name of a step
	}
	index, err := strconv.Atoi(stepKey[slash+1:])
	return stepKey[:slash], index, err == nil
}

// isItem tells whether a key is that of an item's step.
func isItem(stepKey string) bool {
	_, _, ok := cutItem(stepKey)
	return ok
}
