package agent

import (
	"context"
	"encoding/json"
	"errors"
	"reflect"
	"slices"
	"sync"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent/internal/journal"
)

// Parallel calls a function for each item, in several goroutines, and returns the results in the
// order of the items. Each call is a step of its own, recorded as soon as it returns, under the name
// and the index of its item: the steps of the first Parallel "fetch" are "fetch#1/0", "fetch#1/1" and
// so on. A later execution calls the function only for the items that are not recorded. Each record
// has a digest of its item, and a replay with other items, or with the same in another order, is
// nondeterminism. So items have to survive JSON, and must not come from the order of a map.
//
//	pages, err := agent.Parallel(ctx, "fetch", urls, fetch, agent.MapOptions{Limit: 8})
//
// If a call fails, no more are begun, the context of the others ends, and Parallel returns the error.
// With MapOptions.Settle all items are worked on, and each error is in the Settled. Errors are
// recorded as those of a [Step] are, once Parallel has returned.
//
// For work that takes long, or that other workers should share, use [Map].
func Parallel[In, Out any](
	ctx *Context, name string, items []In, f func(ctx context.Context, item In) (Out, error),
	opts ...MapOptions,
) (Settled[Out], error) {
	o := merge(opts, MapOptions.applyTo)
	c := ctx.execution()
	if err := c.proceed(); err != nil {
		return Settled[Out]{}, err
	}
	if c.insideStep() {
		return Settled[Out]{}, c.misuse("Parallel %q inside of a step: "+
			"a step that is recorded is not executed again, and neither is what is in it", name)
	}
	b, err := c.own("Parallel")
	if err != nil {
		return Settled[Out]{}, err
	}
	key, err := c.keyFor(b, "parallel", name)
	if err != nil {
		return Settled[Out]{}, err
	}
	if f == nil {
		return Settled[Out]{}, c.misuse("Parallel %s: the function is nil", key)
	}
	limit, err := o.limit("Parallel")
	if err != nil {
		return Settled[Out]{}, err
	}
	if err := o.Step.checkUndo(c, b, "Parallel "+key, reflect.TypeFor[Out]()); err != nil {
		return Settled[Out]{}, err
	}
	if err := o.Step.checkPatience(c, "Parallel "+key); err != nil {
		return Settled[Out]{}, err
	}
	if o.Step.about.given() {
		return Settled[Out]{}, c.misuse("Parallel %s: For is for a step by itself: here each is about its item", key)
	}
	abouts := make([]about, len(items))
	for n := range items {
		digest, err := journal.OfValue(items[n])
		if err != nil {
			return Settled[Out]{}, c.misuse("Parallel %s: item %d, a %T, can't be written as JSON, so a replay could "+
				"not tell it from another one: %v", key, n, items[n], err)
		}
		abouts[n] = about{digest: digest, says: aboutItem}
	}
	inner, cancel := context.WithCancel(ctx.Context)
	defer cancel()
	p := &parallel[Out]{key: key, settle: o.Settle, cancel: cancel, first: -1,
		out:       Settled[Out]{Results: make([]Out, len(items)), Errors: make([]error, len(items))},
		completed: make([]bool, len(items))}
	begin := p.replay(c, abouts)
	if len(begin) > 0 && p.first < 0 && c.stopReason(b) == nil {
		c.begin(b, "step", journal.ItemKey(key, begin[0]))
	}
	var next sync.Mutex // guards begin and workers; taken before p.mu
	var workers []string
	var all sync.WaitGroup
	within := &Context{inner, c}
	team := &crew{members: min(limit, len(begin)), stuck: map[string]perdure.WaitSpec{}}
	for range team.members {
		all.Go(func() {
			defer c.quit(team)
			next.Lock()
			workers = append(workers, goroutine())
			next.Unlock()
			for {
				next.Lock()
				if len(begin) == 0 || p.stopped() {
					next.Unlock()
					return
				}
				n := begin[0]
				begin = begin[1:]
				next.Unlock()
				v, err := step(within, b, journal.ItemKey(key, n), func(ctx context.Context) (Out, error) {
					return f(ctx, items[n])
				}, o.stepOf(abouts[n]), team)
				p.add(n, v, err)
			}
		})
	}
	all.Wait()
	c.checkExit() // a call panicked, or the lease is lost
	p.register(c, b, o.Step.undo)
	// The errors of calls that ended because another one failed say nothing.
	c.moveErrors(workers, func(err error) bool { return p.settle || err == p.out.Errors[max(p.first, 0)] })
	out, err := p.result(c, b, len(items))
	c.passStep(b, "parallel "+key, false, err)
	return out, err
}

// stepOf returns the options of an item's step.
func (o *MapOptions) stepOf(of about) *StepOptions {
	step := o.Step
	step.about = of
	return &step
}

// parallel is one call of Parallel.
type parallel[Out any] struct {
	key    string
	settle bool
	cancel context.CancelFunc

	mu  sync.Mutex
	out Settled[Out]
	// completed has the items with a result.
	completed []bool
	// done counts the items with a result or an error.
	done int
	// first is the index of the error that Parallel returns, or -1.
	first int
	// recorded tells that the journal has that error.
	recorded bool
}

// replay takes the recorded results and returns the items without one.
func (p *parallel[Out]) replay(c *execution, abouts []about) (missing []int) {
	if before := c.record.Items(p.key); before > len(abouts) {
		c.fail(nondeterminism(p.key, "Parallel was called with at least %d items before, and now with %d; keep "+
			"the items, or announce the change with Version", before, len(abouts)))
	}
	for n := range abouts {
		key := journal.ItemKey(p.key, n)
		entry, ok := c.lookup(key)
		if !ok {
			missing = append(missing, n)
			continue
		}
		v, err := replay[Out](c, key, entry, &abouts[n])
		p.add(n, v, err)
	}
	return missing
}

// add takes the result or error of an item.
func (p *parallel[Out]) add(n int, v Out, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.out.Results[n], p.out.Errors[n], p.completed[n] = v, err, err == nil
	p.done++
	if err == nil || p.settle {
		return
	}
	// Errors in the journal are the same in every execution, so the first of them is returned. Of
	// others it is the one that came first: the rest may be due to the end of their context.
	recorded := fromJournal(err)
	if p.first < 0 || recorded && (!p.recorded || n < p.first) {
		p.first, p.recorded = n, recorded
	}
	p.cancel()
}

// register adds the undos of the items that completed to the saga, in the order of the items. If
// Parallel fails, they are undone too.
func (p *parallel[Out]) register(c *execution, b *branch, undo func(context.Context, json.RawMessage) error) {
	for n, ok := range p.completed {
		if ok && undo != nil {
			c.register(b, journal.ItemKey(p.key, n), undo)
		}
	}
}

// stopped tells whether no more items are begun.
func (p *parallel[Out]) stopped() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.first >= 0
}

// result returns the results of all items, or the first error.
func (p *parallel[Out]) result(c *execution, b *branch, items int) (Settled[Out], error) {
	cancelled := func(err error) bool { return errors.Is(err, ErrCancelled) }
	if p.done < items || slices.ContainsFunc(p.out.Errors, cancelled) {
		if err := c.stopReason(b); err != nil {
			return Settled[Out]{}, err
		}
	}
	if p.first >= 0 {
		return Settled[Out]{}, p.out.Errors[p.first]
	}
	for n := range items {
		p.out.add(n, false)
	}
	return p.out, nil
}
