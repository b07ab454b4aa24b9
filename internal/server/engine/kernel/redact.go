package kernel

import (
	"encoding/json"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/wire/redact"
)

// Redaction of streamed text.
//
// httpd redacts each request, as far as a secret is in one piece. A secret can also be spread over
// several deltas. The part of a delta that may be the beginning of a secret is therefore held back
// until the next delta. It is stored with the run, because the next delta may come through another
// node.

// heldDeltas is the streamed text of a run that is held back.
type heldDeltas struct {
	// Epoch is that of the streaming holder.
	Epoch int64 `json:"epoch"`
	// Suspended says that the text continues under the next epoch.
	Suspended bool `json:"suspended,omitempty"`
	// Crowded says that a channel was dropped to make room.
	Crowded  bool          `json:"crowded,omitempty"`
	Channels []heldChannel `json:"channels,omitempty"`
}

// A heldChannel is the held text of one channel.
type heldChannel struct {
	Channel string      `json:"channel"`
	Tail    redact.Tail `json:"tail"`
}

// Every heartbeat writes the held text with the run, so it is bounded. maxHeld is the number of
// channels of a run, and maxChannel the bytes of a channel's name.
const (
	maxHeld    = 16
	maxChannel = 256
)

// RedactCommit gives the lines of a commit with secrets redacted, and the text that is held back. A
// commit that ends the holder's turn releases all held text, unless the run suspends.
func RedactCommit(
	tx *Tx, r *perdure.Run, events []perdure.Emitted, outcome *perdure.Outcome,
) ([]perdure.Emitted, string, error) {
	secrets := tx.Engine.Secrets
	events = perdure.JoinDeltas(events)
	if secrets == nil && r.Withheld == "" {
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
			// The text is unchanged, so the line is kept to the byte.
			out = append(out, e)
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
		// Another attempt may follow, so the text stays remembered.
		case perdure.OutcomeFail:
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

// heldDeltasOf reads the held text of a run. The held text of a lost holder is lost with it. It is
// remembered as shown, so that the next attempt does not show the rest of a secret.
func heldDeltasOf(tx *Tx, r *perdure.Run) heldDeltas {
	held := heldDeltas{Epoch: r.Epoch}
	if r.Withheld != "" && json.Unmarshal([]byte(r.Withheld), &held) != nil {
		// The held text is damaged, so its channels are unknown.
		held = heldDeltas{Epoch: r.Epoch, Crowded: true}
	}
	if held.Epoch != r.Epoch && !held.Suspended {
		held.release(tx.Engine.Secrets, nil)
	}
	held.Epoch, held.Suspended = r.Epoch, false
	return held
}

// release appends the held text of every channel to a list of lines, and remembers it as shown.
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

// forgetOne drops one channel to make room: the oldest that holds nothing back, or else the oldest.
// The text that it holds is appended to the list.
func (h *heldDeltas) forgetOne(secrets *redact.Set, list []perdure.Emitted) []perdure.Emitted {
	i := max(0, slices.IndexFunc(h.Channels, func(c heldChannel) bool { return !secrets.Hides(c.Tail) }))
	text, _ := secrets.Release(h.Channels[i].Tail)
	list = appendDelta(list, h.Channels[i].Channel, text)
	h.Channels, h.Crowded = slices.Delete(h.Channels, i, i+1), true
	return list
}

// appendDelta appends a delta, unless its text is empty.
func appendDelta(list []perdure.Emitted, channel, text string) []perdure.Emitted {
	if text == "" {
		return list
	}
	return append(list, perdure.DeltaOn(channel, text))
}
