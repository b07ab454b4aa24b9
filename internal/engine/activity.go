package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/store"
)

// Bounds of what is shown of a run's activity, however much has happened.
const (
	tailLines    = 400       // of its log are looked at, from the end,
	tailBytes    = 256 << 10 // and no more than so much of it
	maxRecent    = 20        // lines are shown
	textWithin   = 1000      // lines of its log are looked through for what was streamed
	maxTail      = 2 << 10   // bytes of that
	maxTailRead  = 4 << 20   // bytes of lines that are read for them
	maxShown     = 240       // bytes of a line, or of a summary
	maxSoFar     = 4 << 10   // bytes of progress
	maxOpenWaits = 100
	maxChildren  = 100
	maxSkipped   = 20
)

// An Activity is what a run is doing, in the words of its log: the view of who looks over its shoulder.
type Activity struct {
	perdure.Run // its Progress in full, or empty if that is too much to show
	SoFar       int
	Text        string // the end of what it streamed in this attempt
	Recent      []Happening
	Waits       []perdure.Wait
	Family      []perdure.Run  // children: those that live first
	Skipped     []perdure.Item // what the watchdog skipped of its inbox: the last ones, oldest first
}

// A Happening is a line of a log that a person cares about, in short.
type Happening struct {
	Seq     int64
	Type    string
	At      perdure.Instant
	Attempt int
	Text    string
}

// Activity shows what a run is doing. It costs the same for a short log and a long one.
func (q Runs) Activity(ctx context.Context, t perdure.TenantID, id perdure.RunID) (a Activity, err error) {
	err = q.e.store.View(ctx, func(v *store.View) error {
		r, ok, err := v.Runs.Get(t, id)
		if err == nil && !ok {
			err = notFound("run")
		}
		if err != nil {
			return err
		}
		a, err = readActivity(v, r)
		return err
	})
	return a, err
}

// ChildActivity shows the holder of a run what a child of it is doing.
func (q Runs) ChildActivity(ctx context.Context, t perdure.TenantID, parent perdure.RunID, epoch int64, child perdure.RunID) (a Activity, err error) {
	err = q.e.store.View(ctx, func(v *store.View) error {
		p, ok, err := v.Runs.Get(t, parent)
		if err == nil && !ok {
			err = notFound("run")
		}
		if err == nil {
			err = holds(&p, epoch)
		}
		if err != nil {
			return err
		}
		r, ok, err := v.Runs.Get(t, child)
		if err == nil && (!ok || r.ParentID != parent) {
			err = notFound("child of this run")
		}
		if err != nil {
			return err
		}
		a, err = readActivity(v, r)
		return err
	})
	return a, err
}

func readActivity(v *store.View, r perdure.Run) (a Activity, err error) {
	a.Run = r
	full, err := v.Values.Resolve(r.Tenant, r.Progress)
	if err != nil {
		return a, err
	}
	if a.SoFar = len(full); a.SoFar > maxSoFar {
		full = ""
	}
	a.Progress = full
	lines, err := v.Events.Last(r.Tenant, r.ID, tailLines, tailBytes)
	if err != nil {
		return a, err
	}
	a.Recent = recent(lines)
	said := textTail{attempt: r.Attempt, most: maxTail}
	if err := v.Events.LastOf(r.Tenant, r.ID, perdure.LineDelta, r.Seq-textWithin, said.add); err != nil {
		return a, err
	}
	a.Text = said.String()
	if r.WaitsOpen > 0 {
		if a.Waits, err = v.Waits.FirstOpen(r.Tenant, r.ID, maxOpenWaits); err != nil {
			return a, err
		}
	}
	if r.Children > 0 {
		if a.Family, err = v.Runs.Family(r.Tenant, r.ID, maxChildren); err != nil {
			return a, err
		}
	}
	if r.State.Terminal() && r.InboxSeq > 0 {
		a.Skipped, err = v.Inbox.Skipped(r.Tenant, r.ID, maxSkipped)
	}
	return a, err
}

// A textTail is the end of the text that an attempt streams, put together from its last delta on.
type textTail struct {
	attempt, most int

	parts []string
	size  int
	read  int
}

// add puts what one line says before what is there, and tells whether that is enough.
func (t *textTail) add(l perdure.Line) (enough bool) {
	if l.Attempt != t.attempt {
		return true
	}
	text := perdure.DeltaText(l.Data)
	t.parts, t.size = append(t.parts, text), t.size+len(text)
	t.read += len(l.Data)
	return t.size >= t.most || t.read > maxTailRead
}

func (t *textTail) String() string {
	slices.Reverse(t.parts)
	text := strings.Join(t.parts, "")
	if over := len(text) - t.most; over > 0 {
		for over < len(text) && !utf8.RuneStart(text[over]) {
			over++
		}
		text = text[over:]
	}
	return text
}

// recent chooses the last lines that a person cares about, and puts the first of them first. The last line comes first.
func recent(lines []perdure.Line) []Happening {
	out := make([]Happening, 0, maxRecent)
	for i, l := range lines {
		switch l.Type {
		case perdure.LineDelta, perdure.LineDispatched, perdure.LineWaitClosed:
			continue
		case perdure.LineHeartbeat:
			if l.Data == "{}" || repeatsHeartbeat(lines[i+1:], &l) {
				continue
			}
		}
		if out = append(out, Happening{l.Seq, l.Type, l.At, l.Attempt, summarize(l.Data)}); len(out) == maxRecent {
			break
		}
	}
	slices.Reverse(out)
	return out
}

// repeatsHeartbeat tells whether a heartbeat only repeats the one before it.
func repeatsHeartbeat(earlier []perdure.Line, l *perdure.Line) bool {
	for i := range earlier {
		if earlier[i].Type == perdure.LineHeartbeat {
			return earlier[i].Data == l.Data && earlier[i].Epoch == l.Epoch
		}
	}
	return false
}

// summarize is a line's data in a few words: "reason silent, activity llm_thinking".
func summarize(data perdure.Value) string {
	text, _ := data.MarshalJSON()
	d := json.NewDecoder(bytes.NewReader(text))
	if t, _ := d.Token(); t != json.Delim('{') {
		return Clip(unquoted(text), maxShown)
	}
	var words []string
	for size := 0; d.More() && size < maxShown; {
		var value json.RawMessage
		name, err := d.Token()
		if err != nil || d.Decode(&value) != nil {
			break
		}
		word := name.(string) + " " + Clip(unquoted(value), maxShown/2)
		size += len(word)
		words = append(words, word)
	}
	return Clip(strings.Join(words, ", "), maxShown)
}

// unquoted is a text without its quotes, and anything else as it is written.
func unquoted(value json.RawMessage) (text string) {
	if json.Unmarshal(value, &text) != nil {
		return string(value)
	}
	return text
}

// Clip shortens a text to that many bytes, or a few less.
func Clip(text string, most int) string {
	if len(text) <= most {
		return text
	}
	for most -= len("…"); most > 0 && !utf8.RuneStart(text[most]); most-- {
	}
	return text[:most] + "…"
}
