package journal

import (
	"encoding/json"
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

func TestSagaRecord(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]struct{ valid, ok, failed, aside bool }{
		`{"ok":true}`:                          {true, true, false, false},
		`{"aside":true,"ok":true}`:             {true, true, false, true},
		`{"error":{"code":"c","message":"m"}}`: {true, false, true, false},
		`{}`:                                   {}, `null`: {}, `1`: {},
		`{"ok":true,"error":{"code":"c","message":"m"}}`: {},
	} {
		rec, valid := ReadSaga(json.RawMessage(text))
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
		if got := string(rec.Encode()); got != text {
			t.Errorf("%s is written as %s", text, got)
		}
	}
	if rec, ok := ReadSaga(nil); !ok || rec.OK || rec.Error != nil {
		t.Errorf("a saga without an entry is read as %+v, %t, want one that has not ended", rec, ok)
	}
	for text, kept := range map[string]bool{KeptEntry: true, UndoneEntry: false, `true`: false, `1`: false} {
		if IsKept(json.RawMessage(text)) != kept {
			t.Errorf("%s: kept = %t, want %t", text, !kept, kept)
		}
	}
}
