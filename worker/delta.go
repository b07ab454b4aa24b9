package worker

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/wire/session"
)

// Delta streams text, such as the tokens of a model. Text of about fifty milliseconds becomes one
// line "llm:delta" of the run's log, {"try": …, "text": …}. The concatenated lines are the text, even
// if a piece ends within a character. A run that is executed again has a greater try, so that a
// reader can discard the text of the earlier one; client.Text does. The order with lines of other
// types is kept. Like [Emit], Delta buffers and returns. Invalid UTF-8 becomes U+FFFD.
func Delta(ctx context.Context, text string) error {
	r := from(ctx)
	if r == nil {
		return errNoRun
	}
	return r.delta(ctx, stream{try: session.Try(r.lease.Epoch, 0)}, text)
}

// A stream is text that is not in a line yet. Each step of an agent, and each try of it, has its own.
type stream struct {
	channel string // empty for the answer
	step    string
	try     int64
	text    []byte // as escaped JSON
	tail    []byte // bytes of an incomplete character after text
}

// delta adds a text to the stream with the step and try of the given one.
func (r *run) delta(ctx context.Context, of stream, text string) error {
	if strings.ContainsRune(text, 0) {
		return errors.New("worker: delta: a text has no NUL in it")
	}
	for text != "" {
		n := min(len(text), maxPiece)
		piece := text[:n]
		if err := r.add(ctx, perdure.MaxDelta, func() int { return r.stream(of, piece) }); err != nil {
			return err
		}
		text = text[n:]
	}
	return nil
}

// maxPiece is the number of bytes that fit into a line even if every one of them is escaped.
const maxPiece = (perdure.MaxDelta-maxHead)/len(`\u0000`) - utf8.UTFMax

// maxHead is the number of bytes of a line beside its text: the channel, the step's name, the try, and the syntax.
const maxHead = perdure.MaxName + 96

// stream appends to the text of a stream and returns the bytes that were added. The streams of
// earlier tries of the same step are over, and so is one on another channel: the lines of a step are in
// the order of its texts. The caller holds r.mu.
func (r *run) stream(of stream, piece string) int {
	at := slices.IndexFunc(r.streams, func(x *stream) bool {
		return x.step == of.step && x.try == of.try && x.channel == of.channel
	})
	if at < 0 {
		for _, x := range r.streams {
			if x.step == of.step {
				r.cutStream(x, true)
			}
		}
		r.streams = slices.DeleteFunc(r.streams, func(x *stream) bool { return x.step == of.step })
		at, r.streams = len(r.streams), append(r.streams, &of)
	}
	x := r.streams[at]
	whole := string(x.tail) + piece
	x.tail = []byte(whole[len(whole)-cutOff(whole):])
	b, err := perdure.Marshal(whole[:len(whole)-len(x.tail)])
	if err != nil {
		return 0 // never: a string can always be encoded
	}
	b = b[1 : len(b)-1]
	if len(x.text)+len(b)+maxHead > perdure.MaxDelta {
		r.cutStream(x, false)
	}
	x.text = append(x.text, b...)
	return len(b)
}

// cutDelta makes lines of the text so far. At the end of the stream, an incomplete character becomes
// U+FFFD. The caller holds r.mu.
func (r *run) cutDelta(end bool) {
	for _, x := range r.streams {
		r.cutStream(x, end)
	}
	r.streams = slices.DeleteFunc(r.streams, func(x *stream) bool { return len(x.tail) == 0 })
}

// cutStream makes a line of the text of one stream. The caller holds r.mu.
func (r *run) cutStream(x *stream, end bool) {
	if end && len(x.tail) > 0 {
		x.tail = nil
		x.text = append(x.text, "\ufffd"...)
	}
	if len(x.text) == 0 {
		return
	}
	data := []byte(`{`)
	if x.channel != "" {
		name, _ := perdure.Marshal(x.channel) // never fails for a string
		data = slices.Concat(data, []byte(`"channel":`), name, []byte(`,`))
	}
	if x.step != "" {
		name, _ := perdure.Marshal(x.step) // never fails for a string
		data = slices.Concat(data, []byte(`"step":`), name, []byte(`,`))
	}
	data = strconv.AppendInt(append(data, `"try":`...), x.try, 10)
	data = slices.Concat(data, []byte(`,"text":"`), x.text, []byte(`"}`))
	r.events = append(r.events, perdure.Emitted{Type: perdure.LineDelta, Data: data})
	x.text = nil
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
