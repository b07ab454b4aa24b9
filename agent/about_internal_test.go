package agent

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestItemCountsReadTheKeysOfItems(t *testing.T) {
	t.Parallel()
	n := itemCounts{}
	for _, key := range []string{"a#1/0", "a#1/7", "a#1/3", "a#2/0", "b/4#1", "b/4#1/2", "c#1", "d/5", "e#1/x",
		"/#1/1"} {
		n.note(key)
	}
	want := itemCounts{"a#1": 8, "a#2": 1, "b/4#1": 3, "d": 6, "/#1": 2}
	if len(n) != len(want) {
		t.Errorf("counts = %v, want %v", n, want)
	}
	for key, count := range want {
		if n[key] != count {
			t.Errorf("items of %q = %d, want %d", key, n[key], count)
		}
	}
}

// A digest is that of the value and not of its text: the order of names does not matter, and neither
// do the limits of the store.
func TestDigestOfValue(t *testing.T) {
	t.Parallel()
	type ab struct{ A, B int }
	type ba struct{ B, A int }
	same := [][]any{
		{ab{1, 2}, ba{2, 1}, map[string]int{"B": 2, "A": 1}, json.RawMessage(`{ "B":2, "A":1 }`)},
		{"a\x00b"}, {strings.Repeat("x", 2<<20)}, {ab{2, 1}}, {1.5}, {nil, (*ab)(nil)}, {"<"},
	}
	seen := map[string]int{}
	for n, values := range same {
		for _, v := range values {
			digest, err := digestOfValue(v)
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
	if _, err := digestOfValue(make(chan int)); err == nil {
		t.Error("a channel has a digest, want an error")
	}
}

// A record without a digest, and code without one, are taken as they are.
func TestRecordAboutSomethingElse(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		recorded, asked string
		held            bool
	}{{"", "", false}, {"", "a", false}, {"a", "", false}, {"a", "a", false}, {"a", "b", true}} {
		of := about{digest: row.asked, says: aboutItem}
		if err := of.check("k#1/0", &stepRecord{Of: row.recorded}); (err != nil) != row.held {
			t.Errorf("recorded %q, asked for %q: error %v, want held %t", row.recorded, row.asked, err, row.held)
		}
	}
}

func TestSagaRecord(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]struct{ valid, ok, failed, aside bool }{
		`{"ok":true}`:                          {true, true, false, false},
		`{"aside":true,"ok":true}`:             {true, true, false, true},
		`{"error":{"code":"c","message":"m"}}`: {true, false, true, false},
		`{}`:                                   {}, `null`: {}, `1`: {},
		`{"ok":true,"error":{"code":"c","message":"m"}}`: {},
	} {
		rec, valid := readSagaRecord(json.RawMessage(text))
		if valid != want.valid {
			t.Errorf("%s: valid = %t, want %t", text, valid, want.valid)
			continue
		}
		if !valid {
			continue
		}
		if rec.OK != want.ok || (rec.Error != nil) != want.failed || rec.Aside != want.aside {
			t.Errorf("%s is read as %+v", text, rec)
		}
		if got := string(rec.encode()); got != text {
			t.Errorf("%s is written as %s", text, got)
		}
	}
	if rec, ok := readSagaRecord(nil); !ok || rec.OK || rec.Error != nil {
		t.Errorf("a saga without an entry is read as %+v, %t, want one that has not ended", rec, ok)
	}
	for text, kept := range map[string]bool{keptEntry: true, undoneEntry: false, `true`: false, `1`: false} {
		if isKept(json.RawMessage(text)) != kept {
			t.Errorf("%s: kept = %t, want %t", text, !kept, kept)
		}
	}
}
