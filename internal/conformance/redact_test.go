package conformance

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/engine"
	"github.com/perdure/perdure/internal/redact"
	"github.com/perdure/perdure/internal/store"
	"github.com/perdure/perdure/internal/storetest"
)

const hidden = "sk-proj-7c1f2a9b"

// secretive is a world whose engine has a secret to keep out. Each call makes another node on the same store.
func secretive(t *testing.T, w *World, secrets ...string) {
	t.Helper()
	set, err := redact.New(secrets)
	if err != nil {
		t.Fatal(err)
	}
	if w.E, err = engine.New(w.S, engine.Options{Secrets: set}); err != nil {
		t.Fatal(err)
	}
}

// delta says a piece of a text on a channel.
func (w *World) delta(g engine.Grant, channel int, text string, outcome *perdure.Outcome) {
	w.t.Helper()
	data, _ := json.Marshal(map[string]any{"call": channel, "text": text})
	w.commit(g, perdure.Commit{Events: []perdure.Emitted{{Type: perdure.LineDelta, Data: data}}, Outcome: outcome})
}

// streamed is what the deltas of a channel say together.
func (w *World) streamed(id perdure.RunID, channel int) (text string) {
	for _, l := range w.lines(id) {
		var d struct {
			Call int
			Text string
		}
		if l.Type == perdure.LineDelta && json.Unmarshal([]byte(l.Data), &d) == nil && d.Call == channel {
			text += d.Text
		}
	}
	return text
}

func onBothWith(t *testing.T, test func(t *testing.T, w *World)) {
	storetest.OnBoth(t, func(t *testing.T, at store.Options) {
		w := NewWorld(t, storetest.Open(t, at))
		secretive(t, w, hidden)
		test(t, w)
		w.fsck()
	})
}

// A secret that is streamed in pieces is put together by nobody: the pieces come through different nodes, on channels that alternate.
func TestAStreamedSecretIsHeldBackAcrossNodes(t *testing.T) {
	onBothWith(t, func(t *testing.T, w *World) {
		r := w.task()
		g := w.take("w")
		a, b := "one "+hidden+" two", "three "+hidden+" four sk-pro"
		for i := 0; i < max(len(a), len(b)); i += 4 {
			for channel, text := range map[int]string{1: a, 2: b} {
				if i < len(text) {
					w.delta(g, channel, text[i:min(len(text), i+4)], nil)
					secretive(t, w, hidden) // the next piece meets another node
				}
			}
			stored := fmt.Sprint(w.dump(t))
			if strings.Contains(stored, hidden[:8]) {
				t.Fatalf("a piece of it is stored: %s", stored)
			}
		}
		if got := w.streamed(r.ID, 2); strings.HasSuffix(got, "pro") {
			t.Errorf("the end is not held back: %q", got)
		}
		w.commit(g, perdure.Commit{Outcome: done(`1`)})
		for channel, want := range map[int]string{1: "one [redacted] two", 2: "three [redacted] four sk-pro"} {
			got := w.streamed(r.ID, channel)
			if short := strings.NewReplacer(" sk[", " [", " s[", " [").Replace(got); short != want {
				t.Errorf("channel %d says %q", channel, got)
			}
		}
	})
}

// What another holder of the run held back is not taken for the beginning of what the next one says.
func TestWhatALostHolderHeldBackIsForgotten(t *testing.T) {
	onBothWith(t, func(t *testing.T, w *World) {
		r := w.task()
		g := w.take("first")
		w.delta(g, 1, "text "+hidden[:7], nil)
		w.pass(65 * time.Second)
		w.pass(10 * time.Second)
		h := w.take("second")
		w.delta(h, 1, hidden[7:]+" more", done(`1`))
		if got := w.streamed(r.ID, 1); got != "text "+hidden[7:]+" more" {
			t.Errorf("%q", got)
		}
	})
}

// A node with other secrets can't tell what was held back, and does not guess.
func TestAHeldTextOfOtherSecretsIsTakenOut(t *testing.T) {
	onBothWith(t, func(t *testing.T, w *World) {
		r := w.task()
		g := w.take("w")
		w.delta(g, 1, "text "+hidden[:7], nil)
		secretive(t, w, "another-secret-altogether")
		w.delta(g, 1, hidden[7:], done(`1`))
		if got := w.streamed(r.ID, 1); got != "text [redacted]"+hidden[7:] {
			t.Errorf("%q", got)
		}
	})
}

// More channels than are remembered cost the oldest its memory, and nobody its text.
func TestManyChannelsKeepTheirText(t *testing.T) {
	onBothWith(t, func(t *testing.T, w *World) {
		r := w.task()
		g := w.take("w")
		for channel := range 40 {
			w.delta(g, channel, "to "+hidden[:5], nil)
		}
		w.commit(g, perdure.Commit{Waits: []perdure.WaitSpec{{ID: "w", Type: perdure.WaitSignal, Name: "go", Timeout: perdure.Never}}, Outcome: suspend})
		for channel := range 40 {
			if got := w.streamed(r.ID, channel); got != "to "+hidden[:5] {
				t.Errorf("channel %d says %q", channel, got)
			}
		}
	})
}
