package conformance

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine"
	"github.com/perdure/perdure/internal/server/engine/dispatch"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/store"
	"github.com/perdure/perdure/internal/testkit/storetest"
	"github.com/perdure/perdure/internal/wire/redact"
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
func (w *World) delta(g dispatch.Grant, channel int, text string, outcome *perdure.Outcome) {
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

// A secret that is streamed in pieces is put together by nobody: the pieces come through different nodes, on channels
// that alternate.
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

// Text that is held back for a lost worker is dropped. The text of the next worker does not continue it.
func TestWhatALostHolderHeldBackIsLostWithIt(t *testing.T) {
	onBothWith(t, func(t *testing.T, w *World) {
		for said, want := range map[string]string{"other": "text other more", hidden[7:]: "text [redacted] more"} {
			r := w.task()
			g := w.take("first")
			w.delta(g, 1, "text "+hidden[:7], nil)
			w.pass(65 * time.Second)
			w.pass(10 * time.Second)
			h := w.take("second")
			w.delta(h, 1, said+" more", done(`1`))
			if got := w.streamed(r.ID, 1); got != want {
				t.Errorf("%q", got)
			}
		}
	})
}

// A turn that ends in the midst of a secret shows less than half of it, however it ends, and nothing more when the next
// one goes on.
func TestATurnThatEndsInTheMidstOfASecretKeepsIt(t *testing.T) {
	again := &perdure.Outcome{Type: perdure.OutcomeFail,
		Error: &perdure.Failure{Code: "oops", Message: "it went wrong"}}
	onBothWith(t, func(t *testing.T, w *World) {
		for name, outcome := range map[string]*perdure.Outcome{"suspend": suspend, "fail": again} {
			for _, cut := range []int{1, 5, len(hidden) - 1} {
				r := w.task()
				g := w.take("w")
				c := perdure.Commit{Outcome: outcome}
				if outcome == suspend {
					c.Waits = wait(perdure.WaitSpec{ID: "w", Type: perdure.WaitSignal, Name: "go",
						Timeout: perdure.Never})
				}
				w.delta(g, 1, "key is "+hidden[:cut], nil)
				w.commit(g, c)
				begun := w.streamed(r.ID, 1)
				if 2*cut >= len(hidden) && strings.Contains(begun, hidden[:3]) {
					t.Errorf("%s after %d bytes shows %q", name, cut, begun)
				}
				if outcome == suspend {
					w.do(&life.Signal{Tenant: tenant, RunID: r.ID, Name: "go"})
				} else {
					w.pass(time.Minute)
				}
				h := w.take("w")
				for i := cut; i < len(hidden); i++ {
					w.delta(h, 1, hidden[i:i+1], nil)
				}
				w.delta(h, 1, " more", done(`1`))
				got := w.streamed(r.ID, 1)
				if got = strings.ReplaceAll(got, redact.Mark, ""); got != "key is "+
					hidden[:len(got)-len("key is  more")]+" more" || 2*(len(got)-len("key is  more")) >= len(hidden) {
					t.Errorf("%s after %d bytes: %q", name, cut, got)
				}
				if outcome == suspend && cut > 2 && w.streamed(r.ID, 1) != "key is [redacted] more" {
					t.Errorf("what was held back is shown: %q", w.streamed(r.ID, 1))
				}
			}
		}
	})
}

// Text that was held back and turns out to be no secret is written when the next turn continues it.
func TestWhatASuspendedTurnHeldBackGoesOn(t *testing.T) {
	onBothWith(t, func(t *testing.T, w *World) {
		r := w.task()
		g := w.take("w")
		w.delta(g, 1, "key is "+hidden[:10], nil)
		w.commit(g, perdure.Commit{Waits: wait(perdure.WaitSpec{ID: "w", Type: perdure.WaitSignal, Name: "go",
			Timeout: perdure.Never}), Outcome: suspend})
		w.do(&life.Signal{Tenant: tenant, RunID: r.ID, Name: "go"})
		w.delta(w.take("w"), 1, " or so", done(`1`))
		if got := w.streamed(r.ID, 1); got != "key is "+hidden[:10]+" or so" {
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

// More channels than are remembered cost the oldest its memory, and nobody its text, or a secret.
func TestManyChannelsKeepTheirText(t *testing.T) {
	onBothWith(t, func(t *testing.T, w *World) {
		r := w.task()
		g := w.take("w")
		for channel := range 40 {
			w.delta(g, channel, "to "+hidden[:5], nil)
		}
		for channel := range 40 {
			w.delta(g, 100+channel, "to "+hidden[:len(hidden)-1], nil)
		}
		w.delta(g, 0, hidden[5:], nil) // which was forgotten
		w.commit(g, perdure.Commit{Outcome: done(`1`)})
		for channel := range 40 {
			want := "to " + hidden[:5]
			if channel == 0 {
				want += redact.Mark
			}
			if got := w.streamed(r.ID, channel); got != want {
				t.Errorf("channel %d says %q", channel, got)
			}
			if got := w.streamed(r.ID, 100+channel); got != "to "+redact.Mark {
				t.Errorf("channel %d says %q", 100+channel, got)
			}
		}
	})
}

// The held text of a run is small, whatever other fields its deltas have, because each heartbeat writes it.
func TestWhatIsHeldOfDeltasIsLittle(t *testing.T) {
	onBothWith(t, func(t *testing.T, w *World) {
		r := w.task()
		g := w.take("w")
		said := func(n int, beside, text string) {
			data, _ := json.Marshal(map[string]any{"call": n, "beside": beside, "text": text})
			w.commit(g, perdure.Commit{Events: []perdure.Emitted{{Type: perdure.LineDelta, Data: data}}})
		}
		for n := range 20 {
			said(n, strings.Repeat(`"`, 100), "to "+hidden[:9])
			said(100+n, strings.Repeat("x", 100_000), "to "+hidden[:9])
		}
		w.view(func(v *store.View) error {
			stored, _, err := v.Runs.Get(tenant, r.ID)
			w.check(len(stored.Withheld) > 0 && len(stored.Withheld) < 10_000, "%d bytes are held",
				len(stored.Withheld))
			return err
		})
		said(100, strings.Repeat("x", 100_000), hidden[9:]+" more")
		w.commit(g, perdure.Commit{Outcome: done(`1`)})
		for n := range 20 {
			w.check(w.streamed(r.ID, n) == "to "+redact.Mark, "channel %d says %q", n, w.streamed(r.ID, n))
		}
	})
}
