package stream

import (
	"bytes"
	"encoding/json"
	"strconv"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
)

// A piece is text of a stream, and the same text as a chunk of HTTP/1.1. Both share one array, and
// followers of the same log share the piece.
type piece struct{ text, chunk []byte }

// pieceOf wraps a text into a chunk.
func pieceOf(text []byte) piece {
	b := make([]byte, 0, len(text)+16)
	b = append(strconv.AppendInt(b, int64(len(text)), 16), "\r\n"...)
	at := len(b)
	b = append(b, text...)
	return piece{text: b[at:len(b):len(b)], chunk: append(b, "\r\n"...)}
}

// heartbeat is an SSE comment with one line break. A blank line after it would end an event that
// never began, and some clients deliver that as an empty event.
var heartbeat = pieceOf([]byte(": hb\n"))

// retryHint is how long a client should wait before it reconnects, in milliseconds.
const retryHint = "retry: 1000\n"

// frame appends a line of a log as an SSE frame. Types are names without line breaks, and the data
// is JSON on one line, so nothing needs escaping.
func frame(b []byte, l *perdure.Line) ([]byte, error) {
	data, err := Encode(Event(l))
	if err != nil {
		return b, err
	}
	return compose(b, string(l.Type), l.Seq, data), nil
}

// control makes a frame that is not a line of the log: attached, gap or end. Its id is the cursor.
func control(typ string, cursor int64, v any) piece {
	data, _ := Encode(v)
	var b []byte
	if typ == api.StreamAttached {
		b = append(b, retryHint...)
	}
	return pieceOf(compose(b, typ, cursor, data))
}

// compose appends the fields of a frame.
func compose(b []byte, typ string, id int64, data []byte) []byte {
	b = append(b, "id: "...)
	b = strconv.AppendInt(b, id, 10)
	b = append(b, "\nevent: "...)
	b = append(b, typ...)
	b = append(b, "\ndata: "...)
	b = append(b, data...)
	return append(b, "\n\n"...)
}

// Event returns a line of a log as the API shows it. Streams, sockets and lists use the same form.
func Event(l *perdure.Line) api.Event {
	data, _ := l.Data.MarshalJSON()
	return api.Event{Seq: l.Seq, Type: l.Type, At: l.At, Attempt: l.Attempt, Data: data}
}

// Encode encodes JSON without escaping <, > and &, so that a value that a worker has recorded is
// returned byte by byte.
func Encode(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}
