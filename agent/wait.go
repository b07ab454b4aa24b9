package agent

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/perdure/perdure"
)

// Sleep waits. The run is suspended meanwhile: it holds no worker, and a sleep of a month costs nothing. A time that is not
// positive is over at once.
func Sleep(ctx *Context, d time.Duration) error {
	c := ctx.c
	if err := c.enter(); err != nil {
		return err
	}
	return c.sleep(c.nth("sleep:"+d.String()), d)
}

// SleepUntil sleeps until an instant, by this machine's clock.
func SleepUntil(ctx *Context, t time.Time) error {
	c := ctx.c
	if err := c.enter(); err != nil {
		return err
	}
	return c.sleep(c.nth("sleep:"+t.UTC().Format(time.RFC3339Nano)), time.Until(t))
}

func (c *core) sleep(id string, d time.Duration) error {
	c.mu.Lock()
	_, over := c.waits[id]
	c.mu.Unlock()
	if d <= 0 && !over {
		return nil
	}
	i, err := c.await("Sleep", &perdure.WaitSpec{ID: id, Type: perdure.WaitTimer, Timeout: perdure.Duration(max(d, 1))})
	if err != nil {
		return err
	}
	if i.Type != perdure.ItemTimer {
		return waitEnded(i, nil)
	}
	return nil
}

// Signal waits for a signal of that name, sent with POST /api/v1/runs/{id}/signals/{name}, and reads its data. A
// signal that came before anybody asked for it is kept and taken now; each is taken once, the oldest first.
// When the time is over (zero: the server's default, which is 5 minutes for [StartTask] and 10 for others), the error is
// [ErrSignalTimeout]. A negative time, as the rest of one that has passed, takes a signal that is there, and waits for none.
func Signal[T any](ctx *Context, name string, timeout time.Duration) (T, error) {
	var out T
	c := ctx.c
	if err := c.enter(); err != nil {
		return out, err
	}
	spec := perdure.WaitSpec{Type: perdure.WaitSignal, Name: name, Timeout: timeLeft(timeout)}
	key, err := c.name("signal", name)
	if err != nil {
		return out, err
	}
	spec.ID = "signal:" + key
	c.takeEarly(&spec)
	i, err := c.await("Signal", &spec)
	if err != nil {
		return out, err
	}
	if i.Type != perdure.ItemSignal {
		return out, waitEnded(i, ErrSignalTimeout)
	}
	return out, decode("signal "+name, c.data(i), &out)
}

// timeLeft is the time of a wait or a child. A computed one may have passed already. That is for the server to find, like any
// timeout: what it finds is recorded, and the next execution has the same however much time it computes.
func timeLeft(d time.Duration) perdure.Duration {
	if d == 0 {
		return 0 // the default
	}
	return perdure.Duration(max(d, time.Millisecond))
}

// takeEarly satisfies a signal wait, that was never opened, by the oldest signal of its name that is there.
func (c *core) takeEarly(spec *perdure.WaitSpec) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.waits[spec.ID] != nil {
		return
	}
	for n, in := range c.early {
		if in.Name == spec.Name {
			c.early = append(c.early[:n:n], c.early[n+1:]...)
			c.note(in, spec.ID)
			return
		}
	}
}

// await waits for one wait, and gives how it ended.
func (c *core) await(what string, spec *perdure.WaitSpec) (*item, error) {
	if err := check(spec); err != nil {
		return nil, err
	}
	if err := c.waitable(what); err != nil {
		return nil, err
	}
	c.mu.Lock()
	i := c.waits[spec.ID]
	delete(c.unasked, "wait "+spec.ID)
	c.mu.Unlock()
	if i != nil {
		return i, nil
	}
	return nil, c.suspend(what, []perdure.WaitSpec{*spec}, []string{spec.ID})
}

func check(spec *perdure.WaitSpec) error {
	copied := *spec
	if err := copied.Validate(spec.ID); err != nil {
		return Permanent(err)
	}
	return nil
}

// suspend has the run sleep on waits, of which some may be open already. It returns only when it can't: the run
// was asked to stop. The next execution comes back to the same place, and finds how the wait ended.
func (c *core) suspend(what string, open []perdure.WaitSpec, on []string) error {
	if err := c.halted(); err != nil {
		return err
	}
	c.mu.Lock()
	var b *batch
	for i := range open {
		// Waits that name many children don't fit into one commit: the first ones are opened before the last suspends.
		b = c.openFor(100+40*len(open[i].Keys), max(1, len(open[i].Keys)))
		b.part.Waits = append(b.part.Waits, open[i])
	}
	if b == nil {
		b = c.open(200)
	}
	b.part.Outcome = &perdure.Outcome{Type: perdure.OutcomeSuspend, Waits: on}
	c.mu.Unlock()
	c.s.Commit(true)
	if err := c.answer(b); err != nil {
		if perdure.CodeOf(err) == perdure.CodeCancelRequested {
			return c.retract(b)
		}
		c.fail(err)
	}
	c.leave(nil)
	return nil
}

// retract commits what a refused suspend carried beside it. The run is asked to stop, and what its cleaning up
// relies on has to be there; its children would only be stopped.
func (c *core) retract(b *batch) error {
	c.mu.Lock()
	again := &batch{part: b.part, frame: b.frame, size: b.size, done: make(chan struct{})}
	again.part.Outcome, again.part.Waits, again.part.Children = nil, nil, nil
	if !b.frame.empty() {
		again.part.Journal = b.part.Journal[:len(b.part.Journal)-1] // the frame itself, which is written anew
		again.frame.Spawned = nil
	}
	c.queue = append([]*batch{again}, c.queue...)
	c.mu.Unlock()
	c.s.Commit(true)
	c.settle(again)
	return ErrCancelled
}

// waitEnded is the error of a wait that ended otherwise than it was meant to.
func waitEnded(i *item, timeout error) error {
	if i.Type == perdure.ItemTimeout && timeout != nil {
		return timeout
	}
	var why perdure.Failure
	_ = json.Unmarshal(i.Data, &why)
	return Permanent(fmt.Errorf("the wait %s is %s %s", i.Wait, i.Outcome, why.Message))
}
