package mcp

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// A process is a program that speaks MCP on its standard input and output.
//
// It has a process group of its own, which is killed as a whole. The kernel kills the program when this
// process ends in whatever way. Its standard input ends then, too, so that programs that it has
// started end by themselves.
type process struct {
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	stdout io.ReadCloser
	stderr *tail
	// unasked is how much the program may still write before the next call.
	unasked atomic.Int64
	// closed is closed when the program has written its last, and gone when it has ended.
	closed, gone chan struct{}
	once         sync.Once
}

var errFlood = fmt.Errorf("it has written more than %d bytes that nobody has asked for", maxUnasked)

// startProcess starts the program of a server.
func startProcess(s *Server) (*process, error) {
	p := &process{cmd: exec.Command(s.Command, s.Args...), stderr: &tail{}, closed: make(chan struct{}),
		gone: make(chan struct{})}
	p.cmd.Dir, p.cmd.Stderr, p.cmd.WaitDelay = s.Dir, p.stderr, endTimeout
	for _, name := range []string{"PATH", "HOME", "LANG"} {
		if value, ok := os.LookupEnv(name); ok {
			p.cmd.Env = append(p.cmd.Env, name+"="+value)
		}
	}
	p.cmd.Env = append(p.cmd.Env, s.Env...)
	ownGroup(p.cmd)
	var err error
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if p.stdout, err = p.cmd.StdoutPipe(); err != nil {
		return nil, err
	}
	p.refill()
	started := make(chan error)
	go func() {
		// The kernel kills the program when the thread ends that has started it.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := p.cmd.Start()
		started <- err
		if err == nil {
			p.end()
		}
	}()
	return p, <-started
}

// refill allows the program to write again.
func (p *process) refill() { p.unasked.Store(maxUnasked) }

// end waits until the program has closed its output or is stopped, and kills what is left of it. The
// program was not waited for before that, so the number of its group is not that of another one.
func (p *process) end() {
	defer close(p.gone)
	<-p.closed
	_ = p.stdin.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(io.Discard, io.LimitReader(p.stdout, maxUnasked))
	}()
	select {
	case <-done:
	case <-time.After(endTimeout):
	}
	killGroup(p.cmd)
	_ = p.cmd.Wait()
}

// close makes the program end.
func (p *process) close() { p.once.Do(func() { close(p.closed) }) }

// Read reads the output of the program, and ends it if it is too much.
func (p *process) Read(b []byte) (int, error) {
	n, err := p.stdout.Read(b)
	if p.unasked.Add(-int64(n)) < 0 && err == nil {
		err = errFlood
	}
	if err != nil {
		if !errors.Is(err, io.EOF) {
			p.stderr.note(err.Error())
		}
		p.close()
	}
	return n, err
}

// Close is called when the connection has ended.
func (p *process) Close() error { p.close(); return nil }

// transport returns the pipes to the program.
func (p *process) transport() sdk.Transport {
	return &sdk.IOTransport{Reader: p, Writer: p.stdin, MaxLineLength: maxMessage}
}

// A tail keeps the end of what is written to it.
type tail struct {
	mu    sync.Mutex
	text  []byte
	notes []string
}

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, b[max(len(b)-maxStderr, 0):]...)
	if over := len(t.text) - maxStderr; over > 0 {
		t.text = append(t.text[:0], t.text[over:]...)
	}
	return len(b), nil
}

// note adds a remark of our own.
func (t *tail) note(text string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.notes) < 4 {
		t.notes = append(t.notes, text)
	}
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(clean(string(t.text)))
}

// remark returns our own remarks.
func (t *tail) remark() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.Join(t.notes, "; ")
}
