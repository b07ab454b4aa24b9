package perdure

import (
	"encoding/json"
	"testing"
)

// A text in an object is written as encoding/json writes it, and so is an instant.
func TestObjectWritesTextsAsJSONDoes(t *testing.T) {
	texts := []string{"plain", "a b", `a"b`, `a\b`, "<&>", "é", "\u2028", "\x7f", "\x00", "\t", "\xff", "日本", "a\n"}
	for c := range 256 {
		texts = append(texts, "x"+string(rune(c)), "x"+string([]byte{byte(c)}))
	}
	for _, s := range texts {
		want, err := json.Marshal(map[string]string{"k": s})
		if err != nil {
			t.Fatal(err)
		}
		if got := object("k", s); string(got) != string(want) {
			t.Errorf("object with the text %q is %s, want %s", s, got, want)
		}
	}
	for _, i := range []Instant{1, 1_000_000, 1_767_312_000_000_001, -62_135_596_800_000_000} {
		want := `{"at":"` + i.String() + `"}`
		if got := object("at", i); string(got) != want {
			t.Errorf("object with an instant is %s, want %s", got, want)
		}
		b, err := json.Marshal(i)
		var back Instant
		if err == nil {
			err = json.Unmarshal(b, &back)
		}
		if err != nil || back != i || string(b) != `"`+i.String()+`"` {
			t.Errorf("instant %d is written as %s and read as %d, error %v", i, b, back, err)
		}
	}
}

// Unset values leave no trace, wherever they stand.
func TestObjectOmitsUnsetValues(t *testing.T) {
	for want, pairs := range map[string][]any{
		`{}`:                     {"a", "", "b", nil, "c", false, "d", Instant(0), "e", Value(""), "f", TenantID("")},
		`{"a":0,"z":1}`:          {"a", 0, "b", "", "z", int64(1)},
		`{"a":true,"t":"x"}`:     {"n", (*int)(nil), "a", true, "b", false, "t", TenantID("x")},
		`{"v":{"a":1},"w":"no"}`: {"v", Value(`{"a":1}`), "w", Value("no")},
	} {
		if got := object(pairs...); string(got) != want {
			t.Errorf("object(%v) = %s, want %s", pairs, got, want)
		}
	}
}
