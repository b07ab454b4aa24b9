package redact

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// Mark replaces a secret.
const Mark = "[redacted]"

// MinLength is the least length of a secret. A shorter one would be found in harmless text.
const MinLength = 8

// Limits of a set.
const (
	MaxLength  = 4 << 10
	MaxSecrets = 256
)

// A Set is a set of secrets, each in all its forms.
//
// The search looks at every position of a text. pair is a bit set over the first two bytes of all
// forms and rejects almost every position. Only if it matches are the forms in begins compared.
type Set struct {
	forms   []string             // sorted and unique
	begins  map[[2]byte][]int    // forms by their first two bytes, longest first
	pair    [1 << 16 / 64]uint64 // bit set of the first two bytes of all forms
	single  [256]bool            // the first bytes of all forms
	ends    map[byte][]int       // forms by their last byte
	longest int
	tag     string // identifies the set
}

// New makes a set. It refuses secrets that are too short, too common or overlap with Mark. An error
// never contains a secret.
func New(secrets []string) (*Set, error) {
	if len(secrets) == 0 {
		return nil, nil
	}
	if len(secrets) > MaxSecrets {
		return nil, fmt.Errorf("%d secrets are more than %d", len(secrets), MaxSecrets)
	}
	s := &Set{begins: make(map[[2]byte][]int), ends: make(map[byte][]int)}
	for i, secret := range secrets {
		if err := check(secret); err != nil {
			return nil, fmt.Errorf("secret %d: %w", i+1, err)
		}
		s.forms = append(s.forms, formsOf(secret)...)
	}
	slices.Sort(s.forms)
	s.forms = slices.Compact(s.forms)
	hash := sha256.New()
	for i, f := range s.forms {
		s.longest = max(s.longest, len(f))
		two := [2]byte{f[0], f[1]}
		s.begins[two] = append(s.begins[two], i)
		s.pair[pairBit(two[0], two[1])/64] |= 1 << (pairBit(two[0], two[1]) % 64)
		s.single[f[0]] = true
		s.ends[f[len(f)-1]] = append(s.ends[f[len(f)-1]], i)
		fmt.Fprintf(hash, "%d:%s", len(f), f)
	}
	for _, list := range s.begins {
		slices.SortFunc(list, func(a, b int) int { return cmp.Compare(len(s.forms[b]), len(s.forms[a])) })
	}
	// Two bytes of a hash distinguish sets, and are too few to guess a secret from.
	s.tag = fmt.Sprintf("%x", hash.Sum(nil)[:2])
	return s, nil
}

func pairBit(a, b byte) int { return int(a)<<8 | int(b) }

var errShort = fmt.Errorf("is shorter than %d bytes: it would be found in harmless text", MinLength)

func check(secret string) error {
	switch {
	case len(secret) < MinLength:
		return errShort
	case !utf8.ValidString(secret) || strings.ContainsRune(secret, 0):
		return errors.New("is not a text in UTF-8: name it in the form in which it is used, such as base64")
	case len(secret) > MaxLength:
		return fmt.Errorf("is longer than %d bytes", MaxLength)
	case strings.Contains(Mark, secret) || strings.Contains(secret, Mark):
		return fmt.Errorf("overlaps with %s, which is what secrets become", Mark)
	case strings.Count(secret, secret[:1]) == len(secret):
		return errors.New("is one character, again and again")
	}
	return nil
}

// match returns the length of the longest form at position i of a text, or 0. A form that overlaps
// with a Mark does not count.
func (s *Set) match(text string, i int) int {
	if len(text)-i < 2 {
		return 0
	}
	a, b := text[i], text[i+1]
	if s.pair[pairBit(a, b)/64]&(1<<(pairBit(a, b)%64)) == 0 {
		return 0
	}
	for _, f := range s.begins[[2]byte{a, b}] {
		if n := len(s.forms[f]); strings.HasPrefix(text[i:], s.forms[f]) && !crosses(text, i, n) {
			return n
		}
	}
	return 0
}

// crosses tells whether a Mark begins within text[i:i+n].
func crosses(text string, i, n int) bool {
	at := strings.Index(text[i:min(len(text), i+n-1+len(Mark))], Mark)
	return at >= 0 && at < n
}

// next finds the first form in a text from position i on. length is 0 if there is none.
func (s *Set) next(text string, i int) (at, length int) {
	for ; i < len(text); i++ {
		if text[i] == Mark[0] && strings.HasPrefix(text[i:], Mark) {
			i += len(Mark) - 1
			continue
		}
		if n := s.match(text, i); n > 0 {
			return i, n
		}
	}
	return len(text), 0
}

// String redacts a text.
func (s *Set) String(text string) string {
	if s == nil {
		return text
	}
	at, n := s.next(text, 0)
	if n == 0 {
		return text
	}
	var b strings.Builder
	last := 0
	for ; n > 0; at, n = s.next(text, last) {
		b.WriteString(text[last:at])
		b.WriteString(Mark)
		last = at + n
	}
	b.WriteString(text[last:])
	return b.String()
}

// Has tells whether a text contains a secret.
func (s *Set) Has(text string) bool {
	if s == nil {
		return false
	}
	_, n := s.next(text, 0)
	return n > 0
}

// Within tells whether a form of a secret is part of a vocabulary that must not be redacted, such
// as the names of the API.
func (s *Set) Within(vocabulary []byte) bool {
	return s != nil && slices.ContainsFunc(s.forms,
		func(f string) bool { return bytes.Contains(vocabulary, []byte(f)) })
}

// Whole redacts a text that another one may follow. It also redacts a piece of a secret at either
// end, if it is at least half of the secret. So two such texts together never contain a whole
// secret.
func (s *Set) Whole(text string) string {
	if s == nil || text == "" {
		return text
	}
	text = s.String(text)
	if i := s.tail(text, true); i < len(text) {
		text = text[:i] + Mark
	}
	return s.Behind(text)
}

// Behind redacts the end of a secret at the beginning of a text, if it is at least half of the
// secret. It is for a text whose preceding part is unknown.
func (s *Set) Behind(text string) string {
	if s == nil || text == "" {
		return text
	}
	if n := s.head(text); n > 0 {
		text = Mark + text[n:]
	}
	return text
}

// tail returns the position at which the end of a text may begin a secret, or len(text). With half,
// only matches of at least half of the secret count.
func (s *Set) tail(text string, half bool) int {
	from := max(0, len(text)-s.longest+1)
	if at := strings.LastIndex(text[max(0, from-len(Mark)+1):], Mark); at >= 0 {
		from = max(from, max(0, from-len(Mark)+1)+at+len(Mark))
	}
	for i := from; i < len(text); i++ {
		if s.single[text[i]] && s.begun(text[i:], half) >= 0 {
			return i
		}
	}
	return len(text)
}

// begun returns a form that begins with a piece and is longer, or -1.
func (s *Set) begun(piece string, half bool) int {
	i, _ := slices.BinarySearch(s.forms, piece) // forms with the same beginning are adjacent
	for ; i < len(s.forms) && strings.HasPrefix(s.forms[i], piece); i++ {
		if n := len(s.forms[i]); n > len(piece) && (!half || 2*len(piece) >= n) {
			return i
		}
	}
	return -1
}

// head returns the length of the beginning of a text that is the end of a secret, and at least half
// of it.
func (s *Set) head(text string) int {
	limit := min(len(text), s.longest-1)
	if at := strings.Index(text[:min(len(text), limit+len(Mark))], Mark); at >= 0 {
		limit = min(limit, at)
	}
	for n := limit; 2*n >= MinLength; n-- {
		for _, i := range s.ends[text[n-1]] {
			if f := s.forms[i]; len(f) > n && 2*n >= len(f) && strings.HasSuffix(f, text[:n]) {
				return n
			}
		}
	}
	return 0
}
