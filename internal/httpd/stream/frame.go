package stream

import (
	"bytes"
	"encoding/json"
	"strconv"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
)

// A piece is some text of a stream, and the same as a chunk of HTTP/1.1. Those who are told the same share it.
type piece struct{ text, chunk []byte }

// pieceOf wraps a text.
func pieceOf(text []byte) piece {
	b := make([]byte, 0, len(text)+16)
	b = append(strconv.AppendInt(b, int64(len(text)), 16), "\r\n"...)
	at := len(b)
	b = append(b, text...)
	return piece{text: b[at:len(b):len(b)], chunk: append(b, "\r\n"...)}
}

// beat is a comment and one line break: a blank line after it would end an event that never began, and some
// clients make one of it.
var beat = pieceOf([]byte(": hb\n"))

// retryHint is how long a client should wait before it reconnects, in milliseconds.
const retryHint = "retry: 1000\n"

// frame appends an event of the log to a stream. Types are names without line breaks, and the data is JSON on one
// line.
func frame(b []byte, l *perdure.Line) ([]byte, error) {
	data, err := Encode(Event(l))
	if err != nil {
		return b, err
	}
	return compose(b, l.Type, l.Seq, data), nil
}

// control is a frame that is no line of the log. It bears the cursor as its id.
func control(typ string, cursor int64, v any) piece {
	data, _ := Encode(v)
	var b []byte
	if typ == api.StreamAttached {
		b = append(b, retryHint...)
	}
	return pieceOf(compose(b, typ, cursor, data))
}

func compose(b []byte, typ string, id int64, data []byte) []byte {
	b = append(b, "id: "...)
	b = strconv.AppendInt(b, id, 10)
	b = append(b, "\nevent: "...)
	b = append(b, typ...)
	b = append(b, "\ndata: "...)
	b = append(b, data...)
	return append(b, "\n\n"...)
}

// Event is a line of a log as callers see it, the same everywhere.
func Event(l *perdure.Line) api.Event {
	data, _ := l.Data.MarshalJSON()
	return api.Event{Seq: l.Seq, Type: l.Type, At: l.At, Attempt: l.Attempt, Data: data}
}

// Encode writes JSON and leaves values as they were given: <, > and & are not escaped, so that what a worker has
// recorded comes back to it byte by byte.
func Encode(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}
