package e2e

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/perdure/perdure/internal/testkit/eventually"
)

// A screen is a terminal, and a program that runs in it.
type screen struct {
	t      *testing.T
	master *os.File
	cmd    *exec.Cmd
	mu     sync.Mutex
	text   bytes.Buffer
}

// onScreen starts the program in a terminal of a size.
func (w *workshop) onScreen(rows, cols uint16, args ...string) *screen {
	w.t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		w.t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		w.t.Fatal(err)
	}
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		w.t.Fatal(err)
	}
	defer slave.Close()
	path, err := program()
	if err != nil {
		w.t.Fatal(err)
	}
	s := &screen{t: w.t, master: master, cmd: exec.Command(path, args...)}
	s.resize(rows, cols)
	s.cmd.Env = w.env()
	s.cmd.Stdin, s.cmd.Stdout, s.cmd.Stderr = slave, slave, slave
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := s.cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	go func() {
		b := make([]byte, 4096)
		for {
			n, err := master.Read(b)
			s.mu.Lock()
			s.text.Write(b[:n])
			s.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	w.t.Cleanup(func() {
		s.cmd.Process.Kill()
		s.cmd.Wait()
		master.Close()
	})
	return s
}

// resize changes the size of the terminal. The kernel tells the program.
func (s *screen) resize(rows, cols uint16) {
	s.t.Helper()
	err := unix.IoctlSetWinsize(int(s.master.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: cols})
	if err != nil {
		s.t.Fatal(err)
	}
}

// shows waits until the terminal shows a text.
func (s *screen) shows(want string) {
	s.t.Helper()
	eventually.True(s.t, fmt.Sprintf("the terminal shows %q", want), func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return strings.Contains(s.text.String(), want)
	})
}

// The window of a person who looks at a command with a terminal gets another size: in the foreground, and
// after coming back from a window of another size.
func TestResizedWindowReachesTheCommand(t *testing.T) {
	w := newWorkshop(t)
	first := w.onScreen(30, 90, "exec", "--pty", "--name", "editor", "--", "sh", "-c",
		`trap 'echo "size $(stty size)."' WINCH; echo "size $(stty size)."; while :; do sleep 0.02; done`)
	first.shows("size 30 90.")
	first.resize(31, 91)
	first.shows("size 31 91.")
	first.cmd.Process.Signal(syscall.SIGINT) // it detaches
	first.cmd.Wait()
	second := w.onScreen(50, 120, "fg", "%editor")
	second.shows("size 50 120.")
	second.resize(51, 121)
	second.shows("size 51 121.")
}
