package journal

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// entry returns a journal entry of points and the texts that were said after them: "a: x y" are x and
// y after a.
func entry(t *testing.T, lines ...string) json.RawMessage {
	t.Helper()
	var s ReportEntry
	for _, line := range lines {
		point, texts, _ := strings.Cut(line, ": ")
		for _, text := range strings.Fields(texts) {
			s.Add(point, Digest(text))
		}
	}
	value, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	return value
}

// A replay skips exactly the reports that were made after the same point.
func TestReplaySkipsTheSameReports(t *testing.T) {
	for _, row := range []struct {
		name   string
		before []string // as in entry
		now    string   // points in brackets, and texts
		want   string   // the texts that are new
	}{
		{"nothing was said", nil, "x [a] y", "x y"},
		{"the same", []string{"start: x", "a: y"}, "x [a] y", ""},
		{"one more", []string{"start: x", "a: y"}, "x [a] y z", "z"},
		{"one is inserted", []string{"start: x y"}, "x new y", "new"},
		{"one is removed", []string{"start: x y z"}, "x z", ""},
		{"two are swapped", []string{"start: x y"}, "y x", ""},
		{"one is another", []string{"start: x y"}, "x z", "z"},
		{"the same twice", []string{"start: x x"}, "x x", ""},
		{"the same once more", []string{"start: x x"}, "x x x", "x"},
		{"the same after another point", []string{"start: x"}, "[a] x", "x"},
		{"after an error and after a result", []string{"a!: busy"}, "[a] answer", "answer"},
		{"the same after an error and after a result", []string{"a!: hm"}, "[a] hm", "hm"},
		{"after the same error", []string{"a!: busy"}, "[a!] busy", ""},
		{"a point that comes again", []string{"a: x y", "b: z"}, "[a] x [b] z [a] x y", "x"},
	} {
		t.Run(row.name, func(t *testing.T) {
			r := NewReports()
			for _, line := range row.before { // each in an entry of its own
				if err := r.Read(entry(t, line)); err != nil {
					t.Fatal(err)
				}
			}
			var said []string
			at := Start
			for _, text := range strings.Fields(row.now) {
				if strings.HasPrefix(text, "[") {
					at = strings.Trim(text, "[]")
				} else if !r.Made(Message, at, Digest(text)) {
					said = append(said, text)
				}
			}
			if got := strings.Join(said, " "); got != row.want {
				t.Errorf("after %q the agent says %q: new are %q, want %q", row.before, row.now, got, row.want)
			}
		})
	}
}

// Reports after a point that the code no longer has are found after another one, until something new
// begins.
func TestReportsOfRemovedPointAreFoundElsewhere(t *testing.T) {
	gone := func(point string) bool { return point == "step a#1" }
	for _, forget := range []bool{false, true} {
		r := NewReports()
		if err := r.Read(entry(t, "step a#1: x", "step a#1!: busy", "step b#1: y")); err != nil {
			t.Fatal(err)
		}
		r.Remove(gone)
		if forget {
			r.Forget()
		}
		for _, text := range []string{"x", "busy"} {
			if made := r.Made(Message, Start, Digest(text)); made == forget {
				t.Errorf("%q, something new has begun = %v: made = %v, want %v", text, forget, made, !forget)
			}
		}
		if r.Made(Message, Start, Digest("y")) {
			t.Error("a report after a point that the code still has was found after another one")
		}
	}
}

// Frames of the old form count reports. So many are skipped, whatever they are, until something new
// begins.
func TestCountsOfTheOldFormSkipSoMany(t *testing.T) {
	r := NewReports()
	r.ReadCounts(1, 1)
	r.ReadCounts(1, 0)
	if err := r.Read(entry(t, "start: new")); err != nil {
		t.Fatal(err)
	}
	var got []bool
	for _, text := range []string{"one", "two", "new", "three"} {
		got = append(got, r.Made(Message, Start, Digest(text)))
	}
	if want := "[true true true false]"; fmt.Sprint(got) != want {
		t.Errorf("messages made before = %v, want %s", got, want)
	}
	if !r.Open(Start) {
		t.Error("a line of the old form is left, and the reports are not open")
	}
	r.Forget()
	if r.Open(Start) || r.Made(Line, Start, Digest("line")) {
		t.Error("something new has begun, and a line of the old form is still skipped")
	}
}

// Many reports after one point cost some bytes each.
func TestManyReportsAreSmall(t *testing.T) {
	const n = 10_000
	var s ReportEntry
	for i := range n {
		s.Add("step think#1", Digest("delta", fmt.Sprint(i)))
	}
	value, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	if len(value) > 10*n {
		t.Errorf("an entry with %d reports has %d bytes, want at most 10 each", n, len(value))
	}
	r := NewReports()
	if err := r.Read(value); err != nil {
		t.Fatal(err)
	}
	for i := range n {
		if !r.Made(Line, "step think#1", Digest("delta", fmt.Sprint(i))) {
			t.Fatalf("report %d of %d is not found", i, n)
		}
	}
	if r.Open("step think#1") {
		t.Error("all reports were made again, and some are left")
	}
}

// An entry that this package did not write is an error.
func TestMalformedEntryIsRefused(t *testing.T) {
	for _, value := range []string{`1`, `{"start":1}`, `{"start":"short"}`} {
		r := NewReports()
		if err := r.Read(json.RawMessage(value)); err == nil {
			t.Errorf("entry %s is read, want an error", value)
		}
	}
}

// The digest of a report is part of the journal's format.
func TestDigestsStayTheSame(t *testing.T) {
	if a, b := Digest("ab", "c"), Digest("a", "bc"); a == b || len(a) != DigestSize {
		t.Errorf("digests = %q and %q, want different ones of %d characters", a, b, DigestSize)
	}
	if got, want := Digest("message", "assistant", `"hello"`), "-KWLlQie"; got != want {
		t.Errorf("digest = %q, want %q", got, want)
	}
}

// Values of the old form are given out first and in order, and the others by key.
func TestValuesOfTheOldFormComeFirst(t *testing.T) {
	var n Named[string]
	n.ReadOld("first")
	n.ReadOld("second")
	n.Read("order#3", "third")
	for i, want := range []string{"first", "second", "third", ""} {
		got, ok := n.Get(fmt.Sprintf("order#%d", i+1))
		if got != want || ok != (want != "") {
			t.Errorf("value %d = %q (%v), want %q", i+1, got, ok, want)
		}
		if n.Open() != (i == 0) {
			t.Errorf("after value %d: open = %v", i+1, n.Open())
		}
	}
}
