package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/process/jobdir"
)

// ownState gives a test a job table of its own.
func ownState(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	t.Setenv("XDG_STATE_HOME", dir)
	return filepath.Join(dir, "perdure")
}

// begin starts a run in the background and returns its id.
func begin(t *testing.T, kind string) string {
	t.Helper()
	out, _ := mustRun(t, 0, "run", "-d", kind)
	return strings.TrimSpace(out)
}

// listed returns the columns JOB, KIND and STATUS of perdure jobs, by run.
func listed(t *testing.T) map[string]string {
	t.Helper()
	out, _ := mustRun(t, 0, "jobs")
	rows := make(map[string]string)
	for line := range strings.Lines(out) {
		if f := strings.Fields(line); len(f) > 3 {
			rows[f[0]] = strings.Join(f[1:4], " ")
		}
	}
	return rows
}

// A run that has ended does nothing any more.
func TestEndedJobsShowNoActivity(t *testing.T) {
	r := api.Run{State: perdure.Running, Activity: "thinking"}
	if got := doing(&r, ""); got != "thinking" {
		t.Errorf("a running run shows %q, want what it does", got)
	}
	end := perdure.Instant(1)
	r.State, r.FinishedAt, r.Summary = perdure.Completed, &end, "four disks"
	if got := doing(&r, ""); got != "four disks" {
		t.Errorf("an ended run shows %q, want its summary", got)
	}
}

func TestJobsHaveNumbers(t *testing.T) {
	ownState(t)
	live(t)
	a, b, c := begin(t, "alpha"), begin(t, "beta"), begin(t, "beta-two")
	rows := listed(t)
	for id, want := range map[string]string{a: "%1 alpha queued", b: "%2 beta queued", c: "%3 beta-two queued"} {
		if rows[id] != want {
			t.Errorf("jobs shows %q for %s, want %q", rows[id], id, want)
		}
	}
	for word, want := range map[string]string{"%1": a, "%2": b, "%%": c, "%+": c, "%": c, "%-": b, "%al": a,
		"%beta": b, "%beta-": c} {
		out, _ := mustRun(t, 0, "logs", word, "--json")
		has(t, out, `"run_id":"`+want)
	}
	_, errs := mustRun(t, 1, "kill", "%bet")
	has(t, errs, "%bet: these jobs begin with that: %3, %2")
	_, errs = mustRun(t, 1, "kill", "%7")
	has(t, errs, "%7: there is no such job (perdure jobs lists them)")

	out, _ := mustRun(t, 0, "kill", "%2", "%al")
	has(t, out, b+" cancelled", a+" cancelled")
	// An ended run keeps its number until that was shown.
	if rows = listed(t); rows[b] != "%2 beta cancelled" {
		t.Errorf("jobs shows %q, want the number of the ended run once more", rows[b])
	}
	if rows = listed(t); rows[b] != "- beta cancelled" || rows[c] != "%3 beta-two queued" {
		t.Errorf("jobs shows %q and %q, want no number for the ended run", rows[b], rows[c])
	}
	d := begin(t, "gamma")
	if rows = listed(t); rows[d] != "%1 gamma queued" {
		t.Errorf("jobs shows %q for a new run, want the smallest free number", rows[d])
	}
	text, _ := mustRun(t, 0, "jobs", "--json", "--kind", "gamma")
	var page struct{ Runs []struct{ Job int } }
	if err := json.Unmarshal([]byte(text), &page); err != nil || len(page.Runs) != 1 || page.Runs[0].Job != 1 {
		t.Errorf("jobs --json = %s (error %v), want the number 1", text, err)
	}
	// Another tenant's runs have numbers of their own.
	secret, _ := mustRun(t, 0, "keys", "create", "theirs", "--tenant", "other")
	t.Setenv("PERDURE_KEY", strings.TrimSpace(secret))
	_, errs = mustRun(t, 1, "logs", "%1")
	has(t, errs, "no such job")
	e := begin(t, "epsilon")
	if rows = listed(t); rows[e] != "%1 epsilon queued" {
		t.Errorf("jobs shows %q, want the number 1", rows[e])
	}
	t.Setenv("PERDURE_KEY", "")
	if rows = listed(t); rows[d] != "%1 gamma queued" {
		t.Errorf("jobs shows %q, want the number as before", rows[d])
	}
}

func TestJobsShowProcesses(t *testing.T) {
	ownState(t)
	c, _ := live(t)
	p := newProcess(t, c, "", "claude", "-p", "fix it's \x1b[2J")
	q := newProcess(t, c, "nightly", "make", "test")
	out, _ := mustRun(t, 0, "jobs")
	has(t, out, string(p.id)+"  %1", `claude -p 'fix it'\''s ·[2J' (seen `, " ago)", "make test (seen ")
	p.exit(3, false)
	out, _ = mustRun(t, 0, "jobs")
	has(t, out, "[2J' (exit_status)")
	q.write(jobdir.Stdout, []byte("hello\n"))
	out, _ = mustRun(t, 0, "logs", "%nightly")
	if out != "hello\n" {
		t.Errorf("logs of a named process = %q, want its output", out)
	}
}

// Every command that takes a run takes a job.
func TestEveryCommandTakesJobs(t *testing.T) {
	ownState(t)
	live(t)
	for _, args := range []string{"logs %9", "logs -f %9", "peek %9", "fg %9", "bg %9", "wait %9", "view %9",
		"view %9 x",
		"artifacts %9", "artifacts %9 x", "rm %9", "kill %9", "release %9", "retry %9", "late %9", "late %9 adopt 1",
		"signal %9 x", "dlq show %9", "dlq add %9", "dlq redrive %9", "dlq discard %9", "watchdog --run %9",
		"approve --run %9"} {
		_, stderr := mustRun(t, 1, strings.Fields(args)...)
		has(t, stderr, "%9: there is no such job")
	}
	id := begin(t, "slow")
	_, stderr := mustRun(t, 1, "signal", "%1", "%1", `{}`)
	has(t, stderr, `"%1" is not a name`) // the second is the name of the signal
	out, _ := mustRun(t, 0, "signal", "%1", "go", `{}`)
	has(t, out, id)
}

func TestJobTableIsKeptByManyShells(t *testing.T) {
	ownState(t)
	const shells, each = 8, 20
	var wg sync.WaitGroup
	for s := range shells {
		wg.Go(func() {
			for i := range each {
				id := perdure.RunID(fmt.Sprintf("r-%d-%d", s, i))
				if err := changeJobs(func(tab *jobTable) bool { tab.use("scope", id); return true }); err != nil {
					t.Error(err)
				}
				readJobs()
			}
		})
	}
	wg.Wait()
	tab := readJobs()
	numbers := make(map[int]bool)
	for _, j := range tab.Jobs {
		numbers[j.N] = true
	}
	if len(tab.Jobs) != shells*each || len(numbers) != shells*each || !numbers[1] || !numbers[shells*each] {
		t.Errorf("the table has %d jobs with %d numbers, want %d", len(tab.Jobs), len(numbers), shells*each)
	}
}

func TestJobTableIsBounded(t *testing.T) {
	ownState(t)
	err := changeJobs(func(tab *jobTable) bool {
		for i := range 3 * maxJobs {
			tab.use("scope", perdure.RunID(fmt.Sprint("r", i))).Name = strings.Repeat("n", 100)
		}
		return true
	})
	tab := readJobs()
	if err != nil || len(tab.Jobs) != maxJobs {
		t.Fatalf("the table has %d jobs (error %v), want %d", len(tab.Jobs), err, maxJobs)
	}
	if got, err := tab.resolve("scope", "%%"); err != nil || got != perdure.RunID(fmt.Sprint("r", 3*maxJobs-1)) {
		t.Errorf("the current job is %s (error %v), want the last one", got, err)
	}
}

// A long list gives each number once, and takes none away.
func TestLongListOfJobs(t *testing.T) {
	ownState(t)
	c, _ := live(t)
	mine := begin(t, "mine")
	runs := make([]api.BatchRun, maxJobs+20)
	for i := range runs {
		runs[i].Kind = "many"
	}
	if _, err := c.StartMany(t.Context(), runs); err != nil {
		t.Fatal(err)
	}
	text, _ := mustRun(t, 0, "jobs", "--json", "--limit", "400")
	var page struct {
		Runs []struct {
			RunID string `json:"run_id"`
			Job   int
		}
	}
	if err := json.Unmarshal([]byte(text), &page); err != nil || len(page.Runs) != len(runs)+1 {
		t.Fatalf("jobs lists %d runs (error %v), want %d", len(page.Runs), err, len(runs)+1)
	}
	seen := make(map[int]bool)
	for i, r := range page.Runs {
		if r.Job > 0 && seen[r.Job] {
			t.Fatalf("jobs gives the number %d twice", r.Job)
		}
		if seen[r.Job] = true; r.RunID == mine && r.Job != 1 || i == 0 && r.Job == 0 {
			t.Errorf("run %d of the list has the number %d, want 1 for the first and some for the newest", i, r.Job)
		}
	}
	if len(seen) != maxJobs+1 {
		t.Errorf("the list has %d numbers, want %d", len(seen)-1, maxJobs)
	}
}

// A job table that can't be read or written costs the numbers, and nothing else.
func TestCommandsWorkWithoutJobTable(t *testing.T) {
	dir := ownState(t)
	live(t)
	id := begin(t, "slow")
	for name, text := range map[string]string{"torn": `{"jobs":[{"n":1`, "of another type": `[1,2]`, "empty": "",
		"large": strings.Repeat(" ", maxJobTable+1)} {
		if err := os.WriteFile(filepath.Join(dir, "jobs.json"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, errs := mustRun(t, 1, "logs", "%1")
		has(t, errs, "no such job")
		if rows := listed(t); rows[id] != "%1 slow queued" {
			t.Errorf("with a table that is %s jobs shows %q, want new numbers", name, rows[id])
		}
	}
	t.Setenv("XDG_STATE_HOME", writeFile(t, "no folder"))
	if rows := listed(t); rows[id] != "- slow queued" {
		t.Errorf("without a folder jobs shows %q, want no number", rows[id])
	}
	begin(t, "slow")
	mustRun(t, 0, "kill", id)
	mustRun(t, 5, "wait", id)
	t.Setenv("XDG_STATE_HOME", "relative")
	home := t.TempDir()
	t.Setenv("HOME", home)
	if got, err := stateFolder(); err != nil || got != filepath.Join(home, ".local", "state", "perdure") {
		t.Errorf("state folder = %s (error %v), want that of the home folder", got, err)
	}
}

// A run whose end was shown loses its number, and keeps its name.
func TestNameStaysAfterTheEnd(t *testing.T) {
	ownState(t)
	c, _ := live(t)
	first, second := newProcess(t, c, "fix", "make"), newProcess(t, c, "fixture", "make")
	mustRun(t, 0, "jobs")
	first.write(jobdir.Stdout, []byte("hello\n"))
	first.exit(0, false)
	mustRun(t, 0, "wait", "%1")
	second.exit(0, false)
	mustRun(t, 0, "wait", "%fixture")
	for range 2 { // the second list has the end no more
		mustRun(t, 0, "jobs")
	}
	out, _ := mustRun(t, 0, "logs", "%fix")
	if out != "hello\n" {
		t.Errorf("logs %%fix after its end = %q, want its output", out)
	}
	_, errs := mustRun(t, 1, "logs", "%fi")
	has(t, errs, "%fi: these ended jobs begin with that: ", "fixture")
	for _, word := range []string{"%1", "%%"} {
		_, errs := mustRun(t, 1, "logs", word)
		has(t, errs, word+": there is no such job")
	}
	// A live run comes before an ended one.
	third := newProcess(t, c, "fix", "make")
	mustRun(t, 0, "jobs")
	out, _ = mustRun(t, 0, "peek", "%fi", "--json")
	has(t, out, string(third.id))
	third.write(jobdir.Stdout, []byte("again\n"))
	third.exit(0, false)
	mustRun(t, 0, "wait", "%fix")
	if out, _ = mustRun(t, 0, "logs", "%fix"); out != "again\n" {
		t.Errorf("logs %%fix after two of that name = %q, want the output of the last one", out)
	}
	out, _ = mustRun(t, 0, "jobs")
	has(t, out, "TRY  NAME     DOING", "1    fix      make", "1    fixture  make")
	out, _ = mustRun(t, 0, "jobs", "--json")
	has(t, out, `"name": "fixture"`)
}

func TestEndedJobsAreBounded(t *testing.T) {
	tab := new(jobTable)
	for i := range 2 * maxEnded {
		id := perdure.RunID(fmt.Sprint("r", i))
		tab.use("scope", id).Name = fmt.Sprint("name-", i, "-")
		tab.end("scope", id)
	}
	if len(tab.Jobs) != maxEnded {
		t.Fatalf("the table has %d ended jobs, want %d", len(tab.Jobs), maxEnded)
	}
	if got, err := tab.resolve("scope", fmt.Sprintf("%%name-%d-", maxEnded)); err != nil ||
		got != perdure.RunID(fmt.Sprint("r", maxEnded)) {
		t.Errorf("the oldest of them is %s (error %v), want r%d", got, err, maxEnded)
	}
	if got, err := tab.resolve("scope", fmt.Sprintf("%%name-%d-", maxEnded-1)); err == nil {
		t.Errorf("the one before is %s, want it forgotten", got)
	}
	// They take no numbers away, and a run that lives again has one.
	if j := tab.use("scope", perdure.RunID(fmt.Sprint("r", maxEnded))); j.N != 1 || len(tab.Jobs) != maxEnded {
		t.Errorf("an ended run that is used again is %+v of %d jobs, want the number 1", j, len(tab.Jobs))
	}
}

// A name means the job that has it, and only then those whose names begin so.
func TestWholeNameGoesBeforeItsBeginning(t *testing.T) {
	tab := jobTable{Jobs: []job{
		{N: 1, RunID: "live", Scope: "scope", Name: "fix-docs"},
		{N: 2, RunID: "whole", Scope: "scope", Name: "test"},
		{N: 3, RunID: "longer", Scope: "scope", Name: "test-all"},
		{RunID: "first", Scope: "scope", Name: "fix", Used: 1},
		{RunID: "ended", Scope: "scope", Name: "fix", Used: 2},
		{RunID: "other", Scope: "scope", Name: "test", Used: 3},
		{RunID: "lint", Scope: "scope", Name: "lint-all", Used: 4},
	}}
	for word, want := range map[string]perdure.RunID{"%fix": "ended", "%fix-": "live", "%fi": "live", "%test": "whole",
		"%lint": "lint"} {
		if got, err := tab.resolve("scope", word); got != want || err != nil {
			t.Errorf("%s is run %q (error %v), want %s", word, got, err, want)
		}
	}
	if got, err := tab.resolve("scope", "%te"); err == nil {
		t.Errorf("%%te is run %s, want that it is not clear", got)
	}
}

func TestFgTakesTheCurrentJob(t *testing.T) {
	ownState(t)
	c, _ := live(t)
	_, errs := mustRun(t, 1, "fg")
	has(t, errs, "there is no current job")
	newProcess(t, c, "other", "true")
	p := newProcess(t, c, "mine", "true")
	mustRun(t, 0, "jobs")
	mustRun(t, exitLeft, "wait", "%mine", "--timeout", "1ms") // 3 may be the command's own
	p.write(jobdir.Stdout, []byte("mine\n"))
	p.exit(4, false)
	if out, _ := mustRun(t, 4, "fg"); out != "mine\n" {
		t.Errorf("fg without a run printed %q, want the output of the current job", out)
	}
}
