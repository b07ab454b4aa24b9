package agent

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent/internal/journal"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/session"
	"github.com/perdure/perdure/internal/timer"
)

// This file suspends a run, and reads what has come for it meanwhile.

// timeLeft returns the timeout of a wait or a child. A computed timeout may be negative, because
// its time has passed. It is then made positive, so that the server lets it expire and records
// that. The next execution gets the same result, even if it computes another timeout.
func timeLeft(d time.Duration) perdure.Duration {
	if d == 0 {
		return 0 // the default
	}
	return perdure.Duration(max(d, time.Millisecond))
}

// claimType tells whether waits of a type are claims.
func claimType(typ perdure.WaitType) bool {
	return typ == perdure.WaitSignal || typ == perdure.WaitMessage || typ == perdure.WaitTimer
}

// await returns how a wait ended. If it is not over, the run is suspended on it. fits is as for Inbox.Take.
func (c *execution) await(
	what string, spec *perdure.WaitSpec, fits func(json.RawMessage) bool,
) (*journal.Item, error) {
	if err := check(spec); err != nil {
		return nil, err
	}
	if err := c.checkWaitable(what); err != nil {
		return nil, err
	}
	open := []perdure.WaitSpec{*spec}
	i := c.takeFor(spec, fits)
	if awake := session.AwakeFor(c.leased); i == nil && awake > 0 {
		opened, err := c.stayAwake(spec, awake)
		if err != nil {
			return nil, err
		}
		if i = c.takeFor(spec, fits); opened {
			open = nil
		}
	}
	if i != nil {
		c.pass("wait " + spec.ID)
		return i, nil
	}
	return nil, c.suspend(what, open, []string{spec.ID})
}

// takeFor returns how a wait ended, or nil if it has not.
func (c *execution) takeFor(spec *perdure.WaitSpec, fits func(json.RawMessage) bool) *journal.Item {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := c.inbox.Take(spec.ID, itemOf[spec.Type], spec.Name, fits)
	c.cursor.Visit("wait " + spec.ID)
	return i
}

// stayAwake waits without suspending the run. It returns when something has come, or after a time, and
// tells whether it has opened the wait. Only the test kit keeps runs awake.
func (c *execution) stayAwake(spec *perdure.WaitSpec, most time.Duration) (opened bool, err error) {
	if err := c.stopReason(); err != nil {
		return false, err
	}
	c.checkExit()
	if spec.Type == perdure.WaitTimer {
		if time.Duration(spec.Timeout) > most {
			return false, nil
		}
		c.begin("wait", spec.ID)
		c.flush()
		if !timer.Sleep(c.ctx, time.Duration(spec.Timeout)) {
			return false, c.stopReason()
		}
		c.write(func(w *journal.Writer) { w.TimerEnded(spec.ID) })
		return false, nil
	}
	c.begin("wait", spec.ID)
	c.mu.Lock()
	b := c.writer.Open(*spec, claimType(spec.Type))
	c.mu.Unlock()
	c.s.Commit(true)
	c.mustCommit(b)
	until := time.Now().Add(most)
	for pause := minMapPause; time.Now().Before(until); pause = min(2*pause, time.Minute) {
		if news, err := c.readNews(); news || err != nil {
			return true, err
		}
		if !timer.Sleep(c.ctx, pause) {
			return true, c.stopReason()
		}
	}
	return true, nil
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
	c.visitAsleep(on)
	c.begin("wait", on[0])
	c.mu.Lock()
	b := c.writer.Suspend(open, on, claimType)
	c.mu.Unlock()
	c.s.Commit(true)
	if err := c.awaitAnswer(b); err != nil {
		if perdure.CodeOf(err) == perdure.CodeCancelRequested {
			c.mu.Lock()
			again := c.writer.WithoutSuspend(b)
			c.mu.Unlock()
			c.s.Commit(true)
			c.mustCommit(again)
			return ErrCancelled
		}
		c.fail(err)
	}
	c.leave(nil)
	return nil
}

// waitEnded returns the error of a wait that ended in another way than the caller wanted.
func waitEnded(i *journal.Item, timeout error) error {
	if i.Type == perdure.ItemTimeout && timeout != nil {
		return &recordedAt{error: timeout, seq: i.Seq}
	}
	var why perdure.Failure
	_ = json.Unmarshal(i.Data, &why)
	err := perdure.Permanent(fmt.Errorf("the wait %s is %s %s", i.Wait, i.Outcome, why.Message))
	return &recordedAt{error: err, seq: i.Seq}
}

// pollInbox waits for new items of the inbox while the run keeps its lease, for mapPatience at most.
// It tells whether any have come.
func (c *execution) pollInbox() (news bool, err error) {
	if c.checking() {
		return false, nil // nothing more comes to a check
	}
	until := time.Now().Add(mapPatience)
	for pause := minMapPause; ; pause = min(2*pause, maxMapPause) {
		if news, err := c.readNews(); news || err != nil {
			return news, err
		}
		if time.Now().After(until) {
			return false, nil
		}
		if !timer.Sleep(c.ctx, pause) {
			return true, nil // the caller finds out why
		}
	}
}

// readNews reads the items that have come into the inbox since the last time.
func (c *execution) readNews() (news bool, err error) {
	for {
		page, err := retryCall(c.leased, func() (*api.InboxPage, error) { return c.s.Inbox(c.leased, c.inbox.Last()) })
		if err != nil {
			c.checkExit()
			return news, fmt.Errorf("read the inbox: %w", err)
		}
		c.mu.Lock()
		c.inbox.Read(page.Inbox)
		c.mu.Unlock()
		news = news || len(page.Inbox) > 0
		if page.Next == 0 {
			return news, nil
		}
	}
}
