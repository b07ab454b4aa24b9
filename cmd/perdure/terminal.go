package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Text from agents, workers, tenants and servers is never printed as it is. A terminal executes
// escape sequences: OSC 52 writes the clipboard. A line break or a tab forges a row of a table.
// Characters that change direction or have no width disguise a text. Text for people goes through
// visible, literal or block, and JSON through safeJSON. Only colours and line breaks of this
// program are printed directly.

// isPlain tells whether a character is printable and has no other effect. Not plain are controls
// (C0, DEL, C1), characters that change direction or have no width, line and paragraph separators,
// spaces other than ' ', and bytes that are not UTF-8.
func isPlain(r rune) bool { return strconv.IsPrint(r) && r != utf8.RuneError }

// visible returns a text in one line, with a dot for each character that is not plain. It is for
// tables, where the exact text does not matter.
func visible(s string) string {
	return strings.Map(func(r rune) rune {
		if isPlain(r) || r == utf8.RuneError {
			return r
		}
		return '·'
	}, s)
}

// literal returns a text in one line that escapes each character that is not plain, as Go does. It
// is for texts by which somebody decides.
func literal(s string) string {
	var b strings.Builder
	for i, r := range s {
		switch {
		case isPlain(r) || strings.HasPrefix(s[i:], "\uFFFD"):
			b.WriteRune(r)
		case r == utf8.RuneError:
			fmt.Fprintf(&b, `\x%02x`, s[i])
		default:
			b.WriteString(strings.Trim(strconv.QuoteRuneToASCII(r), "'"))
		}
	}
	return b.String()
}

// block returns a text of several lines, each escaped as by literal. Lines after the first are
// indented, so that none of them looks like a line of this program.
func block(s string) string {
	lines := strings.Split(s, "\n")
	for i, line := range lines {
		if lines[i] = literal(strings.ReplaceAll(line, "\t", "    ")); i > 0 && line != "" {
			lines[i] = "  " + lines[i]
		}
	}
	return strings.Join(lines, "\n")
}

// safeJSON escapes characters of JSON that are not plain. The value stays the same. JSON itself
// allows C1 controls and characters that change direction.
func safeJSON(text []byte) []byte {
	var b bytes.Buffer
	for len(text) > 0 {
		r, n := utf8.DecodeRune(text)
		switch {
		// White space occurs between values only: in strings it is escaped.
		case isPlain(r) || r == '\n' || r == '\t' || r == '\r':
			b.Write(text[:n])
		case r > 0xffff:
			r -= 0x10000
			fmt.Fprintf(&b, `\u%04x\u%04x`, 0xd800+r>>10, 0xdc00+r&0x3ff)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
		text = text[n:]
	}
	return b.Bytes()
}

// printJSON prints a value on several lines.
func printJSON(w io.Writer, v any) error { return writeJSON(w, v, "  ") }

// printJSONLine prints a value on one line.
func printJSONLine(w io.Writer, v any) error { return writeJSON(w, v, "") }

func writeJSON(w io.Writer, v any, indent string) error {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetIndent("", indent)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return err
	}
	_, err := w.Write(safeJSON(b.Bytes()))
	return err
}
