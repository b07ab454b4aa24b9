package e2e

import (
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/perdure/perdure/internal/server/engine"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/store"
)

// meddling is a statement that changes a database without the server.
type meddling struct {
	text string
	args []any
}

func (meddling) Needs() []store.Ref { return nil }

func (m meddling) Do(tx *kernel.Tx) error {
	tx.DB.Stage(m.text, m.args...)
	return nil
}

// The server is stopped, the input of a run is changed in its file, and the server is started
// again. The run is not executed. Without its signing key the server does not start.
func TestRunChangedInDatabaseIsNotExecuted(t *testing.T) {
	path, err := program()
	if err != nil {
		t.Fatal(err)
	}
	key := filepath.Join(t.TempDir(), "signing.key")
	if out, err := exec.Command(path, "keys", "signing", "new", key).CombinedOutput(); err != nil {
		t.Fatalf("keys signing new: %v: %s", err, out)
	}
	n := newNode(t, "--signing-keys", key)
	if status := n.insist("PUT", "/api/admin/tenants/default", "", obj{"require_signatures": true},
		nil); status != http.StatusOK {
		t.Fatal(status)
	}
	good, bad := n.submit(obj{"kind": "job", "input": "transfer 10"}),
		n.submit(obj{"kind": "job", "input": "transfer 10"})
	n.kill(syscall.SIGKILL)

	s, err := store.Open(store.Options{Path: filepath.Join(n.dir, "perdure.db")})
	if err != nil {
		t.Fatal(err)
	}
	e, err := engine.New(s, engine.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Step(s.Now(),
		meddling{"UPDATE runs SET input=? WHERE id=?", []any{`"transfer 1000000"`, bad.RunID}})[0]; err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}

	out, err := exec.Command(path, "serve", "--listen", n.addr, "--data", n.dir).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "tenant default requires that its runs are signed") {
		t.Errorf("start without the signing key: %v, want an error: %s", err, out)
	}
	n.start()
	got := n.poll("w", 10, true, "1s")
	if len(got) != 1 || got[0].RunID != good.RunID {
		t.Errorf("poll after the change = %+v, want only run %s, which was not changed", got, good.RunID)
	}
	var letter struct {
		Cause string
		Run   struct {
			State string
			Input string
		}
	}
	if status := n.insist("GET", "/api/v1/dlq/"+bad.RunID, "", nil, &letter); status != http.StatusOK ||
		letter.Cause != "signature_invalid" || letter.Run.State != "failed" ||
		letter.Run.Input != "transfer 1000000" {
		t.Errorf("dead letter: status %d, %+v; want signature_invalid with the changed input", status, letter)
	}
}
