package agent

import (
	"bytes"
	"context"
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
)

// Edits of code under running agents are found by what a replay does not ask for. A replay asks for
// everything that is recorded before it does anything new, if its code fits the journal. So when
// the agent's own goroutine begins something that is not recorded (a step, a child, a wait), each
// recorded entry has to be visited already. If one is not, it was renamed or removed, or the new
// thing was inserted before it. The execution then ends, before anything happens twice.
//
// The order of goroutines is not determined. Entries that were made off the agent's own goroutine
// are marked ("aside") and are not expected before the agent completes. Such a goroutine may also
// begin something new at any time.

// visit marks a recorded thing as asked for, and tells whether it is recorded. The caller holds
// c.mu.
func (c *execution) visit(key string) bool {
	known := c.unvisited[key] || c.aside[key]
	delete(c.unvisited, key)
	delete(c.aside, key)
	return known
}

// expect adds a recorded thing that the execution has to ask for. The caller holds c.mu, or is
// alone.
func (c *execution) expect(key string, aside bool) {
	if aside {
		c.aside[key] = true
		return
	}
	c.unvisited[key] = true
	c.inOrder = append(c.inOrder, key)
}

// firstMissed returns the first recorded thing that was not asked for, or nothing. The wait of a
// join is never missed: the ends of its children are the facts, and these are found by their keys.
// The caller holds c.mu.
func (c *execution) firstMissed() string {
	for ; c.inOrderAt < len(c.inOrder); c.inOrderAt++ {
		if key := c.inOrder[c.inOrderAt]; c.unvisited[key] && !strings.HasPrefix(key, "wait join:") {
			return key
		}
	}
	return ""
}

// begin is called before something begins that is not in the journal. It tells whether the caller
// is another goroutine than the agent's own. It ends the execution if recorded things were not
// asked for.
func (c *execution) begin(what, key string) (aside bool) {
	if goroutine() != c.mainGoroutine {
		return true
	}
	c.mu.Lock()
	missed := c.firstMissed()
	c.pastJournal = true
	c.reports.Forget()
	c.mu.Unlock()
	if missed != "" {
		c.fail(nondeterminism(key, "the journal does not have this %s, but it has %s, "+
			"for which the agent has not asked yet; announce what was added, renamed or removed with Version "+
			"or Removed",
			what, c.describeMissed(missed)))
	}
	return false
}

// checkComplete returns an error if the agent completes without having asked for all that is
// recorded, or without having looked at a child that could not be spawned. An agent that was asked to
// stop may end early.
func (c *execution) checkComplete() error {
	if context.Cause(c.ctx) != nil {
		return nil
	}
	c.mu.Lock()
	if len(c.unread) > 0 {
		defer c.mu.Unlock()
		return c.unread[0].err
	}
	missed := c.firstMissed()
	if missed == "" && len(c.aside) > 0 {
		for key := range c.aside {
			if missed == "" || key < missed {
				missed = key
			}
		}
	}
	c.mu.Unlock()
	if missed == "" {
		return nil
	}
	return nondeterminism(keyOf(missed), "the agent returns, and has not asked for what the journal has, %s; "+
		"announce what was renamed or removed with Version or Removed", c.describeMissed(missed))
}

// describeMissed names a thing that was not asked for, and counts the others.
func (c *execution) describeMissed(key string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	others := -1
	for other := range c.unvisited {
		if !strings.HasPrefix(other, "wait join:") {
			others++
		}
	}
	what, id, _ := strings.Cut(key, " ")
	text := fmt.Sprintf("the %s %s", strings.Replace(what, "spawn", "child", 1), id)
	if others > 0 {
		text += fmt.Sprintf(" and %d more", others)
	}
	return text
}

// keyOf returns the journal key of a recorded thing.
func keyOf(thing string) string {
	_, key, _ := strings.Cut(thing, " ")
	return key
}

// Removed declares that the code no longer has the steps, children, waits, times and ids of a name.
// Without it, a run that has recorded one of them is held with the code nondeterminism: its code might
// have been renamed by mistake, and would do everything again. Call it at the beginning of the agent's
// function, and remove the call when no run is left that has begun before:
//
//	agent.Removed(ctx, "look up")
//
// The name is that of the step, the saga, the child's kind, or that of the signal, approval or
// callback. A removed Sleep is "sleep:" and its duration, as the error says. Don't use the name for
// something else: it would get the old results.
func Removed(ctx *Context, name string) {
	c := ctx.c
	if c.enter() != nil {
		return // the execution is over, so nothing depends on it
	}
	if c.insideStep() {
		c.fail(c.misuse("Removed of %q inside of a step: a step that is recorded is not executed again; call it at "+
			"the beginning of the agent's function", name))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, things := range []map[string]bool{c.unvisited, c.aside} {
		for thing := range things {
			if slices.Contains(namesOf(thing), name) {
				delete(things, thing)
			}
		}
	}
	c.reports.Remove(func(point string) bool { return slices.Contains(namesOf(point), name) })
}

// namesOf returns the names of a recorded thing, without the number of its use. A wait has two:
// with its type, such as "signal:go", and without.
func namesOf(thing string) []string {
	what, key, _ := strings.Cut(thing, " ")
	name := key[:max(0, strings.LastIndexByte(key, '#'))]
	if _, short, ok := strings.Cut(name, ":"); ok && what == "wait" {
		return []string{name, short}
	}
	return []string{name}
}

// Recorded values and their types.

// readStrict reads the recorded result of a step. A field that the type does not have is an error,
// and so is null for a type that is never null: the value is of another type then. A field that the
// value does not have stays zero, because types may gain fields.
func readStrict(data json.RawMessage, out any) error {
	if t := reflect.TypeOf(out).Elem(); string(data) == "null" && !takesNull(t) {
		return errors.New("it is null")
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(out); err != nil {
		return err
	}
	return checkLengths(data, out)
}

// checkLengths returns an error if an array in a value has another length than the type's. Package
// json leaves out surplus elements, and adds zeros for missing ones. Only types with arrays are
// looked at.
func checkLengths(data json.RawMessage, out any) error {
	t := reflect.TypeOf(out).Elem()
	found, known := arraysIn.Load(t)
	if !known {
		found = hasArray(t, map[reflect.Type]bool{})
		arraysIn.Store(t, found)
	}
	if found == false {
		return nil
	}
	again, err := perdure.Marshal(out)
	if err != nil {
		return err
	}
	var before, after any
	if err := errors.Join(json.Unmarshal(data, &before), json.Unmarshal(again, &after)); err != nil {
		return err
	}
	if !sameLengths(before, after) {
		return errors.New("an array in it has another length")
	}
	return nil
}

// arraysIn has the answers of hasArray by type. A program has few types of results.
var arraysIn sync.Map

// hasArray tells whether values of a type have arrays in their JSON. Types that read themselves don't
// count.
func hasArray(t reflect.Type, seen map[reflect.Type]bool) bool {
	if seen[t] || readsItself(t) {
		return false
	}
	seen[t] = true
	switch t.Kind() {
	case reflect.Array:
		return true
	case reflect.Pointer, reflect.Slice, reflect.Map:
		return hasArray(t.Elem(), seen)
	case reflect.Struct:
		for n := range t.NumField() {
			if hasArray(t.Field(n).Type, seen) {
				return true
			}
		}
	}
	return false
}

// readsItself tells whether a type has a method that reads it from JSON.
func readsItself(t reflect.Type) bool {
	p := reflect.PointerTo(t)
	return p.Implements(reflect.TypeFor[json.Unmarshaler]()) ||
		p.Implements(reflect.TypeFor[encoding.TextUnmarshaler]())
}

// sameLengths tells whether the arrays that two values have at the same place are of the same length.
func sameLengths(a, b any) bool {
	switch a := a.(type) {
	case []any:
		b, ok := b.([]any)
		if !ok {
			return true
		}
		if len(a) != len(b) {
			return false
		}
		for n := range a {
			if !sameLengths(a[n], b[n]) {
				return false
			}
		}
	case map[string]any:
		b, _ := b.(map[string]any)
		for name := range a {
			if other, ok := b[name]; ok && !sameLengths(a[name], other) {
				return false
			}
		}
	}
	return true
}

// takesNull tells whether null is a value of a type.
func takesNull(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Pointer, reflect.Map, reflect.Slice, reflect.Interface:
		return true
	}
	return reflect.PointerTo(t).Implements(reflect.TypeFor[json.Unmarshaler]())
}

// shapeOf describes a JSON value without its content, which may be secret.
func shapeOf(v json.RawMessage) string {
	if len(v) == 0 {
		return "nothing"
	}
	switch v[0] {
	case '{':
		var fields map[string]json.RawMessage
		if json.Unmarshal(v, &fields) != nil || len(fields) == 0 {
			return "an object"
		}
		names := make([]string, 0, len(fields))
		for name := range fields {
			names = append(names, name)
		}
		slices.Sort(names)
		const few = 10
		if len(names) > few {
			names = append(names[:few], "…")
		}
		return "an object with " + strings.Join(names, ", ")
	case '[':
		return "an array"
	case '"':
		return "a string"
	case 't', 'f':
		return "a boolean"
	case 'n':
		return "null"
	}
	return "a number"
}

// checkOwn returns an error if another goroutine than the agent's own makes the call. It is for
// things whose place among the other calls counts in a replay. Goroutines don't keep it.
func (c *execution) checkOwn(what string) error {
	if goroutine() == c.mainGoroutine {
		return nil
	}
	return c.misuse("%s in a goroutine: a replay needs its place among the other calls, "+
		"which differs between goroutines; call it on the agent's own", what)
}

// claimName makes a name belong to one step until release is called. Its namesakes are numbered in
// the order in which they begin, so two of them at the same time could swap their results.
func (c *execution) claimName(name, key string) (release func(), err error) {
	c.mu.Lock()
	other, taken := c.executing[name]
	if !taken {
		c.executing[name] = key
	}
	c.mu.Unlock()
	if taken {
		return nil, c.misuse("step %s begins while its namesake %s is being executed: "+
			"a replay could swap their results; give each a name of its own", key, other)
	}
	return func() {
		c.mu.Lock()
		delete(c.executing, name)
		c.mu.Unlock()
	}, nil
}

// childKey returns the key of a child: its kind and a number. The agent's own goroutine numbers
// children in the order of its calls. The order of other goroutines is not determined, so a replay
// finds their children by kind and input; those with the same are interchangeable. A new child gets
// the next number that is free.
func (c *execution) childKey(kind, digest string, aside bool) (key string, before string, again bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if same := c.asideChildren[digest]; aside && len(same) > 0 {
		c.asideChildren[digest] = same[1:]
		return same[0], digest, true
	}
	uses := "kind " + kind
	if aside {
		uses = "aside " + uses
	}
	for {
		c.uses[uses]++
		key = fmt.Sprintf("%s#%d", kind, c.uses[uses])
		before, again = c.spawned[key]
		if aside && !again || !aside && !c.asideKeys[key] {
			break
		}
	}
	if !again {
		c.spawned[key] = digest
		c.asideKeys[key] = aside
	}
	return key, before, again && !aside
}

// Children that can't be spawned.

// checkSpawn checks a child, whose kind and input may come from a model, and writes its input.
func (c *execution) checkSpawn(s *perdure.Spawn, input any) error {
	if s.Kind == "" {
		return perdure.Permanent(perdure.Errorf(perdure.CodeInvalid, "a child needs a kind"))
	}
	if err := perdure.CheckName("kind", s.Kind); err != nil {
		return malformed(err, "spawn of a kind that is none")
	}
	if strings.HasPrefix(s.Kind, "_") || len(s.Kind) > maxName {
		return malformed(fmt.Errorf("a kind has at most %d bytes and does not begin with _", maxName),
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

// An unread is the error of a child that could not be spawned, and that the agent has not looked at.
type unread struct {
	key string // of a child that the server refused
	err error
}

// look notes that the agent looks at a child, by its key or by the error that it has instead.
func (c *execution) look(key string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unread = slices.DeleteFunc(c.unread, func(u unread) bool {
		return u.err == err || key != "" && u.key == key
	})
}

// A child that the server alone can judge, by its thread or its timeout, is refused with the commit
// that spawns it. The commit is sent again without the child, and with an item as if the child had
// failed. It has no run id. So the refusal is the child's own error, in every execution.

// againPrefix begins the ids of waits that end at once. They replace the waits of a commit that
// was to suspend the run on a refused child: the next execution sees the refusal.
const againPrefix = "_again:"

// dropChild takes a refused child out of a commit and queues the commit again. The caller holds c.mu.
func (c *execution) dropChild(b *batch, n int, why *api.Refusal) {
	key := b.part.Children[n].Key
	b.part.Children = slices.Delete(slices.Clone(b.part.Children), n, n+1)
	b.unseal()
	i := item{Type: perdure.ItemChild, Name: key, Outcome: string(perdure.Failed),
		Data: json.RawMessage(perdure.Object("reason", string(why.Code), "message", why.Detail))}
	b.frame.In = append(b.frame.In, i)
	c.addItem(&i)
	c.queue = append([]*batch{b}, c.queue...)
	c.forgetRefused()
}

// forgetRefused takes refused children out of the waits that are to be committed. The caller holds
// c.mu.
func (c *execution) forgetRefused() {
	if !c.anyRefused {
		return
	}
	changed := false
	for _, b := range c.queue {
		waits := b.part.Waits
		b.part.Waits = nil
		for _, w := range waits {
			keys := slices.DeleteFunc(slices.Clone(w.Keys), c.refusedLocked)
			changed = changed || len(keys) < len(w.Keys)
			if len(keys) > 0 || len(w.Keys) == 0 {
				w.Keys = keys
				b.part.Waits = append(b.part.Waits, w)
			}
		}
		if out := b.part.Outcome; changed && out != nil && out.Type == perdure.OutcomeSuspend {
			again := perdure.WaitSpec{ID: fmt.Sprintf("%s%d", againPrefix, c.grant.Epoch), Type: perdure.WaitCallback,
				Timeout: perdure.Duration(time.Millisecond)}
			b.part.Waits = append(b.part.Waits, again)
			b.part.Outcome = &perdure.Outcome{Type: perdure.OutcomeSuspend, Waits: []string{again.ID}}
		}
	}
}

// refused tells whether the server has refused a child.
func (c *execution) refused(key string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.refusedLocked(key)
}

// refusedLocked is refused for a caller that holds c.mu.
func (c *execution) refusedLocked(key string) bool {
	i := c.childEnds[key]
	return i != nil && i.From == ""
}

// refusal returns the error with which the server refused a child.
func (i *item) refusal() error {
	var why struct {
		Reason  perdure.Code `json:"reason"`
		Message string       `json:"message"`
	}
	_ = json.Unmarshal(i.Data, &why)
	return perdure.Permanent(perdure.Errorf(why.Reason, "spawn of %s: %s", i.Name, why.Message))
}
