package perdure

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
)

// MaxDelta is how many bytes of data a line takes that is put together of several deltas: far less than what a
// log shows of a value.
const MaxDelta = 16 << 10

// JoinDeltas makes one line of consecutive llm:delta lines that say the same but for their text: of plain texts,
// and of objects that differ in "text" alone. Texts are put together as they are written, so that what they mean
// stays the same to the byte. Whatever stands between two deltas keeps them apart. The events have been validated.
func JoinDeltas(events []Emitted) []Emitted {
	out := make([]Emitted, 0, len(events))
	for len(events) > 0 {
		e, n := joinFirst(events)
		out = append(out, e)
		events = events[n:]
	}
	return out
}

// joinFirst gives the first line, and of how many events it is made.
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

// A delta is what an llm:delta line says: a text as JSON writes it, without its quotes, and of an object what
// stands beside it.
type delta struct {
	text []byte
	rest map[string]json.RawMessage // nil: a plain text
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
	d.text = slices.Clip(text[1 : len(text)-1]) // what is appended to it leaves the event alone
	return d, true
}

func (d *delta) like(o *delta) bool {
	return (d.rest == nil) == (o.rest == nil) &&
		maps.EqualFunc(d.rest, o.rest, func(a, b json.RawMessage) bool { return bytes.Equal(a, b) })
}

func (d *delta) data() json.RawMessage {
	text := slices.Concat([]byte{'"'}, d.text, []byte{'"'})
	if d.rest == nil {
		return text
	}
	var b bytes.Buffer
	b.WriteByte('{')
	for _, k := range slices.Sorted(maps.Keys(d.rest)) {
		name, _ := json.Marshal(k) // a string always can be
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

// Delta takes an llm:delta line apart: its text, and the channel that it goes on with, which is whatever stands beside the
// text.
func (e *Emitted) Delta() (channel, text string, ok bool) {
	d, ok := readDelta(e)
	if !ok || json.Unmarshal(slices.Concat([]byte{'"'}, d.text, []byte{'"'}), &text) != nil {
		return "", "", false
	}
	d.text = nil
	return string(d.data()), text, true
}

// DeltaOn is an llm:delta line with a text on a channel.
func DeltaOn(channel, text string) Emitted {
	d, _ := readDelta(&Emitted{Type: LineDelta, Data: json.RawMessage(channel)})
	quoted, _ := encode(text) // a string always can be
	d.text = quoted[1 : len(quoted)-1]
	return Emitted{Type: LineDelta, Data: d.data()}
}

// DeltaText is what an llm:delta line says.
func DeltaText(data Value) string {
	d, ok := readDelta(&Emitted{Type: LineDelta, Data: json.RawMessage(data)})
	text := ""
	if ok && json.Unmarshal(slices.Concat([]byte{'"'}, d.text, []byte{'"'}), &text) != nil {
		return ""
	}
	return text
}
