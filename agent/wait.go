package agent

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/perdure/perdure"
)

// Sleep waits for a duration. The run is suspended meanwhile: it occupies no worker, and a sleep of
// a month costs nothing. A duration that is not positive is over at once.
func Sleep(ctx *Context, d time.Duration) error {
	c := ctx.c
	if err := c.enter(); err != nil {
		return err
	}
	return c.sleep(c.nextUse("sleep:"+d.String()), d)
}

// SleepUntil sleeps until a time, by this machine's clock.
func SleepUntil(ctx *Context, t time.Time) error {
	c := ctx.c
	if err := c.enter(); err != nil {
		return err
	}
	return c.sleep(c.nextUse("sleep:"+t.UTC().Format(time.RFC3339Nano)), time.Until(t))
}

// sleep waits for a timer, unless it is over already or its time has passed.
func (c *execution) sleep(id string, d time.Duration) error {
	c.mu.Lock()
	_, over := c.waits[id]
	c.mu.Unlock()
	if d <= 0 && !over {
		return nil
	}
	i, err := c.await("Sleep",
		&perdure.WaitSpec{ID: id, Type: perdure.WaitTimer, Timeout: perdure.Duration(max(d, 1))})
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
	c := ctx.c
	if err := c.enter(); err != nil {
		return out, err
	}
	spec := perdure.WaitSpec{Type: perdure.WaitSignal, Name: name, Timeout: timeLeft(timeout)}
	key, err := c.keyFor("signal", name)
	if err != nil {
		return out, err
	}
	spec.ID = "signal:" + key
	c.takeEarlySignal(&spec)
	i, err := c.await("Signal", &spec)
	if err != nil {
		return out, err
	}
	if i.Type != perdure.ItemSignal {
		return out, waitEnded(i, ErrSignalTimeout)
	}
	return out, decode("signal "+name, c.dataOf(i), &out)
}

// timeLeft returns the timeout of a wait or a child. A computed timeout may be negative, because
// its time has passed. It is then made positive, so that the server lets it expire and records
// that. The next execution gets the same result, even if it computes another timeout.
func timeLeft(d time.Duration) perdure.Duration {
	if d == 0 {
		return 0 // the default
	}
	return perdure.Duration(max(d, time.Millisecond))
}

// takeEarlySignal ends a signal wait that was never opened with the oldest signal of its name, if
// there is one.
func (c *execution) takeEarlySignal(spec *perdure.WaitSpec) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.waits[spec.ID] != nil {
		return
	}
	for n, in := range c.earlySignals {
		if in.Name == spec.Name {
			c.earlySignals = append(c.earlySignals[:n:n], c.earlySignals[n+1:]...)
			c.journalItem(in, spec.ID)
			return
		}
	}
}

// await returns how a wait ended. If it is not over, the run is suspended on it.
func (c *execution) await(what string, spec *perdure.WaitSpec) (*item, error) {
	if err := check(spec); err != nil {
		return nil, err
	}
	if err := c.checkWaitable(what); err != nil {
		return nil, err
	}
	c.mu.Lock()
	i := c.waits[spec.ID]
	delete(c.unvisited, "wait "+spec.ID)
	c.mu.Unlock()
	if i != nil {
		return i, nil
	}
	return nil, c.suspend(what, []perdure.WaitSpec{*spec}, []string{spec.ID})
}

// check validates a wait. Its error is permanent.
func check(spec *perdure.WaitSpec) error {
	copied := *spec
	if err := copied.Validate(spec.ID); err != nil {
		return Permanent(err)
	}
	return nil
}

// suspend opens waits and suspends the run on these and others that are open already. It returns
// only if the run was asked to stop. The next execution comes to the same point and finds how the
// wait ended.
func (c *execution) suspend(what string, open []perdure.WaitSpec, on []string) error {
	if err := c.stopReason(); err != nil {
		return err
	}
	c.mu.Lock()
	var b *batch
	for i := range open {
		// Waits for many children may need several commits. Only the last one suspends.
		b = c.batchForEntries(100+40*len(open[i].Keys), max(1, len(open[i].Keys)))
		b.part.Waits = append(b.part.Waits, open[i])
	}
	if b == nil {
		b = c.batchFor(200)
	}
	b.part.Outcome = &perdure.Outcome{Type: perdure.OutcomeSuspend, Waits: on}
	c.mu.Unlock()
	c.s.Commit(true)
	if err := c.awaitAnswer(b); err != nil {
		if perdure.CodeOf(err) == perdure.CodeCancelRequested {
			return c.commitWithoutSuspend(b)
		}
		c.fail(err)
	}
	c.exit(nil)
	return nil
}

// commitWithoutSuspend commits the rest of a batch whose suspend was refused because the run was
// asked to stop. The agent's clean-up may rely on it. Waits and children are left out: the children
// would be stopped at once.
func (c *execution) commitWithoutSuspend(b *batch) error {
	c.mu.Lock()
	again := &batch{part: b.part, frame: b.frame, size: b.size, done: make(chan struct{})}
	again.part.Outcome, again.part.Waits, again.part.Children = nil, nil, nil
	if !b.frame.empty() {
		again.part.Journal = b.part.Journal[:len(b.part.Journal)-1] // without the frame, which is encoded again
		again.frame.Spawned = nil
	}
	c.queue = append([]*batch{again}, c.queue...)
	c.mu.Unlock()
	c.s.Commit(true)
	c.mustCommit(again)
	return ErrCancelled
}

// waitEnded returns the error of a wait that ended in another way than the caller wanted.
func waitEnded(i *item, timeout error) error {
	if i.Type == perdure.ItemTimeout && timeout != nil {
		return &recordedAt{error: timeout, seq: i.Seq}
	}
	var why perdure.Failure
	_ = json.Unmarshal(i.Data, &why)
	err := Permanent(fmt.Errorf("the wait %s is %s %s", i.Wait, i.Outcome, why.Message))
	return &recordedAt{error: err, seq: i.Seq}
}
