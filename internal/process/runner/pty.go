package runner

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// A terminal is the pseudo-terminal of a command. Its output is copied to the file of the
// standard output; there is no standard error. Nobody types into it.
type terminal struct {
	master, slave *os.File
	// copied is closed when all output is in the file.
	copied chan struct{}
}

// openTerminal opens a pseudo-terminal of a size.
func openTerminal(rows, cols uint16) (*terminal, error) {
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err == nil && rows > 0 && cols > 0 {
		err = unix.IoctlSetWinsize(int(master.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: cols})
	}
	var slave *os.File
	if err == nil {
		slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	}
	if err != nil {
		master.Close()
		return nil, fmt.Errorf("open a terminal: %w", err)
	}
	return &terminal{master: master, slave: slave, copied: make(chan struct{})}, nil
}

// resize gives the terminal another size. The kernel tells the command with SIGWINCH.
func (t *terminal) resize(rows, cols uint16) {
	conn, err := t.master.SyscallConn()
	if err != nil {
		return
	}
	_ = conn.Control(func(fd uintptr) { // the terminal may be gone
		_ = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: cols})
	})
}

// fullPause is how long a write waits that a full disk has refused. The command waits meanwhile.
const fullPause = 100 * time.Millisecond

// copyTo copies the output to a file until nobody has the terminal open any more. failed is told why a
// write has failed.
func (t *terminal) copyTo(f *os.File, over <-chan struct{}, failed func(error)) {
	defer close(t.copied)
	defer f.Close()
	defer t.master.Close()
	b := make([]byte, 16<<10)
	for {
		n, err := t.master.Read(b)
		for rest := b[:n]; len(rest) > 0; {
			written, err := f.Write(rest)
			if rest = rest[written:]; err != nil {
				failed(err)
				select {
				case <-over:
					return
				case <-time.After(fullPause):
				}
			}
		}
		if err != nil {
			return
		}
	}
}
