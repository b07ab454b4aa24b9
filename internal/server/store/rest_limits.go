package store

import (
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/perdure/perdure"
)

// The column rest of runs under limits.
//
// Most runs have nothing in this column, and those under limits often nothing but these. Their JSON is written with
// each transition and read with each load. It is written here without reflection, as encoding/json would write it.
// What was read last is kept, and runs with the same limits share it. All else is left to encoding/json.

// plainText tells whether encoding/json writes a text as it is, between quotes.
func plainText(s string) bool {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&' {
			return false
		}
	}
	return true
}

// restOfLimits gives the column of a run that has nothing in it but limits. ok is false if a text needs escapes, or
// steps hold slots.
func restOfLimits(options *restOptions, l *perdure.Limited) (text string, ok bool) {
	if l != nil && len(l.Steps) > 0 {
		return "", false
	}
	var u *perdure.LimitUse
	if options != nil {
		if u = options.Limits; u == nil || u.Names == nil || *options != (restOptions{Options: perdure.Options{Limits: u}}) {
			return "", false
		}
	}
	w := restWriter{b: make([]byte, 0, 192), ok: true}
	w.add("{")
	if u != nil {
		w.add(`"options":{"limits":{"names":[`)
		for i, name := range u.Names {
			w.item(i)
			w.text(name)
		}
		w.add("]")
		w.member(`,"key":`, u.Key)
		w.number(`,"units":`, int64(u.Units))
		w.add("}}")
	}
	if l != nil {
		if u != nil {
			w.add(",")
		}
		w.add(`"limited":`)
		w.limited(l)
	}
	w.add("}")
	return string(w.b), w.ok
}

type restWriter struct {
	b  []byte
	ok bool
}

func (w *restWriter) add(s string) { w.b = append(w.b, s...) }

func (w *restWriter) item(i int) {
	if i > 0 {
		w.add(",")
	}
}

func (w *restWriter) text(s string) {
	w.ok = w.ok && plainText(s)
	w.add(`"` + s + `"`)
}

func (w *restWriter) member(name, s string) {
	if s != "" {
		w.add(name)
		w.text(s)
	}
}

func (w *restWriter) number(name string, n int64) {
	if n != 0 {
		w.add(name)
		w.b = strconv.AppendInt(w.b, n, 10)
	}
}

func (w *restWriter) instant(name string, at perdure.Instant) {
	if at != 0 {
		text, err := at.MarshalJSON()
		w.ok = w.ok && err == nil
		w.add(name)
		w.b = append(w.b, text...)
	}
}

func (w *restWriter) ref(r perdure.LimitRef) {
	w.add(`{"limit":`)
	w.text(r.Limit)
	w.member(`,"key":`, r.Key)
	w.add("}")
}

// limited writes a position. Each member begins with a comma, and the first one's is taken away.
func (w *restWriter) limited(l *perdure.Limited) {
	from := len(w.b)
	if l.At != (perdure.LimitRef{}) {
		w.add(`,"at":`)
		w.ref(l.At)
	}
	w.member(`,"turn":`, l.Turn)
	w.instant(`,"since":`, l.Since)
	if len(l.Refs) > 0 {
		w.add(`,"refs":[`)
		for i, r := range l.Refs {
			w.item(i)
			w.ref(r)
		}
		w.add("]")
	}
	w.instant(`,"offered_at":`, l.OfferedAt)
	if len(l.Units) > 0 {
		w.add(`,"units":[`)
		for i, n := range l.Units {
			w.item(i)
			w.b = strconv.AppendInt(w.b, int64(n), 10)
		}
		w.add("]")
	}
	if l.Held {
		w.add(`,"held":true`)
	}
	if len(w.b) == from {
		w.add(",")
	}
	w.add("}")
	w.b[from] = '{'
}

// A parsedLimits is the column of runs that differ in nothing but when they were offered. before and after are what
// stands around that instant.
type parsedLimits struct {
	before, after string
	use           *perdure.LimitUse
	limited       *perdure.Limited
}

// lastParsed are columns that were read last, by their lengths. Runs that are read together mostly have the same.
var lastParsed [16]atomic.Pointer[parsedLimits]

const offeredName = `"offered_at":`

// instantBytes is the length of an instant with its quotes.
const instantBytes = len(`"2006-01-02T15:04:05.000000Z"`)

// cutOffered gives what stands around the instant at which a run was offered, and that instant.
func cutOffered(text string) (before, at, after string) {
	before, rest, ok := strings.Cut(text, offeredName)
	if !ok || len(rest) < instantBytes {
		return text, "", ""
	}
	return before, rest[:instantBytes], rest[instantBytes:]
}

// recallLimits gives the limits of a column like one that was read before.
func recallLimits(text string) (u *perdure.LimitUse, l *perdure.Limited, ok bool) {
	before, at, after := cutOffered(text)
	last := lastParsed[(len(before)+len(after))%len(lastParsed)].Load()
	if last == nil || last.before != before || last.after != after || (at != "") != (last.limited.OfferedAt != 0) {
		return nil, nil, false
	}
	if at == "" {
		return last.use, last.limited, true
	}
	position := *last.limited
	if position.OfferedAt.UnmarshalJSON([]byte(at)) != nil {
		return nil, nil, false
	}
	return last.use, &position, true
}

// rememberLimits keeps a column that has nothing but limits.
func rememberLimits(text string, x *rest) {
	if x.Options == nil || x.Limited == nil || len(x.Limited.Steps) > 0 {
		return
	}
	limits := restOptions{}
	limits.Limits = x.Options.Limits
	if alone := (rest{Options: x.Options, Limited: x.Limited}); *x != alone || *x.Options != limits {
		return
	}
	before, _, after := cutOffered(text)
	lastParsed[(len(before)+len(after))%len(lastParsed)].Store(&parsedLimits{before, after, limits.Limits, x.Limited})
}
