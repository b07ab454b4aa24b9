package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/perdure/perdure/internal/testkit/eventually"
	"github.com/perdure/perdure/internal/testkit/pgtest"
	"github.com/perdure/perdure/internal/testkit/stage"
)

// A record is a log that is read while it is written.
type record struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (r *record) Write(b []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text.Write(b)
}

// lines gives the lines with any of these texts.
func (r *record) lines(texts ...string) (out []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for line := range strings.Lines(r.text.String()) {
		for _, x := range texts {
			if strings.Contains(line, x) {
				out = append(out, line)
				break
			}
		}
	}
	return out
}

// health asks a node for /healthz or /readyz.
func (n *node) health(path string) (status int, detail string) {
	res, err := n.http.Get("http://" + n.addr + path)
	if err != nil {
		return 0, err.Error()
	}
	defer res.Body.Close()
	var body struct{ Detail string }
	if err := json.NewDecoder(res.Body).Decode(&body); err != nil {
		return res.StatusCode, err.Error()
	}
	return res.StatusCode, body.Detail
}

// TestNodeWaitsForPostgreSQL: a node that starts before its database listens and says what it waits
// for. It goes on when the database is there. While the database is away, the log has one line and
// not one for each call.
func TestNodeWaitsForPostgreSQL(t *testing.T) {
	stage.Long(t)
	t.Parallel()
	c := ownCluster(t)
	if err := c.Halt(pgtest.Fast); err != nil {
		t.Fatal(err)
	}
	n := prepareNode(t, "--store", c.URL("postgres"))
	log := &record{}
	n.log = log
	var started sync.WaitGroup
	started.Go(n.start)
	want := "waiting for PostgreSQL at 127.0.0.1:"
	eventually.True(t, "the node says that it waits for PostgreSQL", func() bool {
		status, detail := n.health("/readyz")
		return status == http.StatusServiceUnavailable && strings.HasPrefix(detail, want)
	})
	if status, detail := n.health("/healthz"); status != http.StatusOK {
		t.Errorf("/healthz of a node that waits = %d %s, want 200", status, detail)
	}
	if status, _ := n.call("GET", "/api/v1/runs", "", nil, nil); status != http.StatusServiceUnavailable {
		t.Errorf("a call to a node that waits = %d, want 503", status)
	}
	if err := c.Launch(); err != nil {
		t.Fatal(err)
	}
	started.Wait()
	if got := log.lines("waiting for PostgreSQL"); len(got) == 0 || !strings.Contains(got[0], "nothing listens at") {
		t.Errorf("log while the node waited = %q, want a line with the cause", got)
	}

	if err := c.Halt(pgtest.Immediate); err != nil {
		t.Fatal(err)
	}
	refused := 0
	for began := time.Now(); time.Since(began) < 12*time.Second || refused < 20; {
		status, err := n.call("POST", "/api/v1/runs", fmt.Sprint(time.Now().UnixNano()), obj{"kind": "job"}, nil)
		if err != nil || status != http.StatusServiceUnavailable {
			t.Fatalf("a submit while PostgreSQL is away = %d, %v, want 503", status, err)
		}
		refused++
	}
	if err := c.Launch(); err != nil {
		t.Fatal(err)
	}
	eventually.True(t, "the node is ready again", func() bool {
		status, _ := n.health("/readyz")
		return status == http.StatusOK
	})
	if got := log.lines("level=WARN", "level=ERROR"); len(got) > 5+2 { // and the lines of the start
		t.Errorf("%d lines about one outage with %d refused calls, want at most 5:\n%s", len(got)-2, refused,
			strings.Join(got, ""))
	}
	if got := log.lines("the database is away"); len(got) != 1 || !strings.Contains(got[0], "nothing listens at") {
		t.Errorf("lines about the outage = %q, want one with the cause", got)
	}
}

// TestStartGivesUpAfterStartWait: a node that can't reach its database exits with 69 and one line
// that begins with the cause.
func TestStartGivesUpAfterStartWait(t *testing.T) {
	t.Parallel()
	path, err := program()
	if err != nil {
		t.Fatal(err)
	}
	for _, wait := range []string{"0s", "1s"} {
		cmd := exec.Command(path, "serve", "--listen", "127.0.0.1:0", "--data", t.TempDir(), "--log-level", "error",
			"--store", "postgres://perdure:secret@127.0.0.1:1/perdure", "--start-wait", wait)
		out, err := cmd.CombinedOutput()
		want := "perdure serve: nothing listens at 127.0.0.1:1: "
		if !strings.HasPrefix(string(out), want) || strings.Count(string(out), "\n") != 1 {
			t.Errorf("start_wait %s: output = %q, want one line that begins with %q", wait, out, want)
		}
		if code := cmd.ProcessState.ExitCode(); code != 69 {
			t.Errorf("start_wait %s: exit code = %d (%v), want 69", wait, code, err)
		}
	}
}
