package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client/admin"
	"github.com/perdure/perdure/embedded"
	"github.com/perdure/perdure/internal/server/engine"
	"github.com/perdure/perdure/internal/server/httpd"
	"github.com/perdure/perdure/internal/server/settings"
	"github.com/perdure/perdure/internal/server/store"
)

// errFound means that a check found violations, which have been printed.
var errFound = errors.New("the store breaks an invariant")

func fsck(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	f := flags("fsck",
		"Checks everything stored against the invariants: of a live server through its API, or the data itself:\n"+
			"of a stopped server with --stopped, of a PostgreSQL database with --store, whoever works on it. "+
			"Exits with "+
			"1 if something is wrong.\n\n  perdure fsck\n  perdure fsck --stopped --data perdure-data", stderr)
	conn := addConnFlags(f)
	stopped := f.Bool("stopped", false, "the server is stopped: check the files in the data folder")
	database := f.String("store", "", "check the database at this `address`, postgres://…, without a server")
	asJSON := f.Bool("json", false, "print JSON")
	if err := parse(f, args); err != nil {
		return err
	}
	var found *api.Invariants
	var err error
	if *database != "" {
		if err = (embedded.Options{Store: *database}).Validate(); err == nil {
			found, err = checkStore(ctx, store.Options{URL: *database, AsIs: true})
		}
	} else if *stopped {
		found, err = checkFolder(ctx, first(*conn.data, os.Getenv("PERDURE_DATA"), settings.DefaultData))
	} else if c, cerr := conn.connect(ctx); cerr != nil {
		err = cerr
	} else {
		found, err = admin.New(c).Invariants(ctx)
	}
	if err != nil {
		return err
	}
	if *asJSON {
		if err := printJSON(stdout, found); err != nil {
			return err
		}
	} else {
		for _, v := range found.Violations {
			fmt.Fprintf(stdout, "%-4s %s\n     %s\n", v.ID, v.Statement, literal(v.Row))
		}
		for _, left := range found.Unchecked {
			fmt.Fprintf(stdout, "not checked, for want of time: %s\n", literal(left))
		}
		for _, id := range found.PastRuns {
			fmt.Fprintf(stdout, "past its deadline: %s\n", id)
		}
		fmt.Fprintf(stdout, "%d invariants checked, %d violations, %d runs past their deadline\n", found.Checked,
			len(found.Violations), found.PastDeadline)
		if found.Generation > 0 {
			fmt.Fprintf(stdout, "generation %d: the store was restored from a backup\n", found.Generation)
		}
	}
	if len(found.Violations) > 0 {
		return errFound
	}
	return nil
}

// checkFolder checks the data of a stopped server. A running server has it locked.
func checkFolder(ctx context.Context, dir string) (*api.Invariants, error) {
	path := filepath.Join(dir, "perdure.db")
	if _, err := os.Stat(path); err != nil {
		return nil, fmt.Errorf("there is no data in %s: %w", dir, err)
	}
	return checkStore(ctx, store.Options{Path: path, AnyClock: true})
}

// checkStore checks a store without a server.
func checkStore(ctx context.Context, opt store.Options) (*api.Invariants, error) {
	s, err := store.Open(opt)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	e, err := engine.Offline(s)
	if err != nil {
		return nil, err
	}
	return httpd.Invariants(ctx, e, 0)
}
