package agent

import (
	"context"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent/internal/journal"
)

// This file ends an execution whose code contradicts the journal, before anything happens twice. The
// rules are those of a journal.Cursor.

// begin is called before something begins in a branch that is not in the journal. It ends the
// execution if recorded things were not asked for.
func (c *execution) begin(b *branch, what, key string) {
	c.mu.Lock()
	missed := c.cursor.Begin(b.prefix)
	text := c.cursor.Describe(missed)
	nameless := ""
	if b.parent != nil {
		nameless = c.cursor.Nameless()
	}
	c.mu.Unlock()
	switch {
	case missed != "":
		c.fail(inserted(what, key, text))
	case nameless != "":
		c.fail(nondeterminism(key, "the journal does not have this %s, but it has %s, which a goroutine without a "+
			"name recorded; whether the branch has done it can't be told: let the release before agent.Go finish the "+
			"run, or announce it with Removed, and it is done again", what,
			strings.Replace(nameless, "spawn ", "child ", 1)))
	}
	c.stand(b)
}

// inserted returns the error of something new that would begin before what is recorded.
func inserted(what, key, missed string) error {
	return nondeterminism(key, "the journal does not have this %s, but it has %s, "+
		"for which the agent has not asked yet; announce what was added, renamed or removed with Version "+
		"or Removed", what, missed)
}

// checkTake is called before a wait takes a signal or message that has come for it. It ends the execution
// if no earlier one has opened the wait, and the journal has something for which the agent has not asked.
// Otherwise the journal would have the end of a wait that only this build has, and no other could go on.
func (c *execution) checkTake(b *branch, id, typ, name string) {
	c.mu.Lock()
	c.cursor.Visit("wait " + id)
	missed := ""
	if c.record.Wait(id) == nil && !c.record.Opened(id) && c.inbox.Place(id, typ, name) != 0 {
		missed = c.cursor.Missed(b.prefix)
	}
	text := ""
	if missed != "" {
		text = c.cursor.Describe(missed)
	}
	c.mu.Unlock()
	if missed != "" && c.stopReason(b) == nil { // an agent that is to stop may leave things out, and is not accused
		c.fail(inserted("wait", id, text))
	}
}

// checkComplete returns an error if the agent completes without having asked for all that is
// recorded, or without having looked at a child that could not be spawned. An agent that was asked to
// stop may end early.
func (c *execution) checkComplete() error {
	if context.Cause(c.ctx) != nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.cursor.Unread(); err != nil {
		return err
	}
	missed := c.cursor.Left()
	if missed == "" {
		return nil
	}
	return nondeterminism(journal.KeyOf(missed), "the agent returns, and has not asked for what the journal has, %s; "+
		"announce what was renamed or removed with Version or Removed", c.cursor.Describe(missed))
}

// Version lets runs that have begun under old code finish under it. Use it where code changes in a
// way that would contradict the journal of a run:
//
//	if agent.Version(ctx, "two prompts", 1) >= 1 { new } else { old }
//
// A run that comes to this point for the first time gets the given version. A run that was past it
// before the call was added gets 0. Each run gets the same answer from then on. Use it for a step that
// is added before recorded ones, and for one that is renamed. [Removed] is for one that is gone.
func Version(ctx *Context, name string, version int) int {
	c := ctx.execution()
	if c.proceed() != nil {
		return version // the execution is over, so nothing depends on it
	}
	if err := perdure.CheckName("version", name); err != nil {
		c.fail(misuse("%v", err))
	}
	if c.insideStep() {
		c.fail(c.misuse("Version %q inside of a step: a step that is recorded is not executed again; "+
			"call it between steps", name))
	}
	b, err := c.own("Version")
	if err != nil {
		c.fail(err)
	}
	c.mu.Lock()
	v, ok := c.record.Version(b.prefix + name)
	if !ok {
		if !c.cursor.Replaying(b.prefix) {
			v = version
		}
		c.writer.Version(b.prefix+name, v)
	}
	c.mu.Unlock()
	if !ok {
		c.s.Commit(false)
	}
	return v
}

// Removed declares that the code no longer has the steps, children, waits, times and ids of a name.
// Without it, a run that has recorded one of them is held with the code nondeterminism: its code might
// have been renamed by mistake, and would do everything again. Call it at the beginning of the agent's
// function, and remove the call when no run is left that has begun before:
//
//	agent.Removed(ctx, "look up")
//
// The name is that of the step, the saga, the branch, the child's kind, or that of the signal, approval
// or callback. A removed Sleep is "sleep:" and its microseconds, as the error says. Don't use the name for
// something else: it would get the old results.
func Removed(ctx *Context, name string) {
	c := ctx.execution()
	if c.enter() != nil {
		return // the execution is over, so nothing depends on it
	}
	if c.insideStep() {
		c.fail(c.misuse("Removed of %q inside of a step: a step that is recorded is not executed again; call it at "+
			"the beginning of the agent's function", name))
	}
	if _, err := c.own("Removed"); err != nil {
		c.fail(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cursor.Remove(name)
}
