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
