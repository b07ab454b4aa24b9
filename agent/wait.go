package agent

import (
	"strconv"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent/internal/journal"
)

// Sleep waits for a duration. The run is suspended meanwhile: it occupies no worker, and a sleep of
// a month costs nothing. A duration that is not positive is over at once.
func Sleep(ctx *Context, d time.Duration) error {
	c := ctx.execution()
	if err := c.enter(); err != nil {
		return err
	}
	return c.sleep("sleep:"+micros(d), "sleep:"+d.String(), d)
}

// SleepUntil sleeps until a time, by this machine's clock.
func SleepUntil(ctx *Context, t time.Time) error {
	c := ctx.execution()
	if err := c.enter(); err != nil {
		return err
	}
	old := "sleep:" + t.UTC().Format(time.RFC3339Nano)
	return c.sleep("until:"+strconv.FormatInt(t.UnixMicro(), 10), old, time.Until(t))
}

// micros returns a duration as ids have it: in microseconds.
func micros(d time.Duration) string { return strconv.FormatInt(d.Microseconds(), 10) }

// timerID returns the id of a timer's next wait: its name, and the number of its use. A journal may have
// the wait under the name that it had before ids had microseconds. It keeps that.
func (c *execution) timerID(b *branch, name, old string) string {
	id, before := c.nextUse(b, name), c.nextUse(b, old)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.record.HasTimer(before) {
		return before
	}
	return id
}

// sleep waits for a timer, unless it is over already or its time has passed.
func (c *execution) sleep(name, old string, d time.Duration) error {
	b, err := c.checkWaitable("Sleep")
	if err != nil {
		return err
	}
	id := c.timerID(b, name, old)
	if d <= 0 {
		c.mu.Lock()
		over := c.inbox.Take(id, perdure.ItemTimer, "", nil)
		c.mu.Unlock()
		if over == nil {
			return nil
		}
	}
	i, err := c.await(b, "Sleep",
		&perdure.WaitSpec{ID: id, Type: perdure.WaitTimer, Timeout: perdure.Duration(max(d, 1))}, nil)
	if err != nil {
		return err
	}
	if i.Type != perdure.ItemTimer {
		return waitEnded(i, nil)
	}
	return nil
}

// Signal waits for a signal of a name, sent with POST /api/v1/runs/{id}/signals/{name}, and returns
// its data. A signal that came before the call is kept and taken now. Each signal is taken once,
// the oldest first.
//
// After the timeout the error is [ErrSignalTimeout]. A timeout of zero means the server's default:
// 5 minutes for [StartTask] and 10 for others. A negative timeout, such as the rest of a time that
// has passed, takes a signal that is there and waits for none.
func Signal[T any](ctx *Context, name string, timeout time.Duration) (T, error) {
	var out T
	c := ctx.execution()
	if err := c.enter(); err != nil {
		return out, err
	}
	spec := perdure.WaitSpec{Type: perdure.WaitSignal, Name: name, Timeout: timeLeft(timeout)}
	b, err := c.checkWaitable("Signal")
	if err != nil {
		return out, err
	}
	key, err := c.keyFor(b, "signal", name)
	if err != nil {
		return out, err
	}
	spec.ID = journal.InBranch("signal:", key)
	i, err := c.await(b, "Signal", &spec, fits[T])
	if err != nil {
		return out, err
	}
	if i.Type != perdure.ItemSignal {
		return out, waitEnded(i, ErrSignalTimeout)
	}
	return readItem[T](c, "the signal "+name, spec.ID, i)
}

// OnSignal returns a future for a signal, as [Signal] takes it, to wait for it together with other
// things. It has no timeout of its own; [After] is one. Each future takes one signal.
func OnSignal[T any](ctx *Context, name string) *Future[T] {
	f := newWait[T](ctx, "OnSignal", "signal", name)
	f.spec = perdure.WaitSpec{ID: f.wait, Type: perdure.WaitSignal, Name: name, Timeout: perdure.Never}
	f.read = func(i *journal.Item) (out T, err error) {
		if i.Type != perdure.ItemSignal {
			return out, waitEnded(i, ErrSignalTimeout)
		}
		return readItem[T](f.c, "the signal "+name, f.wait, i)
	}
	f.fits = fits[T]
	return f
}

// OnMessage returns a future for the next message that a user appends to the run's thread while the
// run is its active one. Its result is the message's content. Each future takes one message, the
// oldest that was not taken. The run's own messages don't count.
func OnMessage[T any](ctx *Context) *Future[T] {
	f := newWait[T](ctx, "OnMessage", "message", "message")
	if f.err == nil && f.c.grant.ThreadID == "" {
		f.err = f.c.misuse("OnMessage: the run is on no thread")
	}
	f.spec = perdure.WaitSpec{ID: f.wait, Type: perdure.WaitMessage, Timeout: perdure.Never}
	f.read = func(i *journal.Item) (out T, err error) {
		if i.Type != perdure.ItemMessage {
			return out, waitEnded(i, ErrTimeout)
		}
		return readItem[T](f.c, "a message", f.wait, i)
	}
	f.fits = fits[T]
	return f
}

// After returns a future that ends when a duration has passed since the call. It is the time limit of
// a [Select]. A timer that loses can be selected again, and ends when it would have.
func After(ctx *Context, d time.Duration) *Future[struct{}] {
	d = max(d, 0)
	f := beginWait[struct{}](ctx, "After", d.String())
	if f.err == nil {
		f.wait = f.c.timerID(f.b, "after:"+micros(d), "after:"+d.String())
		f.startTimer(d)
	}
	f.read = func(i *journal.Item) (out struct{}, err error) {
		if i.Type != perdure.ItemTimer {
			return out, waitEnded(i, ErrTimeout)
		}
		return out, nil
	}
	return f
}

// startTimer makes the future a timer, and records when it ends.
func (f *future) startTimer(d time.Duration) {
	f.spec = perdure.WaitSpec{ID: f.wait, Type: perdure.WaitTimer, Timeout: perdure.Duration(max(d, time.Millisecond))}
	if f.err = check(&f.spec); f.err != nil {
		return
	}
	c := f.c
	c.mu.Lock()
	_, known := c.record.Due(f.wait)
	c.mu.Unlock()
	if known {
		return
	}
	due := time.Now().Add(d)
	c.write(func(w *journal.Writer) { w.Due(f.wait, due) })
}
