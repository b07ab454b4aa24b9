package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/perdure/perdure/internal/server/settings"
	"github.com/perdure/perdure/internal/server/store"
	"github.com/perdure/perdure/internal/wire/release"
)

const upgradeUsage = `Usage:

  perdure upgrade check [--store postgres://…] [--data DIR] [--json]

Says which migrations a start of this program would apply to a store, of which kind, and how many rows
the tables have that change, and which releases are connected. It changes nothing, and servers may
work on the store meanwhile. It exits with 1 if this program is too old for the store. See
docs/upgrading.md.
`

// upgradeCommand implements "perdure upgrade".
func upgradeCommand(_ context.Context, args []string, stdout, stderr io.Writer) error {
	f := flags("upgrade", "", stderr)
	f.takes = []string{"check"}
	f.Usage = func() { fmt.Fprint(stderr, upgradeUsage) }
	c := settings.AddFlags(f.FlagSet, "data", "store")
	asJSON := f.Bool("json", false, "print JSON")
	words, err := parseMixed(f, args)
	if err != nil {
		return err
	}
	if words[0] != "check" {
		f.Usage()
		return errUsage
	}
	cfg, err := c.Load(os.Getenv)
	if err != nil {
		return err
	}
	opt := store.Options{URL: cfg.Store}
	if opt.URL == "" {
		if opt.Path = filepath.Join(cfg.Dir, "perdure.db"); !exists(opt.Path) {
			return fmt.Errorf("there is no data in %s", cfg.Dir)
		}
	}
	u, err := store.Pending(opt)
	if err != nil {
		return err
	}
	if *asJSON {
		err = printJSON(stdout, u)
	} else {
		printUpgrade(stdout, u)
	}
	if err == nil && u.Refused != "" {
		err = fmt.Errorf("this program does not start on the store: %s: use a newer one", u.Refused)
	}
	return err
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func printUpgrade(w io.Writer, u *store.Upgrade) {
	fmt.Fprintf(w, "program   release %s, knows schema %d\n", release.Version, u.Program)
	fmt.Fprintf(w, "store     schema %d, works with programs that know schema %d\n", u.Schema, min(u.Oldest, u.Schema))
	for _, r := range u.Releases {
		fmt.Fprintf(w, "connected release %s, %d connections\n", literal(r.Version), r.Connections)
	}
	for _, m := range u.Migrations {
		how := m.Kind + " " + m.Release
		if m.Concurrently {
			how += ", while others write"
		}
		fmt.Fprintf(w, "migration %s: %s (%s)", m.Name, m.Changes, how)
		var rows []string
		for _, table := range slices.Sorted(maps.Keys(m.Rows)) {
			rows = append(rows, fmt.Sprintf("%s has %d rows", table, m.Rows[table]))
		}
		if len(rows) > 0 {
			fmt.Fprint(w, "; ", strings.Join(rows, ", "))
		}
		fmt.Fprintln(w)
	}
	switch {
	case u.Refused != "":
	case u.Schema == 0:
		fmt.Fprintln(w, "There is no store yet: a start makes it.")
	case len(u.Migrations) == 0:
		fmt.Fprintln(w, "A start changes nothing.")
	default:
		fmt.Fprintf(w, "A start applies %d migrations. Programs that know schema %d work on the store afterwards.\n",
			len(u.Migrations), u.Oldest)
	}
}
