package agent

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent/internal/journal"
)

// Settled tells how several futures ended, in the order in which they were given.
type Settled[T any] struct {
	// Results has the result of each future that completed. The others have a zero value there, and
	// an error at the same index of Errors.
	Results []T
	Errors  []error

	Completed, Failed, TimedOut, Cancelled int
}

// add counts the end of one future, whose result or error is set already.
func (s *Settled[T]) add(n int, timedOut bool) {
	switch err := s.Errors[n]; {
	case err == nil:
		s.Completed++
	case timedOut:
		s.TimedOut++
	case errors.Is(err, ErrCancelled):
		s.Cancelled++
	default:
		s.Failed++
	}
}

// JoinAll waits until all futures have completed, and returns their results in the order given. It
// fails fast: with the error of the first that did not complete, while the others go on.
func JoinAll[T any](ctx *Context, fs ...*Future[T]) ([]T, error) {
	w, err := newJoin(ctx, "JoinAll", perdure.ModeAllOK, Awaitables(fs...))
	if err != nil {
		return nil, err
	}
	for {
		first, all, at := w.progress()
		if n, err := w.stalledBefore(at); n >= 0 {
			return nil, err
		}
		if first >= 0 {
			w.release()
			w.pass(w.fs[first])
			_, err := fs[first].Result()
			return nil, err
		}
		if all {
			w.passLast(at)
			break
		}
		if w.takeAll() {
			continue
		}
		if _, err := w.sleep(); err != nil {
			return nil, err
		}
	}
	out := make([]T, len(fs))
	for n, f := range fs {
		var err error
		if out[n], err = f.Result(); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// Join waits for the result: [JoinAll] of one future.
func (f *Future[T]) Join(ctx *Context) (T, error) {
	out, err := JoinAll(ctx, f)
	if err != nil {
		return *new(T), err
	}
	return out[0], nil
}

// JoinAllSettled waits until all futures have ended, with or without a result. Its own error tells
// only that the wait was interrupted. The error of each future is in the Settled.
func JoinAllSettled[T any](ctx *Context, fs ...*Future[T]) (Settled[T], error) {
	w, err := newJoin(ctx, "JoinAllSettled", perdure.ModeAll, Awaitables(fs...))
	if err != nil {
		return Settled[T]{}, err
	}
	for {
		w.takeAll()
		_, all, _ := w.progress()
		last := w.lastEnd(all)
		if n, err := w.stalledBefore(last); n >= 0 {
			return Settled[T]{}, err
		}
		if all {
			w.passLast(last)
			break
		}
		if _, err := w.sleep(); err != nil {
			return Settled[T]{}, err
		}
	}
	out := Settled[T]{Results: make([]T, len(fs)), Errors: make([]error, len(fs))}
	for n, f := range fs {
		out.Results[n], out.Errors[n] = f.Result()
		i := f.ended()
		out.add(n, f.err == nil && (i.Outcome == string(perdure.TimedOut) || i.Type == perdure.ItemTimeout))
	}
	return out, nil
}

// A join is one call that waits for several futures.
type join struct {
	c    *execution
	b    *branch
	what string // name of the function, for errors
	mode perdure.Mode
	id   string // of its first wait
	fs   []*future
	// round tells the waits of a call apart that waits several times for other children.
	round int
	// except has the futures that the waits of this round leave out.
	except []*future
}

// newJoin begins a call. The id of its wait is derived from what it waits for. A join that is
// inserted before it in the code therefore does not get its result.
func newJoin(ctx *Context, what string, mode perdure.Mode, fs []Awaitable) (*join, error) {
	c := ctx.execution()
	if err := c.enter(); err != nil {
		return nil, err
	}
	w := &join{c: c, what: what, mode: mode}
	targets := sha256.New()
	for n, a := range fs {
		var f *future
		if a != nil {
			f = a.core()
		}
		if f == nil {
			return nil, c.misuse("%s: future %d of %d is nil", what, n+1, len(fs))
		}
		if f.c == nil {
			return nil, c.misuse("%s: future %d of %d: %s", what, n+1, len(fs), noFuture)
		}
		if f.claim() && slices.Contains(w.fs, f) {
			return nil, c.misuse("%s: %s is given twice", what, f.id())
		}
		c.look(f.key, f.err)
		fmt.Fprintf(targets, "%s %s\n", f.key, f.wait)
		w.fs = append(w.fs, f)
	}
	b, err := c.checkWaitable(what)
	if err != nil {
		c.fail(err)
	}
	w.b, w.id = b, c.nextUse(b, fmt.Sprintf("join:%s:%x", mode, targets.Sum(nil)[:6]))
	w.visit()
	return w, nil
}

// progress returns the index of the first future that ended without a result, or -1, and whether all
// have ended. at is the place of that failure, or of the last end if all have completed.
func (w *join) progress() (first int, all bool, at int64) {
	first, all = -1, true
	for n, f := range w.fs {
		order := int64(-1)
		if f.err == nil {
			i := f.ended()
			if i == nil {
				all = false
				continue
			}
			if order = i.Order; f.ok(i) {
				continue
			}
		}
		if first < 0 || order < at {
			first, at = n, order
		}
	}
	if first < 0 {
		at = w.lastEnd(all)
	}
	return first, all, at
}

// lastEnd returns the place of the last end if all have ended, and otherwise zero.
func (w *join) lastEnd(all bool) (at int64) {
	for _, f := range w.fs {
		if all && f.err == nil {
			at = max(at, f.ended().Order)
		}
	}
	return at
}

// pass sets the point of reports to the end of a future.
func (w *join) pass(f *future) {
	what := "wait "
	if f.key != "" {
		what = "child "
	}
	w.c.pass(w.b, what+f.name())
}

// passLast sets the point of reports to the end of the future that ended last, at a place.
func (w *join) passLast(at int64) {
	for _, f := range w.fs {
		if f.err == nil && f.ended().Order == at {
			w.pass(f)
			return
		}
	}
}

// passName sets the point of reports to the end of the future with a name.
func (w *join) passName(name string) {
	for _, f := range w.fs {
		if f.name() == name {
			w.pass(f)
			return
		}
	}
}

// stalledBefore returns the index and the error of a child that looked stuck before a place of the
// inbox, or at all if the place is zero. The index is -1 if there is none.
func (w *join) stalledBefore(at int64) (int, error) {
	n, order := w.stalled()
	if n < 0 || at != 0 && at < order {
		return -1, nil
	}
	w.release()
	return n, w.stallError(n)
}

// takeAll takes the signals, messages and timers that have come for the futures. It tells whether
// there were any.
func (w *join) takeAll() (taken bool) {
	for _, f := range w.fs {
		if f.err == nil {
			f.ended() // all are asked for before one is taken
		}
	}
	for _, f := range w.fs {
		if f.err == nil && f.ended() == nil && f.take() != nil {
			taken = true
		}
	}
	return taken
}

// release closes the waits of the claims that the call returns without.
func (w *join) release() {
	c := w.c
	c.mu.Lock()
	b := c.releaseInto(w.fs)
	c.mu.Unlock()
	if b != nil {
		c.s.Commit(false)
	}
}

// releaseInto closes the waits of claims that have not ended, and returns the batch in which it does,
// or nil. The caller holds c.mu.
func (c *execution) releaseInto(fs []*future) (b *journal.Batch) {
	for _, f := range fs {
		if f.err != nil || !f.claim() || f.endedLocked() != nil {
			continue
		}
		if id := f.id(); c.record.Opened(id) && !c.record.Closed(id) {
			b = c.writer.BatchFor(len(id)+16, 2)
			c.inbox.GiveBack(b, id)
		}
		f.lost++
	}
	return b
}

// maxTargets is the greatest number of children of one wait.
const maxTargets = perdure.MaxList

// waits returns the waits for the children of this round, open or over. Those whose stall ends the
// call have waits of their own.
func (w *join) waits() (out []perdure.WaitSpec) {
	id := w.id
	if w.round > 0 {
		id = fmt.Sprintf("%s/%d", w.id, w.round)
	}
	for _, onStall := range []bool{false, true} {
		var keys []string
		for _, f := range w.fs {
			// The server knows nothing of a child that ended in the original of a retry.
			known := f.key != "" && f.err == nil && !w.c.record.Inherited(f.key) && !w.c.refused(f.key)
			if known && f.onStall == onStall && !slices.Contains(w.except, f) {
				keys = append(keys, f.key)
			}
		}
		n := 0
		for part := range slices.Chunk(keys, maxTargets) {
			n++
			spec := perdure.WaitSpec{ID: id, Type: perdure.WaitChildren, Mode: w.mode, Timeout: perdure.Never,
				Keys: part, OnStall: onStall}
			if onStall {
				spec.ID += ".stall"
			}
			if n > 1 {
				spec.ID = fmt.Sprintf("%s.%d", spec.ID, n)
			}
			out = append(out, spec)
		}
	}
	return out
}

// visit marks the waits of this round as visited.
func (w *join) visit() {
	specs := w.waits()
	w.c.mu.Lock()
	defer w.c.mu.Unlock()
	for _, spec := range specs {
		w.c.cursor.Visit("wait " + spec.ID)
	}
}

// stalled returns the first child that looks stuck while this call waits for it, and its place. It
// returns -1 if there is none.
func (w *join) stalled() (index int, order int64) {
	index = -1
	for _, spec := range w.waits() {
		w.c.mu.Lock()
		over := w.c.record.Wait(spec.ID)
		w.c.mu.Unlock()
		if over == nil || over.Outcome != perdure.WaitStalled || index >= 0 && over.Order > order {
			continue
		}
		key := over.Name
		if key == "" { // an older server does not say which
			key = spec.Keys[0]
		}
		index = slices.IndexFunc(w.fs, func(f *future) bool { return f.key == key })
		order = over.Order
	}
	return index, order
}

// stallError returns the error of a child that looks stuck.
func (w *join) stallError(index int) error {
	f := w.fs[index]
	return ErrStalled{TaskID: w.c.childID(f.key), Kind: f.kind, Key: f.key}
}

// sleep suspends the run until one of its waits is over. It returns only with an error: the run is
// to stop, or the child of the index looks stuck.
func (w *join) sleep() (index int, err error) {
	if index, err := w.stalledBefore(0); index >= 0 {
		return index, err
	}
	var open []perdure.WaitSpec
	var on []string
	for _, spec := range w.waits() {
		w.c.mu.Lock()
		over := w.c.record.Wait(spec.ID)
		w.c.mu.Unlock()
		switch {
		case over != nil && over.Outcome == perdure.WaitOrphaned:
			return -1, &recordedAt{error: perdure.Permanent(fmt.Errorf("%s: a child is gone", w.what)), seq: over.Seq}
		case over == nil:
			open, on = append(open, spec), append(on, spec.ID)
		}
	}
	for _, f := range w.fs {
		if f.key != "" || f.err != nil || f.ended() != nil || slices.Contains(on, f.id()) {
			continue
		}
		on = append(on, f.id())
		switch {
		case f.claim():
			open = append(open, f.openSpec())
		case !f.opened:
			open = append(open, f.spec)
		}
	}
	if len(on) == 0 { // all waits are over, and yet the futures that satisfy them have not ended
		return -1, fmt.Errorf("%s: the server has woken the run without saying why", w.what)
	}
	if len(on) > perdure.MaxList {
		return -1, w.c.misuse("%s: waits for more than %d things that are no children", w.what, perdure.MaxList)
	}
	err = w.c.suspend(w.b, open, on)
	w.visit() // a run that stays awake may have got the end of a wait of this call just now
	return -1, err
}

// openSpec returns the wait that a claim opens now.
func (f *future) openSpec() perdure.WaitSpec {
	spec := f.spec
	spec.ID = f.id()
	if spec.Type == perdure.WaitTimer {
		f.c.mu.Lock()
		due, _ := f.c.record.Due(f.wait)
		f.c.mu.Unlock()
		spec.Timeout = perdure.Duration(max(time.Until(due), time.Millisecond))
	}
	return spec
}

// Continue ends the agent's turn while children still work. The run completes now, with a result
// such as "still working, I'll tell you". When all the children have ended, their results are
// appended to the thread, and one new run of the same kind continues there. The input of that run
// is an object with "trigger" and "continuation_of_run_id", so the type of the agent's input needs
// these fields. The conversation is in the thread. Return the results of Continue from the agent:
//
//	return agent.Continue(ctx, Answer{"The report is being made."}, report)
func Continue[Out, T any](ctx *Context, result Out, children ...*Future[T]) (Out, error) {
	c := ctx.execution()
	if err := c.enter(); err != nil {
		return result, err
	}
	if c.grant.ThreadID == "" {
		return result, c.misuse("Continue: the run is on no thread that could go on")
	}
	if _, err := c.ownCounted("Continue"); err != nil {
		return result, err
	}
	var keys []string
	for n, f := range children {
		if f == nil {
			return result, c.misuse("Continue: child %d of %d is nil", n+1, len(children))
		}
		f.check()
		if f.err != nil {
			c.look(f.key, f.err)
			return result, f.err
		}
		if c.refused(f.key) {
			_, err := f.result(f.ended())
			c.look(f.key, nil)
			return result, err
		}
		if f.key == "" {
			return result, c.misuse("Continue: waits for children, and %s is none", f.id())
		}
		keys = append(keys, f.key)
	}
	c.mu.Lock()
	anew := c.anew
	c.continueOn = append(c.continueOn, keys...)
	c.mu.Unlock()
	if anew != nil {
		return result, c.misuse("Anew and Continue: a run has one continuation")
	}
	return result, nil
}
