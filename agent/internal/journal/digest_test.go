package journal

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure/api"
)

// A digest is that of the value and not of its text: the order of names does not matter, and neither
// do the limits of the store.
func TestOfValue(t *testing.T) {
	t.Parallel()
	type ab struct{ A, B int }
	type ba struct{ B, A int }
	same := [][]any{
		{ab{1, 2}, ba{2, 1}, map[string]int{"B": 2, "A": 1}, json.RawMessage(`{ "B":2, "A":1 }`)},
		{"a\x00b"}, {strings.Repeat("x", 2<<20)}, {ab{2, 1}}, {1.5, json.RawMessage("1.50")},
		{1, 1.0, json.RawMessage("1e0")}, {nil, (*ab)(nil)}, {"<"},
	}
	seen := map[string]int{}
	for n, values := range same {
		for _, v := range values {
			digest, err := OfValue(v)
			if err != nil || len(digest) != 24 {
				t.Errorf("digest of %.40v = %q, %v, want 24 digits", v, digest, err)
			}
			if before, ok := seen[digest]; ok && before != n {
				t.Errorf("%.40v has the digest of other values", v)
			}
			seen[digest] = n
		}
	}
	if len(seen) != len(same) {
		t.Errorf("%d digests of %d different values", len(seen), len(same))
	}
	if _, err := OfValue(make(chan int)); err == nil {
		t.Error("a channel has a digest, want an error")
	}
}

// Texts that Go escapes, and other languages don't, have a digest of an old form beside the present one.
func TestOldDigestsAreAccepted(t *testing.T) {
	t.Parallel()
	if _, old := OfChild("k", json.RawMessage(`{"a":"plain <é>","n":12}`)); old != "" {
		t.Errorf("the old digest of a plain input = %s, want none", old)
	}
	input := json.RawMessage(`{"a":"\u2028"}`)
	digest, old := OfChild("k", input)
	if old == "" || old == digest {
		t.Fatalf("digests of %s = %s and %s, want two", input, digest, old)
	}
	if again, _ := OfChild("k", json.RawMessage("{\"a\":\"\u2028\"}")); again != digest {
		t.Errorf("the digest of the same text without an escape = %s, want %s", again, digest)
	}
	if other, _ := OfChild("l", input); other == digest {
		t.Error("another kind has the same digest")
	}
	s, plain := NewSum(), NewSum()
	s.Add(input)
	plain.Add(json.RawMessage("{\"a\":\"\u2028\"}"))
	if s.Text() != plain.Text() || !s.Is(plain.Text()) || !s.Is(short(s.old.Sum(nil))) || s.Is("") {
		t.Error("a sum is not known by its present and its old form")
	}
}

// The ends of timers are read in microseconds, and from older frames in nanoseconds.
func TestTimersOfBothForms(t *testing.T) {
	t.Parallel()
	r, _, err := Load([]api.JournalEntry{
		{Key: "_frame:1.1", Value: json.RawMessage(
			`{"due":{"after:1h0m0s#1":1700000000123456789},"opened":["sleep:5s#1"]}`)},
		{Key: "_frame:2.1", Value: json.RawMessage(`{"timers":{"after:3600000000#1":1700000000123456}}`)}}, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"after:1h0m0s#1", "after:3600000000#1"} {
		if at, ok := r.Due(id); !ok || !at.Equal(time.UnixMicro(1700000000123456)) || !r.HasTimer(id) {
			t.Errorf("the timer %s ends at %v (%t)", id, at, ok)
		}
	}
	if !r.HasTimer("sleep:5s#1") || r.HasTimer("sleep:5000000#1") {
		t.Error("the sleep is known by another id than the one that was opened")
	}
}

// An entry of a later format is a defect that says so.
func TestLaterVersionIsHeld(t *testing.T) {
	t.Parallel()
	if _, err := ReadStep("a#1", json.RawMessage(fmt.Sprintf(`{"v":%d,"ok":1}`, version))); err != nil {
		t.Errorf("a step of this version: %v", err)
	}
	_, err := ReadStep("a#1", json.RawMessage(`{"v":2,"ok":1}`))
	_, _, framed := Load([]api.JournalEntry{{Key: "_frame:1.1", Value: json.RawMessage(`{"v":2}`)}}, 0)
	for _, err := range []error{err, framed} {
		if text := fmt.Sprint(err); !strings.Contains(text, "version 2") || !strings.Contains(text, "newer library") {
			t.Errorf("error = %v, want one that asks for a newer library", err)
		}
	}
}
