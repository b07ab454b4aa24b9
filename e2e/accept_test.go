package e2e

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/perdure/perdure/internal/testkit/pagetest"
	"github.com/perdure/perdure/internal/testkit/pgtest"
)

// TestFailoverPageIsTrue types the commands of docs/failover.md: a store is moved to another cluster
// with pg_dump. A node refuses the copy until consent is given, and the server before afterwards. A
// lease that is in the copy goes on, and the next epoch is above all that were granted.
func TestFailoverPageIsTrue(t *testing.T) {
	t.Parallel()
	blocks := pagetest.Blocks(t, "../docs/failover.md", 2)
	path, err := program()
	if err != nil {
		t.Fatal(err)
	}
	postgres, err := pgtest.Find()
	if err != nil {
		t.Fatal(err)
	}
	before, after := memoryCluster(t).URL("postgres"), memoryCluster(t).URL("postgres")
	dir := t.TempDir()
	n := nodeAt(t, filepath.Join(dir, "perdure-data"), "--store", before)
	n.start()
	submit := func(key string) (r runView) {
		t.Helper()
		n.insist("POST", "/api/v1/runs", key, obj{"kind": "job", "queue": "q", "max_attempts": 9}, &r)
		return r
	}
	first := submit("first")
	held := n.takes("q")
	n.kill(syscall.SIGTERM)
	env := []string{"PATH=" + filepath.Dir(path) + ":" + postgres + ":" + os.Getenv("PATH"), "PERDURE_KEY=",
		"BEFORE=" + before, "AFTER=" + after}
	pagetest.Run(t, blocks[:1], dir, env...)

	refused := func(store, want string) {
		t.Helper()
		ctx, end := context.WithTimeout(t.Context(), 20*time.Second)
		defer end()
		cmd := exec.CommandContext(ctx, path, "serve", "--listen", n.addr, "--data", n.dir, "--store", store)
		if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), want) {
			t.Errorf("a node at the wrong server ends with %v, want a failure with %q:\n%s", err, want, out)
		}
	}
	refused(after, "has a copy of a store of another server")
	pagetest.Run(t, blocks[1:], dir, env...)
	refused(before, "is another database")

	n.args = []string{"--store", after}
	n.start()
	if again := submit("first"); again.RunID != first.RunID {
		t.Errorf("run of a key that is in the copy = %s, want %s", again.RunID, first.RunID)
	}
	n.commits(held, obj{"outcome": obj{"type": "complete", "result": "kept"}})
	submit("second")
	if next := n.takes("q"); next.Epoch < 1<<37 {
		t.Errorf("epoch of a grant after the consent = %d, want above the floor", next.Epoch)
	}
	var audit struct{ Entries []struct{ Action string } }
	n.insist("GET", "/api/admin/audit?action=failover.accept", "", nil, &audit)
	if len(audit.Entries) != 1 {
		t.Errorf("audit log = %+v, want one entry failover.accept", audit)
	}
}

// memoryCluster gives a PostgreSQL for a test alone, which loses no time by syncs.
func memoryCluster(t *testing.T) *pgtest.Cluster {
	t.Helper()
	c, err := pgtest.Start(pgtest.Options{InMemory: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	})
	return c
}
