package prose

import (
	"strings"
	"testing"
)

func TestWrap(t *testing.T) {
	long := strings.Repeat("word ", 30)
	for name, row := range map[string]struct{ page, want string }{
		"short lines stay": {"a\nb", "a\nb"},
		"a paragraph": {long + "end", strings.TrimSpace(strings.Repeat("word ", 20)) + "\n" +
			strings.Repeat("word ", 10) + "end"},
		"its next line joins": {long + "\nend", strings.TrimSpace(strings.Repeat("word ", 20)) + "\n" +
			strings.Repeat("word ", 10) + "end"},
		"an item of a list": {"- " + long + "\n- b", "- " + strings.TrimSpace(strings.Repeat("word ", 19)) +
			"\n  " + strings.TrimSpace(strings.Repeat("word ", 11)) + "\n- b"},
		"a table":                   {"| " + long + " |", "| " + long + " |"},
		"code":                      {"```\n" + long + "\n```", "```\n" + long + "\n```"},
		"a heading":                 {"# " + long, "# " + long},
		"a comment of two lines":    {"<!-- a\n" + long + "-->", "<!-- a\n" + long + "-->"},
		"code in prose stays whole": {strings.Repeat("x", 96) + " `a b` c", strings.Repeat("x", 96) + "\n`a b` c"},
		"a number begins no line": {strings.Repeat("x", 90) + " in 2026. There",
			strings.Repeat("x", 90) + " in 2026.\nThere"},
		"one long word": {strings.Repeat("x", 120), strings.Repeat("x", 120)},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Wrap(row.page); got != row.want {
				t.Errorf("got:\n%s\nwant:\n%s", got, row.want)
			}
			if got := Wrap(Wrap(row.page)); got != row.want {
				t.Errorf("wrapped twice:\n%s\nwant:\n%s", got, row.want)
			}
		})
	}
}
