package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/embedded"
	"github.com/perdure/perdure/internal/server/store"
	"github.com/perdure/perdure/internal/testkit/pgtest"
)

// usedDatabase gives a database with a store that was used on its server.
func usedDatabase(t *testing.T) string {
	t.Helper()
	database := pgtest.New(t)
	openAndClose(t, store.Options{URL: database})
	return database
}

func openAndClose(t *testing.T, opt store.Options) {
	t.Helper()
	s, err := store.Open(opt)
	if err == nil {
		err = s.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestFailoverAcceptNeedsConsent: a node has seen a later server of another system. Without consent
// nothing changes. With it, the node and nodes that have seen earlier servers follow, the epochs have
// a floor above both, and the audit log says it.
func TestFailoverAcceptNeedsConsent(t *testing.T) {
	for _, x := range []struct{ name, typed string }{{"a flag", ""}, {"a terminal", "y\n"}} {
		database, dir := usedDatabase(t), t.TempDir()
		const floor = 1 << 52
		file := filepath.Join(dir, embedded.TimelineFile)
		hint := fmt.Sprintf(`{"system":"77","timeline":4,"id":"seen","replaces":["earlier"],"floor":%d}`, floor)
		if err := os.WriteFile(file, []byte(hint), 0o600); err != nil {
			t.Fatal(err)
		}
		node := store.Options{URL: database, TimelineFile: file}
		refused := func(when string) {
			t.Helper()
			if s, err := store.Open(node); err == nil {
				s.Close()
				t.Fatalf("%s: a node that has seen another server opens this one, want it refused", when)
			} else {
				has(t, err.Error(), "is another database", "perdure failover accept")
			}
		}
		refused("before")
		args := []string{"failover", "accept", "--store", database, "--data", dir}
		out, errs := mustRun(t, 1, args...)
		has(t, out, "node has seen      system 77, timeline 4", "nodes refuse it    ", "is lost")
		has(t, errs, "nothing was changed: say --yes")
		out, _ = mustRun(t, 0, append(args, "--json")...)
		has(t, out, `"accepted": false`, `"refused": "`)
		refused("after a look")
		if x.typed != "" {
			person := terminal(t)
			mustAnswer(t, person, "n\n", args, "Nothing was changed.")
			refused("after a no")
			mustAnswer(t, person, x.typed, args, "The server is accepted.")
		} else {
			out, _ = mustRun(t, 0, append(args, "--yes")...)
			has(t, out, "The server is accepted.")
		}
		openAndClose(t, node)
		after, err := os.ReadFile(file)
		if err != nil || !strings.Contains(string(after), `"replaces":["earlier",`) ||
			!strings.Contains(string(after), `"seen"`) {
			t.Errorf("by %s: file of the node = %s (%v), want what it has seen among the replaced", x.name, after, err)
		}
		out, _ = mustRun(t, 0, append(args, "--yes")...)
		has(t, out, "There is nothing to accept")
		checkAccepted(t, database, floor)
		mustRun(t, 0, "failover", "accept", "--store", database, "--data", t.TempDir()) // as a fresh node
	}
}

// mustAnswer calls a command that asks, and types the answer.
func mustAnswer(t *testing.T, person *os.File, typed string, args []string, want string) {
	t.Helper()
	var out, errs strings.Builder
	code := run(args, &out, onWrite(func(text string) {
		errs.WriteString(text)
		if strings.Contains(text, "[y/N]") {
			if _, err := person.WriteString(typed); err != nil {
				t.Error(err)
			}
		}
	}))
	if code != 0 {
		t.Fatalf("perdure %s: exit code %d, want 0\n%s%s", strings.Join(args, " "), code, &out, &errs)
	}
	has(t, out.String(), want)
}

// checkAccepted checks the audit log and the floor of a server that was accepted.
func checkAccepted(t *testing.T, database string, above int64) {
	t.Helper()
	s, err := store.Open(store.Options{URL: database})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	err = s.View(t.Context(), func(v *store.View) error {
		list, _, err := v.AuditLog.Page(store.AuditFilter{Action: perdure.AuditFailoverAccept, Limit: 10})
		if err == nil && (len(list) != 1 || list[0].KeyName != "perdure failover accept" ||
			!strings.Contains(string(list[0].Detail), `"seen":"77"`)) {
			t.Errorf("audit log = %+v, want one entry of the acceptance", list)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	if s.EpochFloor() <= above {
		t.Errorf("floor of the epochs = %d, want above %d, that of the server before", s.EpochFloor(), above)
	}
}

func TestFailoverAcceptRefuses(t *testing.T) {
	database := pgtest.New(t)
	for _, x := range []struct {
		code       int
		args, says string
	}{
		{1, "failover accept --data " + t.TempDir(), "SQLite has no failover"},
		{1, "failover accept --store postgres://a,b/perdure", "names several servers"},
		{1, "failover accept --store " + database, "has no store"},
		{2, "failover", "accept is missing"},
		{2, "failover take", "Usage"},
	} {
		_, errs := mustRun(t, x.code, strings.Fields(x.args)...)
		has(t, errs, x.says)
	}
}
