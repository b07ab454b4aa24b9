package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent/internal/journal"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/wire/session"
	"github.com/perdure/perdure/internal/wire/timer"
)

// An execution is one execution of an agent's function: the record that it replays, where it has come
// to, and what it is about to add. Package journal has the parts and their rules. An execution has what
// they need of a worker: the session, the goroutines, the lock.
//
// Everything an agent can decide on is in the journal, in the order in which it came, so a replay
// decides in the same way.
type execution struct {
	s      session.Session
	grant  *api.Grant
	leased context.Context
	// ctx is the context of the execution. Unlike leased, it also ends with a cancel request.
	ctx context.Context
	// main is the agent's own goroutine.
	main *branch

	// mu guards everything below. The worker takes its lock of the run before it, so the session is
	// called without mu.
	mu     sync.Mutex
	record *journal.Record
	cursor *journal.Cursor
	inbox  *journal.Inbox
	writer *journal.Writer
	exit   exit

	// branches has main and the branches, by goroutine.
	branches map[string]*branch
	parking  parking
	pending  pendingErrors
	thread   thread
	// continueOn has the keys of the children that a continuation waits for.
	continueOn []string
	// anew is set if the run goes on as a new one; inputType is the type of the agent's input.
	anew      *perdure.ContinueWith
	inputType reflect.Type
}

// A branch is a goroutine of the agent that has an order of its own: the agent's own, or one that Go has
// begun. See branch.go.
type branch struct {
	// prefix begins its keys. It is empty for the agent's own goroutine.
	prefix string
	// name is that of the branch, with the prefix of the one that it is in: parent.
	name      string
	parent    *branch
	goroutine string
	// ctx is the context of its steps. stop ends it, and stopped tells that it was called.
	ctx     context.Context
	stop    context.CancelCauseFunc
	stopped bool
	// running counts the steps whose functions are being called. In a Parallel they are several.
	running int

	// sagas are those that it executes, the innermost last. outer is the one in which it was begun, or
	// nil. undo has the undos of steps that belong to outer.
	sagas []*saga
	outer *saga
	undo  []compensation

	// within are the branches that it has begun and not joined, in their order. begun counts all of them,
	// and place is the branch's own number, after those of the branches that it is in.
	within []*branch
	begun  int
	place  []int
	// parked has the things that it waits for, if it waits.
	parked *parked
	// seen is the number of the last inbox item that was read when it last looked.
	seen int64
	// done is closed, and ended is set, when its function has returned, with err. joined tells that its
	// parent knows.
	done   chan struct{}
	ended  bool
	err    error
	joined bool
}

// A saga is a call of Saga in this execution.
type saga struct {
	key  string
	undo []compensation // of the completed steps, in their order
	// outer is the saga that this one is in, or nil.
	outer *saga
	// undoing is the error because of which it is being undone. Nothing new begins meanwhile.
	undoing error
}

// A compensation is the undo of a step.
type compensation struct {
	key string // of the step
	f   func(ctx context.Context, result json.RawMessage) error
}

// pendingErrors has the errors of steps that are not recorded yet, by goroutine. See pending.go.
type pendingErrors map[string][]pendingError

// A pendingError is an error that a goroutine got from a step and has not gone past.
type pendingError struct {
	key   string
	value json.RawMessage // its journal entry
	err   *stepError
}

// A parking is where branches wait while others work.
type parking struct {
	// live counts the branches that have not ended, the agent's own goroutine included.
	live int
	// changed is closed, and replaced, when something has changed for branches that are parked.
	changed chan struct{}
	// suspending tells that one of them suspends the run for all.
	suspending bool
	// asking has an element while the inbox is read.
	asking chan struct{}
}

func (p *parking) change() {
	close(p.changed)
	p.changed = make(chan struct{})
}

// parked has the things that a branch waits for: another branch, or waits of the run.
type parked struct {
	joins *branch
	open  []perdure.WaitSpec
	on    []string
	since time.Time
	// news tells that something has come since the branch looked. It is about to look again.
	news bool
}

// A thread is the run's thread, as far as this execution has read it.
type thread struct {
	messages []api.Message
	// readSeq is the number of the last message that the agent has read.
	readSeq int64
}

// An exit is how an execution ends, if not by the return of the agent's function.
type exit struct {
	// early is set when the execution ends before the function has returned. reached is closed then.
	early   *earlyExit
	reached chan struct{}
	// returned tells that the agent's function has returned, or that its goroutine has ended.
	returned bool
	// misuse fails the run at the end, even if the agent's code ignored the error.
	misuse error
}

// An earlyExit is the end of an execution whose function has not returned.
type earlyExit struct {
	// outcome is for the worker to deliver. It is nil if there is nothing to deliver.
	outcome *perdure.Outcome
}

// set ends the execution: the next call of this package ends its goroutine.
func (e *exit) set(out *perdure.Outcome) {
	if e.early == nil {
		e.early = &earlyExit{out}
		close(e.reached)
	}
}

// newExecution reads the journal and the inbox of a leased run.
func newExecution(s session.Session) (*execution, error) {
	c := &execution{s: s, grant: s.Grant(), leased: s.Leased(), ctx: s.Leased(),
		exit:     exit{reached: make(chan struct{})},
		branches: map[string]*branch{},
		parking:  parking{live: 1, changed: make(chan struct{}), asking: make(chan struct{}, 1)},
		pending:  pendingErrors{},
	}
	return c, c.load()
}

// load reads the journal and the inbox, including the parts that the grant left out. It retries for
// as long as the run is leased, because the server may be away for longer than a call's timeout.
func (c *execution) load() error {
	g := c.grant
	entries := g.Journal
	for next := g.JournalNext; next != 0; {
		page, err := retryCall(c.leased, func() (*api.JournalPage, error) { return c.s.Journal(c.leased, next) })
		if err != nil {
			return fmt.Errorf("read the journal: %w", err)
		}
		entries = append(entries, page.Journal...)
		next = page.Next
	}
	items := g.Inbox
	for next := g.InboxNext; next != 0; {
		page, err := retryCall(c.leased, func() (*api.InboxPage, error) { return c.s.Inbox(c.leased, next) })
		if err != nil {
			return fmt.Errorf("read the inbox: %w", err)
		}
		items = append(items, page.Inbox...)
		next = page.Next
	}
	var err error
	if c.record, c.cursor, err = journal.Load(entries, g.FirstEpoch); err != nil {
		return err
	}
	c.writer = journal.NewWriter(c.record, c.cursor, g.Epoch)
	c.inbox = journal.NewInbox(c.writer)
	c.inbox.Read(items)
	c.expectAsleep()
	return nil
}

// retryCall repeats a call, with backoff, until the server answers. A refusal (4xx) is an answer.
func retryCall[T any](ctx context.Context, call func() (*T, error)) (*T, error) {
	for pause := 100 * time.Millisecond; ; pause = min(2*pause, 5*time.Second) {
		out, err := call()
		var p *api.Problem
		if err == nil || ctx.Err() != nil || errors.As(err, &p) && p.Status/100 == 4 && p.Status != 429 {
			return out, err
		}
		if !timer.Sleep(ctx, pause) {
			return nil, context.Cause(ctx)
		}
	}
}

// The ends of an execution.

// leave ends the execution and the calling goroutine. The next execution continues the function.
func (c *execution) leave(out *perdure.Outcome) {
	c.mu.Lock()
	c.exit.set(out)
	c.mu.Unlock()
	runtime.Goexit()
}

// fail ends the execution with an error, without returning it to the agent's code.
func (c *execution) fail(err error) { c.leave(session.Failure(err)) }

// misuse returns the error of a mistake in the agent's code, and remembers it. If the code ignores
// the error, the next call of this package ends the execution with it, or its end does.
func (c *execution) misuse(format string, args ...any) error {
	err := misuse(format, args...)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.exit.misuse == nil {
		c.exit.misuse = err
	}
	return err
}

// enter begins a call of this package. After the agent's function has returned it gives an error
// and does not end the goroutine, which may belong to anybody. Functions that return no error then
// return the best value they have.
func (c *execution) enter() error {
	c.mu.Lock()
	returned := c.exit.returned
	c.mu.Unlock()
	if returned {
		return misuse("this execution of run %s is over: an agent's Context is of no use once its function has "+
			"returned",
			c.grant.RunID)
	}
	c.checkExit()
	return nil
}

// checkExit ends the calling goroutine, whichever of the agent's it is, if the execution has ended.
// A misuse ends it too: nothing that comes after it is recorded.
func (c *execution) checkExit() {
	c.mu.Lock()
	exited, misused := c.exit.early != nil, c.exit.misuse
	c.mu.Unlock()
	switch {
	case exited || c.leased.Err() != nil:
		c.leave(nil)
	case misused != nil:
		c.fail(misused)
	}
}

// stopReason returns why nothing new may begin in a branch: the run was asked to stop, a saga is being
// undone, or the function that the branch is in has ended with an error.
func (c *execution) stopReason(b *branch) error {
	c.mu.Lock()
	stop := b.undoing()
	if stop == nil && b.isStopped() {
		stop = ErrCancelled
	}
	c.mu.Unlock()
	if stop != nil {
		return stop
	}
	c.exitIfHandedOn()
	cause := context.Cause(c.ctx)
	if errors.Is(cause, ErrCancelled) {
		return ErrCancelled
	}
	return cause
}

// isStopped tells whether the branch, or one that it is in, was stopped. The caller holds c.mu.
func (b *branch) isStopped() bool {
	return b != nil && (b.stopped || b.parent.isStopped())
}

// undoing returns the error because of which a saga that the branch is in is being undone. The caller
// holds c.mu.
func (b *branch) undoing() error {
	for s := b.saga(); s != nil; s = s.outer {
		if s.undoing != nil {
			return s.undoing
		}
	}
	return nil
}

// saga returns the innermost saga that the branch is in, or nil. The caller holds c.mu.
func (b *branch) saga() *saga {
	if n := len(b.sagas); n > 0 {
		return b.sagas[n-1]
	}
	return b.outer
}

// askedToStop tells whether the run was asked to stop.
func (c *execution) askedToStop() bool { return errors.Is(context.Cause(c.ctx), ErrCancelled) }

// exitIfHandedOn ends the execution if the lease is lost or the worker shuts down. The next
// execution continues from here. Errors that the agent's functions return because of it must not be
// recorded.
func (c *execution) exitIfHandedOn() {
	cause := context.Cause(c.ctx)
	if c.leased.Err() != nil || cause != nil && !errors.Is(cause, ErrCancelled) && !errors.Is(cause, c.ctx.Err()) {
		c.leave(nil)
	}
}

// Names and keys.

// maxName leaves room for the prefix and the number that a key adds to a name.
const maxName = perdure.MaxName - 30

// keyFor checks the name of a step or a wait, and returns its key in a branch. That is the name with
// the number of its use in this execution. Each kind of thing has its own count.
func (c *execution) keyFor(b *branch, what, name string) (string, error) {
	if name == "" {
		return "", c.misuse("%s needs a name", withArticle(what))
	}
	if err := perdure.CheckName(what, name); err != nil {
		return "", c.misuse("%v", err)
	}
	if strings.HasPrefix(name, "_") || len(b.prefix)+len(name) > maxName {
		return "", c.misuse("%s: %q: a name has at most %d bytes and does not begin with _", what, name,
			maxName-len(b.prefix))
	}
	if journal.HasBranch(name) {
		return "", c.misuse("%s: %q: # with a number and // is in the keys of branches, and in no name", what, name)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return fmt.Sprintf("%s%s#%d", b.prefix, name, c.cursor.Use(what+" ", b.prefix+name)), nil
}

// withArticle returns a noun with its indefinite article.
func withArticle(noun string) string {
	if strings.ContainsRune("aeiou", rune(noun[0])) {
		return "an " + noun
	}
	return "a " + noun
}

// nextUse counts a use of a name in a branch, and returns the name with the number of uses.
func (c *execution) nextUse(b *branch, name string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return fmt.Sprintf("%s%s#%d", b.prefix, name, c.cursor.Use("", b.prefix+name))
}

// Looking into the journal.

// lookup returns a journal entry, and marks it as visited.
func (c *execution) lookup(key string) (json.RawMessage, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cursor.Visit("step " + key)
	return c.record.Entry(key)
}

// replaying tells whether an earlier execution has been at the point where the caller is. A goroutine
// that is no branch is where the agent's own is.
func (c *execution) replaying() bool {
	b := c.branch()
	c.mu.Lock()
	defer c.mu.Unlock()
	if b == nil {
		b = c.main
	}
	return c.cursor.Replaying(b.prefix)
}

// dataOf returns the data of an item.
func (c *execution) dataOf(i *journal.Item) json.RawMessage {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.record.Data(i)
}

// refused tells whether the server has refused a child.
func (c *execution) refused(key string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.record.Refused(key)
}

// childID returns the run id of a child, or nothing if it is not known.
func (c *execution) childID(key string) perdure.RunID {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.record.ChildID(key)
}

// look notes that the agent looks at a child, by its key or by the error that it has instead.
func (c *execution) look(key string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cursor.Look(key, err)
}

// Goroutines.

// goroutine returns the number of the calling goroutine.
func goroutine() string {
	var b [64]byte
	text := string(b[:runtime.Stack(b[:], false)]) // "goroutine 18 [running]: …"
	text, _, _ = strings.Cut(strings.TrimPrefix(text, "goroutine "), " ")
	return text
}

// branch returns the branch whose goroutine makes the call, or nil if it is another goroutine.
func (c *execution) branch() *branch {
	by := goroutine()
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.branches[by]
}

// own returns the branch whose goroutine makes the call. Another goroutine is a misuse: a replay needs
// the place of a call among the others.
func (c *execution) own(what string) (*branch, error) {
	if b := c.branch(); b != nil {
		return b, nil
	}
	return nil, c.misuse("%s in a goroutine: a replay needs its place among the other calls, which differs between "+
		"goroutines; begin the goroutine with agent.Go, which gives it a name and an order of its own", what)
}

// insideStep tells whether a step's function makes this call. The stack is examined only while a
// step is running.
func (c *execution) insideStep() bool {
	c.mu.Lock()
	running := false
	for _, b := range c.branches {
		running = running || b.running > 0
	}
	c.mu.Unlock()
	return running && inAttempt()
}

// inAttempt tells whether attempt is on the stack of this goroutine.
func inAttempt() bool {
	var pcs [64]uintptr
	for past := 2; ; past += len(pcs) {
		n := runtime.Callers(past, pcs[:])
		frames := runtime.CallersFrames(pcs[:n])
		for more := n > 0; more; {
			var f runtime.Frame
			if f, more = frames.Next(); strings.HasPrefix(f.Function, "github.com/perdure/perdure/agent.attempt[") {
				return true
			}
		}
		if n < len(pcs) {
			return false
		}
	}
}

// checkCounted returns an error if the branch is executing a step. It is for things that a replay comes to
// again. A replay does not call the functions of recorded steps, so their share would be missing.
func (c *execution) checkCounted(b *branch, what string) error {
	c.mu.Lock()
	running := b.running > 0
	c.mu.Unlock()
	if running {
		return c.misuse("%s inside of, or beside, a step that is being executed: do it between steps", what)
	}
	return nil
}

// ownCounted is own for things that can't be inside of a step.
func (c *execution) ownCounted(what string) (*branch, error) {
	b, err := c.own(what)
	if err != nil {
		return nil, err
	}
	return b, c.checkCounted(b, what)
}
