package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/perdure/perdure/client"
)

// A word is what can be said after a command that has words of its own. Its usage is its name and its arguments.
type word struct {
	usage, about string
	run          func() error
}

func (w *word) name() string {
	name, _, _ := strings.Cut(w.usage, " ")
	return name
}

// wordCall is one call of such a command.
type wordCall struct {
	ctx            context.Context
	args           []string
	stdout, stderr io.Writer
	flags          *flagSet
	conn           *connFlags
	asJSON         *bool
}

// say does what the first argument says; without one, what otherwise does, if there is such a word.
func (h *wordCall) say(command, usage, otherwise string, words []word) error {
	name := otherwise
	if len(h.args) > 0 && !strings.HasPrefix(h.args[0], "-") {
		name, h.args = h.args[0], h.args[1:]
	}
	for _, w := range words {
		if w.name() != name {
			continue
		}
		h.flags = flags(command+" "+w.usage, w.about, h.stderr)
		h.conn = addConnFlags(h.flags)
		h.asJSON = h.flags.Bool("json", false, "print JSON")
		if name == otherwise {
			h.flags.Usage = func() { fmt.Fprint(h.stderr, usage) }
		}
		return w.run()
	}
	if name != "" {
		names := make([]string, len(words))
		for i := range words {
			names[i] = words[i].name()
		}
		fmt.Fprintf(h.stderr, "perdure %s: there is no %q%s\n\n", command, name, meant(name, names))
	}
	fmt.Fprint(h.stderr, usage)
	if name == "" && len(h.args) > 0 && slices.Contains([]string{"-h", "-help", "--help"}, h.args[0]) {
		return flag.ErrHelp
	}
	return errUsage
}

// begin reads the flags and the arguments, and gives a client.
func (h *wordCall) begin() ([]string, *client.Client, error) {
	args, err := parseMixed(h.flags, h.args)
	if err != nil {
		return nil, nil, err
	}
	c, err := h.conn.connect(h.ctx)
	return args, c, err
}

// print prints JSON if that is asked for, or else what f does.
func (h *wordCall) print(v any, f func(w io.Writer)) error {
	if *h.asJSON {
		return printJSON(h.stdout, v)
	}
	w := tabwriter.NewWriter(h.stdout, 0, 0, 2, ' ', 0)
	f(w)
	return w.Flush()
}

// meant asks whether the nearest of some names was meant, if one is near.
func meant(typed string, names []string) string {
	best, least := "", 3
	if len(typed) < 4 {
		least = 2
	}
	for _, name := range names {
		if d := slips(typed, name); d < least {
			best, least = name, d
		}
	}
	if best == "" {
		return ""
	}
	return ": did you mean " + best + "?"
}

// slips counts what went wrong between what was meant and what was typed: letters too many, missing, wrong, or swapped with the next.
func slips(a, b string) int {
	if len(a) > 64 {
		return len(a)
	}
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		rows[i][0] = i
	}
	for j := range rows[0] {
		rows[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			wrong := 1
			if a[i-1] == b[j-1] {
				wrong = 0
			}
			rows[i][j] = min(rows[i-1][j]+1, rows[i][j-1]+1, rows[i-1][j-1]+wrong)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				rows[i][j] = min(rows[i][j], rows[i-2][j-2]+1)
			}
		}
	}
	return rows[len(a)][len(b)]
}
