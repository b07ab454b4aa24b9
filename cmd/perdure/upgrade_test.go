package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"testing"

	"github.com/perdure/perdure/internal/server/store"
	"github.com/perdure/perdure/internal/testkit/pgtest"
	"github.com/perdure/perdure/internal/wire/release"
)

func TestUpgradeCheck(t *testing.T) {
	live(t)
	dir, database := t.TempDir(), pgtest.New(t)
	_, errs := mustRun(t, 1, "upgrade", "check", "--data", dir)
	has(t, errs, "there is no data in "+dir)
	out, _ := mustRun(t, 0, "upgrade", "check", "--store", database)
	has(t, out, "There is no store yet")
	s, err := store.Open(store.Options{URL: database})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	out, _ = mustRun(t, 0, "upgrade", "check", "--store", database)
	has(t, out, "program   release "+release.Version+", knows schema ", "connected release "+release.Version+", ",
		"A start changes nothing.")
	out, _ = mustRun(t, 0, "doctor", "--store", database)
	has(t, out, "ok   releases         "+release.Version+" (")
	out, _ = mustRun(t, 0, "upgrade", "check", "--store", database, "--json")
	var u store.Upgrade
	if err := json.Unmarshal([]byte(out), &u); err != nil || u.Schema != u.Program || u.Level != release.Version ||
		len(u.Releases) != 1 {
		t.Errorf("upgrade check --json = %s, %v, want this schema, level and release", out, err)
	}
	for _, x := range []struct {
		code int
		args []string
		want string
	}{
		{2, []string{"upgrade"}, "check is missing"},
		{2, []string{"upgrade", "now"}, "perdure upgrade check"},
		{1, []string{"upgrade", "check", "--store", "postgres://u:hunter2@127.0.0.1:1/none"}, "nothing listens at"},
	} {
		_, errs := mustRun(t, x.code, x.args...)
		has(t, errs, x.want)
	}
}

// Rows are printed beside the migrations that change their tables.
func TestPrintedUpgrade(t *testing.T) {
	var out bytes.Buffer
	printUpgrade(&out, &store.Upgrade{Schema: 29, Program: 31, Oldest: 29, Migrations: []store.Planned{
		{Name: "0030_a", Kind: "expand", Release: "0.2.0", Changes: "adds 1 column",
			Rows: map[string]int64{"workers": 3}},
		{Name: "0031_b", Kind: "expand", Release: "0.2.0", Changes: "adds 1 index", Concurrently: true,
			Rows: map[string]int64{"runs": 1_000_000}}}})
	want := fmt.Sprintf("program   release %s, knows schema 31\n", release.Version) +
		"store     schema 29, works with programs that know schema 29\n" +
		"migration 0030_a: adds 1 column (expand 0.2.0); workers has 3 rows\n" +
		"migration 0031_b: adds 1 index (expand 0.2.0, while others write); runs has 1000000 rows\n" +
		"A start applies 2 migrations. Programs that know schema 29 work on the store afterwards.\n"
	if out.String() != want {
		t.Errorf("printed:\n%s\nwant:\n%s", out.String(), want)
	}
}
