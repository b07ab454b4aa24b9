package redact

// This file redacts text that comes in pieces, where a secret can be spread over several of them.
// The end of a piece that may be the beginning of a secret is held back until the next piece
// decides. The state between two pieces is a Tail. It names the form and the length of the match
// but contains no text of the secret. So it can be stored, and another node can continue.

import (
	"fmt"
	"io"
	"strconv"
	"strings"
)

// A Tail is the end of a text that may be the beginning of a secret. Its format is
// "<tag>.<form>.<length>.<shown>": the set of secrets, the index of the form, the length of the
// match, and how much of it was shown. The zero value holds nothing.
type Tail string

// showAtOnce is the number of bytes that are shown although they may begin a secret. Without it, a
// word that ends with the first letter of a secret would always be delayed. The Tail remembers
// these bytes, so that the rest of the secret is still redacted.
const showAtOnce = 2

// Hold redacts the next piece of a text. It returns the text that can be shown now, which includes
// text that was held back before, and the new Tail.
func (s *Set) Hold(t Tail, piece string) (out string, held Tail) {
	before, shown := s.held(t)
	if s == nil {
		return before[shown:] + piece, ""
	}
	text := before + piece
	i := s.cut(text)
	if i > 0 {
		out = s.after(text[:i], min(shown, i))
		text, shown = text[i:], max(0, shown-i)
	}
	if text == "" {
		return out, ""
	}
	if len(text) <= showAtOnce {
		out, shown = out+text[shown:], len(text)
	}
	return out, s.tailOf(text, shown)
}

// Release returns the text that is held back, because no piece follows for now. If it is at least
// half of a secret, it is replaced by Mark. The new Tail remembers it as shown, so that the rest of
// the secret is still redacted if it follows later.
func (s *Set) Release(t Tail) (out string, left Tail) {
	text, shown := s.held(t)
	if s == nil || text == "" {
		return text[shown:], ""
	}
	if s.begun(text, false) >= 0 {
		left = s.tailOf(text, len(text))
	}
	if len(text) == shown {
		return "", left
	}
	out = s.String(text)
	if i := s.tail(out, true); i < len(out) {
		out = out[:i] + Mark
	}
	same := 0
	for same < shown && same < len(out) && out[same] == text[same] {
		same++
	}
	return out[same:], left
}

// Hides tells whether a Tail holds text that has not been shown.
func (s *Set) Hides(t Tail) bool {
	text, shown := s.held(t)
	return len(text) > shown
}

// after redacts a text whose first bytes have been shown already, and returns the rest.
func (s *Set) after(text string, shown int) string {
	for at, n := s.next(text, 0); n > 0 && at < shown; at, n = s.next(text, at+n) {
		if at+n > shown {
			return Mark + s.String(text[at+n:])
		}
	}
	return s.String(text[shown:])
}

// cut returns the position from which a text must be held back. It is never within a complete
// secret.
func (s *Set) cut(text string) int {
	i := s.tail(text, false)
	for at := 0; ; {
		from, n := s.next(text, at)
		if n == 0 || from >= i {
			return i
		}
		if at = from + n; at > i { // the secret reaches into the tail, which begins after it
			i = at + s.tail(text[at:], false)
		}
	}
}

// heldPart is the least length of a piece for which Part holds the end of a text back.
const heldPart = 4

// Longest returns the length of the longest form of a secret.
func (s *Set) Longest() int {
	if s == nil {
		return 0
	}
	return s.longest
}

// Part redacts text[from:to], knowing what stands before and behind it. It returns where the part ends,
// which is before to if a secret lies across that: the secret is then in the next part. With more, text
// may follow. If the end of the text may begin a secret, with four bytes at least, the part ends before it.
func (s *Set) Part(text string, from, to int, more bool) (shown string, end int) {
	if s == nil {
		return text[from:to], to
	}
	end = to
	if i := s.cut(text); more && len(text)-i >= heldPart {
		end = max(from, min(end, i))
	}
	var b strings.Builder
	last := from
	for at, n := s.next(text, 0); n > 0 && at < end; at, n = s.next(text, at+n) {
		switch {
		case at+n <= from:
			continue
		case at+n > end && at > from:
			end = at
			continue
		}
		b.WriteString(text[last:max(at, last)])
		b.WriteString(Mark)
		last = min(at+n, end)
	}
	b.WriteString(text[last:end])
	shown = b.String()
	if !more && end == len(text) {
		if i := s.tail(shown, true); i < len(shown) {
			shown = shown[:i] + Mark
		}
	}
	return shown, end
}

// tailOf encodes a Tail.
func (s *Set) tailOf(text string, shown int) Tail {
	return Tail(fmt.Sprintf("%s.%d.%d.%d", s.tag, s.begun(text, false), len(text), shown))
}

// held decodes a Tail into its text and how much of it has been shown. A Tail of a node with other
// secrets cannot be decoded; it counts as a secret and becomes Mark.
func (s *Set) held(t Tail) (text string, shown int) {
	if t == "" {
		return "", 0
	}
	part := strings.Split(string(t), ".")
	if len(part) != 4 {
		return Mark, 0
	}
	var n [3]int
	for i := range n {
		var err error
		if n[i], err = strconv.Atoi(part[i+1]); err != nil || n[i] < 0 {
			return Mark, 0
		}
	}
	switch {
	case n[1] == n[2]: // all of it has been shown
		if s == nil || part[0] != s.tag {
			return "", 0
		}
	case s == nil || part[0] != s.tag:
		return Mark, 0
	}
	if n[0] >= len(s.forms) || n[1] >= len(s.forms[n[0]]) || n[2] > n[1] {
		return Mark, 0
	}
	return s.forms[n[0]][:n[1]], n[2]
}

// Reader returns a reader that redacts the text of r, also across the borders of reads. With a nil
// set it returns r.
func (s *Set) Reader(r io.Reader) io.Reader {
	if s == nil {
		return r
	}
	return &reader{set: s, from: r, buf: make([]byte, 32<<10)}
}

type reader struct {
	set  *Set
	from io.Reader
	buf  []byte
	tail string // read and held back
	out  string // redacted and not yet returned
	err  error
}

func (r *reader) Read(p []byte) (int, error) {
	for r.out == "" && r.err == nil {
		var n int
		n, r.err = r.from.Read(r.buf)
		text := r.tail + string(r.buf[:n])
		cut := len(text)
		if r.err == nil {
			cut = r.set.cut(text)
		}
		r.out, r.tail = r.set.String(text[:cut]), text[cut:]
	}
	if r.out == "" {
		return 0, r.err
	}
	n := copy(p, r.out)
	r.out = r.out[n:]
	return n, nil
}
