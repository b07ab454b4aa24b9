package perdure

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
)

// MaxDelta limits the data of a line that is joined from several deltas, in bytes. It is far below
// the size up to which the log shows a value.
const MaxDelta = 16 << 10

// JoinDeltas joins consecutive llm:delta events into one line where they differ only in their text.
// Plain strings are joined with each other, and objects that are equal except for "text". The JSON
// text is concatenated in its escaped form, so the decoded text stays the same to the byte. An
// event of another type between two deltas keeps them apart. The events must have been validated.
func JoinDeltas(events []Emitted) []Emitted {
	out := make([]Emitted, 0, len(events))
	for len(events) > 0 {
		e, n := joinFirst(events)
		out = append(out, e)
		events = events[n:]
	}
	return out
}

// joinFirst returns the first joined line and the number of events that it consumed.
func joinFirst(events []Emitted) (Emitted, int) {
	all, ok := readDelta(&events[0])
	n := 1
	for size := len(events[0].Data); ok && n < len(events); n++ {
		d, ok := readDelta(&events[n])
		if size += len(d.text); !ok || !d.like(&all) || size > MaxDelta {
			break
		}
		all.text = append(all.text, d.text...)
	}
	if n == 1 {
		return events[0], 1
	}
	return Emitted{Type: LineDelta, Data: all.data()}, n
}

// A delta is a parsed llm:delta event.
type delta struct {
	// text is the JSON string as it was written, without its quotes.
	text []byte
	// rest holds the other members of an object. It is nil for a plain string.
	rest map[string]json.RawMessage
}

func readDelta(e *Emitted) (d delta, ok bool) {
	if e.Type != LineDelta {
		return d, false
	}
	text := bytes.TrimSpace(e.Data)
	if len(text) > 0 && text[0] == '{' {
		if json.Unmarshal(text, &d.rest) != nil {
			return d, false
		}
		text = d.rest["text"]
		delete(d.rest, "text")
	}
	if len(text) < 2 || text[0] != '"' {
		return d, false
	}
	d.text = slices.Clip(text[1 : len(text)-1]) // clipped, so that an append does not overwrite the event
	return d, true
}

// like tells whether two deltas may be joined: they have the same shape and the same other members.
func (d *delta) like(o *delta) bool {
	return (d.rest == nil) == (o.rest == nil) &&
		maps.EqualFunc(d.rest, o.rest, func(a, b json.RawMessage) bool { return bytes.Equal(a, b) })
}

// data writes the delta as JSON, with "text" last.
func (d *delta) data() json.RawMessage {
	text := slices.Concat([]byte{'"'}, d.text, []byte{'"'})
	if d.rest == nil {
		return text
	}
	var b bytes.Buffer
	b.WriteByte('{')
	for _, k := range slices.Sorted(maps.Keys(d.rest)) {
		name, _ := json.Marshal(k) // never fails for a string
		b.Write(name)
		b.WriteByte(':')
		b.Write(d.rest[k])
		b.WriteByte(',')
	}
	b.WriteString(`"text":`)
	b.Write(text)
	b.WriteByte('}')
	return b.Bytes()
}

// Delta splits an llm:delta event into its text and its channel. The channel is the event without
// its text; events of one channel continue each other.
func (e *Emitted) Delta() (channel, text string, ok bool) {
	d, ok := readDelta(e)
	if !ok || json.Unmarshal(slices.Concat([]byte{'"'}, d.text, []byte{'"'}), &text) != nil {
		return "", "", false
	}
	d.text = nil
	return string(d.data()), text, true
}

// DeltaOn returns an llm:delta event with a text on a channel that Delta returned.
func DeltaOn(channel, text string) Emitted {
	d, _ := readDelta(&Emitted{Type: LineDelta, Data: json.RawMessage(channel)})
	quoted, _ := Marshal(text) // never fails for a string
	d.text = quoted[1 : len(quoted)-1]
	return Emitted{Type: LineDelta, Data: d.data()}
}

// DeltaOf returns the step and the try of an llm:delta line, as far as it has them. Of two tries of a
// step the greater one is the later one, and tells the text from its beginning.
func DeltaOf(data Value) (step string, try int64) {
	d, ok := readDelta(&Emitted{Type: LineDelta, Data: json.RawMessage(data)})
	if !ok || d.rest == nil {
		return "", 0
	}
	_ = json.Unmarshal(d.rest["step"], &step) // a worker may write anything there
	_ = json.Unmarshal(d.rest["try"], &try)
	return step, try
}

// ChannelReasoning is the channel of deltas that tell what a model thinks. Such a text is not part of its
// answer.
const ChannelReasoning = "reasoning"

// DeltaText returns the text of an llm:delta line, or an empty string if it has none or is told on the
// channel of reasoning.
func DeltaText(data Value) string {
	d, ok := readDelta(&Emitted{Type: LineDelta, Data: json.RawMessage(data)})
	if string(d.rest["channel"]) == `"`+ChannelReasoning+`"` {
		return ""
	}
	text := ""
	if ok && json.Unmarshal(slices.Concat([]byte{'"'}, d.text, []byte{'"'}), &text) != nil {
		return ""
	}
	return text
}
