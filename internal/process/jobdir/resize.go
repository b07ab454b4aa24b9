package jobdir

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// TerminalFile is a named pipe of a job whose command has a terminal. Programs that show the output write
// the size of their own terminal to it, and the runner gives the command's terminal that size.
const TerminalFile = ".terminal"

// OpenTerminal creates the named pipe and opens it for the runner. Opened for writing too, it has no end.
func (d Dir) OpenTerminal() (*os.File, error) {
	path := d.file(TerminalFile)
	if err := os.RemoveAll(path); err != nil {
		return nil, err
	}
	if err := unix.Mkfifo(path, 0o600); err != nil {
		return nil, &os.PathError{Op: "mkfifo", Path: path, Err: err}
	}
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

// maxSize is longer than a line with a size.
const maxSize = 64

// ReadSizes calls a function with each size that is written to the pipe, until the pipe is closed. Lines
// that are no sizes are passed over: the command can write to the pipe, too.
func ReadSizes(pipe io.Reader, each func(rows, cols uint16)) {
	r := bufio.NewReaderSize(pipe, maxSize)
	for {
		line, err := r.ReadSlice('\n')
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return
		}
		var rows, cols uint16
		if n, _ := fmt.Sscanf(string(line), "%d %d", &rows, &cols); n == 2 && rows > 0 && cols > 0 {
			each(rows, cols)
		}
	}
}

// Resize tells the runner the size of a terminal. It does nothing if the command has no terminal, or its
// runner is gone.
func (d Dir) Resize(rows, cols uint16) error {
	folder, err := unix.Open(d.Path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer unix.Close(folder)
	fd, err := unix.Openat(folder, TerminalFile, unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFIFO {
		return err
	}
	_, err = unix.Write(fd, fmt.Appendf(nil, "%d %d\n", rows, cols))
	return err
}
