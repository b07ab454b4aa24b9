package perdure

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// Canonical JSON is what decoding and encoding give.
func TestCanonicalIsWhatDecodingGives(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	words := []string{"", "a", "b", "ab", "é", "日本", `\n`, `\"`, `\u0061`, `\u00e9`, `\ud83d\ude00`, `\/`, `\\`,
		"<", "\x7f", `\u0008\u001f`, "\u2028"}
	word := func() string { return `"` + words[r.IntN(len(words))] + words[r.IntN(len(words))] + `"` }
	space := func() string { return []string{"", " ", "\n\t\r"}[r.IntN(3)] }
	var value func(depth int) string
	value = func(depth int) string {
		var parts []string
		switch n := r.IntN(6); {
		case n < 2 && depth < 5:
			for range r.IntN(5) {
				parts = append(parts, space()+value(depth+1)+space())
			}
			return "[" + strings.Join(parts, ",") + space() + "]"
		case n < 4 && depth < 5:
			for range r.IntN(5) {
				parts = append(parts, space()+word()+space()+":"+space()+value(depth+1)+space())
			}
			return "{" + strings.Join(parts, ",") + space() + "}"
		case n == 4:
			return []string{"0", "-1.50", "1E+400", "true", "false", "null"}[r.IntN(6)]
		}
		return word()
	}
	refused := 0
	for range 20000 {
		text := space() + value(0) + space()
		d := json.NewDecoder(strings.NewReader(text))
		d.UseNumber()
		want, wantErr := decodedCanonical(nil, d, 0)
		got, err := canonical("action", json.RawMessage(text))
		if (err == nil) != (wantErr == nil) || err == nil && string(got) != string(want) {
			t.Fatalf("canonical(%q) = %q, %v, want %q, %v", text, got, err, want, wantErr)
		}
		if err != nil {
			refused++
		}
	}
	if refused == 0 || refused > 15000 {
		t.Errorf("%d of 20000 values were refused, want some", refused)
	}
}

// Numbers are written as ECMAScript prints doubles, but integers keep their digits.
func TestCanonicalNumbers(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"0", "0"}, {"-0", "0"}, {"-0.0", "0"}, {"0e5", "0"}, {"7", "7"}, {"-7", "-7"},
		{"1.0", "1"}, {"1e3", "1000"}, {"1E3", "1000"}, {"1.50", "1.5"}, {"-1.50", "-1.5"}, {"0.1", "0.1"},
		{"100e-2", "1"}, {"1e20", "100000000000000000000"}, {"1e21", "1e+21"}, {"1.5e300", "1.5e+300"},
		{"1e-6", "0.000001"}, {"1e-7", "1e-7"}, {"12e-10", "1.2e-9"}, {"1e-12", "1e-12"},
		{"0.1000000000000000055511151231257827", "0.1"}, {"5e-324", "5e-324"}, {"1e-400", "0"},
		{"9007199254740993", "9007199254740993"}, {"9007199254740993.0", "9007199254740992"},
		{"123456789012345678901234567890", "123456789012345678901234567890"},
		{"1E400", "1E400"}, {"-1e400", "-1e400"},
	} {
		got, err := Canonical(json.RawMessage(c.text))
		if err != nil || string(got) != c.want {
			t.Errorf("Canonical(%s) = %s, %v, want %s", c.text, got, err, c.want)
		}
	}
}

// decodedCanonical reads one value from the decoder and appends its canonical form.
func decodedCanonical(b []byte, d *json.Decoder, depth int) ([]byte, error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("is nested more than %d deep", maxDepth)
	}
	t, err := d.Token()
	if err != nil {
		return nil, err
	}
	switch t := t.(type) {
	case json.Delim:
		if t == '[' {
			b = append(b, '[')
			for i := 0; d.More(); i++ {
				if i > 0 {
					b = append(b, ',')
				}
				if b, err = decodedCanonical(b, d, depth+1); err != nil {
					return nil, err
				}
			}
			_, err = d.Token()
			return append(b, ']'), err
		}
		return decodedObject(b, d, depth)
	case string:
		return appendString(b, t), nil
	case json.Number:
		return append(b, t...), nil
	case bool:
		return fmt.Append(b, t), nil
	}
	return append(b, "null"...), nil
}

func decodedObject(b []byte, d *json.Decoder, depth int) ([]byte, error) {
	type member struct {
		name string
		text []byte
	}
	var all []member
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return nil, err
		}
		text, err := decodedCanonical(nil, d, depth+1)
		if err != nil {
			return nil, err
		}
		all = append(all, member{t.(string), text})
	}
	if _, err := d.Token(); err != nil {
		return nil, err
	}
	slices.SortStableFunc(all, func(a, b member) int { return cmp.Compare(a.name, b.name) })
	b = append(b, '{')
	for i, m := range all {
		if i > 0 {
			if m.name == all[i-1].name {
				return nil, fmt.Errorf("has %.60q twice", m.name)
			}
			b = append(b, ',')
		}
		b = append(append(appendString(b, m.name), ':'), m.text...)
	}
	return append(b, '}'), nil
}
