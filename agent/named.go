package agent

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/perdure/perdure/agent/internal/journal"
)

// Now returns the time of its first call under a name. It is the same in every execution, to the
// microsecond. As with a [Step], the name identifies it, together with the number of its use, so code
// that is added elsewhere changes nothing. An edit around it is found as one around a step is.
func Now(ctx *Context, name string) time.Time {
	c := ctx.c
	return handOut(c, "Now", "time", name, &c.times,
		func() time.Time { return time.UnixMicro(time.Now().UnixMicro()) },
		func(f *frame, key string, t time.Time) { setIn(&f.Now, key, t.UnixMicro()) })
}

// UUID returns a random UUID. It is the same in every execution, and is identified by its name as
// [Now] is: agent.UUID(ctx, "order").
func UUID(ctx *Context, name string) string {
	c := ctx.c
	return handOut(c, "UUID", "UUID", name, &c.uuids, newUUID,
		func(f *frame, key, id string) { setIn(&f.UUID, key, id) })
}

// handOut returns the value that an earlier execution was given under a name. If there is none, it
// makes one and adds it to the frame.
func handOut[T any](
	c *execution, call, what, name string, given *journal.Named[T],
	newValue func() T, record func(f *frame, key string, v T),
) T {
	if c.proceed() != nil {
		return newValue() // the execution is over, so no replay will ask for it
	}
	if err := cmp.Or(c.checkCounted(call), c.checkOwn(call)); err != nil {
		c.fail(err)
	}
	key, err := c.keyFor(what, name)
	if err != nil {
		c.fail(err)
	}
	c.mu.Lock()
	c.visit(what + " " + key)
	v, ok := given.Get(key)
	c.mu.Unlock()
	if ok {
		return v
	}
	if c.stopReason() == nil { // an agent that is to stop may leave things out, and is not accused
		c.begin(what, key)
	}
	v = newValue()
	c.commitSoon(len(key)+48, func(b *batch) { record(&b.frame, key, v) })
	return v
}

// readNamed takes the times and ids of a frame.
func (c *execution) readNamed(f *frame) {
	for _, t := range f.Times {
		c.times.ReadOld(time.Unix(0, t))
	}
	for _, id := range f.UUIDs {
		c.uuids.ReadOld(id)
	}
	for _, key := range sortedKeys(f.Now) {
		c.times.Read(key, time.UnixMicro(f.Now[key]))
		c.expect("time "+key, false)
	}
	for _, key := range sortedKeys(f.UUID) {
		c.uuids.Read(key, f.UUID[key])
		c.expect("UUID "+key, false)
	}
}

// setIn sets a value in a map that may be nil.
func setIn[V any](m *map[string]V, key string, v V) {
	if *m == nil {
		*m = map[string]V{}
	}
	(*m)[key] = v
}

// sortedKeys returns the keys of a map in their order.
func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
