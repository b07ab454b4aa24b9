package engine

import (
	"encoding/json"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/redact"
)

// What comes in has no secrets any more, as far as each stands in one piece; see httpd. Here are those that do not: of a text that
// is streamed, what may be the beginning of a secret is held back until the next piece, and kept on the run meanwhile. Its
// next piece may come through another node.

// heldDeltas is what is held back of a run's deltas.
type heldDeltas struct {
	Epoch     int64         `json:"epoch"`               // of whoever streams
	Suspended bool          `json:"suspended,omitempty"` // that one goes on under another epoch
	Crowded   bool          `json:"crowded,omitempty"`   // a channel had to be forgotten
	Channels  []heldChannel `json:"channels,omitempty"`
}

type heldChannel struct {
	Channel string      `json:"channel"`
	Tail    redact.Tail `json:"tail"`
}

// Every heartbeat writes what is held, so it is little: so many channels of a run, and so many bytes that say which.
const (
	maxHeld    = 16
	maxChannel = 256
)

// redactCommit gives the lines of a commit as they may be written, and what is held back of them. When the holder ends its turn
// with this commit nothing is, unless it goes on later.
func redactCommit(tx *Tx, r *perdure.Run, events []perdure.Emitted, outcome *perdure.Outcome) ([]perdure.Emitted, string, error) {
	secrets := tx.e.secrets
	events = perdure.JoinDeltas(events)
	if secrets == nil && r.Held == "" {
		return events, "", nil
	}
	held := heldDeltasOf(tx, r)
	out := make([]perdure.Emitted, 0, len(events))
	for _, e := range events {
		channel, text, ok := e.Delta()
		switch {
		case !ok:
			out = append(out, perdure.Emitted{Type: e.Type, Data: secrets.Values(e.Data)})
			continue
		case len(channel) > maxChannel:
			if shown := secrets.Whole(text); shown != text {
				e = perdure.DeltaOn(channel, shown)
			}
			out = append(out, e)
			continue
		}
		i := slices.IndexFunc(held.Channels, func(h heldChannel) bool { return h.Channel == channel })
		piece := text
		if i < 0 {
			if held.Crowded {
				piece = secrets.Behind(text)
			}
			if len(held.Channels) == maxHeld {
				out = held.forgetOne(secrets, out)
			}
			held.Channels, i = append(held.Channels, heldChannel{Channel: channel}), len(held.Channels)
		}
		before := held.Channels[i].Tail
		shown, tail := secrets.Hold(before, piece)
		if before == "" && tail == "" && shown == text {
			out = append(out, e) // to the byte
		} else {
			out = appendDelta(out, channel, shown)
		}
		if held.Channels[i].Tail = tail; tail == "" {
			held.Channels = slices.Delete(held.Channels, i, i+1)
		}
	}
	if outcome != nil {
		switch outcome.Type {
		case perdure.OutcomeSuspend:
			held.Suspended = true
		case perdure.OutcomeFail: // and another attempt, perhaps
			out = held.release(secrets, out)
		default:
			return held.release(secrets, out), "", nil
		}
	}
	if len(held.Channels) == 0 && !held.Crowded {
		return out, "", nil
	}
	kept, err := json.Marshal(held)
	return out, string(kept), err
}

// heldDeltasOf reads what is held back of a run. What a lost holder had is lost with it, and remembered as if it had been shown: the rest of
// a secret does not begin the next attempt.
func heldDeltasOf(tx *Tx, r *perdure.Run) heldDeltas {
	held := heldDeltas{Epoch: r.Epoch}
	if r.Held != "" && json.Unmarshal([]byte(r.Held), &held) != nil {
		held = heldDeltas{Epoch: r.Epoch, Crowded: true} // damaged: nobody knows what it was
	}
	if held.Epoch != r.Epoch && !held.Suspended {
		held.release(tx.e.secrets, nil)
	}
	held.Epoch, held.Suspended = r.Epoch, false
	return held
}

// release adds what is held back of every channel to a list of lines, and remembers it as shown.
func (h *heldDeltas) release(secrets *redact.Set, list []perdure.Emitted) []perdure.Emitted {
	for i := range h.Channels {
		c := &h.Channels[i]
		var text string
		text, c.Tail = secrets.Release(c.Tail)
		list = appendDelta(list, c.Channel, text)
	}
	h.Channels = slices.DeleteFunc(h.Channels, func(c heldChannel) bool { return c.Tail == "" })
	return list
}

// forgetOne makes room for a channel: the oldest of which nothing is held back, or the oldest, has said all.
func (h *heldDeltas) forgetOne(secrets *redact.Set, list []perdure.Emitted) []perdure.Emitted {
	i := max(0, slices.IndexFunc(h.Channels, func(c heldChannel) bool { return !secrets.Hides(c.Tail) }))
	text, _ := secrets.Release(h.Channels[i].Tail)
	list = appendDelta(list, h.Channels[i].Channel, text)
	h.Channels, h.Crowded = slices.Delete(h.Channels, i, i+1), true
	return list
}

func appendDelta(list []perdure.Emitted, channel, text string) []perdure.Emitted {
	if text == "" {
		return list
	}
	return append(list, perdure.DeltaOn(channel, text))
}
