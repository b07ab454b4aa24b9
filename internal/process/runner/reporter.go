package runner

import (
	"encoding/json"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// A reporter writes reports to the pipe of the starter, which does not block.
//
// A starter that does not read must not hold up the output and the end of the run: its terminal may be
// stopped with Ctrl-S, or its output may go to a pager. So reports that can be many are dropped while
// the pipe is full. The others are a handful, and are waited for.
type reporter struct {
	mu   sync.Mutex
	pipe *os.File
}

// atomicWrite is how many bytes a pipe takes as a whole or not at all.
const atomicWrite = 4096

func (p *reporter) report(r Report) {
	line, err := json.Marshal(r)
	if err != nil {
		return // texts and numbers can always be encoded
	}
	line = append(line, '\n')
	p.mu.Lock()
	defer p.mu.Unlock()
	if r.Event != Notice && r.Event != Sending {
		_, _ = p.pipe.Write(line) // the starter may be gone
		return
	}
	if len(line) > atomicWrite {
		return // a part of it would garble the next report
	}
	if conn, err := p.pipe.SyscallConn(); err == nil {
		_ = conn.Write(func(fd uintptr) bool {
			_, _ = unix.Write(int(fd), line)
			return true // without waiting for room
		})
	}
}
