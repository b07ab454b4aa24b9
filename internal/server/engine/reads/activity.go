package reads

import (
	"bytes"
	"context"
	"encoding/json"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/dispatch"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/store"
)

// These bound the cost of showing a run's activity, however long its log is.
const (
	// tailLines and tailBytes bound the part of the log that is read, from the end.
	tailLines = 400
	tailBytes = 256 << 10
	// maxRecent bounds the log lines that are shown.
	maxRecent = 20
	maxTail   = 2 << 10
	// maxShown bounds the bytes of a shown line, or of a summary.
	maxShown = 240
	// maxSoFar bounds the bytes of progress.
	maxSoFar     = 4 << 10
	maxOpenWaits = 100 // also of the active run of a thread
	maxChildren  = 100
	maxSkipped   = 20
)

// An Activity shows what a run is doing now, read from the end of its log.
type Activity struct {
	// Run has its Progress in full, or empty if it is larger than maxSoFar.
	perdure.Run
	// SoFar is the size of the progress in bytes.
	SoFar int
	// Text is the end of the text that the current attempt streamed.
	Text   string
	Recent []Happening
	Waits  []perdure.Wait
	// Family are the children, live ones first.
	Family []perdure.Run
	// WaitingFor says why a queued run waits.
	WaitingFor *perdure.WaitingFor
	// Unserved is set for a claimable run whose kind nobody polls for.
	Unserved *perdure.Unserved
	// Paused is set for a queued run whose queue is paused.
	Paused *perdure.QueuePause
	// Skipped are the last inbox items that the watchdog skipped, oldest first.
	Skipped []perdure.Item
}

// A Happening is the summary of a log line.
type Happening struct {
	Seq     int64
	Type    perdure.LineType
	At      perdure.Instant
	Attempt int
	Text    string
}

// Activity reads what a run is doing. Its cost does not grow with the log.
func (q Runs) Activity(ctx context.Context, t perdure.TenantID, id perdure.RunID) (a Activity, err error) {
	err = q.e.Store().View(ctx, func(v *store.View) error {
		r, ok, err := v.Runs.Get(t, id)
		if err == nil && !ok {
			err = kernel.NotFound("run")
		}
		if err != nil {
			return err
		}
		a, err = q.readActivity(v, r)
		return err
	})
	return a, err
}

// ChildActivity reads what a child is doing, for the holder of its parent.
func (q Runs) ChildActivity(
	ctx context.Context, t perdure.TenantID, parent perdure.RunID, epoch int64, child perdure.RunID,
) (a Activity, err error) {
	err = q.e.Store().View(ctx, func(v *store.View) error {
		p, ok, err := v.Runs.Get(t, parent)
		if err == nil && !ok {
			err = kernel.NotFound("run")
		}
		if err == nil {
			err = life.Holds(&p, epoch)
		}
		if err != nil {
			return err
		}
		r, ok, err := v.Runs.Get(t, child)
		if err == nil && (!ok || r.ParentID != parent) {
			err = kernel.NotFound("child of this run")
		}
		if err != nil {
			return err
		}
		a, err = q.readActivity(v, r)
		return err
	})
	return a, err
}

// readActivity collects the activity of a run from one snapshot.
func (q Runs) readActivity(v *store.View, r perdure.Run) (a Activity, err error) {
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
	text := life.TextTail{Attempt: r.Attempt, Most: maxTail}
	if err := v.Events.LastOf(r.Tenant, r.ID, perdure.LineDelta, r.Seq-life.TextWithin, text.Add); err != nil {
		return a, err
	}
	a.Text = text.String()
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
	waits := dispatch.WaitReader{Engine: q.e, DB: &v.Records}
	if a.WaitingFor, err = waits.WaitingFor(&r); err != nil {
		return a, err
	}
	if r.State == perdure.Queued {
		t, err := waits.Of(r.Tenant)
		if err != nil {
			return a, err
		}
		a.Paused = t.Paused.On(r.Queue, v.Now)
	}
	if r.State == perdure.Queued && r.Ready {
		s, err := waits.Serving(r.Tenant)
		if err != nil {
			return a, err
		}
		a.Unserved = s.Unserved(&r)
	}
	if r.State.Terminal() && r.InboxSeq > 0 {
		a.Skipped, err = v.Inbox.Skipped(r.Tenant, r.ID, maxSkipped)
	}
	return a, err
}

// recent selects the last lines worth showing, oldest first. The given lines are newest first.
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

// repeatsHeartbeat tells whether a heartbeat repeats the one before it.
func repeatsHeartbeat(earlier []perdure.Line, l *perdure.Line) bool {
	for i := range earlier {
		if earlier[i].Type == perdure.LineHeartbeat {
			return earlier[i].Data == l.Data && earlier[i].Epoch == l.Epoch
		}
	}
	return false
}

// summarize turns a line's data into a few words: "reason silent, activity llm_thinking".
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

// unquoted decodes a JSON string. Any other value stays as it is written.
func unquoted(value json.RawMessage) (text string) {
	if json.Unmarshal(value, &text) != nil {
		return string(value)
	}
	return text
}

// Clip shortens a text to at most so many bytes, at a rune boundary.
func Clip(text string, most int) string {
	if len(text) <= most {
		return text
	}
	for most -= len("…"); most > 0 && !utf8.RuneStart(text[most]); most-- {
	}
	return text[:most] + "…"
}

// OpenWaits reads the first open waits of a run.
func (q Runs) OpenWaits(ctx context.Context, t perdure.TenantID, id perdure.RunID) (out []perdure.Wait, err error) {
	err = q.e.Store().View(ctx, func(v *store.View) error {
		out, err = v.Waits.FirstOpen(t, id, maxOpenWaits)
		return err
	})
	return out, err
}
