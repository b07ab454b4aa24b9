package kernel

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

// bodies are texts of which some need more than sorted keys.
var bodies = []string{
	``, ` `, `null`, `true`, `-1.5e+7`, `1E400`, `nul`, `1 `, ` 1`, `1,2`,
	`""`, `"a"`, `"é 日本"`, `"<"`, `">"`, `"&"`, `"\u0041"`, `"\\"`, `"\n"`, `"\/"`, `"`, `"a`, `"a"b`,
	"\"\u2028\"", "\"\u2029\"", "\"\u2027\"", "\"\x7f\"", "\"\xff\"",
	`[]`, `[[]]`, `[1,"a",{}]`, `[1, 2]`, `[1,]`, `[,1]`, `[1`, `[`, `]`,
	`{}`, `{"a":1}`, `{"b":1,"a":2}`, `{"b":{"d":1,"c":[{"z":1,"y":2}]},"a":[]}`, `{"a":1,"a":2}`,
	`{"b":1,"a":2,"b":3}`, `{"a" :1}`, `{"a": 1}`, `{"":1,"a":2}`, `{"a":2,"":1}`, `{"ab":1,"a":2}`,
	`{"é":1,"z":2,"Z":3}`, `{"b\u0061":1,"a":2}`, `{"<":1,"a":2}`,
	`{`, `{"a"`, `{"a":`, `{"a":1`, `{"a":1,`, `{"a":1,}`, `{a:1}`, `{"a":1}}`,
	`{"kind":"job","input":{"n":1,"host":"cube"},"class":"task","queue":"default"}`,
	strings.Repeat("[", 99) + strings.Repeat("]", 99), strings.Repeat("[", 101) + strings.Repeat("]", 101),
	strings.Repeat(`{"b":1,"a":`, 101) + "1" + strings.Repeat("}", 101),
	strings.Repeat("[", 10001) + strings.Repeat("]", 10001),
}

// randomJSON returns a random value as JSON, mostly one without escapes.
func randomJSON(r *rand.Rand, depth int) string {
	word := func() string {
		letters := []rune("abcXYZ_é日 ")
		if r.IntN(20) == 0 {
			letters = []rune("\"<>&\n\\\u2028")
		}
		b, _ := json.Marshal(strings.Repeat(string(letters[r.IntN(len(letters))]), r.IntN(3)))
		return string(b)
	}
	switch n := r.IntN(8); {
	case n < 2 && depth < 5:
		var parts []string
		for range r.IntN(5) {
			parts = append(parts, randomJSON(r, depth+1))
		}
		return "[" + strings.Join(parts, ",") + "]"
	case n < 5 && depth < 5:
		var parts []string
		for range r.IntN(6) {
			parts = append(parts, word()+":"+randomJSON(r, depth+1))
		}
		return "{" + strings.Join(parts, ",") + "}"
	case n == 5:
		return fmt.Sprint(r.IntN(1000)-500) + []string{"", ".5", "e3", "E-3"}[r.IntN(4)]
	case n == 6:
		return []string{"true", "false", "null"}[r.IntN(3)]
	}
	return word()
}

func TestCanonicalIsWhatDecodingAndEncodingGive(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	list, arranged := bodies, 0
	for range 5000 {
		list = append(list, randomJSON(r, 0))
	}
	for _, text := range list {
		got, want := string(Canonical([]byte(text))), string(recode([]byte(text)))
		if json.Valid([]byte(text)) && got != want {
			t.Errorf("Canonical(%.200q) = %.200q, want %.200q", text, got, want)
		}
		a := arranger{in: []byte(text)}
		if a.value(0) && a.pos == len(a.in) {
			arranged++
		}
	}
	if arranged < len(list)/2 {
		t.Errorf("%d of %d texts were arranged, want most of them", arranged, len(list))
	}
}
