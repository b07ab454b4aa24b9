package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/embedded"
	"github.com/perdure/perdure/internal/engine"
	"github.com/perdure/perdure/internal/store"
)

func restore(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	f := flags("restore FILE", "Fills an empty store from a backup: a data folder, or with --store a PostgreSQL database, whichever it was made of. No server may\nrun on it. The store is of a new generation then: whoever held a run is refused, and what was leased is claimable again, with no\nattempt lost. What happened after the backup was made is gone.\n\n  perdure restore FILE --data new-data", stderr)
	data := f.String("data", "", "`folder` of the data (default: PERDURE_DATA, or perdure-data)")
	database := f.String("store", "", "restore into the database at this `address`, postgres://…")
	asJSON := f.Bool("json", false, "print JSON")
	names, err := parseMixed(f, args, 1, 1)
	if err != nil {
		return err
	}
	if _, err := os.Stat(names[0]); err != nil {
		return err
	}
	opt, into := store.Options{URL: *database}, "the database"
	if *database != "" {
		if err := (embedded.Options{Store: *database}).Validate(); err != nil {
			return err
		}
	} else {
		into = first(*data, os.Getenv("PERDURE_DATA"), defaults().Data)
		opt.Path = filepath.Join(into, "perdure.db")
	}
	b, generation, err := restoreStore(ctx, names[0], opt, stderr)
	if err != nil {
		return err
	}
	if *asJSON {
		b.Generation = generation
		return printJSON(stdout, b)
	}
	fmt.Fprintf(stdout, "%d runs as of %s are in %s, generation %d.\n", b.Runs, b.At, into, generation)
	if *database == "" {
		if _, err := os.Stat(filepath.Join(into, embedded.KeyFile)); err != nil {
			fmt.Fprintf(stdout, "Keys are valid as before. There is no %s in the folder: put the old one there, or the next start makes another.\n", embedded.KeyFile)
		}
	}
	return nil
}

// restoreStore restores and checks. A file that it has made does not stay if that fails.
func restoreStore(ctx context.Context, from string, opt store.Options, stderr io.Writer) (b store.Backup, generation int64, err error) {
	if _, serr := os.Stat(opt.Path); opt.Path != "" && errors.Is(serr, os.ErrNotExist) {
		defer func() {
			if err != nil {
				for _, more := range []string{"", "-wal", "-shm", ".lock", ".reserve"} {
					os.Remove(opt.Path + more)
				}
			}
		}()
	}
	s, err := store.Open(opt)
	if err != nil {
		return b, 0, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	policy := perdure.DefaultPolicy()
	if b, generation, err = engine.Restore(ctx, s, from, &policy, tellRows(stderr)); err != nil {
		return b, 0, err
	}
	err = s.Audit(ctx, func(v *store.View) error {
		found, err := v.Check(nil)
		if err == nil && len(found) > 0 {
			err = fmt.Errorf("what was restored breaks %d invariants, the first: %s: %s", len(found), found[0].Statement, found[0].Row)
		}
		return err
	})
	return b, generation, err
}
