package agent

import (
	"context"
	"encoding/json"
	"iter"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent/internal/journal"
	"github.com/perdure/perdure/api"
)

// This file reads a thread from its end. A long thread does not fit into memory, and an agent mostly
// needs its last messages. The journal records the numbers of the first and the last message that the
// agent has looked at, so a replay looks at the same ones.

// A stretch is a part of a thread, by the numbers of its messages. First is zero if it is empty.
type stretch struct {
	First int64 `json:"first"`
	Last  int64 `json:"last"`
}

// NewestMessages returns the messages of the run's thread, the newest first, up to the one after the
// number after. It reads a page of about a MiB at a time, and only as far as the loop goes: break ends
// it. Like [Context.History], it leaves out the server's notices, and every execution gets the same
// messages. The loop calls nothing else of this package.
func (ctx *Context) NewestMessages(after int64) iter.Seq2[api.Message, error] {
	return func(yield func(api.Message, error) bool) {
		if err := ctx.execution().newestMessages(after, yield); err != nil {
			yield(api.Message{}, err)
		}
	}
}

// newestMessages passes messages on until yield returns false. An error has not been passed on.
func (c *execution) newestMessages(after int64, yield func(api.Message, error) bool) error {
	if err := c.proceed(); err != nil {
		return err
	}
	if c.grant.ThreadID == "" {
		return c.misuse("NewestMessages: the run is on no thread")
	}
	b, err := c.ownCounted("NewestMessages")
	if err != nil {
		return err
	}
	key := journal.NewestPrefix + c.nextUse(b, "_newest")
	until, seen := c.ctx, stretch{Last: after}
	entry, replayed := c.lookupReading(key)
	if replayed {
		if err := json.Unmarshal(entry, &seen); err != nil {
			c.fail(nondeterminism(key, "the journal is not what this library wrote: %v", err))
		}
		until = c.leased
	} else {
		if err := c.stopReason(b); err != nil {
			return err
		}
		c.beginReading(b, key)
	}
	before := int64(0)
	if replayed {
		if seen.First == 0 {
			c.noteRead(seen.Last)
			return nil
		}
		after, before = seen.First-1, seen.Last+1
	}
	for more := true; more; {
		page, err := retryCall(until, func() (*api.Messages, error) {
			return c.s.MessagesBackwards(until, after, before)
		})
		if err == nil && page.NextBefore == nil { // a server of before there was this
			page, err = c.allNewest(until, after, before)
		}
		if err != nil {
			c.checkExit()
			if stopped := c.stopReason(b); stopped != nil {
				return stopped
			}
			return err
		}
		for _, m := range page.Messages {
			if !replayed {
				seen.First, seen.Last = m.Seq, max(seen.Last, m.Seq)
			}
			if !m.Notice() && !yield(m, nil) {
				more = false
				break
			}
		}
		before = *page.NextBefore
		more = more && before > after+1
	}
	if !replayed {
		value, err := perdure.Encode(seen)
		if err != nil {
			return err
		}
		c.write(func(w *journal.Writer) { w.Entry(key, value) })
	}
	c.noteRead(seen.Last)
	return nil
}

// noteRead notes up to which message the agent has read its thread.
func (c *execution) noteRead(last int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.thread.readSeq = max(c.thread.readSeq, last)
}

// allNewest reads all messages between two numbers forwards, and returns them the newest first.
func (c *execution) allNewest(ctx context.Context, after, before int64) (*api.Messages, error) {
	out := &api.Messages{NextBefore: new(int64)}
	for {
		page, err := retryCall(ctx, func() (*api.Messages, error) { return c.s.Messages(ctx, after) })
		if err != nil {
			return nil, err
		}
		for _, m := range page.Messages {
			if before <= 0 || m.Seq < before {
				out.Messages = append(out.Messages, m)
			}
			after = m.Seq
		}
		if len(page.Messages) == 0 || before > 0 && after >= before-1 {
			slices.Reverse(out.Messages)
			return out, nil
		}
	}
}
