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
	if d <= 0 && c.take(id, perdure.ItemTimer, "") == nil {
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
	i, err := c.await("Signal", &spec)
	if err != nil {
		return out, err
	}
	if i.Type != perdure.ItemSignal {
		return out, waitEnded(i, ErrSignalTimeout)
	}
	return out, decode("signal "+name, c.dataOf(i), &out)
}

// OnSignal returns a future for a signal, as [Signal] takes it, to wait for it together with other
// things. It has no timeout of its own; [After] is one. Each future takes one signal.
func OnSignal[T any](ctx *Context, name string) *Future[T] {
	f := newWait[T](ctx, "OnSignal", "signal", name)
	f.spec = perdure.WaitSpec{ID: f.wait, Type: perdure.WaitSignal, Name: name, Timeout: perdure.Never}
	f.read = func(i *item) (out T, err error) {
		if i.Type != perdure.ItemSignal {
			return out, waitEnded(i, ErrSignalTimeout)
		}
		return out, decode("signal "+name, f.c.dataOf(i), &out)
	}
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
	f.read = func(i *item) (out T, err error) {
		if i.Type != perdure.ItemMessage {
			return out, waitEnded(i, ErrTimeout)
		}
		return out, decode("a message", f.c.dataOf(i), &out)
	}
	return f
}

// After returns a future that ends when a duration has passed since the call. It is the time limit of
// a [Select]. A timer that loses can be selected again, and ends when it would have.
func After(ctx *Context, d time.Duration) *Future[struct{}] {
	f := newWait[struct{}](ctx, "After", "after", max(d, 0).String())
	if f.err == nil {
		f.startTimer(d)
	}
	f.read = func(i *item) (out struct{}, err error) {
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
	_, known := c.due[f.wait]
	c.mu.Unlock()
	if known {
		return
	}
	due := time.Now().Add(d).UnixNano()
	c.commitSoon(len(f.wait)+24, func(b *batch) {
		c.due[f.wait] = due
		if b.frame.Due == nil {
			b.frame.Due = map[string]int64{}
		}
		b.frame.Due[f.wait] = due
	})
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

// await returns how a wait ended. If it is not over, the run is suspended on it.
func (c *execution) await(what string, spec *perdure.WaitSpec) (*item, error) {
	if err := check(spec); err != nil {
		return nil, err
	}
	if err := c.checkWaitable(what); err != nil {
		return nil, err
	}
	i := c.take(spec.ID, itemOf[spec.Type], spec.Name)
	c.mu.Lock()
	delete(c.unvisited, "wait "+spec.ID)
	c.mu.Unlock()
	if i != nil {
		c.pass("wait " + spec.ID)
		return i, nil
	}
	return nil, c.suspend(what, []perdure.WaitSpec{*spec}, []string{spec.ID})
}

// itemOf has the types of the inbox items that the types of waits take.
var itemOf = map[perdure.WaitType]string{
	perdure.WaitSignal:  perdure.ItemSignal,
	perdure.WaitMessage: perdure.ItemMessage,
	perdure.WaitTimer:   perdure.ItemTimer,
}

// check validates a wait. Its error is permanent.
func check(spec *perdure.WaitSpec) error {
	copied := *spec
	if err := copied.Validate(spec.ID); err != nil {
		return perdure.Permanent(err)
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
	c.checkExit()
	c.begin("wait", on[0])
	c.mu.Lock()
	var b *batch
	for i := range open {
		// Waits for many children may need several commits. Only the last one suspends.
		b = c.batchForEntries(100+40*len(open[i].Keys), max(1, len(open[i].Keys)))
		b.part.Waits = append(b.part.Waits, open[i])
		if claimType(open[i].Type) {
			b.frame.Opened = append(b.frame.Opened, open[i].ID)
		}
	}
	if b == nil {
		b = c.batchFor(200)
	}
	b.part.Outcome = &perdure.Outcome{Type: perdure.OutcomeSuspend, Waits: on}
	c.forgetRefused() // a refusal may have come since the caller looked
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
	again := &batch{part: b.part, frame: b.frame, said: b.said, size: b.size, sealed: b.sealed,
		done: make(chan struct{})}
	again.unseal()
	again.part.Outcome, again.part.Waits, again.part.Children = nil, nil, nil
	again.frame.Spawned, again.frame.Opened, again.frame.Mapped = nil, nil, nil
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
	err := perdure.Permanent(fmt.Errorf("the wait %s is %s %s", i.Wait, i.Outcome, why.Message))
	return &recordedAt{error: err, seq: i.Seq}
}
