package runner

import (
	"bytes"
	"errors"
	"os"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// This file starts the command and sends signals. It is the only one that knows process ids.
//
// The runner is a subreaper: a descendant whose parent has ended becomes a child of the runner. So as
// long as there is any descendant there is a child, and a wait that finds no child proves that none is
// left. An id can't be used again before its process was waited for. The ids of children are safe
// while reaping is held up by the lock, and those of deeper descendants while a handle of the process
// is open.

// An ending says how a command has ended.
type ending struct {
	// code is that of a shell: 128 and the signal's number after a signal.
	code   int
	signal string
}

// A command is a process with all its descendants.
type command struct {
	// done is closed when the command has ended, and gone when all its descendants have, too.
	done, gone chan struct{}
	// changed is called when the command was stopped or continued.
	changed func()

	mu      sync.Mutex
	id      int
	ended   bool
	how     ending
	stopped bool
}

// adoptOrphans makes descendants of this process its children when their parents have ended.
func adoptOrphans() error { return unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }

// startCommand starts a command in a process group of its own, or with a terminal in a session of its
// own. It dies with this process.
func startCommand(path string, args []string, attr *os.ProcAttr, terminal bool, changed func()) (*command, error) {
	c := &command{done: make(chan struct{}), gone: make(chan struct{}), changed: changed}
	attr.Sys = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if terminal {
		attr.Sys = &syscall.SysProcAttr{Setsid: true, Setctty: true, Pdeathsig: syscall.SIGKILL}
	}
	started := make(chan error)
	go func() {
		// The kernel sends Pdeathsig when the thread ends that has started the command.
		runtime.LockOSThread()
		p, err := os.StartProcess(path, args, attr)
		if err != nil {
			started <- err
			return
		}
		c.id = p.Pid
		_ = p.Release() // reap waits for it
		started <- nil
		c.reap()
	}()
	return c, <-started
}

// reap waits for the command and all its descendants.
func (c *command) reap() {
	defer close(c.gone)
	for {
		err := unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WSTOPPED|unix.WCONTINUED|unix.WNOWAIT, nil)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return // there is no child
		}
		c.reapOne()
	}
}

// reapOne takes the news of one child.
func (c *command) reapOne() {
	c.mu.Lock()
	var status unix.WaitStatus
	id, err := unix.Wait4(-1, &status, unix.WNOHANG|unix.WUNTRACED|unix.WCONTINUED, nil)
	if err != nil || id != c.id || c.ended {
		c.mu.Unlock()
		return
	}
	switch {
	case status.Stopped(), status.Continued():
		c.stopped = status.Stopped()
		c.mu.Unlock()
		c.changed()
		return
	case status.Signaled():
		c.how = ending{128 + int(status.Signal()), unix.SignalName(status.Signal())}
	default:
		c.how = ending{code: status.ExitStatus()}
	}
	c.ended, c.stopped = true, false
	c.mu.Unlock()
	close(c.done)
}

// isStopped tells whether somebody has stopped the command with a signal.
func (c *command) isStopped() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stopped
}

// terminate asks the command and its process group to end. A stopped one has to be continued for that.
func (c *command) terminate() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.ended {
		_ = unix.Kill(-c.id, unix.SIGTERM)
		_ = unix.Kill(-c.id, unix.SIGCONT)
	}
}

// terminateRest asks the descendants to end that the command has left, and waits for that.
func (c *command) terminateRest(grace time.Duration) {
	c.signalAll(unix.SIGTERM)
	c.signalAll(unix.SIGCONT)
	for end := time.Now().Add(grace); time.Now().Before(end) && c.signalAll(0) > 0; {
		select {
		case <-c.gone:
			return
		case <-time.After(killPause):
		}
	}
}

// Times of kill.
const (
	killPause = 50 * time.Millisecond
	killWhile = 10 * time.Second
)

// kill ends the command and all its descendants, wherever they are. It stops them first, so that none
// makes another meanwhile. It returns false if some are left: those of another user, or in an
// uninterruptible call.
func (c *command) kill() bool {
	for end := time.Now().Add(killWhile); ; {
		select {
		case <-c.gone:
			return true
		default:
		}
		for range 3 {
			c.signalAll(unix.SIGSTOP)
		}
		if c.signalAll(unix.SIGKILL) == 0 {
			return true
		}
		select {
		case <-c.gone:
			return true
		case <-time.After(killPause):
		}
		if time.Now().After(end) {
			return false
		}
	}
}

// signalAll sends a signal to the process group of the command, and to all descendants. It returns how
// many there are.
func (c *command) signalAll(s unix.Signal) (n int) {
	c.mu.Lock()
	if !c.ended {
		n++
		_ = unix.Kill(-c.id, s)
	}
	c.mu.Unlock()
	for _, p := range c.descendants() {
		n++
		p.send(s)
		p.close()
	}
	return n
}

// A handle refers to a process, even if its id is used again.
type handle struct{ fd int }

func (h handle) send(s unix.Signal) { _ = unix.PidfdSendSignal(h.fd, s, nil, 0) }
func (h handle) close()             { _ = unix.Close(h.fd) }

// descendants returns handles of all descendants of this process. A runner that one of them has started
// is left out, with its own descendants: it has another run, which goes on.
func (c *command) descendants() (out []handle) {
	c.mu.Lock() // children are not reaped meanwhile
	defer c.mu.Unlock()
	parents := make(map[int][]int) // children by parent
	folder, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer folder.Close()
	names, _ := folder.Readdirnames(-1)
	for _, name := range names {
		if id, err := strconv.Atoi(name); err == nil {
			if parent := parentOf(id); parent > 0 {
				parents[parent] = append(parents[parent], id)
			}
		}
	}
	for todo := []int{os.Getpid()}; len(todo) > 0; todo = todo[1:] {
		for _, id := range parents[todo[0]] {
			fd, err := unix.PidfdOpen(id, 0)
			if err != nil {
				continue
			}
			// With the handle open, the id is that of this process, if it still has that parent.
			if parentOf(id) != todo[0] {
				unix.Close(fd)
				continue
			}
			if isRunner(id) {
				unix.Close(fd)
				continue
			}
			out = append(out, handle{fd})
			todo = append(todo, id)
		}
	}
	return out
}

// isRunner tells whether a process is a process-runner.
func isRunner(id int) bool {
	folder := "/proc/" + strconv.Itoa(id)
	program, err := os.Readlink(folder + "/exe")
	if err != nil {
		return false
	}
	if own, err := os.Readlink("/proc/self/exe"); err != nil || program != own {
		return false
	}
	b, err := os.ReadFile(folder + "/cmdline")
	args := bytes.Split(b, []byte{0})
	return err == nil && len(args) > 1 && string(args[1]) == ProcessCommand
}

// parentOf returns the parent of a process, or 0.
func parentOf(id int) int {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(id) + "/stat")
	if err != nil {
		return 0
	}
	// The name of the program is in parentheses, and may have any characters in it.
	fields := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(fields) < 2 {
		return 0
	}
	parent, _ := strconv.Atoi(string(fields[1]))
	return parent
}
