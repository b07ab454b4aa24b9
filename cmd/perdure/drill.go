package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/perdure/perdure/embedded"
	"github.com/perdure/perdure/internal/server/store"
)

const drillAbout = `Restores a backup on trial: into a folder that is removed afterwards, or with --store into an empty
PostgreSQL database, which stays. It checks the invariants of what was restored and compares the number of
rows with the backup, table by table. Without FILE it first takes a backup of the running server. Exits with 1
if the backup can't be relied on.

  perdure backup drill FILE
  perdure backup drill --json
  perdure backup drill FILE --store postgres://…/scratch`

// A drill is the result of restoring a backup on trial.
type drill struct {
	File string `json:"file,omitempty"`
	store.Backup
	BackupTook  float64     `json:"backup_s,omitempty"`
	RestoreTook float64     `json:"restore_s"`
	CheckTook   float64     `json:"check_s"`
	Invariants  int         `json:"invariants"`
	Tables      int         `json:"tables"`
	Differences []tableRows `json:"differences"`
	OK          bool        `json:"ok"`
}

// A tableRows says that a restored table has another number of rows than the backup.
type tableRows struct {
	Table    string `json:"table"`
	Backup   int64  `json:"backup"`
	Restored int64  `json:"restored"`
	Expected bool   `json:"expected"`
	Why      string `json:"why,omitempty"`
}

// added are the tables to which a restore adds rows, with the reason.
var added = map[string]string{
	"audit":        "the entry of the restore",
	"events":       "leased runs were taken back",
	"run_metadata": "an older backup got its index",
}

func backupDrill(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	f := flags("backup drill [FILE]", drillAbout, stderr)
	conn := addConnFlags(f)
	database := f.String("store", "", "restore into the empty database at this `address`, postgres://…, which stays")
	scratch := f.String("scratch", "",
		"`folder` for the trial (default: beside FILE, else the system's for temporary files)")
	asJSON := f.Bool("json", false, "print JSON")
	names, err := parseMixed(f, args)
	if err != nil {
		return err
	}
	if *database != "" {
		if err := (embedded.Options{Store: *database}).Validate(); err != nil {
			return err
		}
	}
	if *scratch == "" && len(names) > 0 {
		*scratch = filepath.Dir(names[0])
	}
	dir, err := os.MkdirTemp(*scratch, ".perdure-drill-*") // 0700
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	var d drill
	if len(names) > 0 {
		d.File = names[0]
	}
	path, opt := d.File, store.Options{URL: *database}
	if path == "" {
		began := time.Now()
		path = filepath.Join(dir, "backup")
		if err := backupServer(ctx, conn, path, stderr); err != nil {
			return err
		}
		d.BackupTook = time.Since(began).Seconds()
	}
	if *database == "" {
		opt.Path = filepath.Join(dir, "perdure.db")
	}
	if err := d.do(ctx, path, opt, stderr); err != nil {
		return err
	}
	if *asJSON {
		err = printJSON(stdout, d)
	} else {
		d.print(stdout)
	}
	if err == nil && !d.OK {
		err = errDrill
	}
	return err
}

// errDrill means that a restored backup has other rows, which have been printed.
var errDrill = errors.New("the restored store has other rows than the backup")

// do restores, checks and compares.
func (d *drill) do(ctx context.Context, path string, opt store.Options, stderr io.Writer) error {
	before, err := store.CountBackup(path)
	if err != nil {
		return err
	}
	began := time.Now()
	r := &restored{}
	if err := r.fill(ctx, path, opt, stderr); err != nil {
		return err
	}
	d.Backup, d.RestoreTook = r.Backup, time.Since(began).Seconds()
	began = time.Now()
	opt.AnyClock = true
	found, err := checkStore(ctx, opt)
	if err != nil {
		return err
	}
	if len(found.Violations) > 0 { // fill has refused that already
		return fmt.Errorf("%w: %s: %s", errFound, found.Violations[0].Statement, found.Violations[0].Row)
	}
	d.Invariants = found.Checked
	s, err := store.Open(opt)
	if err != nil {
		return err
	}
	var after map[string]int64
	err = s.Audit(ctx, func(v *store.View) (err error) {
		after, err = v.Count()
		return err
	})
	if err := errors.Join(err, s.Close()); err != nil {
		return err
	}
	d.CheckTook = time.Since(began).Seconds()
	d.compare(before, after)
	return nil
}

// compare notes the tables whose numbers of rows differ. A table that the program no longer has was taken away by the
// migration of an older backup.
func (d *drill) compare(before, after map[string]int64) {
	d.OK, d.Tables, d.Differences = true, len(before), []tableRows{}
	for _, table := range slices.Sorted(maps.Keys(before)) {
		n, there := after[table]
		if !there || n == before[table] {
			continue
		}
		why, may := added[table]
		t := tableRows{Table: table, Backup: before[table], Restored: n, Expected: may && n > before[table]}
		if t.Expected {
			t.Why = why
		}
		d.OK = d.OK && t.Expected
		d.Differences = append(d.Differences, t)
	}
}

func (d *drill) print(w io.Writer) {
	took := ""
	if d.File == "" {
		took = fmt.Sprintf(", taken in %.1f s", d.BackupTook)
	}
	fmt.Fprintf(w, "backup    %d runs, %d rows as of %s%s\n", d.Runs, d.Rows, d.At, took)
	fmt.Fprintf(w, "restored  in %.1f s\n", d.RestoreTook)
	fmt.Fprintf(w, "checked   %d invariants, 0 violations, in %.1f s\n", d.Invariants, d.CheckTook)
	var notes []string
	for _, t := range d.Differences {
		note := fmt.Sprintf("%s %+d", t.Table, t.Restored-t.Backup)
		if t.Expected {
			note += " (" + t.Why + ")"
		}
		notes = append(notes, note)
	}
	fmt.Fprintf(w, "compared  %d tables; more or fewer rows: %s\n", d.Tables, first(strings.Join(notes, ", "), "none"))
	if d.OK {
		fmt.Fprintln(w, "The backup can be restored.")
	}
}
