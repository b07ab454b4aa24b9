package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/perdure/perdure/embedded"
	"github.com/perdure/perdure/internal/server/engine/upkeep"
	"github.com/perdure/perdure/internal/server/settings"
	"github.com/perdure/perdure/internal/server/store"
)

const failoverUsage = `Usage:

  perdure failover accept [--store postgres://…] [--data DIR] [--yes] [--json]

Accepts another PostgreSQL server as the one of the store, after a restore with pg_dump or from an
archive, or an upgrade with pg_upgrade. Nodes refuse such a server until then. The server before and
all nodes have to be stopped. The command shows what it found and asks; --yes answers. --data is the
data folder of a node, which knows the server that it has seen last. Epochs go on above all that can
have been granted. The audit log has an entry. See docs/failover.md.
`

// failoverCommand implements "perdure failover".
func failoverCommand(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	f := flags("failover", "", stderr)
	f.takes = []string{"accept"}
	f.Usage = func() { fmt.Fprint(stderr, failoverUsage) }
	c := settings.AddFlags(f.FlagSet, "data", "store")
	yes := f.Bool("yes", false, "accept the server without a question")
	asJSON := f.Bool("json", false, "print JSON")
	words, err := parseMixed(f, args)
	if err != nil {
		return err
	}
	if words[0] != "accept" {
		f.Usage()
		return errUsage
	}
	cfg, err := c.Load(os.Getenv)
	switch {
	case err != nil:
		return err
	case cfg.Store == "":
		return errors.New("SQLite has no failover: say which PostgreSQL with --store postgres://…")
	case strings.Contains(store.Address(cfg.Store), ","):
		return errors.New("the address names several servers: name the one that is to be accepted with --store")
	}
	opt := store.Options{URL: cfg.Store, TimelineFile: filepath.Join(cfg.Dir, embedded.TimelineFile)}
	if opt.Accepting, err = store.Examine(ctx, opt); err != nil {
		return err
	}
	a := &accepting{Offer: opt.Accepting}
	if !*asJSON {
		a.print(stdout)
	}
	if a.Refused != "" {
		if !*yes && !*asJSON {
			if *yes, err = a.ask(ctx, stderr); err != nil {
				return err
			}
		}
		if *yes {
			if err := a.accept(ctx, opt); err != nil {
				return err
			}
		}
	}
	if *asJSON {
		return printJSON(stdout, a)
	}
	switch {
	case a.Accepted:
		fmt.Fprintf(stdout, "The server is accepted. Epochs go on at %d. Nodes can be started.\n", a.Floor)
	case a.Refused != "":
		fmt.Fprintln(stdout, "Nothing was changed.")
	}
	return nil
}

// An accepting is a server that an operator may accept, and whether that was done.
type accepting struct {
	*store.Offer
	Accepted bool `json:"accepted"`
}

func (a *accepting) accept(ctx context.Context, opt store.Options) error {
	if err := offline(ctx, opt, "perdure failover accept", &upkeep.AcceptServer{Offer: a.Offer}); err != nil {
		return err
	}
	a.Accepted = true
	if err := a.Keep(opt.TimelineFile); err != nil {
		return fmt.Errorf("the server is accepted, and the node's file does not say so: %w", err)
	}
	return nil
}

func (a *accepting) print(w io.Writer) {
	used := func(u store.UsedServer) string {
		if u.System == "" {
			return "none"
		}
		return fmt.Sprintf("system %s, timeline %d, since %s", literal(u.System), u.Timeline, u.At)
	}
	fmt.Fprintf(w, "server             %s: system %s, timeline %d\n", a.At, literal(a.System), a.Timeline)
	fmt.Fprintf(w, "store was used on  %s\n", used(a.Before))
	fmt.Fprintf(w, "node has seen      %s\n", used(a.Seen))
	if a.Refused == "" {
		fmt.Fprintln(w, "\nThere is nothing to accept: a node with this data folder uses the server.")
		return
	}
	fmt.Fprintf(w, "nodes refuse it    %s\n\n", literal(a.Refused))
	fmt.Fprintln(w, "What was committed elsewhere and is not on this server is lost, if it is accepted. Stop the\n"+
		"server before, and all nodes, first.")
}

// ask asks the person whether to accept.
func (a *accepting) ask(ctx context.Context, stderr io.Writer) (bool, error) {
	if !isTerminal(os.Stdin) {
		return false, errors.New("nothing was changed: say --yes")
	}
	keys := newKeyboard(os.Stdin)
	_, end := keys.question()
	defer end()
	fmt.Fprint(stderr, "Accept this server as the store's? [y/N] ")
	text, err := keys.answer(ctx)
	return isYes(strings.TrimSpace(text)), err
}
