package runner

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/process/adaptor"
	"github.com/perdure/perdure/internal/process/jobdir"
	"github.com/perdure/perdure/internal/wire/redact"
)

// Bounds of facts that wait to be sent.
const (
	maxPending      = 200
	maxPendingBytes = 256 << 10
	parseStep       = 64 << 10
)

// facts are what the engine's adaptor has read in the output.
type facts struct {
	adaptor *adaptor.Adaptor
	// line is the beginning of a line. With skip the rest of a line that is too long is passed over.
	line []byte
	skip bool
	// events wait to be sent.
	events []perdure.Emitted
	size   int
	// inFlight was sent without an answer. It is sent again as it is.
	inFlight *perdure.Commit
	commits  int
	// hide is what the events must not have, and held is the end of the agent's text that may begin it.
	hide hidden
	held redact.Tail
	// left counts events that were not kept, because the server was away.
	left int
}

// full tells whether enough facts wait to be sent. More output is then read later.
func (f *facts) full() bool { return len(f.events) >= maxPending || f.size >= maxPendingBytes }

// factsFull is full for a caller that does not hold the lock.
func (e *execution) factsFull() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.facts.full()
}

// say adds text of the agent. A part that may begin the key waits for the next one.
func (f *facts) say(text string) {
	if text, f.held = f.hide.hold(f.held, text); text != "" {
		f.add(perdure.LineDelta, map[string]string{"text": text})
	}
}

// endText adds the text that was held back.
func (f *facts) endText() {
	if text := f.hide.release(f.held); text != "" {
		f.add(perdure.LineDelta, map[string]string{"text": text})
	}
	f.held = ""
}

// add adds an event that waits to be sent.
func (f *facts) add(typ perdure.LineType, data any) {
	b, err := perdure.Marshal(data)
	if err != nil {
		return // texts can always be encoded
	}
	b = f.hide.json(b)
	if len(f.events) >= 2*maxPending || f.size >= 2*maxPendingBytes {
		f.left++
		return
	}
	f.events = append(f.events, perdure.Emitted{Type: typ, Data: b})
	f.size += len(b) + len(typ)
}

// take returns the events that wait.
func (f *facts) take() []perdure.Emitted {
	if f.left > 0 {
		b, _ := perdure.Marshal(map[string]int{"events": f.left}) // never fails
		f.events = append(f.events, perdure.Emitted{Type: "x:engine_dropped", Data: b})
	}
	events := perdure.JoinDeltas(f.events)
	f.events, f.size, f.left = nil, 0, 0
	return events
}

// toolEvent is the data of an event about a tool call.
type toolEvent struct {
	ID     string `json:"tool_call_id"`
	Name   string `json:"tool"`
	Input  any    `json:"input,omitempty"`
	Output any    `json:"output,omitempty"`
	Error  string `json:"error,omitempty"`
}

// parseOutput reads output that the adaptor has not read yet. With all it reads to the end. It returns
// true if it has read something.
func (e *execution) parseOutput(all bool) bool {
	f, o := &e.facts, e.output
	if !f.adaptor.Reads() {
		o.parsed = -1
		return false
	}
	read := false
	o.mu.Lock()
	if lost := o.punched.Stdout; lost > o.parsed {
		o.parsed, f.skip = lost, true
	}
	if begin := o.base.Stdout; begin > o.parsed { // the file was truncated, and begins with a line
		o.parsed, f.skip, f.line = begin, false, nil
	}
	o.mu.Unlock()
	for buf := make([]byte, parseStep); all || !e.factsFull(); {
		n, _ := o.read(jobdir.Stdout, buf, o.parsed)
		if n == 0 {
			break
		}
		read = true
		o.mu.Lock()
		o.parsed += int64(n)
		o.mu.Unlock()
		for b := buf[:n]; len(b) > 0; {
			part, rest, found := bytes.Cut(b, []byte{'\n'})
			e.parsePart(part, found)
			b = rest
		}
	}
	return read
}

// parsePart takes a part of a line, or its end.
func (e *execution) parsePart(part []byte, ends bool) {
	f := &e.facts
	if f.skip = f.skip || len(f.line)+len(part) > adaptor.MaxLine; f.skip {
		f.line = nil
	} else {
		f.line = append(f.line, part...)
	}
	if !ends {
		return
	}
	if !f.skip {
		for _, fact := range f.adaptor.Parse(f.line) {
			e.learn(fact)
		}
	}
	if f.skip = false; cap(f.line) > parseStep {
		f.line = nil
	}
	f.line = f.line[:0]
}

// learn takes one fact.
func (e *execution) learn(fact adaptor.Fact) {
	e.mu.Lock()
	defer e.mu.Unlock()
	p, before := &e.process, e.process
	switch x := fact.(type) {
	case adaptor.Session:
		p.SessionID = string(x)
	case adaptor.Text:
		if x.Delta != "" {
			e.facts.say(x.Delta)
		}
		if x.Message != "" {
			p.Text = x.Message
		}
	case adaptor.ToolStarted:
		t := toolEvent{ID: x.ID, Name: x.Name}
		if x.Input != nil {
			t.Input = x.Input
		}
		e.facts.add(perdure.LineToolStarted, t)
	case adaptor.ToolEnded:
		t := toolEvent{ID: x.ID, Name: x.Name, Error: x.Error}
		if x.Output != nil {
			t.Output = x.Output
		}
		if x.Failed {
			e.facts.add(perdure.LineToolFailed, t)
		} else {
			e.facts.add(perdure.LineToolCompleted, t)
		}
	case adaptor.Usage:
		used := jobdir.Tokens{Input: x.InputTokens, Output: x.OutputTokens}
		if p.SessionTokens = (jobdir.Tokens{}); x.OfSession {
			p.SessionTokens = used
			used = used.Since(e.spec.SessionTokens)
		}
		p.InputTokens, p.OutputTokens, p.CostUSD = used.Input, used.Output, x.CostUSD
	case adaptor.Status:
		p.Status = string(x)
	case adaptor.End:
		if x.Text != "" {
			p.Text = x.Text
		}
	}
	if p.Status != before.Status || p.SessionID != before.SessionID {
		kick(e.kickSentinel)
		kick(e.kickBeat)
	}
	e.viewChanged = e.viewChanged || !sameProcess(p, &before)
}

// sameProcess tells whether two views are equal. Neither has an exit code.
func sameProcess(a, b *jobdir.Process) bool {
	x, y := *a, *b
	x.ExitCode, y.ExitCode = nil, nil
	return x == y
}

// forwardFacts sends the facts that wait, and the view of the process if it has changed. It returns
// false if there is nothing to send.
func (e *execution) forwardFacts(ctx context.Context) (bool, error) {
	f := &e.facts
	if f.inFlight == nil {
		c, err := e.nextFacts()
		if c == nil || err != nil {
			return false, err
		}
		f.inFlight = c
	}
	lease, _ := e.hold.now()
	if f.inFlight.Epoch != lease.Epoch { // the store was restored
		f.commits++
		f.inFlight.Epoch, f.inFlight.ID = lease.Epoch, fmt.Sprintf("facts-%d-%d", lease.Epoch, f.commits)
	}
	cancel, err := e.link.commit(ctx, *f.inFlight)
	if cancel {
		e.askToStop()
	}
	var refused *refusedError
	if errors.As(err, &refused) { // they are a convenience: the output has it all
		e.log.Warn("facts of the engine refused", "error", refused)
		err = nil
	}
	if err == nil {
		f.inFlight = nil
	}
	return true, err
}

// nextFacts makes a commit of the facts that wait, or returns nil.
func (e *execution) nextFacts() (*perdure.Commit, error) {
	f := &e.facts
	e.mu.Lock()
	defer e.mu.Unlock()
	lease, _ := e.hold.now()
	c := perdure.Commit{RunID: lease.RunID, Epoch: lease.Epoch, Events: f.take()}
	if e.viewChanged {
		view, err := perdure.Marshal(e.process)
		if err != nil {
			return nil, err
		}
		view = e.hide.json(view)
		c.Views = []perdure.View{{Name: jobdir.ProcessView, Value: view}}
		e.viewChanged = false
	}
	if len(c.Events)+len(c.Views) == 0 {
		return nil, nil
	}
	f.commits++
	c.ID = fmt.Sprintf("facts-%d-%d", lease.Epoch, f.commits)
	return &c, nil
}
