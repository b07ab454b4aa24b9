package agent

import (
	"slices"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent/internal/journal"
)

// This file has the calls that wait for the first of several futures.
//
// The inbox decides which one is the first: the earlier item wins. The choice is written to the
// journal together with the end that it rests on, and the waits that lost are closed in the same
// commit. A replay reads the choice, so an item that came later can't change it.

// A Selected is the first of several futures that ended.
type Selected[T any] struct {
	// Index is its position among those given.
	Index int
	Value T
	// Remaining has those that had not ended when it did. They go on.
	Remaining []*Future[T]
}

// Select waits for the first of several futures that ends, whatever they are, and returns its index.
// [Future.Result] then has its result or its error. The error of Select tells that the wait was
// interrupted, or that a child with Options.OnStall looks stuck: then the index is that child's.
//
//	switch n, err := agent.Select(ctx, work, steering, agent.After(ctx, time.Hour)); {
//	case err != nil:
//		return "", err
//	case n == 0:
//		return work.Result()
//	…
//
// Children, callbacks and approvals that lost go on, and can be selected again. So can signals,
// messages and timers. In between the run does not wait for these: what comes meanwhile stays in the
// inbox, for this or another future.
func Select(ctx *Context, fs ...Awaitable) (int, error) {
	w, err := newJoin(ctx, "Select", perdure.ModeAny, fs)
	if err != nil {
		return -1, err
	}
	if len(fs) == 0 {
		return -1, w.c.misuse("Select: of none, none is the first")
	}
	return w.first()
}

// first waits for the first future that ends, and returns its index.
func (w *join) first() (int, error) {
	for {
		if err := w.interrupted(); err != nil {
			return -1, err
		}
		got, stalled := w.choose(1, func(*future) bool { return true })
		if stalled >= 0 {
			w.release()
			return stalled, w.stallError(stalled)
		}
		if got != nil {
			w.passName(got.First[0])
			return w.index(got.First[0])
		}
		if n, err := w.sleep(); err != nil {
			return n, err
		}
	}
}

// interrupted returns why no choice can be made any more, unless the journal has one: the run was
// asked to stop, or a saga is being undone. Futures that could not begin because of it are no choice.
func (w *join) interrupted() error {
	w.c.mu.Lock()
	chosen := w.c.record.Winner(w.id) != nil
	w.c.mu.Unlock()
	if chosen {
		return nil
	}
	return w.c.stopReason(w.b)
}

// index returns the index of the future with an id.
func (w *join) index(id string) (int, error) {
	n := slices.IndexFunc(w.fs, func(f *future) bool { return f.id() == id || f.err != nil && f.name() == id })
	if n < 0 {
		w.c.fail(nondeterminism(w.id, "the journal has %s as the first, which is not among those given; keep the "+
			"futures, or announce the change with Version", id))
	}
	return n, nil
}

// name returns the id of the future, or its kind if there is no child or wait.
func (f *future) name() string {
	if id := f.id(); id != "" {
		return id
	}
	return "!" + f.kind
}

// choose returns the first k futures that ended and count, or all that there can be if they are
// fewer. It returns nil if that is still open. stalled is the index of a child that looked stuck
// before, or -1.
func (w *join) choose(k int, counts func(f *future) bool) (got *journal.Winner, stalled int) {
	c := w.c
	c.mu.Lock()
	got = c.record.Winner(w.id)
	c.mu.Unlock()
	if got != nil {
		w.settle()
		return got, -1
	}
	stalled, stalledAt := w.stalled()
	c.mu.Lock()
	type end struct {
		f  *future
		at int64
	}
	var ends []end
	for _, f := range w.fs {
		at := int64(-1)
		if f.err == nil {
			at = f.arrivedAt()
		}
		if at != 0 && (stalled < 0 || at < stalledAt) {
			ends = append(ends, end{f, at})
		}
	}
	c.mu.Unlock()
	slices.SortStableFunc(ends, func(a, b end) int { return int(min(1, max(-1, a.at-b.at))) })
	got = &journal.Winner{}
	for _, e := range ends {
		if counts(e.f) {
			got.First = append(got.First, e.f.name())
		} else {
			got.Over = append(got.Over, e.f.name())
		}
		if len(got.First) == k || len(got.Over) > len(w.fs)-k {
			w.record(got)
			return got, -1
		}
	}
	return nil, stalled
}

// record takes what the chosen futures ended with, closes the waits of the others, and writes the
// choice to the journal.
func (w *join) record(got *journal.Winner) {
	w.c.begin(w.b, "choice", w.id)
	for _, f := range w.fs {
		if f.err == nil && slices.Contains(got.First, f.name()) {
			f.take()
		}
	}
	c := w.c
	c.mu.Lock()
	c.writer.Winner(w.id, got, len(w.fs))
	c.releaseInto(w.fs)
	c.mu.Unlock()
	c.s.Commit(false)
}

// settle brings the futures of a recorded choice to the state that they had after it.
func (w *join) settle() {
	w.c.mu.Lock()
	defer w.c.mu.Unlock()
	w.c.releaseInto(w.fs)
}

// Race is [Select] of futures of one type, with a time limit. If none has ended by then, the error is
// [ErrTimeout], and all remain. With a limit that is not positive, such as the rest of a time that
// has passed, Race only checks whether one has ended.
func Race[T any](ctx *Context, limit time.Duration, fs ...*Future[T]) (Selected[T], error) {
	none := Selected[T]{Index: -1}
	if err := ctx.execution().enter(); err != nil {
		return none, err
	}
	if len(fs) == 0 {
		return none, ctx.c.misuse("Race: of none, none is the first")
	}
	w, err := newJoin(ctx, "Race", perdure.ModeAny, Awaitables(fs...))
	if err != nil {
		return none, err
	}
	timer := &future{c: w.c, kind: "timer", b: w.b, wait: journal.InBranch("race:", w.id)}
	if timer.startTimer(limit); timer.err != nil {
		return none, timer.err
	}
	w.fs = append(w.fs, timer)
	n, err := w.first()
	switch {
	case err != nil && n < 0:
		return none, err
	case n == len(fs):
		late := &recordedAt{error: ErrTimeout}
		if i := timer.ended(); i != nil {
			late.seq = i.Seq
		}
		return Selected[T]{Index: -1, Remaining: remaining(w, nil, fs)}, late
	}
	out := Selected[T]{Index: n, Remaining: remaining(w, nil, fs)}
	if err == nil {
		out.Value, err = fs[n].Result()
	}
	return out, err
}

// SelectOK waits for the first future that completes, and ignores those that end without a result.
// If none completes, the error is an [ErrAllTasksFailed] with the errors of all.
func SelectOK[T any](ctx *Context, fs ...*Future[T]) (Selected[T], error) {
	none := Selected[T]{Index: -1}
	first, err := firstOK(ctx, "SelectOK", 1, fs)
	if err != nil {
		return none, err
	}
	return Selected[T]{Index: first.Index[0], Value: first.Values[0], Remaining: first.Remaining}, nil
}

// A FirstSelected is the first futures that completed.
type FirstSelected[T any] struct {
	// Index has their positions among those given, in the order in which they completed, and Values
	// their results.
	Index  []int
	Values []T
	// Remaining has those that had not ended by then. They go on, unless they are cancelled
	// ([Future.Cancel]).
	Remaining []*Future[T]
}

// FirstOK waits until k of the futures have completed, such as the first five of eight. Those that
// end without a result are ignored, as long as k can still complete. Otherwise the error is an
// [ErrAllTasksFailed] with the errors of those that failed.
func FirstOK[T any](ctx *Context, k int, fs ...*Future[T]) (FirstSelected[T], error) {
	if err := ctx.execution().enter(); err != nil {
		return FirstSelected[T]{}, err
	}
	if k < 1 || k > len(fs) {
		return FirstSelected[T]{}, ctx.c.misuse("FirstOK: the first %d of %d futures can't be", k, len(fs))
	}
	return firstOK(ctx, "FirstOK", k, fs)
}

func firstOK[T any](ctx *Context, what string, k int, fs []*Future[T]) (out FirstSelected[T], err error) {
	w, err := newJoin(ctx, what, perdure.ModeAnyOK, Awaitables(fs...))
	if err != nil {
		return out, err
	}
	if len(fs) == 0 {
		return out, w.c.misuse("%s: of none, none is the first", what)
	}
	for w.round = k - 1; w.round > 0; w.round-- {
		w.visit()
	}
	var got *journal.Winner
	for got == nil {
		if err := w.interrupted(); err != nil {
			return out, err
		}
		var stalled int
		if got, stalled = w.choose(k, w.completed); got != nil {
			break
		}
		if stalled >= 0 {
			w.release()
			return out, w.stallError(stalled)
		}
		w.nextRound(k)
		if _, err := w.sleep(); err != nil {
			return out, err
		}
	}
	if len(got.First) != k && len(got.Over) <= len(fs)-k { // the choice of a call with another number
		w.c.fail(nondeterminism(w.id, "the journal has the first %d of these futures, and the agent asks for the "+
			"first %d now; announce the change with Version", len(got.First), k))
	}
	out.Remaining = remaining(w, got, fs)
	w.passName(slices.Concat(got.Over, got.First)[len(got.Over)+len(got.First)-1])
	if len(got.First) < k {
		failed := ErrAllTasksFailed{Errors: make([]error, len(fs))}
		for n, f := range fs {
			if slices.Contains(got.Over, f.name()) {
				_, failed.Errors[n] = f.Result()
			}
		}
		return out, failed
	}
	for _, id := range got.First {
		n, err := w.index(id)
		if err != nil {
			return out, err
		}
		v, err := fs[n].Result()
		if err != nil {
			return out, err
		}
		out.Index, out.Values = append(out.Index, n), append(out.Values, v)
	}
	return out, nil
}

// completed tells whether a future that has ended, or whose end has arrived, has a result. The caller
// does not hold c.mu.
func (w *join) completed(f *future) bool {
	if f.err != nil {
		return false
	}
	i := f.ended()
	return i == nil || f.ok(i) // a claim that was not taken yet
}

// nextRound leaves out the children that have completed, so that the next one that does wakes the
// run.
func (w *join) nextRound(k int) {
	if k == 1 {
		return
	}
	w.round, w.except = 0, nil
	for _, f := range w.fs {
		if f.key != "" && f.err == nil && f.ended() != nil && w.completed(f) {
			w.round++
			w.except = append(w.except, f)
		}
	}
}

// remaining returns the futures that had not ended when the call returned.
func remaining[T any](w *join, got *journal.Winner, fs []*Future[T]) (out []*Future[T]) {
	if got == nil {
		w.c.mu.Lock()
		got = w.c.record.Winner(w.id)
		w.c.mu.Unlock()
	}
	for _, f := range fs {
		if f.err == nil && (got == nil || !slices.Contains(got.First, f.name()) &&
			!slices.Contains(got.Over, f.name())) {
			out = append(out, f)
		}
	}
	return out
}
