package agent

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent/internal/journal"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/wire/session"
	"github.com/perdure/perdure/internal/wire/timer"
)

// This file has the limits of steps. A step asks the server for its slots before its function is called, and the
// commit that records it gives them back. The journal has nothing of that: a recorded step takes nothing, and
// nothing that an agent decides depends on it.

const (
	// limitPatience is how long a step waits in place for a limit. Then the run is suspended.
	limitPatience = 2 * time.Second
	// limitPause is how often it asks meanwhile, if the server can't say when there is room.
	limitPause = 100 * time.Millisecond
	// limitLook is how often a step asks that can't suspend the run, because other branches work.
	limitLook = time.Second
)

// Limit returns an option that puts a step under a limit of the tenant (see docs/limits.md). Before the function
// is called the step takes a slot of the limit's concurrency, and units of its rate: one if units is zero. The
// slot is given back when the step is recorded. A recorded step takes nothing. Each further try of a [Retry] takes
// units again.
//
// The key is that of a limit which has a count of its own for each key. A step may have up to four limits, and gets
// all of them or none. If there is no room within 2 s, the run is suspended until there is some, and frees its
// worker. So a step waits for as long as it takes, up to the run's deadline. A limit that does not exist is an
// error of the step, with the code unknown_limit.
func Limit(name, key string, units int) StepOptions {
	return StepOptions{limits: []perdure.LimitTake{{Name: name, Key: key, Units: units}}}
}

// CloseLimit closes a limit, or one of its keys, for a time: somebody else has refused a call until then, for
// example with a 429. No step and no run passes it meanwhile, on whatever worker. Call it in a step's function,
// with the context that the function is given. It does not wait: the closure goes with the next commit. One that
// holds for longer stays, and a limit that is not there is left out.
func CloseLimit(ctx context.Context, name, key string, d time.Duration, reason string) error {
	checkContext(ctx)
	w, ok := ctx.Value(stepKey{}).(*stepScope)
	if !ok {
		if c, ok := ctx.Value(executionKey{}).(*execution); ok && c.enter() == nil {
			c.fail(c.misuse("CloseLimit with the agent's context: call it in a step's function, or every execution " +
				"closes the limit again"))
		}
		return errors.New("agent: CloseLimit outside of a step of an agent")
	}
	return w.c.s.CloseLimit(ctx, perdure.LimitClosure{Name: name, Key: key, ClosedFor: perdure.Duration(d),
		Reason: session.Text(reason, perdure.MaxText)})
}

// A crew are the goroutines of a Parallel, whose items may wait for limits. When all of them wait, the run is
// suspended on the waits of all.
type crew struct {
	members int
	// stuck are the items that have waited for long, and taking counts those that ask at present.
	stuck  map[string]perdure.WaitSpec
	taking int
	// parked tells that one of them suspends the run, or tries to.
	parked bool
}

// admit takes what a step needs of its limits, and waits for it. The error is that of the step.
func (c *execution) admit(b *branch, key string, o *StepOptions, team *crew) error {
	if len(o.limits) == 0 {
		return nil
	}
	c.stand(b) // a check ends here
	wait := perdure.WaitSpec{ID: journal.InBranch(journal.LimitPrefix, key) + ":" +
		strconv.FormatInt(c.grant.Epoch, 10), Type: perdure.WaitLimit, Name: key, Limits: o.limits,
		Timeout: perdure.Never}
	if err := check(&wait); err != nil {
		return err
	}
	defer c.unstick(team, key)
	for began := time.Now(); ; {
		if err := c.stopReason(b); err != nil {
			return err
		}
		res, err := c.take(team, key, o.limits, 0)
		if err != nil || res != nil && res.Taken {
			return err
		}
		pause, left := limitPause, limitPatience-time.Since(began)
		if res != nil && res.RetryMS > 0 {
			pause = time.Duration(res.RetryMS) * time.Millisecond
		}
		if pause <= left {
			timer.Sleep(c.ctx, pause)
			continue
		}
		if err := c.awaitLimit(b, wait, team); err != nil {
			return err
		}
	}
}

// take asks for the slots of a step. It returns nothing if the crew is about to suspend the run.
func (c *execution) take(team *crew, key string, takes []perdure.LimitTake, try int) (*api.StepTaken, error) {
	if team != nil {
		c.mu.Lock()
		if team.parked {
			c.mu.Unlock()
			return nil, nil
		}
		team.taking++
		c.mu.Unlock()
		defer func() {
			c.mu.Lock()
			team.taking--
			c.mu.Unlock()
		}()
	}
	res, err := retryCall(c.leased, func() (*api.StepTaken, error) { return c.s.TakeLimits(c.leased, key, takes, try) })
	if err == nil && res.Error != nil {
		err = perdure.Errorf(res.Error.Code, "step %s: %s", key, res.Error.Detail)
	}
	c.checkExit()
	if perdure.CodeOf(err) == perdure.CodeStaleEpoch {
		c.leave(nil) // the worker learns of it with its next call
	}
	if err == nil && res.Taken && team != nil {
		c.mu.Lock()
		delete(team.stuck, key)
		c.mu.Unlock()
	}
	return res, err
}

// awaitLimit suspends the run on the wait of a step. While others of the run work, it waits for a while.
func (c *execution) awaitLimit(b *branch, wait perdure.WaitSpec, team *crew) error {
	if team == nil {
		return c.suspend(b, []perdure.WaitSpec{wait}, []string{wait.ID})
	}
	c.mu.Lock()
	team.stuck[wait.Name] = wait
	all := len(team.stuck) == team.members && team.taking == 0 && !team.parked
	if !all {
		c.mu.Unlock()
		timer.Sleep(c.ctx, limitLook)
		return nil
	}
	team.parked = true
	var open []perdure.WaitSpec
	var on []string
	for _, w := range team.stuck {
		open = append(open, w)
	}
	c.mu.Unlock()
	slices.SortFunc(open, func(x, y perdure.WaitSpec) int { return strings.Compare(x.Name, y.Name) })
	for i := range open {
		on = append(on, open[i].ID)
	}
	defer func() {
		c.mu.Lock()
		team.parked = false
		c.mu.Unlock()
	}()
	return c.suspend(b, open, on)
}

// unstick notes that an item does not wait for its limits any more.
func (c *execution) unstick(team *crew, key string) {
	if team != nil {
		c.mu.Lock()
		delete(team.stuck, key)
		c.mu.Unlock()
	}
}

// quit notes the end of a goroutine of a crew.
func (c *execution) quit(team *crew) {
	c.mu.Lock()
	team.members--
	c.mu.Unlock()
}

// admitAgain takes units of rates for a further try of a step that has its slots. It waits in place.
func (c *execution) admitAgain(ctx context.Context, key string, takes []perdure.LimitTake, try int) {
	for len(takes) > 0 && ctx.Err() == nil {
		res, err := c.take(nil, key, takes, try)
		if err != nil || res.Taken {
			return // the function finds out what is wrong
		}
		timer.Sleep(ctx, min(max(time.Duration(res.RetryMS)*time.Millisecond, limitPause), limitLook))
	}
}
