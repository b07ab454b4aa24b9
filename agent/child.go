package agent

import (
	"cmp"
	"context"
	"encoding/json"

	"github.com/perdure/perdure/agent/internal/journal"
	"github.com/perdure/perdure/api"
)

// This file has the calls about one child: to stop it, to look at it, and to get a result that came
// too late.

// Cancel asks a child to stop. The child ends soon, mostly as cancelled, and a join then tells how.
// The request is recorded with the next commit, and made once, however often the agent is executed.
//
// Of an approval or a callback Cancel withdraws the question: its result is [ErrCancelled]. A signal,
// a message and a timer need no Cancel. A future that has ended stays as it is.
func (f *Future[T]) Cancel(ctx *Context) error {
	f.check()
	c := ctx.execution()
	if err := c.enter(); err != nil {
		return err
	}
	if c.insideStep() {
		return c.misuse("Cancel of %s inside of a step: cancel between steps", f.id())
	}
	if f.err != nil || f.claim() {
		return nil
	}
	if f.key == "" && f.ended() == nil {
		c.flush() // a wait can be closed once it is open
	}
	c.mu.Lock()
	id := f.id()
	if f.endedLocked() != nil || c.record.Cancelled(id) {
		c.mu.Unlock()
		return nil
	}
	if f.key != "" {
		c.writer.Cancel(id)
	} else {
		c.inbox.GiveBack(c.writer.BatchFor(len(id)+16, 2), id)
	}
	c.mu.Unlock()
	c.s.Commit(false)
	return nil
}

// Peek returns the child as it is now: its state, its activity, its progress. It takes the agent's
// context or that of a step's function. Peek asks the server, and the answer is not recorded. An
// agent that decides by it calls Peek in a [Step], and returns what it decides by.
func (f *Future[T]) Peek(ctx context.Context) (*api.Run, error) {
	f.check()
	checkContext(ctx)
	if f.err != nil {
		return nil, f.err
	}
	if f.key == "" {
		return nil, f.c.misuse("Peek at %s, which is no child", f.id())
	}
	id := f.ID()
	if id == "" {
		return nil, f.c.stopReason(f.c.main)
	}
	return retryCall(ctx, func() (*api.Run, error) { return f.c.s.Run(ctx, id) })
}

// Late returns a result that the child delivered after its end, such as after its deadline, if
// somebody has adopted it since. The answer is recorded: a later execution gets the same from this
// call, and a result that comes afterwards is returned by the next call. A late result wakes nobody.
func (f *Future[T]) Late(ctx *Context) (out T, ok bool, err error) {
	f.check()
	c := ctx.execution()
	if err := c.enter(); err != nil {
		return out, false, err
	}
	if f.err != nil || f.key == "" {
		return out, false, f.err
	}
	b, err := c.ownCounted("Late")
	if err != nil {
		return out, false, err
	}
	key := "_late:" + f.key
	if b.prefix != "" {
		key += journal.BranchSeparator + b.prefix
	}
	key = c.nextUse(c.main, key)
	var rec struct {
		Seq  int64           `json:"seq,omitempty"`
		Data json.RawMessage `json:"data,omitempty"`
		// Unfit tells that the data did not fit the type that the agent asked for.
		Unfit bool `json:"unfit,omitempty"`
	}
	entry, known := c.lookup(key)
	if known {
		if err := json.Unmarshal(entry, &rec); err != nil {
			c.fail(nondeterminism(key, "the journal is not what this library wrote: %v", err))
		}
	} else {
		if err := c.stopReason(b); err != nil {
			return out, false, err
		}
		c.mu.Lock()
		if a, ok := c.inbox.TakeLate(f.key); ok {
			rec.Seq, rec.Data = a.Seq, journal.Compact(json.RawMessage(a.Data))
			rec.Unfit = !fits[T](rec.Data)
		}
		c.writer.Late(key, journal.Encode(rec), rec.Seq)
		c.mu.Unlock()
		c.s.Commit(false)
	}
	if rec.Seq == 0 {
		return out, false, nil
	}
	switch err = decode("the late result of "+f.key, rec.Data, &out); {
	case rec.Unfit:
		return *new(T), true, &recordedAt{error: cmp.Or(err, errUnfit(f.key)), key: key}
	case err != nil:
		c.fail(nondeterminism(key, "%v", err))
	}
	return out, true, nil
}
