package runner

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Keeping the key from commands.
//
// A command is somebody else's program, and often runs as the user of the pool. The kernel shows to a
// user the environment and the memory of his processes, unless a process is not dumpable. So a pool and a
// process-runner are not. Nothing keeps the memory from root; the environment has no key for root either.

// keyVariable is the variable of the environment that has the API key.
const keyVariable = "PERDURE_KEY"

// keyFileVariable has the number of the descriptor from which a program that was executed again reads the
// key.
const keyFileVariable = "PERDURE_KEY_FD"

// Shield makes this process not dumpable: other processes of its user can read neither its environment nor
// its memory.
func Shield() error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("protect the memory of this process: %w", err)
	}
	return nil
}

// HideKey removes the key from the environment that the kernel shows, and shields the process. What a
// process was started with can't be changed, so the program is executed again, without the key in its
// environment: it reads the key from a pipe. os.Getenv has it afterwards.
func HideKey() error {
	if fd, err := strconv.Atoi(os.Getenv(keyFileVariable)); err == nil {
		os.Unsetenv(keyFileVariable)
		pipe := os.NewFile(uintptr(fd), "key")
		key, err := io.ReadAll(io.LimitReader(pipe, maxKey))
		pipe.Close()
		if err != nil {
			return fmt.Errorf("read the key: %w", err)
		}
		if err := os.Setenv(keyVariable, string(key)); err != nil { // of this process's memory alone
			return err
		}
		return Shield()
	}
	key := os.Getenv(keyVariable)
	if key == "" || len(key) > maxKey {
		return Shield()
	}
	read, write, err := os.Pipe()
	if err != nil {
		return err
	}
	// A pipe holds more than a key, so that nobody has to read it yet.
	_, err = io.WriteString(write, key)
	write.Close()
	if err != nil {
		return err
	}
	fd, err := unix.FcntlInt(read.Fd(), unix.F_DUPFD, 3) // without close-on-exec
	if err != nil {
		return err
	}
	env := []string{keyFileVariable + "=" + strconv.Itoa(fd)}
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, keyVariable+"=") {
			env = append(env, v)
		}
	}
	return fmt.Errorf("execute this program again: %w", syscall.Exec("/proc/self/exe", os.Args, env))
}

// maxKey bounds the bytes of a key.
const maxKey = 4096
