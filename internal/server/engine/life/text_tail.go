package life

import (
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/perdure/perdure"
)

// A TextTail collects the end of the text that an attempt streamed, from the last delta backwards.
type TextTail struct {
	Attempt, Most int

	parts []string
	size  int
	read  int
	// tries has the last try of each step. Text of earlier tries is left out.
	tries map[string]int64
}

// Add prepends the text of an earlier line, and tells whether that is enough.
func (t *TextTail) Add(l perdure.Line) (enough bool) {
	if l.Attempt != t.Attempt {
		return true
	}
	t.read += len(l.Data)
	if step, try := perdure.DeltaOf(l.Data); t.isLast(step, try) {
		text := perdure.DeltaText(l.Data)
		t.parts, t.size = append(t.parts, text), t.size+len(text)
	}
	return t.size >= t.Most || t.read > maxTailRead
}

// isLast tells whether a try of a step is the last one. Lines come from the last one backwards.
func (t *TextTail) isLast(step string, try int64) bool {
	if try == 0 {
		return true
	}
	if t.tries == nil {
		t.tries = make(map[string]int64)
	}
	t.tries[step] = max(t.tries[step], try)
	return try == t.tries[step]
}

// String joins the collected text, cut to the last most bytes at a rune boundary.
func (t *TextTail) String() string {
	slices.Reverse(t.parts)
	text := strings.Join(t.parts, "")
	if over := len(text) - t.Most; over > 0 {
		for over < len(text) && !utf8.RuneStart(text[over]) {
			over++
		}
		text = text[over:]
	}
	return text
}

// TextWithin is how many of the last log lines are searched for streamed text. maxTail bounds
// the bytes of that text, and maxTailRead the bytes of the lines that are read for it.
const TextWithin = 1000

const maxTailRead = 4 << 20
