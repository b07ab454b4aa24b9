package vectors

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// update makes the tests write the files instead of comparing them.
var update = flag.Bool("update", false, "write testdata/journal")

// root is the folder of the files.
const root = "../../../testdata/journal"

// check compares a file with what it should contain, or writes it.
func check(t *testing.T, name string, want []byte) {
	t.Helper()
	path := filepath.Join(root, name)
	if *update {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, want, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v: run make vectors", err)
	}
	if bytes.Equal(got, want) {
		return
	}
	line, was, is := firstDifference(got, want)
	t.Errorf("testdata/journal/%s, line %d:\n  the file has %s\n  the code has %s\n"+
		"run make vectors; a change of a byte is a change of the format and needs its line in docs/journal.md",
		name, line, was, is)
}

// firstDifference returns the first line in which two texts differ, and how each has it.
func firstDifference(a, b []byte) (line int, inA, inB string) {
	as, bs := strings.Split(string(a), "\n"), strings.Split(string(b), "\n")
	for n := range max(len(as), len(bs)) {
		inA, inB = "nothing", "nothing"
		if n < len(as) {
			inA = as[n]
		}
		if n < len(bs) {
			inB = bs[n]
		}
		if inA != inB {
			return n + 1, inA, inB
		}
	}
	return 0, "", ""
}

// checkFolder fails for files that no test writes. With -update it removes them.
func checkFolder(t *testing.T, folder string, names []string) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(root, folder))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		switch path := filepath.Join(root, folder, e.Name()); {
		case slices.Contains(names, e.Name()):
		case *update:
			if err := os.Remove(path); err != nil {
				t.Error(err)
			}
		default:
			t.Errorf("%s: no test writes this file: run make vectors", path)
		}
	}
}

// marshal returns a value as JSON without escaping HTML.
func marshal(t *testing.T, v any) []byte {
	t.Helper()
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		t.Fatal(err)
	}
	return bytes.TrimSpace(b.Bytes())
}

// layout breaks JSON into lines. A value stays on one line if it fits. The order of members is kept.
func layout(t *testing.T, v []byte) []byte {
	t.Helper()
	if !json.Valid(v) {
		t.Fatalf("this is no JSON: %s", v)
	}
	p := printer{raw: v}
	p.value(0, 0)
	return append(p.out, '\n')
}

// lineWidth is the length of a line that layout tries to keep.
const lineWidth = 120

// A printer prints compact JSON with line breaks.
type printer struct {
	raw []byte
	at  int
	out []byte
}

// value prints the value at p.at. used is the number of columns before it.
func (p *printer) value(indent, used int) {
	end := valueEnd(p.raw, p.at)
	text := p.raw[p.at:end]
	if len(text)+used <= lineWidth || text[0] != '{' && text[0] != '[' {
		p.out = append(p.out, text...)
		p.at = end
		return
	}
	closing := text[0] + 2 // } follows { by two, and ] follows [
	object := text[0] == '{'
	p.out = append(p.out, text[0])
	p.at++
	for p.raw[p.at] != closing {
		if p.raw[p.at] == ',' {
			p.out = append(p.out, ',')
			p.at++
		}
		p.out = append(p.out, '\n')
		p.out = append(p.out, bytes.Repeat([]byte(" "), indent+1)...)
		used := indent + 2
		if object {
			from := p.at
			p.at = valueEnd(p.raw, p.at) + 1 // with the colon
			p.out = append(append(p.out, p.raw[from:p.at]...), ' ')
			used += p.at - from + 1
		}
		p.value(indent+1, used)
	}
	p.out = append(p.out, '\n')
	p.out = append(append(p.out, bytes.Repeat([]byte(" "), indent)...), closing)
	p.at++
}

// valueEnd returns the end of the value that begins at a place of compact JSON.
func valueEnd(raw []byte, at int) int {
	depth := 0
	for n := at; n < len(raw); n++ {
		switch raw[n] {
		case '"':
			for n++; raw[n] != '"'; n++ {
				if raw[n] == '\\' {
					n++
				}
			}
		case '{', '[':
			depth++
			continue
		case '}', ']':
			if depth--; depth < 0 {
				return n // the end of what the value is in
			}
		case ',', ':':
			if depth == 0 {
				return n
			}
			continue
		default:
			continue
		}
		if depth == 0 {
			return n + 1
		}
	}
	return len(raw)
}
