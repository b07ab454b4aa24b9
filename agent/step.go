package agent

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"runtime/debug"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent/internal/journal"
	"github.com/perdure/perdure/internal/wire/session"
	"github.com/perdure/perdure/internal/wire/timer"
)

// Step calls a function and records its result. A later execution, after a wait or a crash, gets
// the recorded result and does not call the function. Step returns when the result is on the
// server's disk.
//
// The name identifies the step, together with the number of its use: the third step "search" is
// "search#3". Code that is inserted elsewhere shifts no keys. A loop over steps of one name says with
// [For] what each of them is about.
//
// Step returns the result as it was recorded, read back from JSON, so it is the same in this
// execution and in every later one. A result is at most 1 MiB of JSON. A string in it must not
// contain a NUL character or half of a surrogate pair. Use []byte for arbitrary bytes: JSON writes
// them as base64. A result that can't be recorded is a permanent error of the step.
//
// A [perdure.Permanent] error is recorded at once. Any other error is recorded when the agent goes on
// after it, so that a replay gets it again. If the agent returns it instead, the next attempt calls
// the function again. The error that Step returns has the code and the text of the function's error, as
// the journal keeps them. Tell errors apart by their code.
//
// The function may be called twice, if a worker dies after the function has returned and before its
// result is recorded. [IdempotencyKey] lets the services it calls notice.
//
// Steps run at the same time in several branches ([Go]), or in a [Parallel]. A step in a goroutine that Go
// did not begin is a misuse, because a replay could swap its result with another's. A step can't be
// inside another one.
//
// A recorded result has to fit the type T in later releases. Fields that T has lost or renamed are
// found as nondeterminism; fields that it has gained are zero.
func Step[T any](ctx *Context, name string, f func(ctx context.Context) (T, error), opts ...StepOption) (T, error) {
	o := merge(opts, StepOption.applyToStep)
	c := ctx.execution()
	if err := c.proceed(); err != nil {
		return *new(T), err
	}
	if c.insideStep() {
		return *new(T), c.misuse("step %q inside of a step: "+
			"a step that is recorded is not executed again, and neither is what is in it", name)
	}
	b, err := c.own(fmt.Sprintf("step %q", name))
	if err != nil {
		return *new(T), err
	}
	key, err := c.keyFor(b, "step", name)
	if err != nil {
		return *new(T), err
	}
	if f == nil {
		return *new(T), c.misuse("step %s: a function is nil", key)
	}
	if o.about.err != nil {
		return *new(T), c.misuse("step %s: %v", key, o.about.err)
	}
	if err := o.checkPatience(c, "step "+key); err != nil {
		return *new(T), err
	}
	if err := o.checkUndo(c, b, "step "+key, reflect.TypeFor[T]()); err != nil {
		return *new(T), err
	}
	out, err := step(ctx, b, key, f, &o, nil)
	if err == nil && o.undo != nil {
		c.register(b, key, o.undo)
	}
	return out, err
}

// step returns the recorded result of a step, or calls its function and records the result.
//
// The crew is that of a Parallel if it is an item, which has no place in the order of the branch.
func step[T any](
	ctx *Context, b *branch, key string, f func(ctx context.Context) (T, error), o *StepOptions, team *crew,
) (out T, err error) {
	c, aside := ctx.execution(), team != nil
	if entry, ok := c.lookup(key); ok {
		out, err = replay[T](c, key, entry, &o.about)
		c.passStep(b, "step "+key, aside || journal.IsAside(entry), err)
		return out, err
	}
	if err := c.stopReason(b); err != nil {
		return out, err
	}
	if !aside {
		c.begin(b, "step", key)
	}
	rec := journal.Step{Aside: aside, Of: o.about.digest}
	defer func() { c.passStep(b, "step "+key, aside, err) }()
	c.flush() // the step may rely on anything that was done before it
	if err = c.admit(b, key, o, team); err == nil {
		out, err = attempt(ctx, b, key, f, o)
	}
	c.checkExit() // a result that comes after the lease was lost must not be recorded
	if err != nil {
		if stopped := c.stopReason(b); stopped != nil {
			return *new(T), stopped
		}
		rec.SetError(session.Describe(err))
		if !session.IsPermanent(err) {
			return *new(T), c.holdError(key, &rec)
		}
		return *new(T), c.recordError(key, &rec)
	}
	kept, text, err := recordResult(key, &rec, out)
	if err != nil {
		// The function was called, and another call would not help. The agent may handle the error and
		// go on, so it is a fact.
		rec.SetError(session.Describe(err))
		return *new(T), c.recordError(key, &rec)
	}
	c.recordEntry(key, text, o.undo != nil)
	return kept, nil
}

// recordResult writes the result of a step into its record. It returns the result as every later
// execution gets it, and the text of the record. Its error tells why the result can't be recorded.
func recordResult[T any](key string, rec *journal.Step, out T) (kept T, text json.RawMessage, err error) {
	if rec.OK, err = perdure.Encode(out); err != nil {
		return kept, nil, unrecordable(key, out, err)
	}
	if kept, err = readBack[T](rec); err != nil {
		return kept, nil, perdure.Errorf(codeResult,
			"step %s: its result, a %T, can't be read back from JSON: %v", key, out, err)
	}
	rec.As = marksOf(reflect.ValueOf(&out).Elem())
	text = rec.Encode()
	if len(text) > perdure.MaxValue {
		return kept, nil, perdure.Errorf(perdure.CodeTooLarge,
			"step %s: its result has %d bytes; a record takes %d: "+
				"put larger things into an artifact and record which", key, len(rec.OK), perdure.MaxValue)
	}
	return kept, text, nil
}

// recordError commits the error of a step at once. It returns the error as every later execution
// gets it.
func (c *execution) recordError(key string, rec *journal.Step) error {
	c.recordEntry(key, rec.Encode(), false)
	return recordedFailure(rec.Error, key)
}

// readBack reads a result from its new record. A type that writes fields that it does not read makes
// the record loose.
func readBack[T any](rec *journal.Step) (kept T, err error) {
	if readStrict(rec.OK, &kept) == nil {
		return kept, nil
	}
	var lenient T
	rec.Loose = true
	return lenient, json.Unmarshal(rec.OK, &lenient)
}

// unrecordable returns the error of a result that can't be recorded.
func unrecordable(key string, out any, err error) error {
	var refused *perdure.Error
	if errors.As(err, &refused) {
		return perdure.Errorf(refused.Code, "step %s: its result, a %T, %s", key, out, refused.Message)
	}
	return perdure.Errorf(codeResult, "step %s: its result, a %T, can't be recorded: %v", key, out, err)
}

// attempt calls the function of a step, with the retries of its options. A panic in it fails the
// attempt and not the process, in whichever goroutine it happens. inAttempt knows this function by
// name.
func attempt[T any](
	ctx *Context, b *branch, key string, f func(ctx context.Context) (T, error), o *StepOptions,
) (out T, err error) {
	ctx.c.stand(b)
	ctx.c.stepBegan(b)
	returned := false
	defer func() {
		ctx.c.stepEnded(b)
		if returned {
			return
		}
		if p := recover(); p != nil {
			if _, stray := p.(strayCall); stray {
				ctx.c.leave(ofPanic(p, "", debug.Stack()))
			}
			message := fmt.Sprintf("panic in step %s: %v\n\n%s", key, p, debug.Stack())
			ctx.c.leave(session.Failed(codePanic, message, true))
		}
	}()
	retry := o.patience()
	for n := 0; ; n++ {
		returned = false
		inside := context.WithValue(ctx.Context, stepKey{}, &stepScope{ctx.c, key, n})
		out, err = limited(inside, key, f, o.Timeout)
		returned = true
		if err == nil || inside.Err() != nil {
			return out, err
		}
		pause, ok := retry.again(n, err)
		if !ok {
			return out, err
		}
		tellRetry(inside, ctx.c, key, n, err, pause)
		if !timer.Sleep(inside, pause) {
			return out, err
		}
		ctx.c.admitAgain(inside, key, o.limits, n+1)
	}
}

// stepBegan and stepEnded count the steps whose functions are being called.
func (c *execution) stepBegan(b *branch) {
	c.mu.Lock()
	b.running++
	c.mu.Unlock()
}

func (c *execution) stepEnded(b *branch) {
	c.mu.Lock()
	b.running--
	c.mu.Unlock()
}

// replay returns the recorded result or error of a step.
func replay[T any](c *execution, key string, entry json.RawMessage, of *about) (out T, err error) {
	rec, err := journal.ReadStep(key, entry)
	if err != nil {
		c.fail(err)
	}
	if err := of.check(key, &rec); err != nil {
		c.fail(err)
	}
	if rec.Error != nil {
		return out, recordedFailure(rec.Error, key)
	}
	read := readStrict
	if rec.Loose {
		read = func(data json.RawMessage, out any) error { return json.Unmarshal(data, out) }
	}
	if err := cmp.Or(marks(rec.As).check(reflect.TypeFor[T]()), read(rec.OK, &out)); err != nil {
		c.fail(nondeterminism(key, "its recorded result, %s, is no %s, for which the agent asks now: %v; keep a type "+
			"that reads it, or announce a step of another name with Version",
			shapeOf(rec.OK), reflect.TypeFor[T](), err))
	}
	return out, nil
}

// IdempotencyKey returns a key that is the same in every execution of a step, also in a retry of the
// run. A service that is called twice, because a worker died before the step was recorded, can
// recognize the second call by it. It takes the context of a step's function. The agent's own context
// is a misuse, because it belongs to no step. The key is empty for a context that is no agent's.
func IdempotencyKey(ctx context.Context) string {
	checkContext(ctx)
	if w, ok := ctx.Value(stepKey{}).(*stepScope); ok {
		return string(cmp.Or(w.c.grant.OriginRunID, w.c.grant.RunID)) + "/" + w.key
	}
	// The execution ends here, before a service is called with an empty key.
	if c, ok := ctx.Value(executionKey{}).(*execution); ok && c.enter() == nil {
		c.fail(c.misuse("IdempotencyKey with the agent's context: call it in a step's function, with the context " +
			"that the function is given"))
	}
	return ""
}
