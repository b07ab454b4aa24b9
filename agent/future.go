package agent

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent/internal/journal"
)

// A Future is a result that will come later: of a child ([Spawn]), through a callback ([Callback]), of
// a person's decision ([OnApproval]), as a signal ([OnSignal]), as a message of the user
// ([OnMessage]), or when a time has passed ([After]). [Select] and the join functions wait for it.
type Future[T any] struct {
	future
	// read returns the result that an inbox item brings. A child has none.
	read func(i *journal.Item) (T, error)
}

// An Awaitable is a [Future] of any type, for calls that take a mixture.
type Awaitable interface{ core() *future }

// Awaitables returns futures of one type for a call that takes a mixture:
//
//	n, err := agent.Select(ctx, append(agent.Awaitables(children...), steering)...)
func Awaitables[T any](fs ...*Future[T]) []Awaitable {
	out := make([]Awaitable, len(fs))
	for n, f := range fs {
		out[n] = f
	}
	return out
}

func (f *Future[T]) core() *future {
	if f == nil {
		return nil
	}
	return &f.future
}

// noFuture says what is wrong with a future that has no execution.
const noFuture = "the future was returned by no call: use what Spawn, Callback, OnApproval, OnSignal, OnMessage or " +
	"After returned"

// check panics if the future was returned by no call.
func (f *Future[T]) check() {
	if f == nil || f.c == nil {
		panic(strayCall(noFuture))
	}
}

// A future is a Future without its type.
//
// A child, a callback and an approval exist outside of the run. They go on with or without a waiter. A
// signal, a message and a timer are claims: the run waits for them only while it is suspended on
// them. A join that returns without them closes their waits, and gives back what had come. The next
// join opens another wait.
type future struct {
	c    *execution
	kind string
	// b is the branch that opened the wait of another future than a child.
	b *branch
	// key and spawn are a child's. onStall ends the waits for it when it looks stuck.
	key     string
	spawn   perdure.Spawn
	onStall bool
	// wait is the id of another future's wait, and spec its specification.
	wait string
	spec perdure.WaitSpec
	// lost counts the joins that returned without this claim.
	lost int
	// opened tells that this execution has sent the wait.
	opened bool
	// fits tells whether data fits the type of the future; see [journal.Inbox.Take].
	fits func(json.RawMessage) bool
	// err tells why there is no child or wait.
	err error
}

// claim tells whether the future is a claim.
func (f *future) claim() bool { return f.key == "" && claimType(f.spec.Type) }

// id returns the child's key, or the id of the current wait.
func (f *future) id() string {
	switch {
	case f.key != "":
		return f.key
	case f.lost > 0:
		return fmt.Sprintf("%s.%d", f.wait, f.lost+1)
	}
	return f.wait
}

// Spawn starts a child: a run of its own that any worker of its kind executes, while the agent goes
// on. It returns at once. [JoinAll], the other join functions and [Future.Join] return the child's
// result.
//
// A child ends with its parent unless its [Options] say otherwise, and its deadline is never later
// than the parent's. The server ends a child whose [Timeout] has passed, and its parent gets an
// [ErrTaskTimedOut] from the join. The server retries failures, but not timeouts.
//
// Kind and input may come from a model. If the child can't be spawned, because its kind is no name or
// its input can't be written as JSON, the join returns an ordinary error, and an agent that handles
// it goes on. An agent that completes without having joined such a child fails with the error.
func Spawn[T any](ctx *Context, kind string, input any, opts ...ChildOption) *Future[T] {
	c := ctx.execution()
	f := &Future[T]{future: future{c: c, kind: kind}}
	if f.err = c.proceed(); f.err != nil {
		return f
	}
	if c.insideStep() {
		f.err = c.misuse("Spawn of %q inside of a step: a step that is recorded is not executed again, "+
			"and what it spawned would be somebody else's; spawn between steps", kind)
		return f
	}
	b, err := c.own(fmt.Sprintf("Spawn of %q", kind))
	if err != nil {
		f.err = err
		return f
	}
	f.spawn = perdure.Spawn{Key: kind, Kind: kind}
	o := merge(opts, ChildOption.applyToChild)
	o.fill(&f.spawn)
	f.onStall = o.OnStall
	if f.err = c.checkSpawn(b, &f.spawn, input); f.err != nil {
		c.mu.Lock()
		c.cursor.NotSpawned(f.err)
		c.mu.Unlock()
		return f
	}
	digest, old := journal.OfChild(kind, f.spawn.Input)
	c.mu.Lock()
	key, before, again := c.cursor.Child(c.record, b.prefix, kind)
	f.key, f.spawn.Key = key, key
	known := c.cursor.Visit("spawn " + key)
	c.mu.Unlock()
	switch {
	case again && before != digest && before != old:
		c.fail(nondeterminism(key, "the journal has a child with another input than the one for which the agent "+
			"asks now; make the input of the agent's own and of results, or announce the change with Version"))
	case again:
		return f
	}
	if f.err = c.stopReason(b); f.err != nil {
		return f
	}
	if !known { // a retry spawns children of the original anew, if they had not ended
		c.begin(b, "child", key)
	}
	c.write(func(w *journal.Writer) { w.Spawn(f.spawn, digest) })
	return f
}

// checkSpawn checks a child, whose kind and input may come from a model, and writes its input.
func (c *execution) checkSpawn(b *branch, s *perdure.Spawn, input any) error {
	if s.Kind == "" {
		return perdure.Permanent(perdure.Errorf(perdure.CodeInvalid, "a child needs a kind"))
	}
	if err := perdure.CheckName("kind", s.Kind); err != nil {
		return malformed(err, "spawn of a kind that is none")
	}
	if strings.HasPrefix(s.Kind, "_") || len(b.prefix)+len(s.Kind) > maxName || journal.HasBranch(s.Kind) {
		return malformed(fmt.Errorf("a kind has at most %d bytes and does not begin with _", maxName-len(b.prefix)),
			"spawn of %.200q", s.Kind)
	}
	if input != nil {
		var err error
		if s.Input, err = perdure.Encode(input); err != nil {
			return malformed(err, "spawn of %s: its input, a %T, can't be written as JSON", s.Kind, input)
		}
	}
	check := perdure.Commit{ID: "check", RunID: "check", Children: []perdure.Spawn{*s}}
	if err := check.Validate(); err != nil {
		return perdure.Permanent(fmt.Errorf("spawn of %s: %w", s.Kind, err))
	}
	if s.ThreadID != "" && s.ThreadID == c.grant.ThreadID {
		return perdure.Permanent(perdure.Errorf(perdure.CodeThreadBusy,
			"spawn of %s: the thread is busy with this run, and each would wait for the other", s.Kind))
	}
	return nil
}

// Key returns the child's journal key: its kind and the number of its use, such as "search#2".
func (f *Future[T]) Key() string {
	f.check()
	return f.key
}

// ID returns the child's run id. It commits the spawn first, if that is still to be done. A
// callback has none.
func (f *Future[T]) ID() perdure.RunID {
	f.check()
	if f.err != nil || f.key == "" {
		return ""
	}
	c := f.c
	returned := c.enter() != nil
	if id := c.childID(f.key); id != "" || returned {
		return id
	}
	c.flush()
	if id := c.childID(f.key); id != "" || c.refused(f.key) {
		return id
	}
	// An earlier execution spawned it. A second spawn with the same key is the same child, and the
	// answer has its id.
	c.write(func(w *journal.Writer) {
		b := w.Batch(len(f.spawn.Input) + 256)
		b.Part.Children = append(b.Part.Children, f.spawn)
	})
	c.flush()
	return c.childID(f.key)
}

// Result returns the result of a future that has ended, such as the one that [Select] returned, or
// the error of one that ended without. It does not wait: of a future that has not
// ended it is a misuse.
func (f *Future[T]) Result() (T, error) {
	f.check()
	if f.err != nil {
		return *new(T), f.err
	}
	i := f.ended()
	if i == nil {
		return *new(T), f.c.misuse("Result of %s, which has not ended: Select or join it first", f.id())
	}
	return f.result(i)
}

// ended returns the item of the journal that tells how it ended, or nil.
func (f *future) ended() *journal.Item {
	f.c.mu.Lock()
	defer f.c.mu.Unlock()
	return f.endedLocked()
}

// endedLocked is ended for a caller that holds c.mu.
func (f *future) endedLocked() *journal.Item {
	if f.key != "" {
		return f.c.record.End(f.key)
	}
	id := f.id()
	if f.c.record.Closed(id) || f.c.cursor.Withdrawn(id) {
		if f.claim() {
			return nil // it lost, and the next wait has another id
		}
		return &journal.Item{Type: perdure.ItemWait, Wait: id, Outcome: perdure.WaitClosed, Order: -1}
	}
	f.c.cursor.Visit("wait " + id)
	return f.c.record.Wait(id)
}

// arrivedAt returns the place of the item that ends the future, whether or not the journal has it. It
// is zero if none has come. The caller holds c.mu.
func (f *future) arrivedAt() int64 {
	if i := f.endedLocked(); i != nil {
		return i.Order
	}
	if f.claim() {
		return f.c.inbox.Place(f.id(), itemOf[f.spec.Type], f.spec.Name)
	}
	return 0
}

// take returns how the future ended. A signal, message or timer that has come is now taken.
func (f *future) take() *journal.Item {
	if i := f.ended(); i != nil || !f.claim() {
		return i
	}
	f.c.checkTake(f.b, f.id(), itemOf[f.spec.Type], f.spec.Name)
	f.c.mu.Lock()
	defer f.c.mu.Unlock()
	return f.c.inbox.Take(f.id(), itemOf[f.spec.Type], f.spec.Name, f.fits)
}

// ok tells whether it ended with a result.
func (f *future) ok(i *journal.Item) bool {
	switch {
	case f.key != "":
		return i.Outcome == string(perdure.Completed)
	case f.spec.Type == perdure.WaitApproval:
		return i.Type == perdure.ItemApproval || i.Type == perdure.ItemTimeout
	case f.spec.Type == perdure.WaitCallback:
		return i.Type == perdure.ItemCallback && i.Failure == nil
	}
	return i.Type == itemOf[f.spec.Type]
}

// result returns the result, or the error of one that ended without.
func (f *Future[T]) result(i *journal.Item) (out T, err error) {
	if f.key == "" {
		if i.Outcome == perdure.WaitClosed {
			return out, ErrCancelled
		}
		return f.read(i)
	}
	if perdure.State(i.Outcome) == perdure.Completed {
		return readItem[T](f.c, f.key, f.key, i)
	}
	return out, f.childError(i, f.c.dataOf(i))
}

// childError returns the error of a child that ended without a result.
func (f *future) childError(i *journal.Item, data json.RawMessage) error {
	state := perdure.State(i.Outcome)
	var fallback struct {
		Reason     perdure.Code    `json:"reason"`
		Message    string          `json:"message"`
		DeadlineAt perdure.Instant `json:"deadline_at"`
	}
	_ = json.Unmarshal(data, &fallback) // without it the error has no reason
	if state == perdure.TimedOut && fallback.Reason == perdure.CodeDeadline {
		why := strings.TrimPrefix(strings.TrimPrefix(fallback.Message, perdure.DeadlineMessage), ": ")
		return ErrTaskTimedOut{TaskID: i.From, Kind: f.kind, Deadline: fallback.DeadlineAt, Why: why}
	}
	return ErrTaskFailed{TaskID: i.From, Kind: f.kind, State: state,
		Failure: perdure.Failure{Code: fallback.Reason, Message: fallback.Message}}
}

// Callback lets another system answer the run once, with a POST to /api/v1/callbacks/{token}, where
// token is its [Future.Token]. No API key is needed. The join functions return the answer, as they
// do for a child. After the timeout they return an [ErrTimeout]. A timeout of zero means the
// server's suspend_timeout, 10 minutes by default; a negative one has passed.
func Callback[T any](ctx *Context, name string, timeout time.Duration) *Future[T] {
	f := newWait[T](ctx, "Callback", "callback", name)
	if f.err != nil {
		return f
	}
	f.spec = perdure.WaitSpec{ID: f.wait, Type: perdure.WaitCallback, Timeout: timeLeft(timeout)}
	f.read = func(i *journal.Item) (out T, err error) {
		if i.Type != perdure.ItemCallback {
			return out, waitEnded(i, ErrTimeout)
		}
		if i.Failure != nil {
			return out, &recordedError{is: perdure.Errorf(i.Failure.Code, "%s", i.Failure.Message), seq: i.Seq}
		}
		return readItem[T](f.c, f.wait, f.wait, i)
	}
	f.open()
	return f
}

// newWait begins a future that is no child. Its key is a name with the number of its use.
func newWait[T any](ctx *Context, call, what, name string) *Future[T] {
	f := beginWait[T](ctx, call, name)
	if f.err != nil {
		return f
	}
	key, err := f.c.keyFor(f.b, what, name)
	if err != nil {
		f.err = err
		return f
	}
	f.wait = journal.InBranch(what+":", key)
	return f
}

// beginWait is newWait for a future that gets its key later.
func beginWait[T any](ctx *Context, call, name string) *Future[T] {
	c := ctx.execution()
	f := &Future[T]{future: future{c: c, kind: name}}
	if f.err = c.proceed(); f.err != nil {
		return f
	}
	if c.insideStep() {
		f.err = c.misuse("%s %q inside of a step: open it between steps", call, name)
		return f
	}
	f.b, f.err = c.own(call)
	return f
}

// open opens the wait of a callback or an approval with the next commit, unless it has ended.
func (f *future) open() {
	c := f.c
	if f.err = check(&f.spec); f.err != nil || f.ended() != nil {
		return
	}
	if f.err = c.stopReason(f.b); f.err != nil || c.openedBefore(f.b) {
		return
	}
	// An earlier execution may have opened it. A second wait with the same id is the same one.
	f.sendWait(f.openSize())
}

// sendWait opens the wait with the next commit.
func (f *future) sendWait(size int) {
	f.c.write(func(w *journal.Writer) {
		b := w.Batch(size)
		b.Part.Waits = append(b.Part.Waits, f.spec)
	})
	f.opened = true
}

// openedBefore tells whether an earlier execution has opened the wait that the agent comes to, because
// it was past this point. If it was not, the code was edited, and will be held before anybody is asked.
// The waits of the original of a retry are opened anew.
func (c *execution) openedBefore(b *branch) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.record.IsRetry() && !c.cursor.Past(b.prefix) && c.cursor.Missed(b.prefix) != ""
}

// openSize estimates the bytes of the wait.
func (f *future) openSize() int {
	if f.spec.Approval != nil {
		return 200 + len(f.spec.Approval.Action)
	}
	return 100
}

// Token returns the secret with which a callback is answered. It is the same in every execution.
// Token commits the callback first, if that is still to be done. A child has none.
func (f *Future[T]) Token() string {
	f.check()
	if f.spec.Type != perdure.WaitCallback {
		return ""
	}
	c := f.c
	returned := c.enter() != nil
	key := journal.TokenPrefix + f.wait
	var token string
	if entry, ok := c.lookup(key); ok && json.Unmarshal(entry, &token) == nil {
		return token // also after a cancel request: the code that cleans up may need it
	}
	if f.err != nil || returned {
		return ""
	}
	if !f.opened {
		f.sendWait(100)
	}
	c.flush()
	c.mu.Lock()
	token = c.record.Token(f.wait)
	value, _ := json.Marshal(token) // a string can always be written
	c.writer.Token(f.wait, value)
	c.mu.Unlock()
	c.s.Commit(false)
	return token
}
