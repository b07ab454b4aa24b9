package runner

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/process/jobdir"
	"github.com/perdure/perdure/internal/testkit/eventually"
)

// A terminal that shows the output of a command with a terminal tells its own size.
func TestResizeReachesTheCommand(t *testing.T) {
	w := newWorld(t)
	s := w.start(`trap 'stty size; exit' WINCH; stty size; while :; do sleep 0.02; done`,
		func(j *Job, _ *perdure.Submission) { j.Spec.PTY, j.Rows, j.Cols = true, 24, 80 })
	s.until(Started)
	eventually.True(t, "the first size is in the log", func() bool {
		return strings.HasPrefix(s.logged(jobdir.Stdout), "24 80")
	})
	if err := s.dir().Resize(40, 132); err != nil {
		t.Fatal(err)
	}
	s.ended(perdure.Completed, "")
	if got := s.logged(jobdir.Stdout); got != "24 80\r\n40 132\r\n" {
		t.Errorf("output = %q, want both sizes", got)
	}
	if err := s.dir().Resize(50, 100); err != nil {
		t.Errorf("resize after the end: %v, want nothing to happen", err)
	}
}

// The named pipe of the sizes would keep programs waiting that read all files of the folder.
func TestPipeOfTheTerminalGoesIfTheCommandIsNotStarted(t *testing.T) {
	w := newWorld(t)
	s := w.start("", func(j *Job, _ *perdure.Submission) {
		j.Spec.Command, j.Spec.PTY, j.Rows, j.Cols = []string{"./no-such-program"}, true, 24, 80
	})
	s.until(Failed)
	if _, err := os.Stat(s.dir().Path); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(filepath.Join(s.dir().Path, jobdir.TerminalFile)); !os.IsNotExist(err) {
		t.Errorf("the pipe of the terminal: %v, want it removed", err)
	}
	s.ended(perdure.Failed, CodeStart)
}
