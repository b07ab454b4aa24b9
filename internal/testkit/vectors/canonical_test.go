package vectors

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"unicode/utf16"

	"github.com/perdure/perdure"
)

// A canonicalRow is a text with its canonical form and its digest, or a text that has none.
type canonicalRow struct {
	Text      string `json:"text"`
	Canonical string `json:"canonical,omitempty"`
	Digest    string `json:"digest,omitempty"`
	Refused   bool   `json:"refused,omitempty"`
}

func TestCanonicalVectors(t *testing.T) {
	var b bytes.Buffer
	texts := canonicalTexts()
	seen := map[string]bool{}
	for n, text := range texts {
		if seen[text] {
			t.Errorf("the text %q is there twice", text)
		}
		seen[text] = true
		row := canonicalRow{Text: text}
		if canonical, err := perdure.Canonical(json.RawMessage(text)); err != nil {
			row.Refused = true
		} else {
			sum := sha256.Sum256(canonical)
			row.Canonical, row.Digest = string(canonical), hex.EncodeToString(sum[:12])
		}
		before := "["
		if n > 0 {
			before = ","
		}
		fmt.Fprintf(&b, "%s\n %s", before, ascii(marshal(t, row)))
	}
	b.WriteString("\n]\n")
	if len(texts) < 200 {
		t.Errorf("there are %d texts, want at least 200", len(texts))
	}
	if !json.Valid(b.Bytes()) {
		t.Fatal("the file is no JSON")
	}
	check(t, "canonical.json", b.Bytes())
}

// ascii escapes all other characters of JSON, so that no editor changes them.
func ascii(v []byte) string {
	var b strings.Builder
	for _, r := range string(v) {
		switch {
		case r < 0x7f:
			b.WriteRune(r)
		case r > 0xffff:
			hi, lo := utf16.EncodeRune(r)
			fmt.Fprintf(&b, `\u%04x\u%04x`, hi, lo)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.String()
}

// canonicalTexts returns the texts, of which languages differ in how they read or print many.
func canonicalTexts() (texts []string) {
	texts = append(texts, plainTexts...)
	texts = append(texts, numbers...)
	for _, n := range numbers[:24] {
		texts = append(texts, `{"n":[`+n+`,-1]}`)
	}
	// All characters below U+0020, escaped, and some others, escaped and not.
	for c := rune(1); c < 0x20; c++ {
		texts = append(texts, fmt.Sprintf(`"a\u%04Xb"`, c))
	}
	for _, c := range []rune{'"', '\\', '/', '<', '>', '&', '\'', 'A', 0x7f, 0x80, 0xa0, 0xad, 0xe9, 0x0301, 0x200b,
		0x2028, 0x2029, 0xd7ff, 0xe000, 0xfeff, 0xfffd, 0xffff} {
		texts = append(texts, fmt.Sprintf(`"\u%04x"`, c))
		if c > '\\' && c != 'A' {
			texts = append(texts, `"`+string(c)+`"`)
		}
	}
	for _, pair := range [][2]string{
		{"a", "B"}, {"a", "aa"}, {"a", "a b"}, {"a", "a\u0301"}, {"e\u0301", "é"}, {"z", "é"}, {"", " "}, {"10", "9"},
		{"-1", "1"}, {"_", "A"}, {"~", "é"},
		// In UTF-16 a character beyond U+FFFF comes before U+E000 to U+FFFF, in UTF-8 after them.
		{"\uffff", "\U00010000"}, {"\ue000", "😀"}, {"ﬀ", "\U0001d306"}, {"\u2028", "\u2029"}, {"日", "😀"},
	} {
		one, two := ascii(must(json.Marshal(pair[0]))), ascii(must(json.Marshal(pair[1])))
		texts = append(texts, fmt.Sprintf(`{%s:1,%s:2}`, one, two), fmt.Sprintf(`{%s:2,%s:1}`, two, one))
	}
	for _, depth := range []int{2, 60, 64, 65, 66} {
		texts = append(texts, strings.Repeat("[", depth)+strings.Repeat("]", depth),
			strings.Repeat(`{"a":`, depth)+"1"+strings.Repeat("}", depth))
	}
	return texts
}

// must returns a value that can't fail.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// numbers are written by hand: which of their digits are kept is the point.
var numbers = []string{
	"0", "-0", "-0.0", "0.0", "0e0", "-0e5", "0E-5", "7", "-7", "1.0", "-1.0", "1.50", "100e-2", "1e3", "1E3", "1e+3",
	"12.5e-1", "0.1", "0.10", "123.456", "1e-6", "0.000001", "1e-7", "0.0000001", "0.00000123", "12e-10", "1e-12",
	"1e20", "1e21", "100000000000000000000", "1000000000000000000000", "1000000000000000000000.0", "123456789e15",
	"1.7976931348623157e308", "1.7976931348623159e308", "1e309", "-1E400", "5e-324", "3e-324", "2e-324", "1e-400",
	"2.2250738585072011e-308", "4.35", "0.3", "0.30000000000000004", "0.1000000000000000055511151231257827",
	"9007199254740991", "9007199254740992", "9007199254740993", "-9007199254740993", "9007199254740993.0",
	"9007199254740993e0", "9223372036854775807", "18446744073709551616", "123456789012345678901234567890",
	"333333333.33333329", "1e23", "9.5e-3", "4.50", "2e-3", "0.000000000000000000000000001",
	"01", "+1", ".5", "1.", "1e", "0x10", "NaN", "Infinity", "-",
}

// plainTexts are about the form of values.
var plainTexts = []string{
	`null`, `true`, `false`, ` true `, `""`, `"a"`, `[]`, `{}`, ` [ ] `, "{\n\t}\r\n", `[1,2,3]`,
	`[1, 2 ,3 ]`, `[3,2,1]`,
	`[[],{},""]`, `{"a":null}`, `{"b":1,"a":2}`, `{ "b" : [ { "d" : 1 , "c" : 2 } ] , "a" : { } }`,
	`{"a":{"c":1,"b":2},"A":0}`, `{"":0}`, `{"":0,"a":1}`, `{"\u0061":1,"b":2}`, `{"b":2,"\u0061":1}`,
	`{"a":1,"a":1}`, `{"a":1,"a":2}`, `{"a":1,"b":2,"a":3}`, `{"a":1,"\u0061":2}`, `[{"x":{"a":1,"a":1}}]`,
	`{"é":1,"\u00e9":2}`, `"e\u0301"`, `"\/"`, `"a/b"`, `"</script>"`,
	`"\b\t\n\f\r"`, `"\"\\"`, `"\ud83d\ude00"`, `"😀"`, `"\uD83D\uDE00"`, `"\ud800"`, `"\udc00"`, `"\ud800x"`,
	`"\udc00\ud800"`, `"\ud800\ud800"`, `"\u0000"`, `{"\u0000":1}`, `{"a\"b":1,"a b":2}`, `{"a\\b":1,"a/b":2}`,
	`"a\tb"`, "\"a\tb\"", `"日本語"`, `{"日本":"語","a":"b"}`, `["a",["b",["c",[]]]]`, `{"ok":true,"error":null}`,
	`[1,]`, `{"a":1,}`, `[,1]`, `{a:1}`, `{"a"}`, `'a'`, `"a`, `[1 2]`, `1 2`, `{}{}`, `// c`, `nul`, `True`, ``, ` `,
	"\ufeff1", `{"kind":"search","limit":10,"tags":["x","y"],"when":"2000-01-01T00:00:00Z"}`,
	`{"when":"2000-01-01T00:00:00Z","tags":["x","y"],"limit":1e1,"kind":"search"}`,
}
