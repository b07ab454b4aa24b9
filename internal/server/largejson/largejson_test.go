package largejson_test

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/server/largejson"
)

// texts are pieces of JSON, and of texts that are no JSON.
var texts = []string{`{`, `}`, `[`, `]`, `,`, `:`, ` `, "\n", "\t", `"a"`, `"b":`, `"a":`, `1`, `-0`, `1e5`, `1.50`,
	`12345678901234567890`, `01`, `true`, `null`, `nul`, `"\u00e9"`, `"é"`, `"<&>"`, `"\/"`, `"\u2028"`, "\"\u2028\"",
	`"\ud83d\ude00"`, `"\ud83d"`, `"\u0000"`, `"\x"`, `"`, "\u00a0", "\"\x01\"", `{"a":1,"a":2}`, `[[],{}]`, `"\n\"\\"`}

func TestSameAsEncodingJSON(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	try := func(text string) {
		t.Helper()
		if got, want := largejson.Valid([]byte(text)), json.Valid([]byte(text)); got != want {
			t.Errorf("Valid(%q) = %v, want %v", text, got, want)
		}
		// Values have to be the same byte by byte, and texts those that both write alike.
		said := strings.ReplaceAll(text, "\u2028", "")
		run := api.Run{RunID: "r", Kind: "<k>", Input: json.RawMessage(text), Summary: said,
			Metadata: map[string]string{"b": said, "a": "1"}}
		for what, v := range map[string]any{"a run": &run, "runs": &api.Runs{Runs: []api.Run{run}},
			"a submission": &perdure.Submission{Kind: "k", Input: json.RawMessage(text), Metadata: run.Metadata},
			"a poll": &api.Polled{Runs: []api.Grant{{RunID: "r", Input: json.RawMessage(text),
				Journal: []api.JournalEntry{{Seq: 1, Key: "k", Value: json.RawMessage(text)}}}}}} {
			var b bytes.Buffer
			e := json.NewEncoder(&b)
			e.SetEscapeHTML(false)
			wantErr := e.Encode(v)
			got, err := largejson.Encode(v)
			if (err == nil) != (wantErr == nil) || string(got) != strings.TrimSuffix(b.String(), "\n") {
				t.Errorf("Encode of %s with %q = %s, %v, want %s, %v", what, text, got, err, b.Bytes(), wantErr)
			}
			want, wantErr := json.Marshal(v)
			got, err = largejson.Marshal(v)
			if (err == nil) != (wantErr == nil) || !bytes.Equal(got, want) {
				t.Errorf("Marshal of %s with %q = %s, %v, want %s, %v", what, text, got, err, want, wantErr)
			}
		}
	}
	for _, text := range texts {
		try(text)
		try(`{"k":[` + text + "  , 1 ]}")
	}
	for range 3000 {
		var b strings.Builder
		for range 1 + random.IntN(7) {
			b.WriteString(texts[random.IntN(len(texts))])
		}
		try(b.String())
	}
}
