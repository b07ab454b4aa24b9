package agent

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent/internal/journal"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/wire/session"
	"github.com/perdure/perdure/internal/wire/timer"
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
	b *branch, what string, spec *perdure.WaitSpec, fits func(json.RawMessage) bool,
) (*journal.Item, error) {
	if err := check(spec); err != nil {
		return nil, err
	}
	began, timeout := time.Now(), spec.Timeout
	for {
		if i := c.takeFor(b, spec, fits); i != nil {
			c.pass(b, "wait "+spec.ID)
			return i, nil
		}
		if timeout > 0 {
			spec.Timeout = max(timeout-perdure.Duration(time.Since(began)), perdure.Duration(1))
		}
		if err := c.suspend(b, []perdure.WaitSpec{*spec}, []string{spec.ID}); err != nil {
			return nil, err
		}
	}
}

// takeFor returns how a wait ended, or nil if it has not.
func (c *execution) takeFor(b *branch, spec *perdure.WaitSpec, fits func(json.RawMessage) bool) *journal.Item {
	c.checkTake(b, spec.ID, itemOf[spec.Type], spec.Name)
	c.mu.Lock()
	defer c.mu.Unlock()
	i := c.inbox.Take(spec.ID, itemOf[spec.Type], spec.Name, fits)
	c.cursor.Visit("wait " + spec.ID)
	return i
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

// suspend opens waits and suspends the run on these and others that are open already. The next
// execution comes to the same point and finds how the wait ended. It returns an error if nothing new may
// begin. While another branch works the run is not suspended. Then suspend returns when something has
// come, and the caller looks again.
func (c *execution) suspend(b *branch, open []perdure.WaitSpec, on []string) error {
	if err := c.stopReason(b); err != nil {
		return err
	}
	c.checkExit()
	c.visitAsleep(on)
	c.begin(b, "wait", on[0])
	return c.park(b, &parked{open: open, on: on, since: time.Now()})
}

// awaitBranch waits until a branch has ended.
func (c *execution) awaitBranch(b, ended *branch) error {
	select {
	case <-ended.done:
		return nil
	default:
		return c.park(b, &parked{joins: ended})
	}
}

// A branch that is parked looks into the inbox at these intervals.
const (
	minParkPause = 20 * time.Millisecond
	maxParkPause = time.Second
)

// park keeps a branch waiting until something has come for it. When all branches are parked, the last one
// suspends the run on the waits of all.
//
// Items that are read from the inbox are for any branch. A branch that has not looked at them since is not
// parked: a run must not be suspended on a wait whose end has come, because nothing would wake it.
func (c *execution) park(b *branch, p *parked) error {
	c.mu.Lock()
	if seen := c.inbox.Last(); p.joins == nil && c.parking.live > 1 && seen != b.seen {
		b.seen = seen // another branch has read these, perhaps after this one looked
		c.mu.Unlock()
		return nil
	}
	b.parked = p
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		b.parked = nil
		c.mu.Unlock()
	}()
	for pause := minParkPause; ; pause = min(2*pause, maxParkPause) {
		c.mu.Lock()
		if p.news {
			b.seen = c.inbox.Last()
			b.parked = nil
			c.mu.Unlock()
			return nil
		}
		_, _, last := c.allParked()
		if last = last && !c.parking.suspending; last {
			c.parking.suspending = true
		}
		changed := c.parking.changed
		c.mu.Unlock()
		if last {
			if news, err := c.stayAwake(b); err != nil {
				return err
			} else if news {
				continue
			}
			if again, err := c.suspendAll(); !again {
				return err
			}
			continue
		}
		if done, err := c.lookParked(b, p, changed, pause); done || err != nil {
			return err
		}
	}
}

// allParked returns the waits of all branches, and whether all are parked. The caller holds c.mu.
//
// The waits have the order in which the branches were begun, because the server gives a signal to the
// wait that was opened first. The numbers of goroutines differ from one execution to the next.
func (c *execution) allParked() (open []perdure.WaitSpec, on []string, all bool) {
	n := 0
	inOrder := func(a, b *branch) int { return slices.Compare(a.place, b.place) }
	for _, b := range slices.SortedFunc(maps.Values(c.branches), inOrder) {
		p := b.parked
		if p == nil || p.news || p.joins != nil && p.joins.ended || b.isStopped() {
			continue // it goes on, or is about to
		}
		n++
		for _, spec := range p.open {
			if spec.Timeout > 0 {
				spec.Timeout = max(spec.Timeout-perdure.Duration(time.Since(p.since)), perdure.Duration(1))
			}
			open = append(open, spec)
		}
		on = append(on, p.on...)
	}
	return open, on, n == c.parking.live && len(on) > 0
}

// lookParked waits for a while, and reads the inbox. It returns true if the branch has ended that the caller
// joins.
func (c *execution) lookParked(b *branch, p *parked, changed chan struct{}, pause time.Duration) (bool, error) {
	if p.joins != nil {
		select {
		case <-p.joins.done:
			return true, nil
		case <-changed:
		case <-c.exit.reached:
			c.leave(nil)
		case <-c.leased.Done():
			c.leave(nil)
		}
		return false, nil
	}
	c.mu.Lock()
	suspending := c.parking.suspending
	c.mu.Unlock()
	for _, spec := range p.open {
		if spec.Type == perdure.WaitLimit && !suspending {
			left := limitLook - time.Since(p.since)
			if left <= 0 { // it asks again, because other branches work for long
				c.mu.Lock()
				p.news = p.news || !c.parking.suspending
				c.mu.Unlock()
				return false, nil
			}
			pause = min(pause, left)
		}
		if spec.Type != perdure.WaitTimer || suspending {
			continue
		}
		left := time.Duration(spec.Timeout) - time.Since(p.since)
		if left <= 0 {
			c.expire(p, spec.ID)
			return false, nil
		}
		pause = min(pause, left)
	}
	again := time.NewTimer(pause)
	defer again.Stop()
	select {
	case <-changed:
	case <-again.C:
	case <-c.ctx.Done():
	case <-c.exit.reached:
	}
	c.checkExit()
	if err := c.stopReason(b); err != nil || suspending {
		return false, err
	}
	_, err := c.readNews()
	return false, err
}

// expire ends a timer of a parked branch, unless the run is about to be suspended on it.
func (c *execution) expire(p *parked, id string) {
	c.mu.Lock()
	if !c.parking.suspending {
		c.writer.Expire(id)
		p.news = true
	}
	c.mu.Unlock()
	c.s.Commit(false)
}

// maxAwakePause is the longest interval at which a run that stays awake reads its inbox.
const maxAwakePause = time.Minute

// stayAwake keeps the run awake instead of suspending it, for a while: in the trial of the test kit in which
// runs are not executed anew. It opens the waits of all branches, as a suspend does, and tells whether
// something has come. If nothing has, the run is suspended.
func (c *execution) stayAwake(b *branch) (news bool, err error) {
	most := session.AwakeFor(c.leased)
	if most == 0 {
		return false, nil
	}
	defer func() {
		if news || err != nil {
			c.mu.Lock()
			c.parking.suspending = false
			c.parking.change()
			c.mu.Unlock()
		}
	}()
	c.mu.Lock()
	open, on, all := c.allParked()
	due, others := "", false // the timer that ends first
	first, limit := most, most
	for _, spec := range open {
		timeout := time.Duration(spec.Timeout)
		switch {
		case spec.Type == perdure.WaitLimit:
			all = false // only a suspended run stands in the line of a limit
		case spec.Type == perdure.WaitTimer && timeout <= first:
			due, first = spec.ID, timeout
		case spec.Type == perdure.WaitTimer:
		case timeout >= 0: // zero is a time that the server knows
			others, limit = true, min(limit, timeout)
		default:
			others = true
		}
	}
	// The server lets waits time out while the run is suspended. So it has to be for all but timers, and for
	// callbacks and approvals that were opened before.
	if limit = min(limit, first); !all || len(on) != len(open) || limit == 0 || !others && due == "" {
		c.mu.Unlock()
		return false, nil
	}
	for _, spec := range open {
		if spec.Type != perdure.WaitTimer {
			c.writer.Open(spec, claimType(spec.Type))
		}
	}
	c.mu.Unlock()
	c.flush()
	for began, pause := time.Now(), minMapPause; ; pause = min(2*pause, maxAwakePause) {
		if news, err := c.readNews(); news || err != nil {
			return news, err
		}
		left := limit - time.Since(began)
		if left <= 0 {
			break
		}
		if !others {
			pause = left
		}
		if !timer.Sleep(c.ctx, min(pause, left)) {
			return false, c.stopReason(b)
		}
	}
	if due == "" || first > limit {
		return false, nil
	}
	c.mu.Lock()
	c.writer.Expire(due)
	c.tellParked()
	c.mu.Unlock()
	c.s.Commit(false)
	return true, nil
}

// suspendAll suspends the run. It returns if the run was asked to stop, or with true if something has come
// and the caller is to wait again.
func (c *execution) suspendAll() (again bool, err error) {
	// The inbox is not read meanwhile: a run that is suspended is not leased, and the refusal would be
	// taken for an error of the wait.
	c.parking.asking <- struct{}{}
	defer func() {
		c.mu.Lock()
		c.parking.suspending = false
		c.parking.change()
		c.mu.Unlock()
		<-c.parking.asking
	}()
	c.mu.Lock()
	open, on, all := c.allParked() // something may have been read before it was this one's turn
	if !all || c.checking() || len(on) > perdure.MaxList {
		c.mu.Unlock()
		if c.checking() {
			c.leave(nil)
		}
		if all {
			c.fail(c.misuse("the branches wait for more than %d things together", perdure.MaxList))
		}
		return true, nil
	}
	b := c.writer.Suspend(open, on, claimType)
	c.mu.Unlock()
	c.s.Commit(true)
	if err := c.awaitAnswer(b); err != nil {
		if perdure.CodeOf(err) == perdure.CodeCancelRequested {
			c.mu.Lock()
			rest := c.writer.WithoutSuspend(b)
			c.mu.Unlock()
			c.s.Commit(true)
			c.mustCommit(rest)
			return false, ErrCancelled
		}
		c.fail(err)
	}
	c.leave(nil)
	return false, nil
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
	c.parking.asking <- struct{}{}
	defer func() { <-c.parking.asking }()
	c.checkExit() // the run may have been suspended before it was this one's turn
	for {
		c.mu.Lock()
		last := c.inbox.Last()
		c.mu.Unlock()
		page, err := retryCall(c.leased, func() (*api.InboxPage, error) { return c.s.Inbox(c.leased, last) })
		if err != nil {
			c.checkExit()
			return news, fmt.Errorf("read the inbox: %w", err)
		}
		c.mu.Lock()
		c.inbox.Read(page.Inbox)
		if len(page.Inbox) > 0 {
			news = true
			c.tellParked()
		}
		c.mu.Unlock()
		if page.Next == 0 {
			return news, nil
		}
	}
}

// tellParked lets all parked branches look again. The caller holds c.mu.
func (c *execution) tellParked() {
	for _, b := range c.branches {
		if b.parked != nil && b.parked.joins == nil {
			b.parked.news = true
		}
	}
	c.parking.change()
}
