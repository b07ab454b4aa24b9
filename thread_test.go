package perdure

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func TestExcerptOfAMessage(t *testing.T) {
	long := strings.Repeat("word ", 10_000)
	for _, c := range []struct{ content, want string }{
		{`"hello"`, "hello"},
		{`" two\n\n lines\u0000\t "`, "two lines"},
		{`[{"type":"text","text":"see"},{"type":"image","data":"AAAA"},{"text":"this"}]`, "see this"},
		{`["a", "b"]`, "a b"},
		{`{"role":"x","content":"inner"}`, "inner"},
		{`{"content":[{"type":"text","text":"deep"}]}`, "deep"},
		{`{"text":"a","note":"b"}`, "a"},
		{`{"n":1}`, `{"n":1}`},
		{`42`, `42`},
		{`""`, `""`},
		{`"say \"hi\" \u00e9 😀"`, `say "hi" é 😀`},
		{`"123456789012345678901"`, "1234567890123456789…"},
		{`"12345678901234567890"`, "12345678901234567890"},
		{`"` + long + `"`, "word word word word…"},
		{`{"text":"` + long + `"}`, "word word word word…"},
		{`{"data":"` + long + `","text":"behind"}`, `{"data":"word word…`},
	} {
		if got := Excerpt(c.content, 20); got != c.want {
			t.Errorf("excerpt of %.60s = %q, want %q", c.content, got, c.want)
		}
	}
	for n := range 40 { // wherever it breaks off
		content := `"` + strings.Repeat("x", ExcerptBytes-n) + `\ud83d\ude00é` + strings.Repeat("y", 100) + `"`
		if got := Excerpt(content, 1<<20); !utf8.ValidString(got) || !strings.HasSuffix(got, "…") ||
			strings.Count(got, "x") != ExcerptBytes-max(n, 1) {
			t.Errorf("a string that breaks off %d bytes after an escape: …%q", n, got[max(0, len(got)-10):])
		}
	}
}

func TestTitleFromMetadata(t *testing.T) {
	for metadata, want := range map[string]string{`{"title":"Trip to Oslo"}`: "Trip to Oslo", `{"title":1}`: "",
		`{}`: "", `[]`: "", ``: "", `{"title":{"text":"x"}}`: ""} {
		if got := MetadataTitle(metadata); got != want {
			t.Errorf("title of %s = %q, want %q", metadata, got, want)
		}
	}
}
