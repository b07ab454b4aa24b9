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

// A subcommand is the second word of a command, such as "create" in "perdure keys create". Its
// usage is its name and its arguments.
type subcommand struct {
	usage, about string
	run          func() error
}

func (s *subcommand) name() string {
	name, _, _ := strings.Cut(s.usage, " ")
	return name
}

// A subcommandCall is one call of a command with subcommands.
type subcommandCall struct {
	ctx            context.Context
	args           []string
	stdout, stderr io.Writer
	flags          *flagSet
	conn           *connFlags
	asJSON         *bool
}

// dispatch calls the subcommand that the first argument names. Without one it calls the default, if
// there is one.
func (h *subcommandCall) dispatch(command, usage, byDefault string, subcommands []subcommand) error {
	name := byDefault
	if len(h.args) > 0 && !strings.HasPrefix(h.args[0], "-") {
		name, h.args = h.args[0], h.args[1:]
	}
	for _, s := range subcommands {
		if s.name() != name {
			continue
		}
		h.flags = flags(command+" "+s.usage, s.about, h.stderr)
		h.conn = addConnFlags(h.flags)
		h.asJSON = h.flags.Bool("json", false, "print JSON")
		if name == byDefault {
			h.flags.Usage = func() { fmt.Fprint(h.stderr, usage) }
		}
		return s.run()
	}
	if name != "" {
		names := make([]string, len(subcommands))
		for i := range subcommands {
			names[i] = subcommands[i].name()
		}
		fmt.Fprintf(h.stderr, "perdure %s: there is no %q%s\n\n", command, name, suggestion(name, names))
	}
	fmt.Fprint(h.stderr, usage)
	if name == "" && len(h.args) > 0 && slices.Contains([]string{"-h", "-help", "--help"}, h.args[0]) {
		return flag.ErrHelp
	}
	return errUsage
}

// begin parses flags and arguments, and returns a client.
func (h *subcommandCall) begin() ([]string, *client.Client, error) {
	args, err := parseMixed(h.flags, h.args)
	if err != nil {
		return nil, nil, err
	}
	c, err := h.conn.connect(h.ctx)
	return args, c, err
}

// print prints JSON with --json, and otherwise calls f.
func (h *subcommandCall) print(v any, f func(w io.Writer)) error {
	if *h.asJSON {
		return printJSON(h.stdout, v)
	}
	w := tabwriter.NewWriter(h.stdout, 0, 0, 2, ' ', 0)
	f(w)
	return w.Flush()
}

// suggestion returns a question about the name that is nearest to the typed one, or nothing if none
// is near.
func suggestion(typed string, names []string) string {
	best, least := "", 3
	if len(typed) < 4 {
		least = 2
	}
	for _, name := range names {
		if d := editDistance(typed, name); d < least {
			best, least = name, d
		}
	}
	if best == "" {
		return ""
	}
	return ": did you mean " + best + "?"
}

// editDistance counts the insertions, deletions, replacements and swaps of adjacent bytes between
// two texts. For a long text it returns its length.
func editDistance(a, b string) int {
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
			differs := 1
			if a[i-1] == b[j-1] {
				differs = 0
			}
			rows[i][j] = min(rows[i-1][j]+1, rows[i][j-1]+1, rows[i-1][j-1]+differs)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				rows[i][j] = min(rows[i][j], rows[i-2][j-2]+1)
			}
		}
	}
	return rows[len(a)][len(b)]
}
