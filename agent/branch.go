package agent

import (
	"context"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent/internal/journal"
	"github.com/perdure/perdure/internal/wire/session"
)

// A branch is a goroutine with a name. Its records have the name in their keys, and an order of their
// own, so a replay finds it whatever the other branches do, and an edit in it is found as one of the
// agent's own goroutine is.
//
// A run is suspended when all its branches wait. So a branch that waits while another one works is
// parked: it keeps its goroutine, and looks into the inbox from time to time. See suspend.go.

// A Branch is a part of an agent that [Go] has begun.
type Branch struct {
	c   *execution
	b   *branch
	key string
	// err tells why there is no branch.
	err error
}

// Go begins a branch: a function that is executed in a goroutine of its own, while the agent goes on.
// [Branch.Join] waits for it and returns its error.
//
//	left := agent.Go(ctx, "left", func(ctx *agent.Context) error { … })
//	right := agent.Go(ctx, "right", func(ctx *agent.Context) error { … })
//	if err := left.Join(ctx); err != nil {
//		return err
//	}
//	if err := right.Join(ctx); err != nil {
//		return err
//	}
//
// The function does everything that an agent does, with the context that it is given: steps, children,
// waits, sagas, messages, and branches of its own. The name identifies the branch, as that of a [Step]
// does. The keys of its steps begin with it: the first step "search" of the branch "left" is
// "left#1//search#1". So two branches may use one name for their steps. A branch of a name can begin
// again when the one before is joined.
//
// Branches have no order among each other. Each decides by its own results only: two branches that
// share a variable or a channel are not the same in every execution. Results go into variables that the
// agent reads after Join.
//
// Every branch is joined before the agent, the branch or the [Saga] returns in which it was begun. One
// that is not joined is a misuse. If that function returns an error, nothing new begins in its branches:
// if the error is permanent, or if it is a saga's, their calls return [ErrCancelled], their own sagas
// are undone, and they are waited for. If the error is retried, the next attempt goes on with them.
//
// Steps of a branch that was begun within a Saga may have an [Undo], which belongs to that saga.
func Go(ctx *Context, name string, f func(ctx *Context) error) *Branch {
	c := ctx.execution()
	out := &Branch{c: c}
	if out.err = c.proceed(); out.err != nil {
		return out
	}
	if c.insideStep() {
		out.err = c.misuse("Go %q inside of a step: a step that is recorded is not executed again; begin branches "+
			"between steps", name)
		return out
	}
	parent, err := c.own("Go")
	if err != nil {
		out.err = err
		return out
	}
	if out.key, out.err = c.keyFor(parent, "branch", name); out.err != nil {
		return out
	}
	if f == nil {
		out.err = c.misuse("branch %s: the function is nil", out.key)
		return out
	}
	b := &branch{prefix: out.key + journal.BranchSeparator, name: parent.prefix + name, parent: parent,
		done: make(chan struct{})}
	c.mu.Lock()
	same := slices.ContainsFunc(parent.within, func(other *branch) bool { return other.name == b.name })
	c.mu.Unlock()
	if same {
		out.err = c.misuse("branch %s begins, and the branch before it of that name is not joined: a replay could "+
			"swap them; give each a name of its own", out.key)
		return out
	}
	c.mu.Lock()
	known := c.cursor.Visit("branch " + out.key)
	c.mu.Unlock()
	if !known && c.stopReason(parent) == nil { // an agent that is to stop may leave things out, and is not accused
		c.begin(parent, "branch", out.key)
		c.write(func(w *journal.Writer) { w.Branch(out.key) })
	}
	b.ctx, b.stop = context.WithCancelCause(ctx.Context)
	c.mu.Lock()
	b.outer = parent.saga()
	parent.begun++
	b.place = append(slices.Clone(parent.place), parent.begun)
	parent.within = append(parent.within, b)
	c.parking.live++
	c.mu.Unlock()
	out.b = b
	go c.runBranch(b, f)
	return out
}

// runBranch executes the function of a branch. A panic in it, outside of steps, is that of the agent.
func (c *execution) runBranch(b *branch, f func(ctx *Context) error) {
	returned := false
	defer func() {
		var out *perdure.Outcome
		if !returned {
			if p := recover(); p != nil {
				out = ofPanic(p, " in branch "+b.key(), debug.Stack())
			} else {
				out = session.Failed("goexit", "branch "+b.key()+" ended its goroutine", true)
			}
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		if !returned {
			c.exit.set(out) // unless the execution ended before, which ends its goroutines
		}
		delete(c.branches, b.goroutine)
		b.ended = true
		c.parking.live--
		c.parking.change()
		close(b.done)
	}()
	c.mu.Lock()
	b.goroutine = goroutine()
	c.branches[b.goroutine] = b
	c.mu.Unlock()
	err := f(&Context{b.ctx, c})
	c.endBranches(b, nil, err, "branch "+b.key())
	b.err = err
	returned = true
}

// key returns the key of the branch.
func (b *branch) key() string { return strings.TrimSuffix(b.prefix, journal.BranchSeparator) }

// Key returns the branch's key: its name and the number of its use, such as "left#1".
func (b *Branch) Key() string {
	if b == nil || b.c == nil {
		panic(strayCall(noBranch))
	}
	return b.key
}

const noBranch = "the branch was returned by no call: use what agent.Go returned"

// Join waits until the branch has returned, and returns its error. It is called where the branch was
// begun. The run is suspended meanwhile, if all its branches wait.
func (b *Branch) Join(ctx *Context) error {
	c := ctx.execution()
	if err := c.proceed(); err != nil {
		return err
	}
	if b == nil || b.c == nil {
		return c.misuse("Join: %s", noBranch)
	}
	if b.err != nil {
		return b.err
	}
	if c.insideStep() {
		return c.misuse("Join of branch %s inside of a step: join between steps", b.key)
	}
	own, err := c.own("Join of a branch")
	if err != nil {
		return err
	}
	if own != b.b.parent {
		return c.misuse("Join of branch %s in another branch than the one that began it", b.key)
	}
	if err := c.awaitBranch(own, b.b); err != nil {
		return err
	}
	c.joined(own, b.b)
	return b.b.err
}

// joined takes over what a branch that has ended leaves to its parent: the errors that are not recorded,
// and the undos of its steps.
func (c *execution) joined(parent, b *branch) {
	c.mu.Lock()
	first := !b.joined
	b.joined = true
	parent.within = slices.DeleteFunc(parent.within, func(other *branch) bool { return other == b })
	var missed, text string
	if b.stopped || context.Cause(c.ctx) != nil || parent.undoing() != nil {
		c.cursor.Drop(b.prefix)
	} else if missed = c.cursor.LeftIn(b.prefix); missed != "" {
		text = c.cursor.Describe(missed)
	}
	if first {
		parent.take(b)
	}
	c.mu.Unlock()
	if missed != "" {
		c.fail(nondeterminism(journal.KeyOf(missed), "the branch returns, and has not asked for what the journal has, "+
			"%s; announce what was renamed or removed with Version or Removed", text))
	}
	if first {
		c.moveErrors([]string{b.goroutine}, func(error) bool { return true })
		c.passStep(parent, "branch "+b.key(), false, b.err)
	}
}

// take adds the undos of a branch to the saga in which it was begun. The caller holds c.mu.
func (b *branch) take(ended *branch) {
	if slices.Contains(b.sagas, ended.outer) {
		ended.outer.undo = append(ended.outer.undo, ended.undo...)
	} else {
		b.undo = append(b.undo, ended.undo...)
	}
	ended.undo = nil
}

// endBranches ends the branches that a function has begun and not joined, when it returns. They are those
// that were begun in a saga, or all of a branch.
func (c *execution) endBranches(b *branch, in *saga, err error, what string) {
	c.mu.Lock()
	var open []*branch
	for _, inner := range b.within {
		if in == nil || inner.outer == in {
			open = append(open, inner)
		}
	}
	c.mu.Unlock()
	if len(open) == 0 {
		return
	}
	if err == nil {
		c.fail(c.misuse("%s returns, and has not joined branch %s: Join waits for it and returns its error", what,
			open[0].key()))
	}
	if failure := session.Failure(err); b == c.main && in == nil && *failure.Retryable {
		c.mu.Lock()
		c.exit.set(failure) // the next attempt goes on with them
		c.mu.Unlock()
	}
	c.mu.Lock()
	for _, inner := range open {
		inner.stopped = true
	}
	c.parking.change()
	c.mu.Unlock()
	for _, inner := range open {
		inner.stop(ErrCancelled)
	}
	c.checkExit()
	for _, inner := range open {
		if c.awaitBranch(b, inner) == nil {
			c.joined(b, inner)
		}
	}
}
