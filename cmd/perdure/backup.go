package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/perdure/perdure/client/admin"
	"github.com/perdure/perdure/embedded"
	"github.com/perdure/perdure/internal/server/settings"
	"github.com/perdure/perdure/internal/server/store"
)

func backup(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	if len(args) > 0 && args[0] == "drill" { // a file of that name is ./drill
		return backupDrill(ctx, args[1:], stdout, stderr)
	}
	f := flags("backup FILE",
		"Writes a backup of everything stored, as of one moment, into a new file that only its owner can read: of a "+
			"running server through its\n"+
			"API, or of the data itself: of a stopped server with --stopped, of a PostgreSQL database with --store. "+
			"Writers are not held up.\n"+
			"Whoever has the file has the secrets of webhooks and the hashes of keys: keep it as you keep the "+
			"data.\n\n  perdure backup FILE\n  perdure backup FILE --stopped --data perdure-data\n"+
			"  perdure backup drill FILE       restore it on trial, check and compare", stderr)
	conn := addConnFlags(f)
	stopped := f.Bool("stopped", false, "the server is stopped: read the files in the data folder")
	database := f.String("store", "", "read the database at this `address`, postgres://…, without a server")
	asJSON := f.Bool("json", false, "print JSON")
	names, err := parseMixed(f, args)
	if err != nil {
		return err
	}
	var write func(path string) error
	switch {
	case *database != "":
		write = func(path string) error {
			if err := (embedded.Options{Store: *database}).Validate(); err != nil {
				return err
			}
			return backupStore(ctx, store.Options{URL: *database, AsIs: true}, path, stderr)
		}
	case *stopped:
		write = func(path string) error {
			file := filepath.Join(first(*conn.data, os.Getenv("PERDURE_DATA"), settings.DefaultData), "perdure.db")
			if _, err := os.Stat(file); err != nil {
				return fmt.Errorf("there is no data: %w", err)
			}
			return backupStore(ctx, store.Options{Path: file, AsIs: true, AnyClock: true}, path, stderr)
		}
	default:
		write = func(path string) error { return backupServer(ctx, conn, path, stderr) }
	}
	b, size, err := intoFile(names[0], write)
	if err != nil {
		return err
	}
	if *asJSON {
		return printJSON(stdout, struct {
			File  string `json:"file"`
			Bytes int64  `json:"bytes"`
			store.Backup
		}{names[0], size, b})
	}
	fmt.Fprintf(stdout, "%s: %d runs as of %s, %.1f MiB\n", names[0], b.Runs, b.At, float64(size)/(1<<20))
	return nil
}

const existsAlready = "%s is there already: a backup never overwrites anything"

// intoFile writes a backup in a temporary folder beside its name, and links it to the name when it
// is complete and on disk. It touches no other files. The folder of a killed backup does no harm.
func intoFile(name string, write func(path string) error) (b store.Backup, size int64, err error) {
	if _, err := os.Lstat(name); err == nil {
		return b, 0, fmt.Errorf(existsAlready, name)
	}
	dir, err := os.MkdirTemp(filepath.Dir(name), ".perdure-backup-*") // 0700
	if err != nil {
		return b, 0, err
	}
	defer os.RemoveAll(dir)
	part := filepath.Join(dir, "backup")
	if err := write(part); err != nil {
		return b, 0, err
	}
	if b, err = store.ReadBackup(part); err != nil {
		return b, 0, err
	}
	info, err := os.Stat(part)
	if err != nil {
		return b, 0, err
	}
	if err := os.Link(part, name); errors.Is(err, os.ErrExist) { // unlike a rename, a link overwrites nothing
		return b, 0, fmt.Errorf(existsAlready, name)
	} else if err != nil {
		return b, 0, err
	}
	folder, err := os.Open(filepath.Dir(name))
	if err != nil {
		return b, 0, err
	}
	return b, info.Size(), errors.Join(folder.Sync(), folder.Close())
}

// backupStore writes a backup of a store without a server.
func backupStore(ctx context.Context, opt store.Options, path string, stderr io.Writer) error {
	s, err := store.Open(opt)
	if err != nil {
		return err
	}
	_, err = s.Backup(ctx, path, rowProgress(stderr))
	return errors.Join(err, s.Close())
}

// backupServer writes a backup of a running server.
func backupServer(ctx context.Context, conn *connFlags, path string, stderr io.Writer) error {
	c, err := conn.connect(ctx)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = admin.New(c).Backup(ctx, &progressWriter{to: f, progress: progressPrinter(stderr)})
	return errors.Join(err, f.Sync(), f.Close())
}

// progressPrinter returns a function that prints progress, every two seconds at most.
func progressPrinter(stderr io.Writer) func(format string, args ...any) {
	next := time.Now().Add(2 * time.Second)
	return func(format string, args ...any) {
		if now := time.Now(); now.After(next) {
			next = now.Add(2 * time.Second)
			fmt.Fprintf(stderr, format+"\n", args...)
		}
	}
}

// rowProgress prints how many rows are copied.
func rowProgress(stderr io.Writer) func(store.Copied) {
	progress := progressPrinter(stderr)
	return func(c store.Copied) { progress("%d rows, at %s", c.Rows, c.Table) }
}

// A progressWriter prints how many bytes were written.
type progressWriter struct {
	to       io.Writer
	progress func(string, ...any)
	n        int64
}

func (w *progressWriter) Write(p []byte) (int, error) {
	n, err := w.to.Write(p)
	w.n += int64(n)
	w.progress("%.1f MiB", float64(w.n)/(1<<20))
	return n, err
}
