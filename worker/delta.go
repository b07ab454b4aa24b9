package worker

import (
	"context"
	"errors"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/perdure/perdure"
)

// Delta streams text, such as the tokens of a model as they come. What is said within some fifty milliseconds
// becomes one line "llm:delta" of the run's log, {"text": …}; all of them together are the text, whatever
// pieces it came in: a character may even be cut in two. Lines of other kinds stand where they were written.
// Delta collects and returns, like [Emit]. Bytes that are no UTF-8 become U+FFFD.
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

// maxPiece is so much text that it fits into a line however it is written.
const maxPiece = (perdure.MaxDelta-len(`{"text":""}`))/len(`\u0000`) - utf8.UTFMax

// stream adds to the text that is being streamed and gives how many bytes that took. The caller holds r.mu.
func (r *run) stream(piece string) int {
	whole := string(r.tail) + piece
	r.tail = []byte(whole[len(whole)-cutOff(whole):])
	b, err := encode(whole[:len(whole)-len(r.tail)])
	if err != nil {
		return 0 // a string can always be written
	}
	b = b[1 : len(b)-1]
	if len(r.text)+len(b)+len(`{"text":""}`) > perdure.MaxDelta {
		r.cutDelta(false)
	}
	r.text = append(r.text, b...)
	return len(b)
}

// cutDelta makes a line of the text so far. At the end that includes what was left of a character. The caller
// holds r.mu.
func (r *run) cutDelta(end bool) {
	if end && len(r.tail) > 0 {
		r.tail = nil
		r.text = append(r.text, "\ufffd"...)
	}
	if len(r.text) == 0 {
		return
	}
	r.events = append(r.events, perdure.Emitted{Type: perdure.LineDelta, Data: slices.Concat([]byte(`{"text":"`), r.text, []byte(`"}`))})
	r.text = nil
}

// cutOff counts the bytes at the end of a text that begin a character and don't finish it.
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
