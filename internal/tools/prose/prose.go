// Package prose keeps the lines of Markdown pages short, so that a change of one sentence shows as a
// change of a few lines. Printed pages go through Wrap; a test of the repository finds long lines in all others.
package prose

import (
	"regexp"
	"strings"
	"unicode/utf8"
)

// Width is how many characters a line of prose may have.
const Width = 100

// listItem is the beginning of a list's item, with the blanks before and after its mark.
var listItem = regexp.MustCompile(`^\s*([-*+]|\d+\.)\s+`)

// A Line is a line of a page.
type Line struct {
	Text string
	// Prose says that the line may be broken at any blank. Tables, code, headings, HTML and link targets may not.
	Prose bool
}

// Lines tells the prose of a page from the rest.
func Lines(page string) []Line {
	var out []Line
	fence, comment := "", false
	for _, text := range strings.Split(page, "\n") {
		bare := strings.TrimSpace(text)
		prose := fence == "" && !comment && bare != "" && !strings.ContainsAny(bare[:1], "|#<>") &&
			!strings.HasPrefix(text, "    ") && !strings.HasPrefix(bare, "[!") &&
			!(strings.HasPrefix(bare, "[") && strings.Contains(bare, "]: ")) && !strings.HasPrefix(bare, "---")
		if strings.HasPrefix(text, "    ") && fence == "" && len(out) > 0 && out[len(out)-1].Prose {
			prose = true // the continued item of a list
		}
		switch {
		case fence != "":
			if strings.HasPrefix(bare, fence) {
				fence = ""
			}
		case strings.HasPrefix(bare, "```"):
			fence, prose = "```", false
		case strings.HasPrefix(bare, "<!--"):
			comment = !strings.Contains(bare, "-->")
		case comment:
			comment = !strings.Contains(bare, "-->")
		}
		out = append(out, Line{text, prose})
	}
	return out
}

// Long says whether a line is prose that has more characters than Width, and a blank to break it at.
func (l Line) Long() bool {
	return l.Prose && utf8.RuneCountInString(l.Text) > Width && len(fill(l.Text)) > 1
}

// Wrap fills the paragraphs of a page anew that have a long line. All others stay as they are.
func Wrap(page string) string {
	lines := Lines(page)
	var out []string
	for i := 0; i < len(lines); {
		end, long := i+1, lines[i].Long()
		for lines[i].Prose && end < len(lines) && lines[end].Prose && !listItem.MatchString(lines[end].Text) &&
			!strings.HasSuffix(lines[end-1].Text, "  ") {
			long = long || lines[end].Long()
			end++
		}
		if !long {
			for _, l := range lines[i:end] {
				out = append(out, l.Text)
			}
		} else {
			text := lines[i].Text
			for _, l := range lines[i+1 : end] {
				text += " " + strings.TrimSpace(l.Text)
			}
			out = append(out, fill(text)...)
		}
		i = end
	}
	return strings.Join(out, "\n")
}

// fill breaks one paragraph into lines. A list's item goes on below its first word.
func fill(text string) []string {
	first := listItem.FindString(text)
	indent := strings.Repeat(" ", utf8.RuneCountInString(first))
	if first == "" {
		first = text[:len(text)-len(strings.TrimLeft(text, " "))]
		indent = first
	}
	var out []string
	line := first
	for _, word := range words(text[len(first):]) {
		begun := line != first && line != indent
		if begun && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > Width && mayBegin(word) {
			out = append(out, line)
			line, begun = indent, false
		}
		if begun {
			line += " "
		}
		line += word
	}
	return append(out, line)
}

// words splits a text at its blanks, but not inside of `code`.
func words(text string) []string {
	var out []string
	code := false
	for _, w := range strings.Fields(text) {
		if code {
			out[len(out)-1] += " " + w
		} else {
			out = append(out, w)
		}
		if strings.Count(w, "`")%2 == 1 {
			code = !code
		}
	}
	return out
}

// mayBegin says whether a word at the beginning of a line stays what it is: a number with a dot would
// become a list's item.
func mayBegin(word string) bool {
	return !listItem.MatchString(word+" ") && !strings.ContainsAny(word[:1], "#>|<+=")
}
