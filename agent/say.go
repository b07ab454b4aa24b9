package agent

import (
	"context"
	"encoding/json"
	"slices"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
)

// from finds the run of a context: an agent's own, or that of a step's function.
func from(ctx context.Context) (c *core, inside bool) {
	if w, ok := ctx.Value(stepKey{}).(*within); ok {
		return w.c, true
	}
	c, _ = ctx.Value(coreKey{}).(*core)
	return c, c != nil && c.inside()
}

// Message appends a message to the run's thread, once, however often the agent is executed: roles are "assistant", "user", "tool",
// or one's own; content is any JSON, such as a text.
func Message(ctx *Context, role string, content any) error {
	c := ctx.c
	if err := c.enter(); err != nil {
		return err
	}
	if c.grant.ThreadID == "" {
		return c.misuse("Message: the run is on no thread")
	}
	if err := c.counted("Message"); err != nil {
		return err
	}
	text, err := perdure.Encode(content)
	if err != nil {
		return c.misuse("Message: the content, a %T, can't be written as JSON: %v", content, err)
	}
	m := perdure.Message{Role: role, Content: text}
	if err := m.Validate("message"); err != nil {
		return Permanent(err)
	}
	c.mu.Lock()
	if c.skipMessages > 0 {
		c.skipMessages--
		c.mu.Unlock()
		return nil
	}
	b := c.open(len(text) + 64)
	b.part.Messages = append(b.part.Messages, m)
	b.frame.Messages++
	c.mu.Unlock()
	c.s.Commit(false)
	return nil
}

// History is what the run's thread says up to now, oldest first, the run's own messages among it. The server's notices
// are left out, because a model would take them for words of its own. History is not recorded, only how far it went:
// every execution reads the same, and a long conversation is stored once.
func (ctx *Context) History() ([]api.Message, error) {
	said, err := ctx.HistoryWithNotices()
	return slices.DeleteFunc(said, func(m api.Message) bool { return m.Notice() }), err
}

// HistoryWithNotices is [Context.History] with what the server wrote into the thread for people, such as "Still working
// on this in the background".
func (ctx *Context) HistoryWithNotices() ([]api.Message, error) {
	c := ctx.c
	if err := c.enter(); err != nil {
		return nil, err
	}
	if c.grant.ThreadID == "" {
		return nil, c.misuse("History: the run is on no thread")
	}
	key := "_history:" + c.nth("_history")
	last := int64(-1)
	until := c.ctx
	if entry, ok := c.recorded(key); ok {
		if err := json.Unmarshal(entry, &last); err != nil {
			c.fail(nondeterminism(key, "the journal is not what this library wrote: %v", err))
		}
		until = c.leased // a run that is asked to stop is replayed too, to find what there is to undo
	} else {
		if err := c.halted(); err != nil {
			return nil, err
		}
		c.flush()
	}
	out, err := c.read(until, last)
	if err != nil {
		c.goOn()
		if stopped := c.halted(); stopped != nil {
			return nil, stopped
		}
		return nil, err
	}
	if last < 0 {
		last = 0
		if n := len(out); n > 0 {
			last = out[n-1].Seq
		}
		value, err := perdure.Encode(last)
		if err != nil {
			return nil, err
		}
		c.put(len(value)+len(key), func(b *batch) {
			b.part.Journal = append(b.part.Journal, perdure.JournalEntry{Key: key, Value: value})
			c.entries[key] = value
		})
	}
	return out, nil
}

// read gives the thread's messages up to the last one that is asked for (negative: all there are). What was read before
// in this execution is not read again: an agent that looks at its history before each of many steps reads it once.
func (c *core) read(ctx context.Context, last int64) ([]api.Message, error) {
	c.mu.Lock()
	said := slices.Clip(c.said)
	c.mu.Unlock()
	for after := int64(0); ; {
		if n := len(said); n > 0 {
			after = said[n-1].Seq
		}
		if last >= 0 && after >= last {
			break
		}
		page, err := again(ctx, func() (*api.Messages, error) { return c.s.Messages(ctx, after) })
		if err != nil {
			return nil, err
		}
		if len(page.Messages) == 0 {
			break
		}
		said = append(said, page.Messages...)
	}
	c.mu.Lock()
	if len(said) > len(c.said) {
		c.said = said
	}
	c.mu.Unlock()
	n := len(said)
	for last >= 0 && n > 0 && said[n-1].Seq > last {
		n--
	}
	return slices.Clone(said[:n]), nil
}

// Heartbeat says what the agent is doing, such as "llm_call_started" or "reading the mail", to those who watch.
// It takes the agent's context, or that of a step's function.
func Heartbeat(ctx context.Context, activity string) {
	if c, inside := from(ctx); c != nil && (inside || !c.replaying()) {
		c.s.Heartbeat(activity)
	}
}

// Progress says how far the agent got. Of several in quick succession the last one is told.
func Progress(ctx context.Context, v any) error {
	c, inside := from(ctx)
	if c == nil {
		return errNoAgent
	}
	b, err := perdure.Encode(v)
	if err != nil {
		return misuse("Progress: %v", err)
	}
	if inside || !c.replaying() {
		c.s.Progress(b)
	}
	return nil
}

// Delta streams text, such as the tokens of a model as they come, into the run's log. Mostly it is called within a
// step, with the step's context; between steps it is written once, however often the agent is executed.
func Delta(ctx context.Context, text string) error {
	c, inside := from(ctx)
	if c == nil {
		return errNoAgent
	}
	if inside {
		return c.s.Delta(ctx, text)
	}
	if strings.ContainsRune(text, 0) {
		return misuse("Delta: a text has no NUL in it")
	}
	text = strings.ToValidUTF8(text, "\ufffd")
	for text != "" {
		n := min(len(text), perdure.MaxDelta/8)
		for n < len(text) && text[n]&0xC0 == 0x80 {
			n--
		}
		if err := c.line(perdure.LineDelta, map[string]string{"text": text[:n]}); err != nil {
			return err
		}
		text = text[n:]
	}
	return nil
}

// Emit writes a line into the run's log: "x:…" for one's own, or one of the types that workers may write, such as
// "worker:tool_started". Between steps it is written once, however often the agent is executed; within a step, with
// the step's context, each time the step is.
func Emit(ctx context.Context, typ string, v any) error {
	c, inside := from(ctx)
	if c == nil {
		return errNoAgent
	}
	if inside {
		return c.s.Emit(ctx, typ, v)
	}
	if !perdure.WorkerMayWrite(typ) || len(typ) > perdure.MaxName {
		return misuse("Emit: %q is not for agents: x:…, run:progress, worker:tool_… and llm:delta are", typ)
	}
	return c.line(typ, v)
}

// line writes a line that a replay does not write again.
func (c *core) line(typ string, v any) error {
	if err := c.enter(); err != nil {
		return err
	}
	data, err := perdure.Encode(v)
	if err != nil {
		return misuse("%s: %v", typ, err)
	}
	c.mu.Lock()
	if c.skipLines > 0 {
		c.skipLines--
		c.mu.Unlock()
		return nil
	}
	b := c.open(len(data) + 64)
	b.part.Events = append(b.part.Events, perdure.Emitted{Type: typ, Data: data})
	b.frame.Lines++
	c.mu.Unlock()
	c.s.Commit(false)
	return nil
}
