package perdure

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestJoinDeltas(t *testing.T) {
	d := func(data string) Emitted { return Emitted{Type: LineDelta, Data: json.RawMessage(data)} }
	big := `"` + strings.Repeat("x", MaxDelta-2) + `"`
	for _, c := range []struct {
		name     string
		in, want []Emitted
	}{
		{"nothing", nil, nil},
		{"texts", []Emitted{d(`"a"`), d(` "b" `), d(`""`), d(`"c"`)}, []Emitted{d(`"abc"`)}},
		{"objects", []Emitted{d(`{"text":"a"}`), d(`{ "text" : "b" }`)}, []Emitted{d(`{"text":"ab"}`)}},
		{"escapes", []Emitted{d(`"\u00e9\n\\"`), d(`"\"n\ud83d\ude00"`)}, []Emitted{d(`"\u00e9\n\\\"n\ud83d\ude00"`)}},
		{"alike but for the text", []Emitted{d(`{"text":"a","i":0,"<k>":"v"}`), d(`{"i":0,"<k>":"v","text":"b"}`)},
			[]Emitted{d(`{"\u003ck\u003e":"v","i":0,"text":"ab"}`)}},
		{"different", []Emitted{d(`{"text":"a","i":0}`), d(`{"text":"b","i":1}`), d(`{"text":"c"}`), d(`"d"`)},
			[]Emitted{d(`{"text":"a","i":0}`), d(`{"text":"b","i":1}`), d(`{"text":"c"}`), d(`"d"`)}},
		{"other shapes", []Emitted{d(`1`), d(`1`), d(`{"text":1}`), d(`{"text":1}`), d(`{"tool":"x"}`),
			d(`{"tool":"x"}`), d(``), d(``), d(`["a"]`), d(`null`)},
			[]Emitted{d(`1`), d(`1`), d(`{"text":1}`), d(`{"text":1}`), d(`{"tool":"x"}`), d(`{"tool":"x"}`), d(``),
				d(``), d(`["a"]`), d(`null`)}},
		{"one is left as it came", []Emitted{d(` { "text" : "a" } `)}, []Emitted{d(` { "text" : "a" } `)}},
		{"something between", []Emitted{d(`"a"`), d(`"b"`), {Type: "x:n"}, d(`"c"`), d(`"d"`),
			{Type: "x:n", Data: json.RawMessage(`"e"`)}, {Type: "x:n", Data: json.RawMessage(`"e"`)}},
			[]Emitted{d(`"ab"`), {Type: "x:n"}, d(`"cd"`), {Type: "x:n", Data: json.RawMessage(`"e"`)},
				{Type: "x:n", Data: json.RawMessage(`"e"`)}}},
		{"up to a bound", []Emitted{d(big), d(`"a"`), d(`"b"`)}, []Emitted{d(big), d(`"ab"`)}},
	} {
		before := fmt.Sprintf("%s", c.in)
		got := JoinDeltas(c.in)
		same := func(a, b Emitted) bool { return a.Type == b.Type && string(a.Data) == string(b.Data) }
		if !slices.EqualFunc(got, c.want, same) {
			t.Errorf("%s: joined to %.300s, want %.300s", c.name, fmt.Sprintf("%s", got), fmt.Sprintf("%s", c.want))
		}
		if fmt.Sprintf("%s", c.in) != before {
			t.Errorf("%s: JoinDeltas changed its argument", c.name)
		}
	}
}

// Random text in random pieces comes back unchanged, in lines that are valid JSON within the limit.
func TestJoinedDeltasKeepTheText(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 1))
		var events []Emitted
		var want strings.Builder
		for range r.IntN(400) {
			text := someText(r, r.IntN(200))
			want.WriteString(text)
			b, err := json.Marshal(text)
			if err != nil {
				t.Fatal(err)
			}
			if r.IntN(2) == 0 {
				b = slices.Concat([]byte(`{"text":`), b, []byte(`}`))
			}
			events = append(events, Emitted{Type: LineDelta, Data: b})
		}
		var got strings.Builder
		for _, e := range JoinDeltas(events) {
			if err := CheckValue("data", e.Data); err != nil || len(e.Data) > MaxDelta {
				t.Fatalf("seed %d: a line of %d bytes, %v, want at most %d", seed, len(e.Data), err, MaxDelta)
			}
			var text string
			if e.Data[0] == '"' {
				json.Unmarshal(e.Data, &text)
			} else {
				var o struct{ Text string }
				json.Unmarshal(e.Data, &o)
				text = o.Text
			}
			got.WriteString(text)
		}
		if got.String() != want.String() {
			t.Fatalf("seed %d: the text is %q, want %q", seed, got.String(), want.String())
		}
	}
}

func someText(r *rand.Rand, n int) string {
	var b strings.Builder
	for b.Len() < n {
		c := []rune{rune(1 + r.IntN(0x20)), '"', '\\', '<', '\u2028', rune('a' + r.IntN(26)),
			rune(r.IntN(utf8.MaxRune + 1))}[r.IntN(7)]
		if c != 0 && utf8.ValidRune(c) {
			b.WriteRune(c)
		}
	}
	return b.String()
}
