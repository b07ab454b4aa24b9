package perdure

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// entries returns metadata with n entries, each with a value of that many bytes.
func entries(n, bytes int) map[string]string {
	m := make(map[string]string, n)
	for i := range n {
		m[fmt.Sprintf("k%02d", i)] = strings.Repeat("x", bytes)
	}
	return m
}

func TestMetadataIsLimited(t *testing.T) {
	for name, c := range map[string]struct {
		metadata map[string]string
		says     string // part of the error; empty: accepted
	}{
		"64 entries of 4 KiB":  {entries(64, 4096), "has 64 entries; a run takes 16"},
		"17 small entries":     {entries(17, 1), "has 17 entries; a run takes 16"},
		"16 entries of 4 KiB":  {entries(16, 4096), "a run takes 16384"},
		"one byte too many":    {entries(16, 1022), "has 16400 bytes of keys and values; a run takes 16384"},
		"exactly 16 KiB":       {entries(16, 1021), ""},
		"a value of 4 KiB":     {entries(1, 4096), ""},
		"a value of 4 KiB + 1": {entries(1, 4097), "is longer than 4096 bytes"},
	} {
		submission := Submission{Kind: "k", Metadata: c.metadata}
		spawn := Commit{ID: "c", RunID: "0190a0b0-0000-7000-8000-000000000001", Epoch: 1,
			Children: []Spawn{{Key: "a", Kind: "k", Metadata: c.metadata}}}
		for what, err := range map[string]error{"a submission": submission.Validate(), "a spawn": spawn.Validate()} {
			var refused *Error
			switch {
			case c.says == "" && err != nil:
				t.Errorf("%s with metadata of %s: refused with %v, want it accepted", what, name, err)
			case c.says == "":
			case !errors.As(err, &refused), refused.Code != CodeTooLarge,
				!strings.Contains(refused.Message, c.says), !strings.Contains(refused.Field, "metadata"):
				t.Errorf("%s with metadata of %s: %v, want %q with the field metadata", what, name, err, c.says)
			}
		}
	}
}

func TestMergeMetadata(t *testing.T) {
	for _, c := range []struct{ old, patch, want string }{
		{``, `{"a":1}`, `{"a":1}`},
		{`"text"`, `{"a":1}`, `{"a":1}`},
		{`{"b":1,"a":{"x":2}}`, `{"a":{"y":1},"c":"<ü>"}`, `{"b":1,"a":{"y":1},"c":"<ü>"}`},
		{`{"a":1,"b":2}`, `{"a":null,"c":null}`, `{"b":2}`},
		{`{"parent_run_id":"r","key":"k"}`, `{"n":1}`, `{"parent_run_id":"r","key":"k","n":1}`},
		{`{"parent_run_id":"r"}`, `{"parent_run_id":null}`, ""},
		{`{}`, `[1]`, ""},
		{`{}`, `null`, ""},
	} {
		got, err := MergeMetadata([]byte(c.old), []byte(c.patch))
		if c.want == "" && CodeOf(err) != CodeInvalid || c.want != "" && string(got) != c.want {
			t.Errorf("%s merged into %s = %s (%v), want %q", c.patch, c.old, got, err, c.want)
		}
	}
	full := `{"a":"` + strings.Repeat("x", MaxValue-100) + `"}`
	if _, err := MergeMetadata([]byte(full), []byte(full[:2]+"b"+full[3:])); CodeOf(err) != CodeTooLarge {
		t.Errorf("metadata of twice the size: %v, want %s", err, CodeTooLarge)
	}
}

func TestReasoningIsNoText(t *testing.T) {
	for data, want := range map[string]string{`{"text":"a","channel":"reasoning"}`: "",
		`{"text":"a","channel":"other"}`: "a", `"a"`: "a"} {
		if got := DeltaText(Value(data)); got != want {
			t.Errorf("text of %s = %q, want %q", data, got, want)
		}
	}
	joined := JoinDeltas([]Emitted{{Type: LineDelta, Data: []byte(`{"channel":"reasoning","text":"a"}`)},
		{Type: LineDelta, Data: []byte(`{"channel":"reasoning","text":"b"}`)},
		{Type: LineDelta, Data: []byte(`{"text":"c"}`)}})
	if len(joined) != 2 || string(joined[0].Data) != `{"channel":"reasoning","text":"ab"}` {
		t.Errorf("joined = %s, want the reasoning apart from the answer", joined)
	}
}
