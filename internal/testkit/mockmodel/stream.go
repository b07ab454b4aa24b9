package mockmodel

import (
	"encoding/json"
	"io"
	"strings"
	"time"

	"github.com/perdure/perdure"
)

// keepAlive is the shortest pause between comments while the stream is silent.
const keepAlive = perdure.Duration(10 * time.Millisecond)

// stream sends the answer piece by piece, as server-sent events.
func (p *reply) stream() {
	p.w.Header().Set("Content-Type", "text/event-stream")
	if p.has(QuirkPlainType) {
		p.w.Header().Set("Content-Type", "text/plain")
	}
	p.w.Header().Set("Cache-Control", "no-cache")
	p.comment()
	empty := ""
	p.delta(&delta{Role: "assistant", Content: &empty}, nil)
	p.flush()
	delay, unflushed := p.a.FirstToken, 0
	for piece := range p.pieces() {
		if p.a.Fault != "" && p.sent == p.a.FaultAfter {
			p.streamFault()
			return
		}
		if delay > 0 {
			p.flush()
		}
		if !p.wait(delay) {
			return
		}
		p.comment()
		if !p.delta(piece, nil) {
			return
		}
		p.sent++
		delay = p.a.Between
		if unflushed++; unflushed == flushEvery {
			p.flush()
			unflushed = 0
		}
	}
	if p.a.Fault != "" {
		p.streamFault()
		return
	}
	if p.sent == 0 && !p.wait(p.a.FirstToken) {
		return
	}
	p.finishStream()
}

// finishStream sends all that follows the last piece.
func (p *reply) finishStream() {
	if !p.has(QuirkNoFinish) {
		finish := p.finish()
		p.delta(&delta{}, &finish)
	}
	if p.q.StreamOptions != nil && p.q.StreamOptions.IncludeUsage && !p.has(QuirkNoUsage) {
		e := p.envelope("chat.completion.chunk")
		e.Usage = p.usage()
		p.frame(e)
	}
	if !p.has(QuirkNoDone) {
		p.line("data: [DONE]\n\n")
	}
	if p.ctx.Err() == nil {
		p.ended = "complete" // the caller may leave as soon as it has the last byte
	}
	p.flush()
}

// streamFault ends the stream as the script says.
func (p *reply) streamFault() {
	switch p.a.Fault {
	case FaultError:
		p.frame(p.problem())
	case FaultGarbage:
		p.line(`data: {"choices":[{"index":0,"delta":{"content":"` + "\n\n")
	}
	p.flush()
	if p.a.Fault == FaultSilence && p.has(QuirkComments) {
		p.ended = FaultSilence
		for p.wait(max(p.a.Between, keepAlive)) { // as a proxy does for a provider that hangs
			p.comment()
			p.flush()
		}
		return
	}
	p.fault()
}

// delta sends a chunk.
func (p *reply) delta(d *delta, finish *string) bool {
	e := p.envelope("chat.completion.chunk")
	e.Choices = []wireChoice{{Delta: d, Finish: finish}}
	return p.frame(e)
}

// frame sends a value as an event. It returns false if the caller has left.
func (p *reply) frame(v any) bool {
	text, _ := json.Marshal(v)
	return p.line("data: " + string(text) + "\n\n")
}

// comment sends a comment, if the script says so.
func (p *reply) comment() {
	if p.has(QuirkComments) {
		p.line(": OPENROUTER PROCESSING\n\n")
	}
}

func (p *reply) line(text string) bool {
	if p.has(QuirkCRLF) {
		text = strings.ReplaceAll(text, "\n", "\r\n")
	}
	_, err := io.WriteString(p.w, text)
	return err == nil && p.ctx.Err() == nil
}
