package agent

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent/internal/journal"
)

// This file has the options of steps, children and maps.

// A StepOption is an option of a [Step]: [StepOptions], a [Retry], or a [Timeout].
type StepOption interface{ applyToStep(to *StepOptions) }

// A ChildOption is an option of [Spawn]: [Options], or a [Timeout].
type ChildOption interface{ applyToChild(to *Options) }

// A TimeLimit is an option of a step or a child. [Timeout] returns it.
type TimeLimit time.Duration

// Timeout returns an option that limits a time: that of one try of a [Step], or that of a child of
// [Spawn] with all its attempts and waits.
//
// A try that takes longer has its context ended. It fails with the code step_timeout when its function
// returns, so the function has to heed its context. A [Retry] tries again, with the same time. A
// function that returns a result in spite of it has succeeded.
//
// The server ends a child whose time has passed.
func Timeout(d time.Duration) TimeLimit { return TimeLimit(d) }

func (d TimeLimit) applyToStep(to *StepOptions) { to.Timeout = cmp.Or(time.Duration(d), to.Timeout) }
func (d TimeLimit) applyToChild(to *Options)    { to.Timeout = cmp.Or(time.Duration(d), to.Timeout) }

// A Retry says how often and how fast a step is tried within one attempt of the run. It is an option
// of a [Step]. [perdure.Permanent] errors are not tried again. Each failed try that is followed by another one
// is a line x:step_retried in the run's log.
type Retry struct {
	// Attempts is how often the function is called at most, the first call included.
	Attempts int
	// First is the pause after the first failure, a second if it is zero. Each pause is twice as long as
	// the one before.
	First time.Duration
	// Max is the longest pause, a minute if it is zero.
	Max time.Duration
	// Except has the codes of errors that are not tried again.
	Except []perdure.Code
}

func (r Retry) applyToStep(to *StepOptions) {
	to.Retry.Attempts = cmp.Or(r.Attempts, to.Retry.Attempts)
	to.Retry.First = cmp.Or(r.First, to.Retry.First)
	to.Retry.Max = cmp.Or(r.Max, to.Retry.Max)
	if r.Except != nil {
		to.Retry.Except = r.Except
	}
}

// StepOptions are the options of a [Step]. [Undo], [For] and [Limit] return options with one field set.
type StepOptions struct {
	// Retry says how often and how fast a failed step is tried again, before Step returns its error.
	Retry Retry
	// Timeout limits the time of one try, as [Timeout] says.
	Timeout time.Duration

	// undo is set by Undo, which knows the type of the step's result: undoType.
	undo     func(ctx context.Context, result json.RawMessage) error
	undoType reflect.Type
	// about is set by For, and limits by Limit.
	about  about
	limits []perdure.LimitTake
}

// applyToStep sets the fields that the options have.
func (o StepOptions) applyToStep(to *StepOptions) {
	o.Retry.applyToStep(to)
	TimeLimit(o.Timeout).applyToStep(to)
	if o.undoType != nil {
		to.undo, to.undoType = o.undo, o.undoType
	}
	if o.about.given() {
		to.about = o.about
	}
	to.limits = append(slices.Clip(to.limits), o.limits...)
}

// merge returns several options as one. apply sets the fields that one of them has: these replace
// the fields of earlier options.
func merge[I, O any](opts []I, apply func(o I, to *O)) (out O) {
	for _, o := range opts {
		if any(o) != nil {
			apply(o, &out)
		}
	}
	return out
}

// For returns options with the value that a step is about, such as the heading of the paragraph that
// it writes. Use it in a loop over steps of one name, because the number of a step does not tell which
// heading it had:
//
//	for _, heading := range outline {
//		text, err := agent.Step(ctx, "paragraph", write(heading), agent.For(heading))
//		…
//	}
//
// The record of the step has a digest of the value. If a later execution asks for the step with
// another value, because a release has added, removed or swapped headings, that is nondeterminism, and
// the run is held. Without For the step would get the paragraph of another heading. The value has to
// be one that JSON can write.
func For(value any) StepOptions {
	digest, err := journal.OfValue(value)
	if err != nil {
		err = fmt.Errorf("the value of For, a %T, can't be written as JSON: %w", value, err)
	}
	return StepOptions{about: about{digest, aboutValue, err}}
}

// Undo returns options with a function that undoes a step of a [Saga]. It is called with the step's
// result, and with a context that a cancel request does not end. Like a step it may be called twice,
// with the same [IdempotencyKey]. In MapOptions.Step it undoes each item of a [Parallel].
func Undo[T any](f func(ctx context.Context, result T) error) StepOptions {
	if f == nil {
		return StepOptions{undoType: reflect.TypeFor[T]()} // Step says so
	}
	undo := func(ctx context.Context, result json.RawMessage) error {
		var v T
		if err := json.Unmarshal(result, &v); err != nil {
			return perdure.Permanent(fmt.Errorf("the recorded result is no %T: %w", v, err))
		}
		return f(ctx, v)
	}
	return StepOptions{undo: undo, undoType: reflect.TypeFor[T]()}
}

// Options are the options of a child. Fields that are zero have the server's default.
type Options struct {
	Queue       string
	Priority    int // -100 to 100, higher first
	MaxAttempts int
	Class       perdure.Class
	ThreadID    perdure.ThreadID
	NewThread   bool // it gets a thread of its own, on which people can read along and write to it
	Metadata    map[string]string
	Outlive     bool          // it goes on when its parent ends
	Delay       time.Duration // before it can be claimed
	// Timeout limits the time of the child, with all its attempts and waits. The server ends the child
	// then. A negative timeout, such as the rest of a time that has passed, ends the child at once,
	// with an [ErrTaskTimedOut].
	Timeout time.Duration
	// OnStall ends every wait for the child with an [ErrStalled] when the child looks stuck.
	OnStall bool
	// Unique refuses the child, or replaces another run, while another run of its kind has the key. The
	// join of a refused child returns an error with the code not_unique.
	Unique *perdure.Unique
}

// applyToChild sets the fields that the options have.
func (o Options) applyToChild(to *Options) {
	to.Queue = cmp.Or(o.Queue, to.Queue)
	to.Class = cmp.Or(o.Class, to.Class)
	to.ThreadID = cmp.Or(o.ThreadID, to.ThreadID)
	to.Priority = cmp.Or(o.Priority, to.Priority)
	to.MaxAttempts = cmp.Or(o.MaxAttempts, to.MaxAttempts)
	to.Timeout = cmp.Or(o.Timeout, to.Timeout)
	to.Delay = cmp.Or(max(o.Delay, 0), to.Delay)
	if o.Metadata != nil {
		to.Metadata = o.Metadata
	}
	to.Outlive = to.Outlive || o.Outlive
	to.OnStall = to.OnStall || o.OnStall
	to.NewThread = to.NewThread || o.NewThread
	to.Unique = cmp.Or(o.Unique, to.Unique)
}

// fill sets the fields of a spawn.
func (o Options) fill(s *perdure.Spawn) {
	s.Queue, s.Class, s.ThreadID, s.Metadata = o.Queue, o.Class, o.ThreadID, o.Metadata
	s.Priority, s.MaxAttempts, s.NewThread = o.Priority, o.MaxAttempts, o.NewThread
	s.Timeout, s.Delay = timeLeft(o.Timeout), perdure.Duration(o.Delay)
	s.Unique = o.Unique
	if o.Outlive {
		s.OnParentEnd = perdure.DispositionContinue
	}
}

// MapOptions are the options of [Map] and [Parallel].
type MapOptions struct {
	// Limit is how many items are worked on at the same time: 20 if it is zero, and at most 1000.
	Limit int
	// Settle goes on after an error. The errors are in the Settled, at the index of their items.
	Settle bool
	// Child has the options of the children of a Map. With OnStall a child that looks stuck while the
	// run is suspended is cancelled, and counts as failed with an [ErrStalled].
	Child Options
	// Step has the options of the steps of a Parallel: a [Retry] tries each again, and an [Undo] in a
	// [Saga] undoes each item that completed, the last item first.
	Step StepOptions
}

// applyTo sets the fields that the options have.
func (o MapOptions) applyTo(to *MapOptions) {
	to.Limit = cmp.Or(o.Limit, to.Limit)
	to.Settle = to.Settle || o.Settle
	o.Child.applyToChild(&to.Child)
	o.Step.applyToStep(&to.Step)
}

// limit returns the bound, or an error.
func (o *MapOptions) limit(what string) (int, error) {
	switch {
	case o.Limit == 0:
		return defaultLimit, nil
	case o.Limit < 0 || o.Limit > maxTargets:
		return 0, perdure.Permanent(perdure.Errorf(perdure.CodeInvalid,
			"%s: a limit of %d is not between 1 and %d", what, o.Limit, maxTargets))
	}
	return o.Limit, nil
}
