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
	Epoch    int64         `json:"epoch"` // of whoever streams; another one begins anew
	Channels []heldChannel `json:"channels"`
}

type heldChannel struct {
	Channel string      `json:"channel"`
	Tail    redact.Tail `json:"tail"`
}

// maxHeld is how many channels of a run are remembered.
const maxHeld = 16

// redacted gives the lines of a commit as they may be written, and what is held back of them. When the holder ends its turn
// with this commit nothing is.
func (tx *Tx) redacted(r *perdure.Run, events []perdure.Emitted, last bool) ([]perdure.Emitted, string, error) {
	secrets := tx.e.secrets
	events = perdure.JoinDeltas(events)
	if secrets == nil && r.Held == "" {
		return events, "", nil
	}
	var held heldDeltas
	if r.Held != "" {
		if err := json.Unmarshal([]byte(r.Held), &held); err != nil {
			return nil, "", err
		}
	}
	if held.Epoch != r.Epoch {
		held = heldDeltas{Epoch: r.Epoch}
	}
	out := make([]perdure.Emitted, 0, len(events))
	for _, e := range events {
		channel, text, ok := e.Delta()
		if !ok {
			out = append(out, perdure.Emitted{Type: e.Type, Data: secrets.Values(e.Data)})
			continue
		}
		i := slices.IndexFunc(held.Channels, func(h heldChannel) bool { return h.Channel == channel })
		if i < 0 {
			if len(held.Channels) == maxHeld { // the oldest has said all
				out = appendDelta(out, held.Channels[0].Channel, secrets.Release(held.Channels[0].Tail))
				held.Channels = slices.Delete(held.Channels, 0, 1)
			}
			held.Channels, i = append(held.Channels, heldChannel{Channel: channel}), len(held.Channels)
		}
		before := held.Channels[i].Tail
		shown, tail := secrets.Hold(before, text)
		if before == "" && tail == "" && shown == text {
			out = append(out, e) // to the byte
		} else {
			out = appendDelta(out, channel, shown)
		}
		held.Channels[i].Tail = tail
	}
	if last {
		for _, h := range held.Channels {
			out = appendDelta(out, h.Channel, secrets.Release(h.Tail))
		}
		return out, "", nil
	}
	held.Channels = slices.DeleteFunc(held.Channels, func(h heldChannel) bool { return h.Tail == "" })
	if len(held.Channels) == 0 {
		return out, "", nil
	}
	text, err := json.Marshal(held)
	return out, string(text), err
}

func appendDelta(list []perdure.Emitted, channel, text string) []perdure.Emitted {
	if text == "" {
		return list
	}
	return append(list, perdure.DeltaOn(channel, text))
}
