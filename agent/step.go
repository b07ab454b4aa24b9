package agent

import (
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

// Step executes a function once and records its result: an execution that comes later, after a wait or a crash,
// gets the recorded result and does not call the function. It returns when the result is on the server's disk.
//
// The name identifies the step, together with how often it was used before: the third step "search" is
// "search#3". Code that is inserted elsewhere shifts nothing.
//
// What it returns is the result as it was recorded, read back from JSON: the same in this execution and in every later
// one. An error is handed back and not recorded, so that the next attempt tries again, unless it is [Permanent]; an agent
// that does something else about an error makes it Permanent first, or a later execution might find that the step succeeds. The
// function may be called twice, when a worker dies between its end and the record of it; [IdempotencyKey] lets
// others notice. A result is at most 1 MiB of JSON; a text in it has no NUL character and no half of a surrogate pair, or the
// step fails: what may have them is []byte, which JSON writes as base64.
//
// Steps may run at the same time, in goroutines, if their names differ, and not one inside of another.
func Step[T any](ctx *Context, name string, f func(ctx context.Context) (T, error), opts ...StepOption) (T, error) {
	var o stepOptions
	for _, opt := range opts {
		opt(&o)
	}
	c := ctx.c
	if err := c.enter(); err != nil {
		return *new(T), err
	}
	if c.inside() {
		return *new(T), c.misuse("step %q inside of a step: a step that is recorded is not executed again, and neither is what is in it", name)
	}
	key, err := c.name("step", name)
	if err != nil {
		return *new(T), err
	}
	if o.undo != nil && !c.inSaga() {
		return *new(T), c.misuse("step %s has an Undo and is in no Saga", key)
	}
	if of := reflect.TypeFor[T](); o.undo != nil && o.undoes != of {
		return *new(T), c.misuse("step %s gives %s, and its Undo takes %s", key, a(of.String()), a(o.undoes.String()))
	}
	out, err := step(ctx, key, f, &o)
	if err == nil && o.undo != nil {
		err = c.register(key, o.undo)
	}
	return out, err
}

// A StepOption changes one step; [Retries] and [Undo] are such.
type StepOption func(*stepOptions)

type stepOptions struct {
	retries int
	undo    func(ctx context.Context, result json.RawMessage) error
	undoes  reflect.Type // what it takes
}

// Retries has a step that fails tried again on the spot, so often and with growing pauses, before its error is
// handed back.
func Retries(n int) StepOption { return func(o *stepOptions) { o.retries = n } }

// A record is how a step stands in the journal.
type record struct {
	OK    json.RawMessage  `json:"ok,omitempty"`
	Error *perdure.Failure `json:"error,omitempty"`
}

// text is the record as JSON. The result was written as such already.
func (r *record) text() json.RawMessage {
	if r.Error == nil {
		return slices.Concat([]byte(`{"ok":`), r.OK, []byte(`}`))
	}
	b, err := perdure.Encode(r)
	if err != nil { // texts that are bounded and valid
		panic(fmt.Sprintf("agent: an error can't be recorded: %v", err))
	}
	return b
}

// err is the error that was recorded.
func (r *record) err() error {
	if r.Error.Code == perdure.CodeCancelled {
		return ErrCancelled
	}
	return &recorded{perdure.Errorf(r.Error.Code, "%s", r.Error.Message)}
}

func step[T any](ctx *Context, key string, f func(ctx context.Context) (T, error), o *stepOptions) (out T, err error) {
	c := ctx.c
	if entry, ok := c.recorded(key); ok {
		return replay[T](c, key, entry)
	}
	if err := c.halted(); err != nil {
		return out, err
	}
	c.anew()
	c.flush() // whatever the step may rely on is there before it begins
	out, err = attempt(ctx, key, f, o)
	c.goOn() // what a step does after its lease was lost is not for this execution to judge
	if err != nil {
		if stopped := c.halted(); stopped != nil {
			return *new(T), stopped
		}
		if !session.IsPermanent(err) {
			return *new(T), err
		}
		f := session.Describe(err)
		rec := record{Error: &f}
		c.record(key, rec.text(), false)
		return *new(T), rec.err() // as every later execution has it
	}
	var rec record
	if rec.OK, err = perdure.Encode(out); err != nil {
		return *new(T), unrecordable(key, out, err)
	}
	text := rec.text()
	if len(text) > perdure.MaxValue {
		return *new(T), Permanent(perdure.Errorf(perdure.CodeTooLarge, "step %s: its result has %d bytes; a record takes %d: put larger things into an artifact and record which", key, len(rec.OK), perdure.MaxValue))
	}
	var kept T // what every later execution will have
	if err := json.Unmarshal(rec.OK, &kept); err != nil {
		return *new(T), Permanent(perdure.Errorf(codeResult, "step %s: its result, a %T, can't be read back from JSON: %v", key, out, err))
	}
	c.record(key, text, o.undo != nil)
	return kept, nil
}

// unrecordable says what is wrong with a step's result.
func unrecordable(key string, out any, err error) error {
	var refused *perdure.Error
	if errors.As(err, &refused) {
		return Permanent(perdure.Errorf(refused.Code, "step %s: its result, a %T, %s", key, out, refused.Message))
	}
	return Permanent(perdure.Errorf(codeResult, "step %s: its result, a %T, can't be recorded: %v", key, out, err))
}

// record commits a step's entry, and waits for that.
func (c *core) record(key string, value json.RawMessage, undo bool) {
	c.mu.Lock()
	b := c.open(len(value) + len(key))
	b.part.Journal = append(b.part.Journal, perdure.JournalEntry{Key: key, Value: value})
	if undo {
		b.part.Journal = append(b.part.Journal, perdure.JournalEntry{Key: undoPrefix + key, Value: json.RawMessage(`true`)})
	}
	c.mu.Unlock()
	c.s.Commit(true)
	c.settle(b)
	c.mu.Lock()
	c.entries[key] = value
	c.mu.Unlock()
}

// attempt calls the function, as often as its options say.
func attempt[T any](ctx *Context, key string, f func(ctx context.Context) (T, error), o *stepOptions) (out T, err error) {
	inside := context.WithValue(ctx.Context, stepKey{}, &within{ctx.c, key})
	ctx.c.begin()
	returned := false
	defer func() {
		ctx.c.finish()
		if returned {
			return
		}
		// Whatever goroutine this is, it is the attempt that failed, and not the program.
		if p := recover(); p != nil {
			ctx.c.leave(session.Failed(codePanic, fmt.Sprintf("panic in step %s: %v\n\n%s", key, p, debug.Stack()), true))
		}
	}()
	for n := 0; ; n++ {
		returned = false
		out, err = f(inside)
		returned = true
		if err == nil || n >= o.retries || session.IsPermanent(err) || inside.Err() != nil {
			return out, err
		}
		if !timer.Sleep(inside, min(time.Second<<min(n, 10), time.Minute)) {
			return out, err
		}
	}
}

// begin and finish count the steps that are executed right now.
func (c *core) begin() {
	c.mu.Lock()
	c.running++
	c.mu.Unlock()
}

func (c *core) finish() {
	c.mu.Lock()
	c.running--
	c.mu.Unlock()
}

// inside tells whether a step's function makes this call. While no step is executed, nothing has to be looked at for that.
func (c *core) inside() bool {
	c.mu.Lock()
	running := c.running > 0
	c.mu.Unlock()
	return running && inAttempt()
}

// inAttempt tells whether this goroutine is in a call of attempt.
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

// goroutine names the goroutine that calls. It decides nothing: it only tells the mistake of a wait, or a saga, beside
// the agent's own goroutine.
func goroutine() string {
	var b [64]byte
	text := string(b[:runtime.Stack(b[:], false)]) // "goroutine 18 [running]: …"
	text, _, _ = strings.Cut(strings.TrimPrefix(text, "goroutine "), " ")
	return text
}

// replay gives what is recorded of a step.
func replay[T any](c *core, key string, entry json.RawMessage) (out T, err error) {
	var rec record
	if err := json.Unmarshal(entry, &rec); err != nil {
		c.fail(nondeterminism(key, "the journal has something else under this name"))
	}
	if rec.Error != nil {
		return out, rec.err()
	}
	if err := json.Unmarshal(rec.OK, &out); err != nil {
		c.fail(nondeterminism(key, "its recorded result is no %T: %v", out, err))
	}
	return out, nil
}

type stepKey struct{}

// within says which step a context is of.
type within struct {
	c   *core
	key string
}

// IdempotencyKey is a key for the outside world, the same in every execution of a step: whoever is called with
// it twice, because a worker died before the step was recorded, can tell. It takes the context of a step's
// function and is empty for any other.
func IdempotencyKey(ctx context.Context) string {
	w, ok := ctx.Value(stepKey{}).(*within)
	if !ok {
		return ""
	}
	return string(w.c.grant.RunID) + "/" + w.key
}

// Now is the time at which it was first asked: the same in every execution.
func Now(ctx *Context) time.Time {
	c := ctx.c
	return time.Unix(0, handOut(c, "Now", &c.times, &c.usedTimes, func() int64 { return time.Now().UnixNano() }, func(f *frame) *[]int64 { return &f.Times }))
}

// UUID is a random UUID: the same in every execution.
func UUID(ctx *Context) string {
	c := ctx.c
	return handOut(c, "UUID", &c.uuids, &c.usedUUIDs, newUUID, func(f *frame) *[]string { return &f.UUIDs })
}

// handOut gives the next of what earlier executions were given, or makes one and notes it in the frame.
func handOut[T any](c *core, what string, given *[]T, used *int, fresh func() T, in func(*frame) *[]T) T {
	if c.enter() != nil {
		return fresh() // nobody will ask for it again
	}
	if err := c.counted(what); err != nil {
		c.fail(err)
	}
	c.mu.Lock()
	anew := *used == len(*given)
	if anew {
		v := fresh()
		*given = append(*given, v)
		noted := in(&c.open(48).frame)
		*noted = append(*noted, v)
	}
	v := (*given)[*used]
	*used++
	c.mu.Unlock()
	if anew {
		c.s.Commit(false)
	}
	return v
}

// Version lets runs that are under way finish on the path that they began. Where code changes in a way that
// a replay would stumble over, ask
//
//	if agent.Version(ctx, "two prompts", 1) >= 1 { new } else { old }
//
// A run that comes here for the first time gets the given version, and one that has been past this place before
// the question stood here gets 0; each gets the same answer from then on.
func Version(ctx *Context, name string, version int) int {
	c := ctx.c
	if c.enter() != nil {
		return version // nothing depends on it any more
	}
	if err := perdure.CheckName("version", name); err != nil {
		c.fail(misuse("%v", err))
	}
	c.mu.Lock()
	v, ok := c.versions[name]
	if !ok {
		if !c.behind() {
			v = version
		}
		c.versions[name] = v
		b := c.open(len(name) + 16)
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

// counted tells why something can't be done here of which each execution counts how much there was before; nil: it
// can. A step's function is not called again, and what it did would be missing from the count.
func (c *core) counted(what string) error {
	c.mu.Lock()
	running := c.running > 0
	c.mu.Unlock()
	if running {
		return c.misuse("%s inside of, or beside, a step that is being executed: do it between steps", what)
	}
	return nil
}

// waitable tells why the run can't wait here; nil: it can.
func (c *core) waitable(what string) error {
	if goroutine() != c.main {
		return c.misuse("%s in a goroutine: a run that waits is executed anew, so the agent's own goroutine waits for all", what)
	}
	c.mu.Lock()
	running := c.running > 0
	c.mu.Unlock()
	if running {
		return c.misuse("%s inside of, or beside, a step that is being executed: a run that waits is executed anew, and the step would be lost; wait between steps, or spawn a child", what)
	}
	return nil
}

var errNoAgent = errors.New("agent: the context is not an agent's")
