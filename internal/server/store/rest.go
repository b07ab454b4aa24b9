package store

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/perdure/perdure"
)

// The column rest of runs: what no query searches by, as JSON.
//
// Most runs have nothing in this column, and those under limits often nothing but these. Their JSON is written with
// each transition and read with each load. It is written without reflection, as encoding/json would write it. What
// was read last is kept, and runs with the same limits share it. All else is left to encoding/json.

// rest holds the fields of a run that no query searches by, as one JSON column. It is empty for
// most runs. Values are strings here: perdure.Value would marshal as callers see it, and a
// reference could not be resolved any more.
type rest struct {
	Options     *restOptions        `json:"options,omitempty"`
	Progress    string              `json:"progress,omitempty"`
	ProgressOf  int                 `json:"progress_of,omitempty"`
	ActivityAt  perdure.Instant     `json:"activity_at,omitempty"`
	Held        string              `json:"held,omitempty"`
	Cancel      *perdure.Cancel     `json:"cancel,omitempty"`
	Hold        *perdure.Hold       `json:"hold,omitempty"`
	Limited     *perdure.Limited    `json:"limited,omitempty"`
	Wants       *[]perdure.StepWant `json:"wants,omitempty"`
	WasDefer    bool                `json:"was_deferred,omitempty"`
	Summary     string              `json:"summary,omitempty"`
	Failure     *perdure.Failure    `json:"failure,omitempty"`
	Fallback    string              `json:"fallback,omitempty"`
	ContinuedBy perdure.RunID       `json:"continued_by,omitempty"`
	Stopped     string              `json:"stopped,omitempty"`
	Counter     int64               `json:"counter,omitempty"`
	WatchUntil  perdure.Instant     `json:"watch_until,omitempty"`
	Spent       bool                `json:"spent,omitempty"`
	Former      int64               `json:"former,omitempty"`

	Signature *perdure.Signature `json:"signature,omitempty"`
}

// restOptions are the options of a run, with their values as strings.
type restOptions struct {
	perdure.Options
	Webhook string `json:"webhook,omitempty"`
	Opening string `json:"opening,omitempty"`
}

// packRest gives the rest column of a run. The column of a damaged run is kept as it was read.
func packRest(r *perdure.Run) string {
	if r.Damage != nil && r.Damage.Rest != "" {
		return r.Damage.Rest
	}
	x := rest{Progress: string(r.Progress), ProgressOf: r.ProgressOf, Held: r.Withheld, ActivityAt: r.ActivityAt,
		WasDefer: r.WasDefer, Summary: r.Summary, Failure: r.Failure, Fallback: string(r.Fallback),
		ContinuedBy: r.ContinuedBy, Hold: r.Hold, Limited: r.Limited,
		Stopped: r.Stopped, Counter: r.Counter, WatchUntil: r.WatchUntil, Spent: r.Spent,
		Former: r.Former}
	if r.Options != (perdure.Options{}) {
		x.Options = &restOptions{Options: r.Options, Webhook: string(r.Options.Webhook),
			Opening: string(r.Options.Opening)}
	}
	if r.Cancel != (perdure.Cancel{}) {
		x.Cancel = &r.Cancel
	}
	if !r.Signature.IsZero() {
		x.Signature = &r.Signature
	}
	if len(r.Wants) > 0 {
		x.Wants = &r.Wants
	}
	switch x {
	case rest{}:
		return ""
	case rest{Options: x.Options, Limited: x.Limited}:
		if text, ok := restOfLimits(x.Options, r.Limited); ok {
			return text
		}
	}
	b, err := json.Marshal(x)
	if err != nil {
		panic(fmt.Sprintf("a run that can't be written: %v", err))
	}
	return string(b)
}

// restColumn is the column with the rest.
type restColumn struct{ r *perdure.Run }

func (s restColumn) value() any { return packRest(s.r) }

func (s restColumn) Scan(v any) error {
	text, ok := v.(string)
	if !ok || text == "" {
		return nil
	}
	r := s.r
	if u, l, ok := recallLimits(text); ok {
		r.Options.Limits, r.Limited = u, l
		return nil
	}
	var x rest
	if err := json.Unmarshal([]byte(text), &x); err != nil {
		damaged(s.r, "rest").Rest = text
		return nil
	}
	rememberLimits(text, &x)
	r.Progress, r.Fallback = perdure.Value(x.Progress), perdure.Value(x.Fallback)
	r.ActivityAt, r.WasDefer, r.Summary, r.Failure, r.ContinuedBy = x.ActivityAt, x.WasDefer, x.Summary, x.Failure,
		x.ContinuedBy
	r.Withheld, r.ProgressOf, r.Stopped, r.Hold, r.Limited = x.Held, x.ProgressOf, x.Stopped, x.Hold, x.Limited
	if x.Wants != nil {
		r.Wants = *x.Wants
	}
	r.Counter, r.WatchUntil, r.Spent, r.Former = x.Counter, x.WatchUntil, x.Spent, x.Former
	if x.Options != nil {
		r.Options = x.Options.Options
		r.Options.Webhook, r.Options.Opening = perdure.Value(x.Options.Webhook), perdure.Value(x.Options.Opening)
	}
	if x.Cancel != nil {
		r.Cancel = *x.Cancel
	}
	if x.Signature != nil {
		r.Signature = *x.Signature
	}
	return nil
}

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
		u = options.Limits
		alone := restOptions{Options: perdure.Options{Limits: u}}
		if u == nil || u.Names == nil || *options != alone {
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
