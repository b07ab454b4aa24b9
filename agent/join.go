package agent

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/perdure/perdure"
)

// Settled tells how several futures ended, in the order in which they were given.
type Settled[T any] struct {
	// Results has the result of each future that completed. The others have a zero value there, and
	// an error at the same index of Errors.
	Results []T
	Errors  []error

	Completed, Failed, TimedOut, Cancelled int
}

// A Selected is the first of several futures that ended.
type Selected[T any] struct {
	// Index is its position among those given.
	Index int
	Value T
	// Remaining has those that had not ended when it did. They go on.
	Remaining []*Future[T]
}

// JoinAll waits until all futures have completed, and returns their results in the order given. It
// fails fast: with the error of the first that did not complete, while the others go on.
func JoinAll[T any](ctx *Context, fs ...*Future[T]) ([]T, error) {
	w, err := newJoin(ctx, "JoinAll", perdure.ModeAllOK, fs)
	if err != nil {
		return nil, err
	}
	for {
		first := -1 // index of the first that failed
		ended := 0
		for n, f := range fs {
			i, err := w.end(f)
			if err != nil {
				return nil, err
			}
			if i == nil {
				continue
			}
			ended++
			if !f.ok(i) && (first < 0 || i.Seq < fs[first].ended().Seq) {
				first = n
			}
		}
		if first >= 0 {
			_, err := fs[first].result(fs[first].ended())
			return nil, err
		}
		if ended == len(fs) {
			break
		}
		if err := w.sleep(0); err != nil {
			return nil, err
		}
	}
	out := make([]T, len(fs))
	for n, f := range fs {
		var err error
		if out[n], err = f.result(f.ended()); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// JoinAllSettled waits until all futures have ended, with or without a result. Its own error tells
// only that the wait was interrupted. The error of each future is in the Settled.
func JoinAllSettled[T any](ctx *Context, fs ...*Future[T]) (Settled[T], error) {
	w, err := newJoin(ctx, "JoinAllSettled", perdure.ModeAll, fs)
	if err != nil {
		return Settled[T]{}, err
	}
	for {
		ended := 0
		for _, f := range fs {
			if i, err := w.end(f); i != nil || err != nil {
				ended++
			}
		}
		if ended == len(fs) {
			break
		}
		if err := w.sleep(0); err != nil {
			return Settled[T]{}, err
		}
	}
	out := Settled[T]{Results: make([]T, len(fs)), Errors: make([]error, len(fs))}
	for n, f := range fs {
		if f.err != nil {
			out.Errors[n] = f.err
			if errors.Is(f.err, ErrCancelled) {
				out.Cancelled++
			} else {
				out.Failed++
			}
			continue
		}
		i := f.ended()
		out.Results[n], out.Errors[n] = f.result(i)
		switch {
		case out.Errors[n] == nil:
			out.Completed++
		case i.Outcome == string(perdure.TimedOut) || i.Type == perdure.ItemTimeout:
			out.TimedOut++
		case i.Outcome == string(perdure.Cancelled):
			out.Cancelled++
		default:
			out.Failed++
		}
	}
	return out, nil
}

// Select waits for the first future that ends. If that one has no result, Select returns its error.
// Index and Remaining are set in both cases.
func Select[T any](ctx *Context, fs ...*Future[T]) (Selected[T], error) {
	return selectFirst(ctx, "Select", 0, fs)
}

// Race is [Select] with a time limit. If none has ended by then, the error is [ErrTimeout], and all
// remain. With a limit that is not positive, such as the rest of a time that has passed, Race only
// checks whether one has ended.
func Race[T any](ctx *Context, limit time.Duration, fs ...*Future[T]) (Selected[T], error) {
	return selectFirst(ctx, "Race", max(limit, 1), fs)
}

// selectFirst implements Select and Race. A limit of zero means none.
func selectFirst[T any](ctx *Context, what string, limit time.Duration, fs []*Future[T]) (Selected[T], error) {
	w, err := newJoin(ctx, what, perdure.ModeAny, fs)
	if err != nil {
		return Selected[T]{Index: -1}, err
	}
	if len(w.fs) == 0 {
		return Selected[T]{Index: -1}, w.c.misuse("%s: of none, none is the first", w.what)
	}
	for {
		first, at := -1, int64(0)
		for n, f := range w.fs {
			i, err := w.end(f)
			if err != nil {
				return Selected[T]{Index: n, Remaining: w.remaining(0)}, err
			}
			if i != nil && (first < 0 || i.Seq < at) {
				first, at = n, i.Seq
			}
		}
		if timeout := w.timedOut(); timeout != nil && (first < 0 || timeout.Seq < at) {
			return Selected[T]{Index: -1, Remaining: w.remaining(timeout.Seq)},
				&recordedAt{error: ErrTimeout, seq: timeout.Seq}
		}
		if first >= 0 {
			v, err := w.fs[first].result(w.fs[first].ended())
			return Selected[T]{Index: first, Value: v, Remaining: w.remaining(at)}, err
		}
		if err := w.sleep(limit); err != nil {
			return Selected[T]{Index: -1}, err
		}
	}
}

// SelectOK waits for the first future that completes, and ignores those that end without a result.
// If none completes, the error is an [ErrAllTasksFailed] with the errors of all.
func SelectOK[T any](ctx *Context, fs ...*Future[T]) (Selected[T], error) {
	w, err := newJoin(ctx, "SelectOK", perdure.ModeAnyOK, fs)
	if err != nil {
		return Selected[T]{Index: -1}, err
	}
	if len(fs) == 0 {
		return Selected[T]{Index: -1}, ctx.c.misuse("SelectOK: of none, none is the first")
	}
	for {
		first, at, ended := -1, int64(0), 0
		for n, f := range fs {
			i, err := w.end(f)
			if i == nil && err == nil {
				continue
			}
			ended++
			if err == nil && f.ok(i) && (first < 0 || i.Seq < at) {
				first, at = n, i.Seq
			}
		}
		if first >= 0 {
			v, err := fs[first].result(fs[first].ended())
			return Selected[T]{Index: first, Value: v, Remaining: w.remaining(at)}, err
		}
		if ended == len(fs) {
			break
		}
		if err := w.sleep(0); err != nil {
			return Selected[T]{Index: -1}, err
		}
	}
	all := ErrAllTasksFailed{Errors: make([]error, len(fs))}
	for n, f := range fs {
		if all.Errors[n] = f.err; f.err == nil {
			_, all.Errors[n] = f.result(f.ended())
		}
	}
	return Selected[T]{Index: -1}, all
}

// A join is one call that waits for several futures. The order in which their ends came into the
// inbox decides which was the first. No crash changes that order.
type join[T any] struct {
	c    *execution
	what string // name of the function, for errors
	mode string
	id   string // of its first wait
	fs   []*Future[T]
}

// newJoin begins a call. The id of its wait is derived from what it waits for. A join that is
// inserted before it in the code therefore does not get its result.
func newJoin[T any](ctx *Context, what, mode string, fs []*Future[T]) (*join[T], error) {
	if err := ctx.c.enter(); err != nil {
		return nil, err
	}
	if n := slices.Index(fs, nil); n >= 0 {
		return nil, ctx.c.misuse("%s: future %d of %d is nil", what, n+1, len(fs))
	}
	targets := sha256.New()
	for _, f := range fs {
		fmt.Fprintf(targets, "%s %s\n", f.key, f.wait)
	}
	id := ctx.c.nextUse(fmt.Sprintf("join:%s:%x", mode, targets.Sum(nil)[:6]))
	w := &join[T]{ctx.c, what, mode, id, fs}
	if err := w.c.checkWaitable(what); err != nil {
		w.c.fail(err)
	}
	for n := range w.parts() {
		w.c.mu.Lock()
		delete(w.c.unvisited, "wait "+w.part(n))
		w.c.mu.Unlock()
	}
	return w, nil
}

// end returns how a future ended, or nil if it has not. It returns an error if there is no such
// child or callback.
func (w *join[T]) end(f *Future[T]) (*item, error) {
	if f.err != nil {
		return nil, f.err
	}
	return f.ended(), nil
}

// remaining returns the futures that had not ended at a position of the inbox.
func (w *join[T]) remaining(seq int64) []*Future[T] {
	var out []*Future[T]
	for _, f := range w.fs {
		if i, err := w.end(f); err == nil && (i == nil || i.Seq > seq) {
			out = append(out, f)
		}
	}
	return out
}

// maxTargets is the greatest number of children of one wait.
const maxTargets = perdure.MaxBatch

// parts returns how many waits the join needs.
func (w *join[T]) parts() int { return max(1, (len(w.fs)+maxTargets-1)/maxTargets) }

// part returns the id of the n-th wait.
func (w *join[T]) part(n int) string {
	if n == 0 {
		return w.id
	}
	return fmt.Sprintf("%s.%d", w.id, n+1)
}

// timedOut returns the item with which the join's own time limit passed, or nil.
func (w *join[T]) timedOut() *item {
	w.c.mu.Lock()
	defer w.c.mu.Unlock()
	var first *item
	for n := range w.parts() {
		i := w.c.waits[w.part(n)]
		if i != nil && i.Type == perdure.ItemTimeout && (first == nil || i.Seq < first.Seq) {
			first = i
		}
	}
	return first
}

// sleep suspends the run until one of its waits is over. It returns only with an error.
func (w *join[T]) sleep(limit time.Duration) error {
	timeout := perdure.Never
	if limit > 0 {
		timeout = perdure.Duration(limit)
	}
	var open []perdure.WaitSpec
	var on []string
	for n := range w.parts() {
		spec := perdure.WaitSpec{ID: w.part(n), Type: perdure.WaitChildren, Mode: w.mode, Timeout: timeout}
		for _, f := range w.fs[min(n*maxTargets, len(w.fs)):min((n+1)*maxTargets, len(w.fs))] {
			// The server knows nothing of a child that ended in the original of a retry.
			if f.key != "" && f.err == nil && !w.c.inherited[f.key] {
				spec.Keys = append(spec.Keys, f.key)
			}
		}
		w.c.mu.Lock()
		over := w.c.waits[spec.ID]
		w.c.mu.Unlock()
		switch {
		case over != nil && over.Outcome == perdure.WaitOrphaned:
			return &recordedAt{error: Permanent(fmt.Errorf("%s: a child is gone", w.what)), seq: over.Seq}
		case over == nil && len(spec.Keys) > 0:
			open, on = append(open, spec), append(on, spec.ID)
		}
	}
	for _, f := range w.fs {
		if f.wait != "" && f.err == nil && f.ended() == nil {
			on = append(on, f.wait)
			if limit > 0 {
				return w.c.misuse("%s: a callback has a Timeout of its own", w.what)
			}
		}
	}
	if len(on) == 0 { // all waits are over, and yet the futures that satisfy them have not ended
		return fmt.Errorf("%s: the server has woken the run without saying why", w.what)
	}
	if len(on) > perdure.MaxBatch {
		return misuse("%s: waits for more than %d callbacks", w.what, perdure.MaxBatch)
	}
	return w.c.suspend(w.what, open, on)
}

// Continue ends the agent's turn while children still work. The run completes now, with a result
// such as "still working, I'll tell you". When all the children have ended, their results are
// appended to the thread, and one new run of the same kind continues there. The input of that run
// is an object with "trigger" and "continuation_of_run_id", so the type of the agent's input needs
// these fields. The conversation is in the thread. Return the results of Continue from the agent:
//
//	return agent.Continue(ctx, Answer{"The report is being made."}, report)
func Continue[Out, T any](ctx *Context, result Out, children ...*Future[T]) (Out, error) {
	c := ctx.c
	if err := c.enter(); err != nil {
		return result, err
	}
	if c.grant.ThreadID == "" {
		return result, c.misuse("Continue: the run is on no thread that could go on")
	}
	var keys []string
	for n, f := range children {
		if f == nil {
			return result, c.misuse("Continue: child %d of %d is nil", n+1, len(children))
		}
		if f.err != nil {
			return result, f.err
		}
		if f.key == "" {
			return result, c.misuse("Continue: waits for children, not for callbacks")
		}
		keys = append(keys, f.key)
	}
	c.mu.Lock()
	c.continueOn = append(c.continueOn, keys...)
	c.mu.Unlock()
	return result, nil
}
