package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
)

// isTerminalWriter tells whether a writer is a terminal.
func isTerminalWriter(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && isTerminal(f)
}

// A ticker shows in the last line of a terminal what a run is doing, once a second, while nothing else
// is printed.
type ticker struct {
	ch *conversation
	id perdure.RunID

	mu     sync.Mutex
	shown  bool // the last line is the ticker's
	quiet  time.Time
	paused bool
	// midLine is set while a line of the answer is not complete.
	midLine bool
	end     context.CancelFunc
	ended   chan struct{}
}

// quietFor is how long nothing was printed before the ticker appears.
const quietFor = 900 * time.Millisecond

// startTicker starts a ticker. Where the last line can't be written over, it shows nothing.
func (ch *conversation) startTicker(ctx context.Context, id perdure.RunID) *ticker {
	ctx, end := context.WithCancel(ctx)
	t := &ticker{ch: ch, id: id, end: end, ended: make(chan struct{}), quiet: time.Now()}
	go t.run(ctx)
	return t
}

func (t *ticker) run(ctx context.Context) {
	defer close(t.ended)
	if !t.ch.ticks {
		return
	}
	every := time.NewTicker(time.Second)
	defer every.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-every.C:
		}
		t.mu.Lock()
		busy := t.paused || time.Since(t.quiet) < quietFor
		t.mu.Unlock()
		if busy {
			continue
		}
		call, cancel := context.WithTimeout(ctx, 2*time.Second)
		a, err := t.ch.c.Activity(call, t.id)
		cancel()
		line := "the server does not answer; still waiting"
		if err == nil {
			line = doingNow(a)
		}
		t.show(line)
	}
}

// show writes the line, unless something was printed meanwhile.
func (t *ticker) show(line string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.paused || time.Since(t.quiet) < quietFor {
		return
	}
	if t.midLine {
		return
	}
	fmt.Fprintf(t.ch.stderr, "\r\x1b[K\x1b[2m%s\x1b[0m", shorter(line, 76))
	t.shown = true
}

// clear removes the line, because something is about to be printed.
func (t *ticker) clear() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.quiet = time.Now(); t.shown {
		fmt.Fprint(t.ch.stderr, "\r\x1b[K")
		t.shown = false
	}
}

// said notes what was printed of the answer.
func (t *ticker) said(text string) {
	t.mu.Lock()
	t.midLine = !strings.HasSuffix(text, "\n")
	t.mu.Unlock()
}

// pause keeps the ticker from writing.
func (t *ticker) pause(on bool) {
	t.clear()
	t.mu.Lock()
	t.paused = on
	t.mu.Unlock()
}

// stop ends the ticker.
func (t *ticker) stop() {
	t.end()
	<-t.ended
	t.clear()
}

// doingNow says in a line what a run and its children are doing.
func doingNow(a *api.Activity) string {
	parts := []string{fmt.Sprintf("%s %ds", visible(string(a.State)), a.ElapsedMS/1000)}
	if a.Operation != nil && a.Operation.Activity != "" {
		parts = append(parts, visible(a.Operation.Activity))
	}
	for i := range a.Children {
		c := &a.Children[i]
		if !c.State.Live() {
			continue
		}
		text := visible(c.Kind) + " " + string(c.State)
		if c.Operation != nil && c.Operation.Activity != "" {
			text += ": " + visible(c.Operation.Activity)
		}
		parts = append(parts, text)
	}
	if a.WaitingFor != nil {
		parts = append(parts, visible(a.WaitingFor.Text))
	}
	return "… " + strings.Join(parts, " · ")
}
