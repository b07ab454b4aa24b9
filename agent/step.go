package agent

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/session"
	"github.com/perdure/perdure/internal/timer"
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
// Steps may run at the same time in several goroutines, if their names differ. A step that begins
// while its namesake is executed is a misuse, because a replay could swap their results. A step can't
// be inside another one.
//
// A recorded result has to fit the type T in later releases. Fields that T has lost or renamed are
// found as nondeterminism; fields that it has gained are zero.
func Step[T any](ctx *Context, name string, f func(ctx context.Context) (T, error), opts ...StepOption) (T, error) {
	o := merge(opts, StepOption.applyToStep)
	c := ctx.c
	if err := c.proceed(); err != nil {
		return *new(T), err
	}
	if c.insideStep() {
		return *new(T), c.misuse("step %q inside of a step: "+
			"a step that is recorded is not executed again, and neither is what is in it", name)
	}
	key, err := c.keyFor("step", name)
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
	release, err := c.claimName(name, key)
	if err != nil {
		return *new(T), err
	}
	defer release()
	if err := o.checkUndo(c, "step "+key, reflect.TypeFor[T]()); err != nil {
		return *new(T), err
	}
	out, err := step(ctx, key, f, &o)
	if err == nil && o.undo != nil {
		err = c.register(key, o.undo)
	}
	return out, err
}

// StepOptions are the options of a [Step]. [Retries], [Undo] and [For] return options
// with one field set.
type StepOptions struct {
	// Retries repeats a failed step at once, up to so many times and with growing pauses, before Step
	// returns its error.
	Retries int
	// Retry says how often and how fast, in place of Retries.
	Retry Retry
	// Timeout limits the time of one try, as [Timeout] says.
	Timeout time.Duration

	// undo is set by Undo, which knows the type of the step's result: undoType.
	undo     func(ctx context.Context, result json.RawMessage) error
	undoType reflect.Type
	// about is set by For.
	about about
}

// Retries returns options with that number of retries.
func Retries(n int) StepOptions { return StepOptions{Retries: n} }

// applyToStep sets the fields that the options have.
func (o StepOptions) applyToStep(to *StepOptions) {
	to.Retries = cmp.Or(o.Retries, to.Retries)
	o.Retry.applyToStep(to)
	TimeLimit(o.Timeout).applyToStep(to)
	if o.undoType != nil {
		to.undo, to.undoType = o.undo, o.undoType
	}
	if o.about.given() {
		to.about = o.about
	}
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

// A stepRecord is the journal entry of a step.
type stepRecord struct {
	// Aside tells that another goroutine than the agent's own executed the step. The field is the
	// first, so that isAside finds it without reading the record.
	Aside bool             `json:"aside,omitempty"`
	Error *perdure.Failure `json:"error,omitempty"`
	// Of is the digest of what the step is about, if the code says that. See about.go.
	Of string `json:"of,omitempty"`
	// As tells which texts in the result are bytes. See bytes.go.
	As marks `json:"as,omitempty"`
	// Loose tells that the type of the result does not read back all that it writes.
	Loose bool            `json:"loose,omitempty"`
	OK    json.RawMessage `json:"ok,omitempty"`
}

const asideRecord = `{"aside":true`

// isAside tells whether an encoded record has Aside set.
func isAside(record json.RawMessage) bool { return bytes.HasPrefix(record, []byte(asideRecord)) }

// encode returns the record as JSON. OK is JSON already and is copied as it is.
func (r *stepRecord) encode() json.RawMessage {
	if r.Error == nil {
		head := []byte(`{`)
		if r.Aside {
			head = []byte(asideRecord + `,`)
		}
		if r.Of != "" { // a digest needs no escapes
			head = append(head, `"of":"`+r.Of+`",`...)
		}
		head = r.As.appendTo(head)
		if r.Loose {
			head = append(head, `"loose":true,`...)
		}
		return slices.Concat(head, []byte(`"ok":`), r.OK, []byte(`}`))
	}
	b, err := perdure.Encode(r)
	if err != nil { // can't happen: the texts were cut and checked
		panic(fmt.Sprintf("agent: an error can't be recorded: %v", err))
	}
	return b
}

// setError makes the record that of a step that failed.
func (r *stepRecord) setError(err error) {
	f := session.Describe(err)
	r.Error, r.OK, r.Loose, r.As = &f, nil, false, nil
}

// err returns the error that is recorded under a key.
func (r *stepRecord) err(key string) error {
	if r.Error.Code == perdure.CodeCancelled {
		return ErrCancelled
	}
	return &recordedError{is: perdure.Errorf(r.Error.Code, "%s", r.Error.Message), key: key}
}

// step returns the recorded result of a step, or calls its function and records the result.
func step[T any](
	ctx *Context, key string, f func(ctx context.Context) (T, error), o *StepOptions,
) (out T, err error) {
	c := ctx.c
	if entry, ok := c.lookup(key); ok {
		out, err = replay[T](c, key, entry, &o.about)
		c.passStep("step "+key, isAside(entry), err)
		return out, err
	}
	if err := c.stopReason(); err != nil {
		return out, err
	}
	rec := stepRecord{Aside: c.begin("step", key), Of: o.about.digest}
	defer func() { c.passStep("step "+key, rec.Aside, err) }()
	c.flush() // the step may rely on anything that was done before it
	out, err = attempt(ctx, key, f, o)
	c.checkExit() // a result that comes after the lease was lost must not be recorded
	if err != nil {
		if stopped := c.stopReason(); stopped != nil {
			return *new(T), stopped
		}
		rec.setError(err)
		if !session.IsPermanent(err) {
			return *new(T), c.holdError(key, &rec)
		}
		return *new(T), c.recordError(key, &rec)
	}
	kept, text, err := recordResult(key, &rec, out)
	if err != nil {
		// The function was called, and another call would not help. The agent may handle the error and
		// go on, so it is a fact.
		rec.setError(err)
		return *new(T), c.recordError(key, &rec)
	}
	c.recordEntry(key, text, o.undo != nil)
	return kept, nil
}

// recordResult writes the result of a step into its record. It returns the result as every later
// execution gets it, and the text of the record. Its error tells why the result can't be recorded.
func recordResult[T any](key string, rec *stepRecord, out T) (kept T, text json.RawMessage, err error) {
	if rec.OK, err = perdure.Encode(out); err != nil {
		return kept, nil, unrecordable(key, out, err)
	}
	if kept, err = readBack[T](rec); err != nil {
		return kept, nil, perdure.Errorf(codeResult,
			"step %s: its result, a %T, can't be read back from JSON: %v", key, out, err)
	}
	rec.As = marksOf(reflect.ValueOf(&out).Elem())
	text = rec.encode()
	if len(text) > perdure.MaxValue {
		return kept, nil, perdure.Errorf(perdure.CodeTooLarge,
			"step %s: its result has %d bytes; a record takes %d: "+
				"put larger things into an artifact and record which", key, len(rec.OK), perdure.MaxValue)
	}
	return kept, text, nil
}

// recordError commits the error of a step at once. It returns the error as every later execution
// gets it.
func (c *execution) recordError(key string, rec *stepRecord) error {
	c.recordEntry(key, rec.encode(), false)
	return rec.err(key)
}

// readBack reads a result from its new record. A type that writes fields that it does not read makes
// the record loose.
func readBack[T any](rec *stepRecord) (kept T, err error) {
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

// recordEntry commits a step's entry and waits until it is durable. With undo it also marks the
// step as one that can be undone.
func (c *execution) recordEntry(key string, value json.RawMessage, undo bool) {
	c.mu.Lock()
	b := c.batchFor(len(value) + len(key))
	b.part.Journal = append(b.part.Journal, perdure.JournalEntry{Key: key, Value: value})
	if undo {
		b.part.Journal = append(b.part.Journal,
			perdure.JournalEntry{Key: undoPrefix + key, Value: json.RawMessage(`true`)})
	}
	c.mu.Unlock()
	c.s.Commit(true)
	c.mustCommit(b)
	c.mu.Lock()
	c.entries[key] = value
	c.mu.Unlock()
}

// attempt calls the function of a step, with the retries of its options. A panic in it fails the
// attempt and not the process, in whichever goroutine it happens. inAttempt knows this function by
// name.
func attempt[T any](
	ctx *Context, key string, f func(ctx context.Context) (T, error), o *StepOptions,
) (out T, err error) {
	ctx.c.stepBegan()
	returned := false
	defer func() {
		ctx.c.stepEnded()
		if returned {
			return
		}
		if p := recover(); p != nil {
			message := fmt.Sprintf("panic in step %s: %v\n\n%s", key, p, debug.Stack())
			ctx.c.exit(session.Failed(codePanic, message, true))
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
	}
}

// stepBegan and stepEnded count the steps whose functions are being called.
func (c *execution) stepBegan() {
	c.mu.Lock()
	c.runningSteps++
	c.mu.Unlock()
}

func (c *execution) stepEnded() {
	c.mu.Lock()
	c.runningSteps--
	c.mu.Unlock()
}

// insideStep tells whether a step's function makes this call. The stack is examined only while a
// step is running.
func (c *execution) insideStep() bool {
	c.mu.Lock()
	running := c.runningSteps > 0
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

// goroutine returns the number of the calling goroutine. It is used only to detect misuse: a wait
// or a saga outside the agent's own goroutine.
func goroutine() string {
	var b [64]byte
	text := string(b[:runtime.Stack(b[:], false)]) // "goroutine 18 [running]: …"
	text, _, _ = strings.Cut(strings.TrimPrefix(text, "goroutine "), " ")
	return text
}

// replay returns the recorded result or error of a step.
func replay[T any](c *execution, key string, entry json.RawMessage, of *about) (out T, err error) {
	var rec stepRecord
	if err := json.Unmarshal(entry, &rec); err != nil {
		c.fail(nondeterminism(key, "the journal has something else under this name"))
	}
	if err := of.check(key, &rec); err != nil {
		c.fail(err)
	}
	if rec.Error != nil {
		return out, rec.err(key)
	}
	read := readStrict
	if rec.Loose {
		read = func(data json.RawMessage, out any) error { return json.Unmarshal(data, out) }
	}
	if err := cmp.Or(rec.As.check(reflect.TypeFor[T]()), read(rec.OK, &out)); err != nil {
		c.fail(nondeterminism(key, "its recorded result, %s, is no %s, for which the agent asks now: %v",
			shapeOf(rec.OK), reflect.TypeFor[T](), err))
	}
	return out, nil
}

type stepKey struct{}

// A stepScope tells to which step a context belongs.
type stepScope struct {
	c   *execution
	key string
	// try counts the repetitions of the step in this execution, from 0.
	try int
}

// IdempotencyKey returns a key that is the same in every execution of a step, also in a retry of the
// run. A service that is called twice, because a worker died before the step was recorded, can
// recognize the second call by it. It takes the context of a step's function. The agent's own context
// is a misuse, because it belongs to no step. The key is empty for a context that is no agent's.
func IdempotencyKey(ctx context.Context) string {
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

// Version lets runs that have begun under old code finish under it. Use it where code changes in a
// way that would contradict the journal of a run:
//
//	if agent.Version(ctx, "two prompts", 1) >= 1 { new } else { old }
//
// A run that comes to this point for the first time gets the given version. A run that was past it
// before the call was added gets 0. Each run gets the same answer from then on. Use it for a step that
// is added before recorded ones, and for one that is renamed. [Removed] is for one that is gone.
func Version(ctx *Context, name string, version int) int {
	c := ctx.c
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
	if err := c.checkOwn("Version"); err != nil {
		c.fail(err)
	}
	c.mu.Lock()
	v, ok := c.versions[name]
	if !ok {
		if !c.replayingLocked() {
			v = version
		}
		c.versions[name] = v
		b := c.batchFor(len(name) + 16)
		if b.frame.Versions == nil {
			b.frame.Versions = map[string]int{}
		}
		b.frame.Versions[name] = v
	}
	c.mu.Unlock()
	if !ok {
		c.s.Commit(false)
	}
	return v
}

// checkCounted returns an error if a step is running. It is for things that a replay comes to again. A
// replay does not call the functions of recorded steps, so their share would be missing.
func (c *execution) checkCounted(what string) error {
	c.mu.Lock()
	running := c.runningSteps > 0
	c.mu.Unlock()
	if running {
		return c.misuse("%s inside of, or beside, a step that is being executed: do it between steps", what)
	}
	return nil
}

// checkWaitable returns an error if the run can't wait here. Otherwise the agent goes past the
// errors that it got before.
func (c *execution) checkWaitable(what string) error {
	if goroutine() != c.mainGoroutine {
		return c.misuse("%s in a goroutine: a run that waits is executed anew, "+
			"so the agent's own goroutine waits for all", what)
	}
	c.mu.Lock()
	running := c.runningSteps > 0
	c.mu.Unlock()
	if running {
		return c.misuse("%s inside of, or beside, a step that is being executed: a run that waits is executed anew, "+
			"and the step would be lost; wait between steps, or spawn a child", what)
	}
	c.passErrors()
	return nil
}

var errNoAgent = errors.New("agent: the context is not an agent's")
