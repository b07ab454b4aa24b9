// Package belltest is the conformance suite of doorbells. Each guarantee of package doorbell is a
// scenario over three nodes that share a medium. It is only used by tests.
package belltest

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/perdure/perdure/internal/server/doorbell"
	"github.com/perdure/perdure/internal/testkit/eventually"
)

// A Medium carries rings between three running nodes.
type Medium struct {
	Nodes   [3]doorbell.Bell         // the same bell three times for a bell within the process
	PerNode bool                     // a ring of a queue wakes one listener on each node, not one in all
	Quiet   func(doorbell.Bell) bool // tells whether a bell is idle

	Stop  func() // stops the medium; nil if that is not possible
	Start func()

	Tap func(testing.TB) Tap // nil if the messages cannot be read
}

// A Tap reads and sends messages of a medium.
type Tap struct {
	Heard func() []Packet // all messages so far
	Send  func(Packet)
}

// A Packet is a message of a medium.
type Packet struct {
	Subject string
	Data    []byte
}

// soon limits every wait. Only a failure takes that long.
const soon = 20 * time.Second

type scenario struct {
	name string
	run  func(*testing.T, *Medium)
}

// Conform runs every scenario that a medium supports.
func Conform(t *testing.T, m Medium) {
	scenarios := []scenario{
		{"a ring reaches every node", heardEverywhere},
		{"one run wakes one worker", oneWorker},
		{"ten runs wake ten workers", tenWorkers},
		{"a local worker is woken before a remote one", nextDoor},
		{"a ring at a busy node is passed on to an idle one", busyNode},
		{"a ring right after listening is not missed", atOnce},
		{"all waiters of a run are woken", everybody},
		{"a worker for any tenant is woken", anyTenant},
		{"a run wakes only workers of its kind", itsKind},
		{"names may contain any characters", names},
		{"a ring without listeners is not kept", nobody},
		{"concurrent Listen, stop and Ring", races},
		{"thousands of rings wake only their listeners", thousands},
		{"a burst of rings blocks no caller", burst},
	}
	if m.Tap != nil {
		scenarios = append(scenarios, scenario{"repeated, reordered and forged messages do no harm", forged})
	}
	if m.Stop != nil {
		scenarios = append(scenarios, scenario{"a stopped medium blocks no caller and is reconnected", restart})
	}
	for _, s := range scenarios {
		t.Run(s.name, func(t *testing.T) {
			m.settle(t)
			s.run(t, &m)
		})
	}
}

// ---- scenarios

func heardEverywhere(t *testing.T, m *Medium) {
	for i, a := range m.Nodes {
		for j, b := range m.Nodes {
			c, stop := b.Listen(doorbell.Run("t", "r"))
			a.Ring(doorbell.Run("t", "r"))
			within(t, c, soon, "node %d got no ring of a run from node %d", j, i)
			stop()
			w := m.idle(t, doorbell.Queue("t", "q"), b)
			a.Ring(doorbell.Queue("t", "q"))
			within(t, w[0].c, soon, "a worker on node %d got no ring from node %d", j, i)
			dismiss(w)
		}
	}
}

func oneWorker(t *testing.T, m *Medium) {
	q := doorbell.Queue("t", "one")
	w := m.idle(t, q, append(slices.Repeat([]doorbell.Bell{m.Nodes[1]}, 5),
		slices.Repeat([]doorbell.Bell{m.Nodes[2]}, 5)...)...)
	defer dismiss(w)
	m.Nodes[0].Ring(q)
	m.fence(t)
	n1, n2 := woken(w[:5]), woken(w[5:])
	if m.PerNode && (n1 != 1 || n2 != 1) || !m.PerNode && n1+n2 != 1 {
		t.Errorf("one run woke %d and %d workers of two nodes, want one (one of each with PerNode = %v)", n1, n2,
			m.PerNode)
	}
}

func tenWorkers(t *testing.T, m *Medium) {
	q := doorbell.Queue("t", "ten")
	var w []*worker
	if m.PerNode { // one node has a worker for each run
		w = m.idle(t, q, slices.Repeat([]doorbell.Bell{m.Nodes[1]}, 10)...)
	} else {
		w = m.idle(t, q, append(slices.Repeat([]doorbell.Bell{m.Nodes[1]}, 4),
			slices.Repeat([]doorbell.Bell{m.Nodes[2]}, 6)...)...)
	}
	defer dismiss(w)
	for range 10 {
		m.Nodes[0].Ring(q)
	}
	for i, x := range w {
		within(t, x.c, soon, "ten runs did not wake worker %d of ten", i)
	}
}

func nextDoor(t *testing.T, m *Medium) {
	q := doorbell.Queue("t", "near")
	near := m.idle(t, q, m.Nodes[0])
	far := m.idle(t, q, m.Nodes[1])
	defer dismiss(near)
	defer dismiss(far)
	m.Nodes[0].Ring(q)
	if m.Nodes[0] == m.Nodes[1] {
		return
	}
	if woken(near) != 1 {
		t.Error("the local worker was not woken at once")
	}
	m.fence(t)
	if woken(far) != 0 {
		t.Error("the remote worker was woken although a local one was")
	}
}

func busyNode(t *testing.T, m *Medium) {
	q := doorbell.Queue("t", "busy")
	for range 10 {
		busy := m.idle(t, q, m.Nodes[1])
		idle := m.idle(t, q, m.Nodes[2])
		dismiss(busy) // other nodes may not know of that yet
		m.Nodes[0].Ring(q)
		within(t, idle[0].c, soon, "the ring was not passed on by a node without idle workers")
		dismiss(idle)
	}
}

func atOnce(t *testing.T, m *Medium) {
	for i := range 20 {
		q, r := doorbell.Queue("t", fmt.Sprintf("at-once-%d", i)), doorbell.Run("t", fmt.Sprintf("at-once-%d", i))
		worker, stopWorker := m.Nodes[1].Listen(q)
		waiter, stopWaiter := m.Nodes[1].Listen(r)
		m.Nodes[0].Ring(q)
		m.Nodes[0].Ring(r)
		within(t, worker, soon, "a worker that had just begun to listen was not woken")
		within(t, waiter, soon, "a waiter that had just begun to listen was not woken")
		stopWorker()
		stopWaiter()
	}
}

func everybody(t *testing.T, m *Medium) {
	r := doorbell.Run("t", "waited-for")
	var cs []<-chan struct{}
	for _, b := range m.Nodes {
		for range 50 {
			c, stop := b.Listen(doorbell.Run("t", "other"), r)
			defer stop()
			cs = append(cs, c)
		}
	}
	m.Nodes[0].Ring(r)
	for i, c := range cs {
		within(t, c, soon, "waiter %d was not woken", i)
	}
}

func anyTenant(t *testing.T, m *Medium) {
	platform := m.idle(t, doorbell.Queue("", "shared"), m.Nodes[1])
	other := m.idle(t, doorbell.Queue("other", "shared"), m.Nodes[1])
	defer dismiss(platform)
	defer dismiss(other)
	m.Nodes[0].Ring(doorbell.Queue("t", "shared"))
	within(t, platform[0].c, soon, "the worker for any tenant was not woken")
	m.fence(t)
	if woken(other) != 0 {
		t.Error("a worker of another tenant was woken")
	}
	tenants := m.idle(t, doorbell.Queue("t", "shared"), m.Nodes[1])
	defer dismiss(tenants)
	m.Nodes[0].Ring(doorbell.Queue("t", "shared"))
	within(t, tenants[0].c, soon, "the tenant's worker was not woken")
}

func itsKind(t *testing.T, m *Medium) {
	q := doorbell.Queue("t", "kinds")
	others := m.idle(t, q.Of("other"), m.Nodes[1], m.Nodes[1])
	takers := m.idle(t, q.Of("job"), m.Nodes[1])
	defer dismiss(others)
	defer dismiss(takers)
	m.Nodes[0].Ring(q.Of("job"))
	within(t, takers[0].c, soon, "the worker that takes the kind was not woken")
	for _, whole := range []doorbell.Topic{q, doorbell.Queue("", "kinds").Of("job"), doorbell.Queue("", "kinds")} {
		w := m.idle(t, whole, m.Nodes[1])
		m.Nodes[0].Ring(q.Of("job"))
		within(t, w[0].c, soon, "the listener of %+v was not woken", whole)
		dismiss(w)
	}
	m.fence(t)
	if n := woken(others); n != 0 {
		t.Errorf("%d workers of another kind were woken, want 0", n)
	}
}

func names(t *testing.T, m *Medium) {
	all := []string{"a.b", "a", "b", "*", ">", "a b", "ü", "数据", "\x01", "'; DROP TABLE runs", "perdure.all",
		"Q", "q", string(make([]byte, 300))}
	heard := make([]<-chan struct{}, len(all))
	for i, name := range all {
		w := m.idle(t, doorbell.Queue("t. >*", name), m.Nodes[1])
		defer dismiss(w)
		c, stop := m.Nodes[1].Listen(doorbell.Run("t. >*", name))
		defer stop()
		m.Nodes[0].Ring(doorbell.Queue("t. >*", name))
		within(t, w[0].c, soon, "the listener of the queue %q was not woken", name)
		heard[i] = c
	}
	for i, name := range all {
		m.Nodes[0].Ring(doorbell.Run("t. >*", name))
		within(t, heard[i], soon, "the listener of the run %q was not woken", name)
		for j, c := range heard {
			if rung(c) {
				t.Errorf("a ring of the run %q woke the listener of %q", name, all[j])
			}
		}
	}
}

func nobody(t *testing.T, m *Medium) {
	for i := range 100 {
		m.Nodes[0].Ring(doorbell.Run("t", fmt.Sprint(i)))
		m.Nodes[0].Ring(doorbell.Queue("t", fmt.Sprint(i)))
	}
	m.fence(t)
	for i := range 100 {
		c, stop := m.Nodes[1].Listen(doorbell.Run("t", fmt.Sprint(i)))
		if rung(c) {
			t.Errorf("a ring of run %d was kept for a later listener", i)
		}
		stop()
	}
}

func races(t *testing.T, m *Medium) {
	var wg sync.WaitGroup
	for i, b := range m.Nodes {
		for j := range 4 {
			wg.Go(func() {
				for n := range 200 {
					run, queue := doorbell.Run("t", fmt.Sprint(n%7)), doorbell.Queue("t", fmt.Sprint(n%5))
					if j%2 == i%2 {
						b.Ring(run)
						b.Ring(queue)
						continue
					}
					c, stop := b.Listen(run, queue, queue)
					if n%3 == 0 {
						rung(c)
						stop()
					}
					stop()
				}
			})
		}
	}
	wg.Wait()
	m.settle(t)
	heardEverywhere(t, m)
}

func thousands(t *testing.T, m *Medium) {
	var heard []<-chan struct{}
	for i := range 5000 {
		c, stop := m.Nodes[1].Listen(doorbell.Run("t", fmt.Sprint(i)))
		defer stop()
		heard = append(heard, c)
	}
	other, stop := m.Nodes[1].Listen(doorbell.Run("t", "other"))
	defer stop()
	lost := m.Nodes[0].Stats().Lost
	for i := range heard {
		m.Nodes[0].Ring(doorbell.Run("t", fmt.Sprint(i)))
	}
	for i, c := range heard {
		within(t, c, soon, "the listener of run %d was not woken", i)
	}
	m.fence(t)
	if n := m.Nodes[0].Stats().Lost - lost; n != 0 || rung(other) {
		t.Errorf("%d messages were lost, want 0; or all listeners were woken", n)
	}
}

// many is more rings than an outbox keeps.
const many = 100_000

func burst(t *testing.T, m *Medium) {
	c, stop := m.Nodes[1].Listen(doorbell.Run("t", "last"))
	defer stop()
	for i := range many {
		m.Nodes[0].Ring(doorbell.Run("t", fmt.Sprint(i)))
	}
	m.Nodes[0].Ring(doorbell.Run("t", "last"))
	within(t, c, soon, "the last ring of a burst was lost")
}

func forged(t *testing.T, m *Medium) {
	tap := m.Tap(t)
	run, queue := doorbell.Run("t", "r"), doorbell.Queue("t", "tapped")
	w := m.idle(t, queue, m.Nodes[1])
	for i := range 20 {
		m.Nodes[0].Ring(doorbell.Run("t", fmt.Sprint(i)))
		m.Nodes[0].Ring(queue)
		m.fence(t)
	}
	dismiss(w)
	heard := tap.Heard()
	if len(heard) < 20 {
		t.Fatalf("the tap has %d messages, want at least 20", len(heard))
	}
	before := m.Nodes[1].Stats()
	slices.Reverse(heard)
	for range 3 { // repeated, and in reverse order
		for _, p := range heard {
			tap.Send(p)
			for _, bad := range [][]byte{
				nil, {0}, p.Data[:len(p.Data)/2], append(slices.Clone(p.Data), 'x'),
				[]byte("hello"), slices.Repeat([]byte{'q'}, 5000),
			} {
				tap.Send(Packet{p.Subject, bad})
			}
		}
	}
	eventually.True(t, "repeated messages are received, and forged ones ignored", func() bool {
		s := m.Nodes[1].Stats()
		return s.Received > before.Received && s.Ignored > before.Ignored
	})
	m.settle(t)
	w = m.idle(t, queue, m.Nodes[1])
	defer dismiss(w)
	c, stop := m.Nodes[1].Listen(run)
	defer stop()
	m.Nodes[0].Ring(run)
	m.Nodes[0].Ring(queue)
	within(t, c, soon, "the listener of a run is no longer woken")
	within(t, w[0].c, soon, "the listener of a queue is no longer woken")
}

func restart(t *testing.T, m *Medium) {
	for range 2 {
		c, stop := m.Nodes[1].Listen(doorbell.Run("t", "missed"))
		w := m.idle(t, doorbell.Queue("t", "missed"), m.Nodes[1])
		m.Stop()
		eventually.True(t, "the nodes notice that the medium is away", func() bool {
			return !m.Nodes[0].Stats().Connected && !m.Nodes[1].Stats().Connected
		})
		for i := range many {
			m.Nodes[0].Ring(doorbell.Run("t", fmt.Sprint(i)))
			m.Nodes[0].Ring(doorbell.Queue("t", fmt.Sprint(i)))
		}
		near, stopNear := m.Nodes[0].Listen(doorbell.Run("t", "near"))
		m.Nodes[0].Ring(doorbell.Run("t", "near"))
		if !rung(near) {
			t.Error("a local ring does not arrive without the medium")
		}
		stopNear()
		m.Start()
		within(t, c, soon, "a waiter was not woken after the reconnect")
		within(t, w[0].c, soon, "a worker was not woken after the reconnect")
		stop()
		dismiss(w)
		m.settle(t)
		heardEverywhere(t, m)
	}
}

// ---- nodes and workers

// settle waits until rings arrive between all nodes and all bells are idle.
func (m *Medium) settle(t *testing.T) {
	t.Helper()
	for i, a := range m.Nodes {
		for j, b := range m.Nodes {
			eventually.True(t, fmt.Sprintf("node %d gets rings of node %d", j, i), func() bool {
				c, stop := b.Listen(doorbell.Run("t", "settle"))
				defer stop()
				a.Ring(doorbell.Run("t", "settle"))
				select {
				case <-c:
					return true
				case <-time.After(100 * time.Millisecond):
					return false
				}
			})
		}
	}
	m.fence(t)
	m.quiet(t)
	m.fence(t)
}

func (m *Medium) quiet(t *testing.T) {
	t.Helper()
	for i, b := range m.Nodes {
		eventually.True(t, fmt.Sprintf("node %d is idle", i), func() bool { return m.Quiet(b) })
	}
}

// fence returns when all earlier rings, and those that they caused, have arrived.
func (m *Medium) fence(t *testing.T) {
	t.Helper()
	for range 2 {
		for i, a := range m.Nodes {
			for j, b := range m.Nodes {
				c, stop := b.Listen(doorbell.Run("t", "fence"))
				a.Ring(doorbell.Run("t", "fence"))
				within(t, c, soon, "node %d got no ring of a run from node %d", j, i)
				stop()
			}
		}
	}
}

type worker struct {
	bell  doorbell.Bell
	topic doorbell.Topic
	c     <-chan struct{}
	stop  func()
}

// idle returns a listener on each of the nodes, after the wake-ups of joining, so that only a ring
// wakes it.
func (m *Medium) idle(t *testing.T, topic doorbell.Topic, nodes ...doorbell.Bell) []*worker {
	t.Helper()
	out := make([]*worker, len(nodes))
	for i, b := range nodes {
		out[i] = &worker{bell: b, topic: topic}
		out[i].listen()
	}
	m.quiet(t)
	for _, w := range out { // listen again after the wake-up of joining
		if rung(w.c) {
			w.stop()
			w.listen()
		}
	}
	m.quiet(t)
	return out
}

func (w *worker) listen() { w.c, w.stop = w.bell.Listen(w.topic) }

// dismiss stops the listeners.
func dismiss(ws []*worker) {
	for _, w := range ws {
		w.stop()
	}
}

// woken counts the listeners that were woken.
func woken(ws []*worker) (n int) {
	for _, w := range ws {
		if rung(w.c) {
			n++
		}
	}
	return n
}

func rung(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// within fails the test with a message if the channel is not signalled in time.
func within(t *testing.T, c <-chan struct{}, d time.Duration, format string, args ...any) {
	t.Helper()
	limit := time.NewTimer(d)
	defer limit.Stop()
	select {
	case <-c:
	case <-limit.C:
		t.Fatalf(format, args...)
	}
}
