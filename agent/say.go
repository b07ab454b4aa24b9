package agent

import (
	"context"
	"encoding/json"
	"slices"
	"strconv"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent/internal/journal"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/wire/session"
)

// MessageOptions are the options of a message.
type MessageOptions struct {
	// Metadata is an object that goes with the message, for programs. People do not see it.
	Metadata any
}

// Message appends a message to the run's thread. It is appended once, however often the agent is
// executed: a replay leaves out a message that was appended after the same step or wait with the same
// role and content. A message that is not found there is new. One that a failed attempt has appended
// stays, and an agent that says something else in the next attempt says that, too. The role is
// perdure.RoleAssistant, another one, or one of your own. The content is any JSON, such as a string.
func Message(ctx *Context, role perdure.Role, content any, opts ...MessageOptions) error {
	c := ctx.execution()
	if err := c.enter(); err != nil {
		return err
	}
	if c.grant.ThreadID == "" {
		return c.misuse("Message: the run is on no thread")
	}
	if _, err := c.ownCounted("Message"); err != nil {
		return err
	}
	text, err := perdure.Encode(content)
	if err != nil {
		return malformed(err, "Message: the content, a %T, can't be written as JSON", content)
	}
	m := perdure.Message{Role: role, Content: text}
	for _, o := range opts {
		if o.Metadata == nil {
			continue
		}
		if m.Metadata, err = perdure.Encode(o.Metadata); err != nil {
			return malformed(err, "Message: the metadata, a %T, can't be written as JSON", o.Metadata)
		}
	}
	if err := m.Validate("message"); err != nil {
		return perdure.Permanent(err)
	}
	// Metadata is not part of it: a message with the same words is the same one.
	digest := journal.Digest("message", string(role), canonicalText(text))
	c.report(journal.Message, digest, len(text)+len(m.Metadata)+64, func(p *perdure.Commit) {
		p.Messages = append(p.Messages, m)
	})
	return nil
}

// History returns the messages of the run's thread up to now, the oldest first, including the run's
// own. It leaves out the server's notices, which a model would take for its own words. The journal
// records only the number of the last message, so every execution reads the same messages, and a
// long conversation is stored once. History has the whole thread in memory, whatever its size;
// [Context.NewestMessages] reads as much of its end as an agent needs.
func (ctx *Context) History() ([]api.Message, error) {
	messages, err := ctx.HistoryWithNotices()
	return slices.DeleteFunc(messages, func(m api.Message) bool { return m.Notice() }), err
}

// HistoryWithNotices is [Context.History] with the messages that the server wrote for people, such
// as "Still working on this in the background".
func (ctx *Context) HistoryWithNotices() ([]api.Message, error) {
	c := ctx.execution()
	if err := c.proceed(); err != nil {
		return nil, err
	}
	if c.grant.ThreadID == "" {
		return nil, c.misuse("History: the run is on no thread")
	}
	b, err := c.ownCounted("History")
	if err != nil {
		return nil, err
	}
	key := journal.HistoryPrefix + c.nextUse(b, "_history")
	last := int64(-1)
	until := c.ctx
	if entry, ok := c.lookupReading(key); ok {
		if err := json.Unmarshal(entry, &last); err != nil {
			c.fail(nondeterminism(key, "the journal is not what this library wrote: %v", err))
		}
		until = c.leased // a replay after a cancel request reads it too, to find what to undo
	} else {
		if err := c.stopReason(b); err != nil {
			return nil, err
		}
		c.beginReading(b, key)
	}
	out, err := c.readThread(until, last)
	if err != nil {
		c.checkExit()
		if stopped := c.stopReason(b); stopped != nil {
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
		c.write(func(w *journal.Writer) { w.Entry(key, value) })
	}
	c.noteRead(last)
	return out, nil
}

// lookupReading returns the entry about messages that an earlier execution has read. Such entries have
// numbers and no names. If a call was removed, the next one would get its number and its messages, and miss
// those that have come since.
func (c *execution) lookupReading(key string) (json.RawMessage, bool) {
	reading, text := journal.ReadingOf(key), ""
	c.mu.Lock()
	if passed := c.cursor.Passed(reading); passed != "" {
		text = "the " + passed
	}
	c.cursor.Visit(reading)
	c.mu.Unlock()
	if text != "" {
		c.fail(nondeterminism(journal.KeyOf(reading), "the journal has it before %s, and the agent asks for it after "+
			"that; announce what was added, moved or removed with Version", text))
	}
	return c.lookup(key)
}

// beginReading is called before messages of the thread are read that the journal does not have.
func (c *execution) beginReading(b *branch, key string) {
	c.begin(b, "reading of the thread", journal.KeyOf(journal.ReadingOf(key)))
	c.flush()
}

// readThread returns the thread's messages up to a number, or all if it is negative. Messages that
// this execution has read before are not read again, so an agent may ask before each of many steps.
func (c *execution) readThread(ctx context.Context, last int64) ([]api.Message, error) {
	c.mu.Lock()
	messages := slices.Clip(c.thread.messages)
	c.mu.Unlock()
	for after := int64(0); ; {
		if n := len(messages); n > 0 {
			after = messages[n-1].Seq
		}
		if last >= 0 && after >= last {
			break
		}
		page, err := retryCall(ctx, func() (*api.Messages, error) { return c.s.Messages(ctx, after) })
		if err != nil {
			return nil, err
		}
		if len(page.Messages) == 0 {
			break
		}
		messages = append(messages, page.Messages...)
	}
	c.mu.Lock()
	if len(messages) > len(c.thread.messages) {
		c.thread.messages = messages
	}
	c.mu.Unlock()
	n := len(messages)
	for last >= 0 && n > 0 && messages[n-1].Seq > last {
		n--
	}
	return slices.Clone(messages[:n]), nil
}

// Unread tells whether a user has appended messages to the run's thread after the one with a number. It
// takes the context of a step's function. Unread asks the server, and the answer is not recorded: an
// agent that decides by it calls it in a [Step], and returns what it decides by.
func (ctx *Context) Unread(call context.Context, after int64) (bool, error) {
	if ctx.execution().grant.ThreadID == "" {
		return false, nil
	}
	page, err := retryCall(call, func() (*api.Messages, error) { return ctx.c.s.Messages(call, after) })
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(page.Messages, func(m api.Message) bool {
		return m.Role == perdure.RoleUser && m.RunID != ctx.RunID()
	}), nil
}

// Heartbeat reports what the agent is doing, such as "llm_call_started" or "reading the mail". It
// takes the agent's context, or that of a step's function.
func Heartbeat(ctx context.Context, activity string) {
	if c, inside := executionOf(ctx); c != nil && (inside || !c.replaying()) {
		c.s.Heartbeat(activity)
	}
}

// Progress reports how far the agent got. Of several calls in quick succession the last one is
// sent.
func Progress(ctx context.Context, v any) error {
	c, inside := executionOf(ctx)
	if c == nil {
		return errNoAgent
	}
	b, err := perdure.Encode(v)
	if err != nil {
		return malformed(err, "Progress")
	}
	if inside || !c.replaying() {
		c.s.Progress(b)
	}
	return nil
}

// Publish sets a named view of the run: a value that shows its state, such as its plan. Anybody who
// may read the run can read the latest value, also after the run's end; see client.View. It is sent
// with the next commit, and of several values for a name only the last one counts. A replay does not
// publish again. It takes the agent's context, or that of a step's function. A run has at most 16
// views of 64 KiB.
func Publish(ctx context.Context, name string, value any) error {
	c, inside := executionOf(ctx)
	if c == nil {
		return errNoAgent
	}
	if err := c.enter(); err != nil {
		return err
	}
	if err := perdure.CheckViewName("Publish", name); err != nil {
		return c.misuse("%v", err)
	}
	text, err := perdure.Encode(value)
	if err != nil {
		return c.misuse("Publish %s: the value, a %T, can't be written as JSON: %v", name, value, err)
	}
	if len(text) > perdure.MaxView {
		return perdure.Permanent(perdure.Errorf(perdure.CodeTooLarge, "view %s has %d bytes; a view takes %d", name,
			len(text), perdure.MaxView))
	}
	if !inside && c.replaying() {
		return nil
	}
	c.mu.Lock()
	b := c.writer.Batch(len(name) + len(text))
	b.Part.Views = slices.DeleteFunc(b.Part.Views, func(v perdure.View) bool { return v.Name == name })
	b.Part.Views = append(b.Part.Views, perdure.View{Name: name, Value: text})
	c.mu.Unlock()
	c.s.Commit(false)
	return nil
}

// Delta streams text into the run's log, such as the tokens of a model. Within a step, with the
// step's context, it is written each time the step is executed. The line names the step and has the
// number of the try, so that a reader can discard the text of an earlier one; client.Text does.
// Between steps a text is written once, as a [Message] is.
func Delta(ctx context.Context, text string) error {
	c, inside := executionOf(ctx)
	if c == nil {
		return errNoAgent
	}
	if inside {
		return c.tell(ctx, "", text)
	}
	if strings.ContainsRune(text, 0) {
		return perdure.Permanent(perdure.Errorf(perdure.CodeInvalid, "Delta: a text has no NUL in it"))
	}
	text = strings.ToValidUTF8(text, "\ufffd")
	// A long text is several lines, of which a crash may let some through. The digest of each has that
	// of the whole text in it, so the end of one text never completes the beginning of another.
	whole := journal.Digest(text)
	for at := 0; at < len(text); {
		n := min(len(text)-at, perdure.MaxDelta/8)
		for at+n < len(text) && text[at+n]&0xC0 == 0x80 {
			n--
		}
		digest := journal.Digest("delta", whole, strconv.Itoa(at))
		if err := c.writeLine(perdure.LineDelta, map[string]string{"text": text[at : at+n]}, digest); err != nil {
			return err
		}
		at += n
	}
	return nil
}

// tell streams text from within a step.
func (c *execution) tell(ctx context.Context, channel, text string) error {
	step, n := "", 0
	if w, ok := ctx.Value(stepKey{}).(*stepScope); ok {
		step, n = w.key, w.try
	}
	return c.s.Delta(ctx, channel, step, session.Try(c.grant.Epoch, n), text)
}

// Reasoning streams what a model thinks before it answers, as [Delta] streams the answer. It is for the
// functions of steps. It is no part of the run's text: client.Text and the chat leave it out, and the doors
// show it as reasoning.
func Reasoning(ctx context.Context, text string) error {
	c, inside := executionOf(ctx)
	if c == nil {
		return errNoAgent
	}
	if !inside {
		return c.misuse("Reasoning: a model is called in a step; stream what it thinks from there")
	}
	return c.tell(ctx, perdure.ChannelReasoning, text)
}

// Emit writes a line into the run's log. Its type is "x:…" for your own, or one of the types that
// workers may write, such as "worker:tool_started". Within a step, with the step's context, the
// line is written each time the step is executed. Between steps it is written once, as a [Message] is.
func Emit(ctx context.Context, typ perdure.LineType, v any) error {
	c, inside := executionOf(ctx)
	if c == nil {
		return errNoAgent
	}
	if inside {
		return c.s.Emit(ctx, typ, v)
	}
	if !perdure.WorkerMayWrite(typ) || len(typ) > perdure.MaxName {
		return c.misuse("Emit: %q is not for agents: x:…, run:progress, worker:tool_… and llm:delta are", typ)
	}
	return c.writeLine(typ, v, "")
}

// writeLine writes a line that a replay does not write again. Without a digest it is that of the line.
func (c *execution) writeLine(typ perdure.LineType, v any, digest string) error {
	if err := c.enter(); err != nil {
		return err
	}
	data, err := perdure.Encode(v)
	if err != nil {
		return malformed(err, "%s", typ)
	}
	if digest == "" {
		digest = journal.Digest("line", string(typ), canonicalText(data))
	}
	c.report(journal.Line, digest, len(data)+64, func(p *perdure.Commit) {
		p.Events = append(p.Events, perdure.Emitted{Type: typ, Data: data})
	})
	return nil
}

// canonicalText returns JSON that was written by perdure.Encode in the form of which digests are made.
func canonicalText(v json.RawMessage) string {
	text, err := perdure.Canonical(v)
	if err != nil {
		return string(v)
	}
	return string(text)
}
