package agent

import (
	"crypto/rand"
	"fmt"
	"time"

	"github.com/perdure/perdure/agent/internal/journal"
)

// Now returns the time of its first call under a name. It is the same in every execution, to the
// microsecond. As with a [Step], the name identifies it, together with the number of its use, so code
// that is added elsewhere changes nothing. An edit around it is found as one around a step is.
func Now(ctx *Context, name string) time.Time {
	c := ctx.execution()
	return handOut(c, "Now", "time", name, &c.cursor.Times,
		func() time.Time { return time.UnixMicro(time.Now().UnixMicro()) },
		(*journal.Writer).Time)
}

// UUID returns a random UUID. It is the same in every execution, and is identified by its name as
// [Now] is: agent.UUID(ctx, "order").
func UUID(ctx *Context, name string) string {
	c := ctx.execution()
	return handOut(c, "UUID", "UUID", name, &c.cursor.UUIDs, newUUID,
		(*journal.Writer).UUID)
}

// handOut returns the value that an earlier execution was given under a name. If there is none, it
// makes one and adds it to the frame.
func handOut[T any](
	c *execution, call, what, name string, given *journal.Named[T],
	newValue func() T, record func(w *journal.Writer, key string, v T),
) T {
	if c.proceed() != nil {
		return newValue() // the execution is over, so no replay will ask for it
	}
	b, err := c.ownCounted(call)
	if err != nil {
		c.fail(err)
	}
	key, err := c.keyFor(b, what, name)
	if err != nil {
		c.fail(err)
	}
	c.mu.Lock()
	c.cursor.Visit(what + " " + key)
	v, ok := given.Get(key)
	c.mu.Unlock()
	if ok {
		return v
	}
	if c.stopReason(b) == nil { // an agent that is to stop may leave things out, and is not accused
		c.begin(b, what, key)
	}
	v = newValue()
	c.write(func(w *journal.Writer) { record(w, key, v) })
	return v
}

func newUUID() string {
	var b [16]byte
	rand.Read(b[:])
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
