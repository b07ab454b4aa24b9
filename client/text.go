package client

import (
	"iter"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
)

// A Text assembles the streamed text of a run from the events of its log. A step of an agent, or a
// task, that was executed again has told its text again, from the beginning. Text keeps what the last
// try told. The zero value is an empty text.
type Text struct {
	parts []textPart
}

// A textPart is the text of one step, or a text without a step or try that nothing begins again.
type textPart struct {
	step string
	try  int64
	text []byte
}

// Add takes the next event of a run, and tells whether a text was begun again. What a reader has been
// shown of that step is then void. Events that are no text change nothing.
func (t *Text) Add(e *api.Event) (again bool) {
	if e.Type != perdure.LineDelta {
		return false
	}
	step, try := perdure.DeltaOf(perdure.Value(e.Data))
	text := perdure.DeltaText(perdure.Value(e.Data))
	for i := len(t.parts) - 1; i >= 0; i-- {
		p := &t.parts[i]
		if p.step != step || p.try == 0 != (try == 0) {
			continue
		}
		switch {
		case try == 0 && i < len(t.parts)-1: // it continues after another step
		case try < p.try: // of an earlier try, and told late
			return false
		case try > p.try:
			again = len(p.text) > 0
			p.try, p.text = try, []byte(text)
			return again
		default:
			p.text = append(p.text, text...)
			return false
		}
		break
	}
	t.parts = append(t.parts, textPart{step, try, []byte(text)})
	return false
}

// Len returns the number of bytes of the text so far.
func (t *Text) Len() (n int) {
	for i := range t.parts {
		n += len(t.parts[i].text)
	}
	return n
}

// String returns the text so far.
func (t *Text) String() string {
	var b strings.Builder
	for i := range t.parts {
		b.Write(t.parts[i].text)
	}
	return b.String()
}

// Steps returns the text of each step, in the order in which they began. Text between steps has an
// empty name.
func (t *Text) Steps() iter.Seq2[string, string] {
	return func(yield func(step, text string) bool) {
		for i := range t.parts {
			if !yield(t.parts[i].step, string(t.parts[i].text)) {
				return
			}
		}
	}
}
