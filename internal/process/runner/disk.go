package runner

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/process/jobdir"
)

// A full disk.
//
// The command writes to its files itself, so the runner does not see that a write has failed. It looks at
// the file system of the files now and then and at the end, and at its own writes: a quota shows there
// alone. A command whose output goes through a terminal waits until there is room.

// maxFull bounds how often it is told that the disk is full.
const maxFull = 10

// A disk says whether the disk of the workspace is full.
type disk struct {
	mu   sync.Mutex
	full bool
	// refused tells that a write has failed. The file system need not look full then.
	refused bool
	told    int
}

// is takes in a look at the disk. It returns true if it has become full, and that is to be told.
func (d *disk) is(full bool) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	became := full && !d.full
	if d.full = full; !became || d.told == maxFull {
		return false
	}
	d.told++
	return true
}

// isFull tells whether an error is that of a full disk, or of a quota that is used up.
func isFull(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }

// noRoom tells whether the file system of a file has no room for the user of this process.
func noRoom(f *os.File) bool {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &st); err != nil || st.Blocks == 0 {
		return false
	}
	if os.Geteuid() == 0 {
		return st.Bfree == 0
	}
	return st.Bavail == 0
}

// noteWrite takes in the result of a write of the runner's own. One that succeeds proves that there is
// room again.
func (e *execution) noteWrite(err error) {
	e.disk.mu.Lock()
	e.disk.refused = isFull(err)
	e.disk.mu.Unlock()
	e.lookAtDisk()
}

// lookAtDisk tells that the disk has become full.
func (e *execution) lookAtDisk() {
	e.disk.mu.Lock()
	refused := e.disk.refused
	e.disk.mu.Unlock()
	if !e.disk.is(refused || noRoom(e.output.files[jobdir.Stdout])) {
		return
	}
	e.mu.Lock()
	e.process.DiskFull, e.viewChanged = true, true
	e.mu.Unlock()
	e.tell(jobdir.EventDiskFull, jobdir.Notice{Message: fmt.Sprintf("the disk of the workspace is full (%s): output "+
		"that the command can't write is lost", e.dir.Path)})
}

// maxTruncations bounds how often it is told that the command has truncated a file. A loop may do so with
// each of its lines.
const maxTruncations = 10

// tellTruncated tells which files the command has truncated. The last one of maxTruncations says that
// there may be more.
func (e *execution) tellTruncated() {
	for _, t := range e.output.takeTruncated() {
		if e.truncations++; e.truncations > maxTruncations {
			return
		}
		message := "the command has truncated the file of its " + t.stream + ": what follows was written after that"
		if e.truncations == maxTruncations {
			message += "; if it does so again, that is not told any more"
		}
		e.tell(jobdir.EventTruncated, jobdir.Notice{Stream: t.stream, Offset: t.offset, Message: message})
	}
}

// tell tells a notice: to the log of the run, and to the terminal of its starter.
func (e *execution) tell(typ perdure.LineType, n jobdir.Notice) {
	e.log.Warn(n.Message)
	e.mu.Lock()
	e.facts.add(typ, n)
	e.mu.Unlock()
	e.report(Report{Event: Notice, RunID: e.grant.RunID, Message: n.Message})
}
