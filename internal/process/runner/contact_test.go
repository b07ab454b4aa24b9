package runner

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/process/jobdir"
	"github.com/perdure/perdure/internal/testkit/eventually"
)

// A server is gone for good. The runner stays with its command however long that takes, gives up some time
// after the command's end, and says what it leaves: a server with the workspace takes it over.
func TestRunnerWithoutAServerGivesUpAfterTheEnd(t *testing.T) {
	w := newWorld(t)
	s := w.start(`echo begun; echo x > ready; while [ ! -e gate ]; do sleep 0.01; done; echo ended`,
		func(j *Job, _ *perdure.Submission) { j.GiveUpAfter = 300 * time.Millisecond })
	s.until(Started)
	file(t, s.cwd()+"/ready")
	eventually.True(t, "the first output is in the log", func() bool { return s.logged(jobdir.Stdout) == "begun\n" })
	w.Down()
	begun := time.Now()
	eventually.True(t, "the server is away for longer than the runner waits", func() bool {
		return time.Since(begun) > 600*time.Millisecond
	})
	if held, err := s.dir().LockHeld(""); !held || err != nil {
		t.Fatalf("the lock is held: %t (%v), want the runner to stay while its command runs", held, err)
	}
	if err := os.WriteFile(s.cwd()+"/gate", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s.until(Ended)
	r := s.until(Failed)
	for _, want := range []string{"no server has answered for 300ms", s.dir().Path, jobdir.ResultFile, "stdout.log",
		"--workspace " + w.workspace, "perdure logs " + string(s.id)} {
		if !strings.Contains(r.Message, want) || !strings.Contains(s.runnerLog(), want) {
			t.Errorf("the runner says %q, and its log %q, want %q in both", r.Message, s.runnerLog(), want)
		}
	}
	s.p.Wait()
	w.Options.Workspace = w.workspace
	w.Reopen()
	s.ended(perdure.Completed, "")
	if got := s.logged(jobdir.Stdout); got != "begun\nended\n" {
		t.Errorf("output = %q, want all of it once", got)
	}
}
