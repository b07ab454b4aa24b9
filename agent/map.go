package agent

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent/internal/journal"
)

// This file maps a kind over many items with bounded concurrency.
//
// A run that suspends is executed anew, and reads its whole journal. A map that suspended for every
// child would therefore be quadratic in the number of items. So a map does not suspend while its
// children end quickly: it keeps its lease, reads its inbox, and spawns the next ones. Each turn of
// that loop commits the ends that came and the children that follow, whatever their number. When
// nothing has come for mapPatience, the run is suspended until the next child ends. A replay costs
// less than that time, so at most half of the time is spent on replays.
//
// The journal has one note for all children of a map: how many were spawned, and a digest of their
// inputs. Children are spawned in the order of the items, so the number is enough.

const (
	defaultLimit = 20
	// mapPatience is how long a map keeps its lease while no child ends.
	mapPatience = 500 * time.Millisecond
	// A map reads its inbox at these intervals.
	minMapPause = 4 * time.Millisecond
	maxMapPause = 50 * time.Millisecond
)

// Map spawns a child of a kind for each item, a limited number at the same time, and returns their
// results in the order of the items. It is made for thousands of items. The run's progress tells
// how many are done, also while the run is suspended.
//
//	found, err := agent.Map[Report](ctx, "research", topics, agent.MapOptions{Limit: 20})
//
// If a child ends without a result, the error is that child's, and the others are cancelled. With
// MapOptions.Settle all items are worked on, and each error is in the Settled.
func Map[Out, In any](ctx *Context, kind string, items []In, opts ...MapOptions) (Settled[Out], error) {
	o := merge(opts, MapOptions.applyTo)
	c := ctx.execution()
	if err := c.proceed(); err != nil {
		return Settled[Out]{}, err
	}
	if c.insideStep() {
		return Settled[Out]{}, c.misuse("Map of %q inside of a step: map between steps", kind)
	}
	b, err := c.checkWaitable("Map")
	if err != nil {
		c.fail(err)
	}
	key, err := c.keyFor(b, "map", kind)
	if err != nil {
		return Settled[Out]{}, err
	}
	m := &mapping{c: c, b: b, key: key, kind: kind, total: len(items), settle: o.Settle, onStall: o.Child.OnStall,
		sum: journal.NewSum()}
	o.Child.fill(&m.spawn)
	if m.limit, err = o.limit("Map"); err != nil {
		return Settled[Out]{}, err
	}
	m.input = func(n int) (json.RawMessage, error) {
		text, err := perdure.Encode(items[n])
		if err != nil {
			return nil, c.misuse("Map of %q: item %d, a %T, can't be written as JSON: %v", kind, n, items[n], err)
		}
		return text, nil
	}
	failed, err := m.run()
	if err != nil {
		return Settled[Out]{}, err
	}
	c.pass(b, "map "+key)
	for n := range m.next { // a child that the server refused is an error of this call
		if key := m.childKey(n); c.refused(key) {
			c.look(key, nil)
		}
	}
	if failed >= 0 {
		_, err := mapResult[Out](m, failed)
		return Settled[Out]{}, err
	}
	out := Settled[Out]{Results: make([]Out, len(items)), Errors: make([]error, len(items))}
	for n := range items {
		out.Results[n], out.Errors[n] = mapResult[Out](m, n)
		out.add(n, m.end(n).Outcome == string(perdure.TimedOut))
		if err := out.Errors[n]; err != nil && !o.Settle { // its result is of another type
			return Settled[Out]{}, err
		}
	}
	return out, nil
}

// A mapping is one call of Map.
type mapping struct {
	c      *execution
	b      *branch
	key    string
	kind   string
	spawn  perdure.Spawn
	total  int
	limit  int
	settle bool
	// onStall cancels children that look stuck. stalls has the items that said so, by their keys.
	onStall bool
	stalls  map[string]*journal.Item
	// input returns the input of an item's child.
	input func(n int) (json.RawMessage, error)

	// next is the first item without a child, and sum the digest of the inputs before it.
	next int
	sum  journal.Sum
	// live are the items whose children have not ended.
	live []int
	// told is the number of items in the last progress.
	told int
}

func (m *mapping) childKey(n int) string { return fmt.Sprintf("%s/%d", m.key, n) }

func (m *mapping) future(n int) future { return future{c: m.c, kind: m.kind, key: m.childKey(n)} }

// end returns how the child of an item ended, or nil.
func (m *mapping) end(n int) *journal.Item {
	m.c.mu.Lock()
	defer m.c.mu.Unlock()
	return m.endLocked(n)
}

// endLocked is end for a caller that holds c.mu. A stall is an end, unless the child ended before.
func (m *mapping) endLocked(n int) *journal.Item {
	key := m.childKey(n)
	end, stall := m.c.record.End(key), m.stalls[key]
	if stall != nil && (end == nil || stall.Order < end.Order) {
		return stall
	}
	return end
}

// mapResult returns the result of an item whose child has ended, or its error.
func mapResult[Out any](m *mapping, n int) (out Out, err error) {
	f, i := Future[Out]{future: m.future(n)}, m.end(n)
	if i.Outcome == perdure.WaitStalled {
		return out, ErrStalled{TaskID: i.From, Kind: f.kind, Key: f.key}
	}
	return f.result(i)
}

// readStalls reads which children looked stuck while the run was suspended on them.
func (m *mapping) readStalls() {
	if !m.onStall {
		return
	}
	m.c.mu.Lock()
	defer m.c.mu.Unlock()
	m.stalls = m.c.record.Stalls(m.key)
}

// run works on all items. It returns the index of the first that failed, or -1.
func (m *mapping) run() (failed int, err error) {
	c := m.c
	before, err := m.restore()
	if err != nil {
		return -1, err
	}
	failed = -1
	for {
		m.readStalls()
		failed = m.reap(failed)
		switch {
		case failed >= 0 && !m.settle:
			if !before.Stopped {
				m.stop()
			}
			return failed, nil
		case m.next == m.total && len(m.live) == 0:
			return -1, nil
		}
		if err := c.stopReason(m.b); err != nil {
			return -1, err
		}
		spawned, err := m.refill()
		if err != nil {
			return -1, err
		}
		m.tell()
		if spawned {
			c.flush()
		}
		if news, err := c.pollInbox(); err != nil || news {
			if err != nil {
				return -1, err
			}
			continue
		}
		if err := m.suspend(); err != nil {
			return -1, err
		}
	}
}

// restore brings the mapping to where earlier executions left it.
func (m *mapping) restore() (before journal.Mapped, err error) {
	c := m.c
	m.readStalls()
	c.mu.Lock()
	c.cursor.Visit("map " + m.key)
	before = c.record.Mapped(m.key)
	c.mu.Unlock()
	if before.N > m.total {
		c.fail(nondeterminism(m.key, "Map was called with at least %d items before, and now with %d; keep the "+
			"items, or announce the change with Version", before.N, m.total))
	}
	for m.next < before.N {
		input, err := m.input(m.next)
		if err != nil {
			return before, err
		}
		m.sum.Add(input)
		if m.next < before.Original && m.end(m.next) == nil {
			if err := m.spawnChild(m.next, input, false); err != nil {
				return before, err
			}
			c.s.Commit(false)
		}
		m.live = append(m.live, m.next)
		m.next++
	}
	if before.N > 0 && !m.sum.Is(before.Sum) {
		c.fail(nondeterminism(m.key, "Map was called with other items before; keep the items and their order, "+
			"or announce the change with Version"))
	}
	return before, nil
}

// reap removes the items whose children have ended, and cancels those that stalled. It returns the
// index of the first that failed, or -1.
func (m *mapping) reap(failed int) int {
	c := m.c
	c.mu.Lock()
	defer c.mu.Unlock()
	live := m.live[:0]
	for _, n := range m.live {
		end := m.endLocked(n)
		if end == nil {
			live = append(live, n)
			continue
		}
		if key := m.childKey(n); end.Outcome == perdure.WaitStalled && !c.record.Cancelled(key) {
			c.writer.Cancel(key)
		}
		bad := end.Outcome != string(perdure.Completed)
		if bad && (failed < 0 || end.Order < m.endLocked(failed).Order) {
			failed = n
		}
	}
	m.live = live
	return failed
}

// refill spawns children up to the limit. It tells whether it has spawned any.
func (m *mapping) refill() (spawned bool, err error) {
	for m.next < m.total && len(m.live) < m.limit {
		input, err := m.input(m.next)
		if err != nil {
			return spawned, err
		}
		if !spawned {
			m.c.begin(m.b, "child", m.childKey(m.next))
		}
		m.sum.Add(input)
		m.live = append(m.live, m.next)
		m.next++
		if err := m.spawnChild(m.next-1, input, true); err != nil {
			return spawned, err
		}
		spawned = true
	}
	return spawned, nil
}

// spawnChild adds the child of an item to the next commit. A new one is noted there.
func (m *mapping) spawnChild(n int, input json.RawMessage, isNew bool) error {
	c := m.c
	spawn := m.spawn
	spawn.Key, spawn.Kind, spawn.Input = m.childKey(n), m.kind, input
	check := perdure.Commit{ID: "check", RunID: "check", Children: []perdure.Spawn{spawn}}
	if err := check.Validate(); err != nil {
		return perdure.Permanent(fmt.Errorf("map %s, item %d: %w", m.key, n, err))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	b := c.writer.Batch(len(input) + 256)
	b.Part.Children = append(b.Part.Children, spawn)
	if isNew {
		m.note(b, false)
	}
	return nil
}

// note writes how far the mapping is into a batch. The caller holds c.mu.
func (m *mapping) note(b *journal.Batch, stopped bool) {
	m.c.writer.Mapped(b, m.key, journal.Mapped{N: m.next, Sum: m.sum.Text(), Stopped: stopped})
}

// stop asks the children that have not ended to stop.
func (m *mapping) stop() {
	c := m.c
	c.mu.Lock()
	for _, n := range m.live {
		b := c.writer.Batch(64)
		b.Part.Cancel = append(b.Part.Cancel, m.childKey(n))
	}
	m.note(c.writer.Batch(64), true)
	c.mu.Unlock()
	c.s.Commit(false)
}

// tell reports how many items are done.
func (m *mapping) tell() {
	if done := m.next - len(m.live); done > m.told && !m.c.replaying() {
		m.told = done
		m.c.s.Progress(m.progress())
	}
}

func (m *mapping) progress() json.RawMessage {
	return json.RawMessage(fmt.Sprintf(`{"map":%q,"done":%d,"total":%d}`, m.key, m.next-len(m.live), m.total))
}

// suspend suspends the run until one of the children ends. The commit also has the progress, because
// no heartbeat follows. It returns only if the run was asked to stop.
func (m *mapping) suspend() error {
	c := m.c
	// The number of children that have ended tells one wait from the next. With it the children that
	// have not are always the same.
	done := m.next - len(m.live)
	id := fmt.Sprintf("%s.%d", journal.InBranch(journal.MapPrefix, m.key), done)
	spec := perdure.WaitSpec{ID: id, Type: perdure.WaitChildren,
		Mode: perdure.ModeAny, Timeout: perdure.Never, OnStall: m.onStall}
	for _, n := range m.live {
		spec.Keys = append(spec.Keys, m.childKey(n))
	}
	c.mu.Lock()
	over := c.record.Wait(spec.ID)
	b := c.writer.Batch(128)
	b.Part.Events = append(b.Part.Events, perdure.Emitted{Type: perdure.LineProgress, Data: m.progress()})
	c.mu.Unlock()
	if over != nil {
		return fmt.Errorf("Map: the server has woken the run without saying why")
	}
	return c.suspend(m.b, []perdure.WaitSpec{spec}, []string{spec.ID})
}
