package agent

import (
	"cmp"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"reflect"
	"time"

	"github.com/perdure/perdure"
)

// A Future is something that will be there: what a child results in, or what comes through a callback.
type Future[T any] struct {
	c     *core
	key   string // a child's
	wait  string // a callback's
	door  perdure.WaitSpec
	said  bool // the door was opened, or opened again, in this execution
	kind  string
	spawn perdure.Spawn
	err   error // it never was
}

// Spawn starts a child: a run of its own, which workers of its kind execute, anywhere, while the agent goes on. It
// returns at once; what the child results in is had from [JoinAll] and its kin, or from Join of the future.
//
// A child ends with its parent unless its [Options] say otherwise, and its deadline is never later than the
// parent's. One that runs out of its [Timeout] is ended by the server, and its parent learns that as it learns of
// a result: an [ErrTaskTimedOut]. Failures are tried again by the server; timeouts are not.
func Spawn[T any](ctx *Context, kind string, input any, opts ...Options) *Future[T] {
	c := ctx.c
	f := &Future[T]{c: c, kind: kind}
	if f.err = c.enter(); f.err != nil {
		return f
	}
	if c.inside() {
		f.err = c.misuse("Spawn of %q inside of a step: a step that is recorded is not executed again, and what it spawned would be somebody else's; spawn between steps", kind)
		return f
	}
	key, err := c.name("kind", kind)
	if err != nil {
		f.err = err
		return f
	}
	f.key = key
	f.spawn = perdure.Spawn{Key: key, Kind: kind}
	for _, o := range opts {
		o.over(&f.spawn)
	}
	if input != nil {
		if f.spawn.Input, err = perdure.Encode(input); err != nil {
			f.err = c.misuse("spawn %s: its input, a %T, can't be written as JSON: %v", key, input, err)
			return f
		}
	}
	check := perdure.Commit{ID: "check", RunID: "check", Children: []perdure.Spawn{f.spawn}}
	if err := check.Validate(); err != nil {
		f.err = Permanent(fmt.Errorf("spawn %s: %w", key, err))
		return f
	}
	digest := digestOf(&f.spawn)
	c.mu.Lock()
	before, again := c.spawned[key]
	delete(c.unasked, "spawn "+key)
	c.mu.Unlock()
	switch {
	case again && before != digest:
		c.fail(nondeterminism(key, "a child was spawned under this name with another kind or input"))
	case again:
		return f
	}
	if f.err = c.halted(); f.err != nil {
		return f
	}
	c.anew()
	c.mu.Lock()
	c.spawned[key] = digest
	b := c.open(len(f.spawn.Input) + 256)
	b.part.Children = append(b.part.Children, f.spawn)
	if b.frame.Spawned == nil {
		b.frame.Spawned = map[string]string{}
	}
	b.frame.Spawned[key] = digest
	c.mu.Unlock()
	c.s.Commit(false)
	return f
}

// digestOf is what a child was asked to do, in short.
func digestOf(s *perdure.Spawn) string {
	sum := sha256.Sum256(append([]byte(s.Kind+"\x00"), s.Input...))
	return hex.EncodeToString(sum[:12])
}

// Key is the child's name among its siblings: its kind, and how many of that kind there are.
func (f *Future[T]) Key() string { return f.key }

// ID is the child's run id; it has the child spawned first, if that is still to be done. A callback has none.
func (f *Future[T]) ID() perdure.RunID {
	if f.err != nil || f.key == "" {
		return ""
	}
	c := f.c
	over := c.enter() != nil
	if id := c.id(f.key); id != "" || over {
		return id
	}
	c.flush()
	if id := c.id(f.key); id != "" {
		return id
	}
	// An earlier execution spawned it. Said again, it is the same child, and the answer names it.
	c.put(len(f.spawn.Input)+256, func(b *batch) { b.part.Children = append(b.part.Children, f.spawn) })
	c.flush()
	return c.id(f.key)
}

func (c *core) id(key string) perdure.RunID {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ids[key]
}

// Join waits for it: [JoinAll] of one.
func (f *Future[T]) Join(ctx *Context) (T, error) {
	out, err := JoinAll(ctx, f)
	if err != nil {
		return *new(T), err
	}
	return out[0], nil
}

// ended is how it ended; nil: not yet.
func (f *Future[T]) ended() *item {
	f.c.mu.Lock()
	defer f.c.mu.Unlock()
	if f.key != "" {
		return f.c.ends[f.key]
	}
	return f.c.waits[f.wait]
}

// ok tells whether it ended with a result.
func (f *Future[T]) ok(i *item) bool {
	if f.key != "" {
		return i.Outcome == string(perdure.Completed)
	}
	return i.Type == perdure.ItemCallback && i.Failure == nil
}

// result is what came of it.
func (f *Future[T]) result(i *item) (out T, err error) {
	data := f.c.data(i)
	if f.key == "" {
		if i.Type != perdure.ItemCallback {
			return out, waitEnded(i, ErrTimeout)
		}
		if i.Failure != nil {
			return out, &recorded{perdure.Errorf(i.Failure.Code, "%s", i.Failure.Message)}
		}
		return out, decode(f.wait, data, &out)
	}
	switch state := perdure.State(i.Outcome); state {
	case perdure.Completed:
		return out, decode(f.key, data, &out)
	default:
		var fallback struct {
			Reason     perdure.Code    `json:"reason"`
			Message    string          `json:"message"`
			DeadlineAt perdure.Instant `json:"deadline_at"`
		}
		_ = json.Unmarshal(data, &fallback) // what can't be read leaves out the reason
		if state == perdure.TimedOut && fallback.Reason == perdure.CodeDeadline {
			return out, ErrTaskTimedOut{TaskID: i.From, Deadline: fallback.DeadlineAt}
		}
		return out, ErrTaskFailed{TaskID: i.From, Kind: f.kind, State: state, Failure: perdure.Failure{Code: fallback.Reason, Message: fallback.Message}}
	}
}

// decode reads what came. What does not fit will not fit the next time either.
func decode(what string, data json.RawMessage, out any) error {
	if len(data) == 0 || string(data) == "null" {
		return nil
	}
	if err := json.Unmarshal(data, out); err != nil {
		return Permanent(fmt.Errorf("what came of %s is no %s: %w", what, reflect.TypeOf(out).Elem(), err))
	}
	return nil
}

// Options of a child. What is zero stays as it is by default.
type Options struct {
	Queue       string
	Priority    int // -100 to 100, higher first
	Timeout     time.Duration
	Delay       time.Duration // until it may begin
	MaxAttempts int
	Class       perdure.Class
	ThreadID    perdure.ThreadID
	Metadata    map[string]string
	Outlive     bool // it goes on when its parent ends
}

// Timeout is how much time a child has, all its attempts and waits together: the server ends it then. One that is negative, as
// the rest of a time that has passed, ends the child at once: an [ErrTaskTimedOut].
func Timeout(d time.Duration) Options { return Options{Timeout: d} }

// over lays what is set over what was said before.
func (o Options) over(s *perdure.Spawn) {
	s.Queue, s.Class, s.ThreadID = cmp.Or(o.Queue, s.Queue), cmp.Or(o.Class, s.Class), cmp.Or(o.ThreadID, s.ThreadID)
	s.Priority, s.MaxAttempts = cmp.Or(o.Priority, s.Priority), cmp.Or(o.MaxAttempts, s.MaxAttempts)
	s.Timeout, s.Delay = cmp.Or(timeLeft(o.Timeout), s.Timeout), cmp.Or(perdure.Duration(max(o.Delay, 0)), s.Delay)
	if o.Metadata != nil {
		s.Metadata = o.Metadata
	}
	if o.Outlive {
		s.OnParentEnd = perdure.OutliveParent
	}
}

// Callback opens a door for the outside world: whoever has its Token answers once, with a POST to
// /api/v1/callbacks/{token}, and needs no key. The answer is had as a child's result is. The door closes when the
// time is over (zero: the server's suspend_timeout, 10 minutes; negative: at once), and who waits gets an [ErrTimeout].
func Callback[T any](ctx *Context, name string, timeout time.Duration) *Future[T] {
	c := ctx.c
	f := &Future[T]{c: c, kind: name}
	if f.err = c.enter(); f.err != nil {
		return f
	}
	if c.inside() {
		f.err = c.misuse("Callback %q inside of a step: open it between steps", name)
		return f
	}
	key, err := c.name("callback", name)
	if err != nil {
		f.err = err
		return f
	}
	f.wait = "callback:" + key
	c.mu.Lock()
	delete(c.unasked, "wait "+f.wait)
	c.mu.Unlock()
	f.door = perdure.WaitSpec{ID: f.wait, Type: perdure.WaitCallback, Timeout: timeLeft(timeout)}
	if f.err = check(&f.door); f.err != nil || f.ended() != nil {
		return f
	}
	if f.err = c.halted(); f.err == nil {
		// An earlier execution may have opened it. Said again, it is the same one.
		c.put(100, func(b *batch) { b.part.Waits = append(b.part.Waits, f.door) })
		f.said = true
	}
	return f
}

// Token is what a callback is answered with. It is a secret, and the same in every execution. It has the callback
// opened first, if that is still to be done. A child has none.
func (f *Future[T]) Token() string {
	if f.wait == "" {
		return ""
	}
	c := f.c
	over := c.enter() != nil
	key := tokenPrefix + f.wait
	var token string
	if entry, ok := c.recorded(key); ok && json.Unmarshal(entry, &token) == nil {
		return token // also when the run is asked to stop: what was done with it is found by it
	}
	if f.err != nil || over {
		return ""
	}
	if !f.said {
		c.put(100, func(b *batch) { b.part.Waits = append(b.part.Waits, f.door) })
		f.said = true
	}
	c.flush()
	c.mu.Lock()
	token = c.tokens[f.wait]
	value, _ := json.Marshal(token)
	c.entries[key] = value
	c.mu.Unlock()
	c.put(len(value), func(b *batch) { b.part.Journal = append(b.part.Journal, perdure.JournalEntry{Key: key, Value: value}) })
	return token
}

const tokenPrefix = "_token:"

func newUUID() string {
	var b [16]byte
	rand.Read(b[:])
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
