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

// What agents, workers, tenants and servers wrote is never printed as it is: a terminal obeys escape sequences (OSC 52 writes the
// clipboard), a line break or a tab forges a row of a table, and characters that turn text around or have no width make it look
// like something else. Everything that is printed for people goes through visible, literal or block, and everything that is
// printed as JSON through safeJSON. Only what this program itself adds, colours and line breaks, is left out.

// plain tells whether a character shows itself and does nothing else. Not plain are controls (C0, DEL, C1), what turns text
// around, what has no width, line and paragraph separators, spaces other than ' ', and bytes that are no UTF-8.
func plain(r rune) bool { return strconv.IsPrint(r) && r != utf8.RuneError }

// visible is a text in one line, with a dot for each character that is not plain: for tables, where a text need not be read to
// the letter.
func visible(s string) string {
	return strings.Map(func(r rune) rune {
		if plain(r) || r == utf8.RuneError {
			return r
		}
		return '·'
	}, s)
}

// literal is a text in one line that writes out each character that is not plain, as Go would: for what is decided about.
func literal(s string) string {
	var b strings.Builder
	for i, r := range s {
		switch {
		case plain(r) || strings.HasPrefix(s[i:], "\uFFFD"):
			b.WriteRune(r)
		case r == utf8.RuneError:
			fmt.Fprintf(&b, `\x%02x`, s[i])
		default:
			b.WriteString(strings.Trim(strconv.QuoteRuneToASCII(r), "'"))
		}
	}
	return b.String()
}

// block is a text of several lines, each as literal has it. Lines after the first are indented, so that none of them looks like
// a line of this program's own.
func block(s string) string {
	lines := strings.Split(s, "\n")
	for i, line := range lines {
		if lines[i] = literal(strings.ReplaceAll(line, "\t", "    ")); i > 0 && line != "" {
			lines[i] = "  " + lines[i]
		}
	}
	return strings.Join(lines, "\n")
}

// safeJSON escapes in JSON what is not plain, as JSON does it: the value stays the same. JSON itself allows C1 controls and
// characters that turn text around as they are.
func safeJSON(text []byte) []byte {
	var b bytes.Buffer
	for len(text) > 0 {
		r, n := utf8.DecodeRune(text)
		switch {
		case plain(r) || r == '\n' || r == '\t' || r == '\r': // whitespace: in a string these are escaped already
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

// printJSON prints a value over several lines.
func printJSON(w io.Writer, v any) error { return writeJSON(w, v, "  ") }

// printJSONLine prints a value in one line.
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
