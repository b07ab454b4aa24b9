package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// A keyboard reads lines that a person types, or those of a pipe.
//
// A question is answered after it was shown: what was typed before counts as nothing. So a question
// discards what waits in the terminal and what was read of it already, and until its end nobody else
// reads. A terminal is therefore never read ahead: a read happens under the lock, and only when there
// is something to read.
type keyboard struct {
	// tty is the terminal, or nil. in is anything else, whose chunks a goroutine reads on demand.
	tty    *os.File
	in     io.Reader
	chunks chan []byte
	once   sync.Once

	mu sync.Mutex
	// buf is what was read and is no complete line yet. err is the end of the input.
	buf []byte
	err error
	// asking is set while a question is on the screen.
	asking bool
}

func newKeyboard(in io.Reader) *keyboard {
	k := &keyboard{in: in, chunks: make(chan []byte)}
	if f, ok := in.(*os.File); ok && isTerminal(f) {
		k.tty = f
	}
	return k
}

// lookEvery is the time between two looks whether it is this reader's turn, or its context has ended.
const lookEvery = 100 * time.Millisecond

// question says that a question is about to be shown. It discards what was typed until now, and tells
// whether there was something. The function that it returns ends the question.
func (k *keyboard) question() (discarded bool, end func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	discarded = len(k.buf) > 0
	k.buf, k.asking = nil, true
	if k.tty != nil {
		if n, err := unix.IoctlGetInt(int(k.tty.Fd()), unix.TIOCINQ); err == nil && n > 0 {
			discarded = true
		}
		_ = unix.IoctlSetInt(int(k.tty.Fd()), unix.TCFLSH, unix.TCIFLUSH) // fails if it is no terminal any more
	} else {
		select {
		case _, ok := <-k.chunks:
			discarded = discarded || ok
		default:
		}
	}
	return discarded, func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.asking = false
	}
}

// next reads a line, until the context ends. While a question is on the screen it waits. At the end of
// the input it returns io.EOF.
func (k *keyboard) next(ctx context.Context) (string, error) { return k.read(ctx, false) }

// answer reads a line in answer to the question on the screen. The end of the input is an empty line.
func (k *keyboard) answer(ctx context.Context) (string, error) {
	text, err := k.read(ctx, true)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return text, err
}

func (k *keyboard) read(ctx context.Context, asking bool) (string, error) {
	for ctx.Err() == nil {
		k.mu.Lock()
		if k.asking == asking {
			if line, ok := k.cut(); ok {
				k.mu.Unlock()
				return line, nil
			}
			if k.err != nil {
				line, err := strings.TrimSpace(string(k.buf)), k.err
				k.buf = nil
				k.mu.Unlock()
				if line != "" && errors.Is(err, io.EOF) {
					err = nil // a last line without an end
				}
				return line, err
			}
			if k.tty != nil && k.ready(0) {
				k.fill()
				k.mu.Unlock()
				continue
			}
		}
		k.mu.Unlock()
		k.wait(ctx, asking)
	}
	return "", ctx.Err()
}

// cut takes a line from the buffer. The lock is held.
func (k *keyboard) cut() (string, bool) {
	i := bytes.IndexAny(k.buf, "\r\n")
	if i < 0 {
		return "", false
	}
	line := strings.TrimSpace(string(k.buf[:i]))
	if k.buf[i] == '\r' && bytes.HasPrefix(k.buf[i+1:], []byte("\n")) {
		i++
	}
	k.buf = k.buf[i+1:]
	return line, true
}

// ready tells whether the terminal has something to read.
func (k *keyboard) ready(wait time.Duration) bool {
	fds := []unix.PollFd{{Fd: int32(k.tty.Fd()), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, int(wait/time.Millisecond))
	return err == nil && n > 0
}

// fill reads what the terminal has. The lock is held.
func (k *keyboard) fill() {
	chunk := make([]byte, 4096)
	n, err := unix.Read(int(k.tty.Fd()), chunk)
	switch {
	case n > 0:
		k.buf = append(k.buf, chunk[:n]...)
	case err == nil || !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.EAGAIN):
		k.err = io.EOF // a terminal that was closed reports an error
	}
}

// wait waits until there may be something to read.
func (k *keyboard) wait(ctx context.Context, asking bool) {
	k.mu.Lock()
	mine := k.asking == asking
	k.mu.Unlock()
	var chunks chan []byte
	switch {
	case mine && k.tty != nil:
		k.ready(lookEvery)
		return
	case mine:
		k.once.Do(func() { go k.pump() })
		chunks = k.chunks
	}
	timer := time.NewTimer(lookEvery)
	defer timer.Stop()
	select {
	case chunk, ok := <-chunks:
		k.mu.Lock()
		defer k.mu.Unlock()
		k.buf = append(k.buf, chunk...)
		if !ok {
			k.err = io.EOF
		}
	case <-timer.C:
	case <-ctx.Done():
	}
}

// pump reads what is no terminal, one chunk at a time.
func (k *keyboard) pump() {
	defer close(k.chunks)
	for {
		chunk := make([]byte, 4096)
		n, err := k.in.Read(chunk)
		if n > 0 {
			k.chunks <- chunk[:n]
		}
		if err != nil {
			return
		}
	}
}
