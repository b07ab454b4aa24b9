package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

// report is the table of all attacks.
func (s *siege) report() string {
	var b strings.Builder
	b.WriteString("| attack | happened | refused | calls of the bystander | p50 | p99 | slowest | deadline late | " +
		"memory | taken away |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n")
	fmt.Fprintf(&b, "| none | | | %d | %s | %s | %s | | | |\n", len(s.alone), ms(quantile(s.alone, 0.5)),
		ms(quantile(s.alone, 0.99)), ms(longest(s.alone)))
	for _, r := range s.rows {
		fmt.Fprintf(&b, "| %s | %d | %d | %d | %s | %s | %s | %s | %d MB | %.0f %% |\n", r.name, r.done.Happened,
			r.done.Refused, len(r.took), ms(quantile(r.took, 0.5)), ms(r.p99()), ms(longest(r.took)),
			ms(longest(r.late)), r.memory>>20, 100*r.taken)
	}
	return b.String()
}

// summary says in a few words how the promise is kept, with the rows that are closest to its bounds.
func (s *siege) summary() string {
	kept, happened, calls := 0, 0, 0
	for _, r := range s.rows {
		i := slices.IndexFunc(attacks, func(x attack) bool { return x.name == r.name })
		if s.over(attacks[i], r) == "" {
			kept++
		}
		happened += r.done.Happened
		calls += len(r.took)
	}
	top := func(of func(siegeRow) time.Duration) siegeRow {
		return slices.MaxFunc(s.rows, func(a, b siegeRow) int { return int(of(a) - of(b)) })
	}
	slow, late := top(siegeRow.p99), top(func(r siegeRow) time.Duration { return longest(r.late) })
	most := slices.MaxFunc(s.rows, func(a, b siegeRow) int { return int(a.memory - b.memory) })
	alone := quantile(s.alone, 0.99)
	return fmt.Sprintf("The promise is kept during %d of %d attacks. They happened %d times, beside %d calls of the "+
		"bystander. *%s* has the largest p99 (%s, %.1f times that alone), *%s* the latest deadline (%s), *%s* the "+
		"most memory (%d MB).", kept, len(s.rows), happened, calls, slow.name, ms(slow.p99()),
		float64(slow.p99())/float64(alone), late.name, ms(longest(late.late)), most.name, most.memory>>20)
}

// evidence is the page up to the sections of the stores.
const evidence = `# Hostile tenants beside an ordinary one

Printed by

    PERDURE_TEST_FULL=1 PERDURE_EVIDENCE=$PWD/docs/evidence go test ./e2e -run HostileTenants -v -timeout 24h

which ^make campaign^ runs: every attack of [attacks_test.go](../../e2e/attacks_test.go) for %s, one
after the other on the same store, each by a tenant of its own. What an attack needs is loaded
before its time begins. Work that it leaves behind goes on during the next ones. Together the
attacks call every route that a tenant's key may call, except those that the file lists with a
reason.

The machine has %d cores. Attacker, bystander and server are three processes on them, and
PostgreSQL's processes come on top. The attacker's process has a lower priority (^nice 10^), since
an attacker would have machines of its own.

The bystander has two callers who submit a run and wait for its result, one worker, and runs that
end by a deadline of 300 ms. *Happened* counts the attacks that the server carried out, *refused*
those that it told to come later. Memory is the largest resident size of the server during the
attack and its set-up.

The promise: the p99 of the bystander's calls is at most 10 times what it is alone (100 ms where
that is less than 10 ms) and at most 1 s, no deadline is late by more than 1 s, the server stays
within 600 MB and is not restarted. An attack that happens more seldom than its row demands fails,
whatever the bystander notices.

The last column is the part of the processors' time that other programs and other machines took.
`

// writeEvidence writes the section of this store, and leaves that of the other store as it is.
func (s *siege) writeEvidence(t *testing.T) {
	at := os.Getenv("PERDURE_EVIDENCE")
	if at == "" || !s.no.full {
		return
	}
	commit, err := exec.Command("git", "describe", "--always", "--abbrev=10", "--dirty=, with changes").Output()
	if err != nil {
		t.Fatalf("which commit this is: %v", err)
	}
	file := filepath.Join(at, "hostile-tenants.md")
	old, err := os.ReadFile(file)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	page := fmt.Sprintf(strings.ReplaceAll(evidence, "^", "`"), s.no.attack, runtime.NumCPU())
	for _, store := range []string{"SQLite", "PostgreSQL"} {
		section := fmt.Sprintf("The commit is %s.\n\n%s\n\n%s", strings.TrimSpace(string(commit)),
			wrapped(s.summary(), 100), s.report())
		if store != s.store {
			_, rest, _ := strings.Cut(string(old), "\n## "+store+"\n\n")
			section, _, _ = strings.Cut(rest, "\n## ")
			section = strings.TrimRight(section, "\n") + "\n"
		}
		page += "\n## " + store + "\n\n" + section
	}
	if err := os.WriteFile(file, []byte(page), 0o644); err != nil {
		t.Error(err)
	}
}

// wrapped breaks a paragraph into lines.
func wrapped(text string, width int) string {
	var b strings.Builder
	column := 0
	for i, word := range strings.Fields(text) {
		if n := len([]rune(word)); i > 0 && column+1+n > width {
			b.WriteByte('\n')
			column = 0
		} else if i > 0 {
			b.WriteByte(' ')
			column++
		}
		b.WriteString(word)
		column += len([]rune(word))
	}
	return b.String()
}
