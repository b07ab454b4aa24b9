package redact

import (
	"fmt"
	"io"
	"strconv"
	"strings"
)

// A Tail is the end of a text that may be the beginning of a secret, held back until it is known what follows. It says
// which one and how far, and has nothing of the secret itself, so that it can be stored and taken up by another node with
// the same secrets. The zero value holds nothing.
type Tail string

// showAtOnce is how many bytes may be the beginning of a secret and are shown all the same: a word that ends with the letter
// that some secret begins with shall not wait for what follows. They are remembered, so that the rest does not follow them.
const showAtOnce = 2

// Hold takes the secrets out of a text that comes in pieces: what was held back and the next piece become what can be shown,
// and what is held back now.
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

// Release gives what was held back when nothing follows for now: as it is, or as a mark where it is at least half of a secret.
// What is left remembers it as shown, so that the rest of a secret does not follow it after all.
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

// Hides tells whether something of a text is held back, and not only remembered.
func (s *Set) Hides(t Tail) bool {
	text, shown := s.held(t)
	return len(text) > shown
}

// after takes the secrets out of a text of which the first bytes are shown already.
func (s *Set) after(text string, shown int) string {
	for at, n := s.next(text, 0); n > 0 && at < shown; at, n = s.next(text, at+n) {
		if at+n > shown {
			return Mark + s.String(text[at+n:])
		}
	}
	return s.String(text[shown:])
}

// cut finds from where on a text has to wait for what follows. A secret that is there already is not cut into.
func (s *Set) cut(text string) int {
	i := s.tail(text, false)
	for at := 0; ; {
		from, n := s.next(text, at)
		if n == 0 || from >= i {
			return i
		}
		if at = from + n; at > i { // it reaches into the tail: that begins behind it
			i = at + s.tail(text[at:], false)
		}
	}
}

func (s *Set) tailOf(text string, shown int) Tail {
	return Tail(fmt.Sprintf("%s.%d.%d.%d", s.tag, s.begun(text, false), len(text), shown))
}

// held gives the text of a tail, and how much of it has been shown. One that was held by a node with other secrets can't be
// told, and is taken for one.
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

// Reader takes the secrets out of what is read from r, whatever the pieces in which it comes. With a nil set it is r.
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
	tail string // read, and held back
	out  string // ready to be given
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
