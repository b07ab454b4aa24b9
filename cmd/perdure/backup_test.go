package main

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/embedded"
	"github.com/perdure/perdure/internal/server/store"
)

func TestBackupAndRestoreOnTheCommandLine(t *testing.T) {
	c, dir := live(t)
	if _, err := c.Start(context.Background(), perdure.Submission{Kind: "k"}); err != nil {
		t.Fatal(err)
	}
	out := t.TempDir()
	file, into := filepath.Join(out, "b"), filepath.Join(out, "restored")
	text, _ := mustRun(t, 0, "backup", file, "--json")
	var report struct {
		File       string
		Bytes      int64
		Runs, Rows int
		From, At   string
	}
	if err := json.Unmarshal([]byte(text), &report); err != nil || report.File != file || report.Runs != 1 ||
		report.Bytes < 4096 || report.Rows < 3 || report.From != "sqlite" || report.At == "" {
		t.Errorf("backup --json = %+v (error %v), want 1 run from sqlite in %s", report, err, file)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("backup file: %v (error %v), want mode 0600", info, err)
	}
	_, errs := mustRun(t, 1, "backup", file)
	has(t, errs, "there already")
	_, errs = mustRun(t, 1, "backup", filepath.Join(out, "c"), "--stopped")
	has(t, errs, "another server")
	_, errs = mustRun(t, 1, "restore", file)
	has(t, errs, "another server")
	_, errs = mustRun(t, 1, "restore", filepath.Join(dir, embedded.KeyFile), "--data", into)
	has(t, errs, "no backup")
	if left, _ := filepath.Glob(filepath.Join(into, "*")); len(left) > 0 {
		t.Errorf("files after a failed restore = %v, want none", left)
	}
	text, _ = mustRun(t, 0, "restore", file, "--data", into)
	has(t, text, "1 runs", "generation 1", embedded.KeyFile)
	_, errs = mustRun(t, 1, "restore", file, "--data", into)
	has(t, errs, "not empty")
	text, _ = mustRun(t, 0, "fsck", "--stopped", "--data", into)
	has(t, text, "0 violations", "generation 1")
	again := filepath.Join(out, "d")
	mustRun(t, 0, "backup", again, "--stopped", "--data", into)
	text, _ = mustRun(t, 0, "restore", again, "--data", filepath.Join(out, "third"), "--json")
	has(t, text, `"generation": 2`)
	left, _ := filepath.Glob(filepath.Join(out, ".perdure*"))
	if hidden, _ := filepath.Glob(filepath.Join(dir, ".perdure*")); len(left)+len(hidden) > 0 {
		t.Errorf("files after the commands = %v, %v, want no temporary ones", left, hidden)
	}
	for _, args := range [][]string{{"backup"}, {"restore"}, {"backup", "a", "b"}, {"restore", "a", "b"}} {
		mustRun(t, 2, args...)
	}
	_, errs = mustRun(t, 1, "restore", filepath.Join(out, "none"), "--data", into)
	has(t, errs, "no such file")
	_, errs = mustRun(t, 1, "backup", filepath.Join(out, "e"), "--stopped", "--data", filepath.Join(out, "none"))
	has(t, errs, "no data")
	_, errs = mustRun(t, 1, "backup", filepath.Join(out, "e"), "--store", "mysql://x")
	has(t, errs, "postgres://")
}

// Of many concurrent backups to one name, one succeeds, and no other file is touched.
func TestConcurrentBackupsToOneName(t *testing.T) {
	_, dir := live(t)
	out := t.TempDir()
	file, beside := filepath.Join(out, "b"), filepath.Join(out, "b.part")
	if err := os.WriteFile(beside, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	left := filepath.Join(out, ".perdure-backup-0")
	if err := os.Mkdir(left, 0o700); err != nil { // as a killed backup leaves it
		t.Fatal(err)
	}
	// All check the name before any of them has written.
	const n = 4
	var all, ready sync.WaitGroup
	errs := make([]error, n)
	ready.Add(n)
	for i := range n {
		all.Go(func() {
			_, _, errs[i] = intoFile(file, func(path string) error {
				ready.Done()
				ready.Wait()
				s, err := store.Open(store.Options{})
				if err != nil {
					return err
				}
				_, err = s.Backup(context.Background(), path, nil)
				return errors.Join(err, s.Close())
			})
		})
	}
	all.Wait()
	done := 0
	for _, err := range errs {
		if err == nil {
			done++
		} else {
			has(t, err.Error(), "there already")
		}
	}
	if done != 1 {
		t.Errorf("%d backups succeeded, want 1: %v", done, errs)
	}
	if _, err := store.ReadBackup(file); err != nil {
		t.Error(err)
	}
	if text, err := os.ReadFile(beside); err != nil || string(text) != "mine" {
		t.Errorf("file beside the backup = %q (error %v), want it unchanged", text, err)
	}
	mustRun(t, 1, "backup", filepath.Join(out, "c"), "--data", filepath.Join(dir, "none"), "--url",
		"http://127.0.0.1:1")
	if now, _ := filepath.Glob(filepath.Join(out, ".perdure*")); !slices.Equal(now, []string{left}) {
		t.Errorf("temporary folders after the backups = %v, want only the old one, %s", now, left)
	}
}

func TestUnreadableSecretsStopServer(t *testing.T) {
	t.Setenv("SOME_SECRET", "long-enough")
	out, _ := mustRun(t, 0, "config", "check", "--secrets", "env:SOME_SECRET")
	has(t, out, "env:SOME_SECRET")
	for given, want := range map[string]string{"env:NO_SUCH_SECRET": "not set",
		"file:/no/such/file": "no such file", "long-enough": "env:NAME"} {
		_, errs := mustRun(t, 1, "serve", "--listen", "127.0.0.1:0", "--data", t.TempDir(), "--secrets", given)
		has(t, errs, want)
	}
	t.Setenv("SOME_WORD", "completed")
	for _, command := range [][]string{{"config", "check"}, {"serve", "--listen", "127.0.0.1:0", "--data",
		t.TempDir()}} {
		_, errs := mustRun(t, 1, append(command, "--secrets", "env:SOME_SECRET,env:SOME_WORD")...)
		has(t, errs, "secrets: env:SOME_WORD holds a word of the API")
		if strings.Contains(errs, "completed") {
			t.Errorf("stderr contains the secret: %s", errs)
		}
	}
	t.Setenv("PERDURE_SECRETS", "env:NO_SUCH_SECRET")
	_, errs := mustRun(t, 1, "config", "check")
	has(t, errs, "NO_SUCH_SECRET")
	_, errs = mustRun(t, 1, "config", "check", "--config", writeFile(t, "secrets = [\"file:/no/such/file\"]\n"),
		"--secrets", "")
	has(t, errs, "NO_SUCH_SECRET") // the environment overrides the file
}
