package feed

import (
	"bytes"
	"compress/flate"
	"encoding/binary"
	"sync"
)

// A Message is sent to all clients of a question. It consists of entries: JSON objects without
// their type and id. Its frames are made when a client first needs them, and are then shared.
type Message struct {
	// kind is the type of the message. Several changes are sent as one message of type changes.
	kind    string
	entries []entry
	size    int

	mu     sync.Mutex
	frames map[form][]byte
}

// An entry is a JSON object without its opening brace, type and id: `"run_id":…}`.
type entry struct {
	kind string
	rest []byte
}

// A form is a way to write a message.
type form struct {
	// id is that of the client's watch.
	id string
	// plain leaves the id out and sends each change as a message of its own, as sockets did that were
	// opened with a filter.
	plain bool
	// deflated compresses the message.
	deflated bool
}

const (
	// maxForms bounds the forms of a message that are kept. Clients choose their ids, so a form
	// beyond the bound is made for one client, and without compression.
	maxForms = 8
	// minDeflated is the size from which a message is compressed.
	minDeflated = 512
)

// newMessage makes a message with one entry.
func newMessage(kind string, rest []byte) *Message {
	m := &Message{kind: kind}
	m.add(kind, rest)
	return m
}

func (m *Message) add(kind string, object []byte) {
	rest := object[1:]
	m.entries = append(m.entries, entry{kind, rest})
	m.size += len(rest) + 16
}

// Frames returns the message as WebSocket frames of a server.
func (m *Message) Frames(id string, plain, deflated bool) []byte {
	f := form{id: id, plain: plain, deflated: deflated && m.size >= minDeflated}
	m.mu.Lock()
	defer m.mu.Unlock()
	if b, ok := m.frames[f]; ok {
		return b
	}
	if len(m.frames) >= maxForms {
		f.deflated = false
		return m.render(f)
	}
	if m.frames == nil {
		m.frames = make(map[form][]byte)
	}
	b := m.render(f)
	m.frames[f] = b
	return b
}

// render makes the frames of a form.
func (m *Message) render(f form) []byte {
	if f.plain && len(m.entries) > 1 {
		var out []byte
		for _, e := range m.entries {
			out = AppendFrame(out, head(e.kind, "", true, e.rest), f.deflated)
		}
		return out
	}
	if len(m.entries) == 1 {
		e := m.entries[0]
		return AppendFrame(nil, head(e.kind, f.id, f.plain, e.rest), f.deflated)
	}
	b := make([]byte, 0, m.size+64)
	b = append(b, `{"type":"changes","id":`...)
	b = append(b, quote(f.id)...)
	b = append(b, `,"changes":[`...)
	for i, e := range m.entries {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, `{"type":`...)
		b = append(b, quote(e.kind)...)
		b = append(b, ',')
		b = append(b, e.rest...)
	}
	return AppendFrame(nil, append(b, "]}"...), f.deflated)
}

// head puts the type and id in front of an entry.
func head(kind, id string, plain bool, rest []byte) []byte {
	b := make([]byte, 0, len(rest)+len(kind)+len(id)+32)
	b = append(b, `{"type":`...)
	b = append(b, quote(kind)...)
	if !plain {
		b = append(b, `,"id":`...)
		b = append(b, quote(id)...)
	}
	b = append(b, ',')
	return append(b, rest...)
}

// AppendFrame appends a text message as one frame of a server. A compressed message has the bit
// RSV1 of permessage-deflate, without context takeover. Short messages are not compressed.
func AppendFrame(b, text []byte, deflated bool) []byte {
	const final, text1, rsv1 = 0x80, 0x01, 0x40
	first := byte(final | text1)
	if deflated && len(text) >= minDeflated {
		first |= rsv1
		text = deflate(text)
	}
	b = append(b, first)
	switch n := len(text); {
	case n < 126:
		b = append(b, byte(n))
	case n < 1<<16:
		b = binary.BigEndian.AppendUint16(append(b, 126), uint16(n))
	default:
		b = binary.BigEndian.AppendUint64(append(b, 127), uint64(n))
	}
	return append(b, text...)
}

var writers = sync.Pool{New: func() any {
	w, _ := flate.NewWriter(nil, flate.BestSpeed)
	return w
}}

// deflate compresses a message by itself. It ends with an empty block, whose last four bytes are
// left out (RFC 7692, 7.2.1).
func deflate(text []byte) []byte {
	var b bytes.Buffer
	b.Grow(len(text)/6 + 64)
	w := writers.Get().(*flate.Writer)
	defer writers.Put(w)
	w.Reset(&b)
	_, _ = w.Write(text) // a buffer takes everything
	_ = w.Flush()
	return bytes.Clone(bytes.TrimSuffix(b.Bytes(), []byte("\x00\x00\xff\xff")))
}
