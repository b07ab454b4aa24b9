package worker

import (
	"context"
	"errors"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/perdure/perdure"
)

// Delta streams text, such as the tokens of a model. Text of about fifty milliseconds becomes one
// line "llm:delta" of the run's log, {"text": …}. The concatenated lines are the text, even if a
// piece ends within a character. The order with lines of other types is kept. Like [Emit], Delta
// buffers and returns. Invalid UTF-8 becomes U+FFFD.
func Delta(ctx context.Context, text string) error {
	r := from(ctx)
	if r == nil {
		return errNoRun
	}
	if strings.ContainsRune(text, 0) {
		return errors.New("worker: delta: a text has no NUL in it")
	}
	for text != "" {
		n := min(len(text), maxPiece)
		piece := text[:n]
		if err := r.add(ctx, perdure.MaxDelta, func() int { return r.stream(piece) }); err != nil {
			return err
		}
		text = text[n:]
	}
	return nil
}

// maxPiece is the number of bytes that fit into a line even if every one of them is escaped.
const maxPiece = (perdure.MaxDelta-len(`{"text":""}`))/len(`\u0000`) - utf8.UTFMax

// stream appends to the streamed text and returns the bytes that were added. The caller holds r.mu.
func (r *run) stream(piece string) int {
	whole := string(r.tail) + piece
	r.tail = []byte(whole[len(whole)-cutOff(whole):])
	b, err := perdure.Marshal(whole[:len(whole)-len(r.tail)])
	if err != nil {
		return 0 // never: a string can always be encoded
	}
	b = b[1 : len(b)-1]
	if len(r.text)+len(b)+len(`{"text":""}`) > perdure.MaxDelta {
		r.cutDelta(false)
	}
	r.text = append(r.text, b...)
	return len(b)
}

// cutDelta makes a line of the text so far. At the end of the stream, an incomplete character
// becomes U+FFFD. The caller holds r.mu.
func (r *run) cutDelta(end bool) {
	if end && len(r.tail) > 0 {
		r.tail = nil
		r.text = append(r.text, "\ufffd"...)
	}
	if len(r.text) == 0 {
		return
	}
	data := slices.Concat([]byte(`{"text":"`), r.text, []byte(`"}`))
	r.events = append(r.events, perdure.Emitted{Type: perdure.LineDelta, Data: data})
	r.text = nil
}

// cutOff returns the number of bytes at the end of a text that are the beginning of an incomplete
// character.
func cutOff(s string) int {
	for n := 1; n <= min(len(s), utf8.UTFMax-1); n++ {
		if last := s[len(s)-n:]; utf8.RuneStart(last[0]) {
			if utf8.FullRuneInString(last) {
				return 0
			}
			return n
		}
	}
	return 0
}
