package chaos

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// report is what a campaign did and found, for its log and for the page.
func (c *campaign) report() string {
	var b strings.Builder
	h := c.history
	all := 0
	for _, n := range c.faults() {
		all += n
	}
	verdict := "Every promise was kept."
	if len(c.found)+len(c.load.problems) > 0 {
		verdict = fmt.Sprintf("%d promises were broken.", len(c.found)+len(c.load.problems))
	}
	fmt.Fprintf(&b, "%s of faults by seed %d: %d faults, %d operations that were acknowledged, %d runs.\n%s\n\n",
		(c.took.plan + c.took.provoking).Round(time.Second), c.seed, all, h.Checked.Acknowledged,
		len(h.Stored.Runs), verdict)
	fmt.Fprintf(&b, "It took %s to start, %s for the plan, %s to provoke what it did not lead to, "+
		"%s until all runs\nhad ended, and %s to check. The load of the machine was %s.\n\n",
		c.took.starting.Round(time.Second), c.took.plan.Round(time.Second), c.took.provoking.Round(time.Second),
		c.took.ending.Round(time.Second), c.took.checking.Round(time.Second), &c.busy)
	fmt.Fprintf(&b, "| fault | times |\n| --- | --- |\n")
	faults := c.faults()
	for _, f := range slices.Sorted(maps.Keys(faults)) {
		fmt.Fprintf(&b, "| %s | %d |\n", f, faults[f])
	}
	fmt.Fprintf(&b, "\n| situation | times |\n| --- | --- |\n")
	for _, s := range situations {
		fmt.Fprintf(&b, "| %s | %d |\n", s.name, s.count(c))
	}
	fmt.Fprintf(&b, "\n| rule | looked at | broken |\n| --- | --- | --- |\n")
	broken := make(map[string]int)
	for _, v := range c.found {
		broken[v.Rule]++
	}
	looked := map[string]string{"acknowledged": fmt.Sprint(h.Checked.Acknowledged, " acknowledgements"),
		"phantoms": fmt.Sprint(len(h.Stored.Runs), " runs"), "log": fmt.Sprint(len(h.Stored.Runs), " logs"),
		"streams": fmt.Sprint(h.Checked.Frames, " lines"), "deadlines": fmt.Sprint(h.Checked.Ends, " ends"),
		"thefts":  fmt.Sprint(len(h.Stored.Runs), " runs"),
		"effects": fmt.Sprint(h.Checked.Effects, " executions of steps"),
		"leases":  fmt.Sprint(h.Checked.Leases, " runs agree with the model")}
	for _, r := range rules {
		fmt.Fprintf(&b, "| %s | %s | %d |\n", r.name, looked[r.name], broken[r.name])
	}
	return b.String()
}

// A burden is how busy the machine was: how many threads wanted to run, as the system counts them.
type burden struct{ all []float64 }

// take adds a sample. Systems without the file have none.
func (b *burden) take() {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return
	}
	first, _, _ := strings.Cut(string(text), " ")
	if load, err := strconv.ParseFloat(first, 64); err == nil {
		b.all = append(b.all, load)
	}
}

func (b *burden) String() string {
	if len(b.all) == 0 {
		return "not known"
	}
	sum := 0.0
	for _, load := range b.all {
		sum += load
	}
	return fmt.Sprintf("%.1f on average, %.1f at most", sum/float64(len(b.all)), slices.Max(b.all))
}

// evidence is the page up to the sections.
const evidence = `# Chaos, checked by its history

Printed by ^make campaign CHAOS=30m SEED=…^, a section for each doorbell.

Three nodes, three worker processes on the SDK and %d clients on a machine with %d processors. The
load average of the machine says whether it had other work: about 3 of it are the campaign's own.
[The package](../../e2e/chaos/doc.go) says what is broken, what is recorded and what is checked. A
node that ends by itself, an answer with status 500, a violated invariant of the store, and more
than %d lines at level warn and above within a minute of one process count as broken promises, too.
`

// describeCommit says which commit is tested, before the source may change.
func describeCommit(t *testing.T) string {
	out, err := exec.Command("git", "describe", "--always", "--abbrev=10", "--dirty=, with changes").Output()
	if err != nil {
		t.Fatalf("which commit this is: %v", err)
	}
	return strings.TrimSpace(string(out))
}

// writeEvidence writes the section of this doorbell, and leaves that of the other one as it is.
func (c *campaign) writeEvidence(t *testing.T) {
	at := os.Getenv("PERDURE_EVIDENCE")
	if at == "" {
		return
	}
	file := filepath.Join(at, "chaos.md")
	old, err := os.ReadFile(file)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	page := fmt.Sprintf(strings.ReplaceAll(evidence, "^", "`"), clientCount, runtime.NumCPU(), loudest)
	for _, bell := range []string{"NATS", "LISTEN and NOTIFY"} {
		section := fmt.Sprintf("The commit is %s; `PERDURE_CHAOS=%s PERDURE_SEED=%d` repeats the plan.\n\n%s", c.commit,
			c.length, c.seed, c.report())
		if bell != c.bell {
			_, rest, _ := strings.Cut(string(old), "\n## "+bell+"\n\n")
			section, _, _ = strings.Cut(rest, "\n## ")
			if section = strings.TrimRight(section, "\n") + "\n"; section == "\n" {
				continue
			}
		}
		page += "\n## " + bell + "\n\n" + section
	}
	if err := os.WriteFile(file, []byte(page), 0o644); err != nil {
		t.Error(err)
	}
}
