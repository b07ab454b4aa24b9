// Package belltest is what every doorbell has to pass: each promise as a scenario, over nodes that share a
// medium. It is for tests alone.
package belltest

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/perdure/perdure/internal/doorbell"
	"github.com/perdure/perdure/internal/eventually"
)

// A Medium is what carries rings between nodes, and three nodes on it that run.
type Medium struct {
	Nodes   [3]doorbell.Bell         // one bell three times where there is one process
	PerNode bool                     // a ring of a queue wakes a listener on each node, not one altogether
	Quiet   func(doorbell.Bell) bool // whether a bell has nothing left to do

	Stop  func() // kills the medium; nil if that can't be done
	Start func()

	Tap func(testing.TB) Tap // nil if there is nothing to overhear
}

// A Tap overhears a medium and speaks on it.
type Tap struct {
	Heard func() []Packet // so far
	Send  func(Packet)
}

// A Packet is what travels.
type Packet struct {
	Subject string
	Data    []byte
}

// soon is how long anything may take; only a failure takes that long.
const soon = 20 * time.Second

type scenario struct {
	name string
	run  func(*testing.T, *Medium)
}

// Conform runs every scenario that there can be on a medium.
func Conform(t *testing.T, m Medium) {
	scenarios := []scenario{
		{"a ring is heard on every node", heardEverywhere},
		{"one run wakes one worker", oneWorker},
		{"ten runs wake ten workers", tenWorkers},
		{"a worker next door is woken before one elsewhere", nextDoor},
		{"a ring that a busy node gets finds the idle one", busyNode},
		{"a ring right after listening is not missed", atOnce},
		{"everybody who waits for a run is woken", everybody},
		{"a worker for any tenant is woken", anyTenant},
		{"a run wakes who takes its kind", itsKind},
		{"names may be anything", names},
		{"a ring that nobody hears leaves nothing behind", nobody},
		{"listening and stopping while it rings", races},
		{"thousands of runs at once are told apart", thousands},
		{"a burst blocks nobody", burst},
	}
	if m.Tap != nil {
		scenarios = append(scenarios, scenario{"doubled, reordered and forged messages only wake", forged})
	}
	if m.Stop != nil {
		scenarios = append(scenarios, scenario{"a medium that is away blocks nobody and is found again", restart})
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
			within(t, c, soon, "node %d does not hear node %d", j, i)
			stop()
			w := m.idle(t, doorbell.Queue("t", "q"), b)
			a.Ring(doorbell.Queue("t", "q"))
			within(t, w[0].c, soon, "a worker on node %d does not hear node %d", j, i)
			dismiss(w)
		}
	}
}

func oneWorker(t *testing.T, m *Medium) {
	q := doorbell.Queue("t", "one")
	w := m.idle(t, q, m.Nodes[1], m.Nodes[1], m.Nodes[1], m.Nodes[1], m.Nodes[1], m.Nodes[2], m.Nodes[2], m.Nodes[2], m.Nodes[2], m.Nodes[2])
	defer dismiss(w)
	m.Nodes[0].Ring(q)
	m.fence(t)
	n1, n2 := woken(w[:5]), woken(w[5:])
	if m.PerNode && (n1 != 1 || n2 != 1) || !m.PerNode && n1+n2 != 1 {
		t.Errorf("%d and %d of five workers each were woken by one run", n1, n2)
	}
}

func tenWorkers(t *testing.T, m *Medium) {
	q := doorbell.Queue("t", "ten")
	var w []*worker
	if m.PerNode { // each node has enough for all
		w = m.idle(t, q, slices.Repeat([]doorbell.Bell{m.Nodes[1]}, 10)...)
	} else {
		w = m.idle(t, q, append(slices.Repeat([]doorbell.Bell{m.Nodes[1]}, 4), slices.Repeat([]doorbell.Bell{m.Nodes[2]}, 6)...)...)
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
		t.Error("the worker next door was not woken at once")
	}
	m.fence(t)
	if woken(far) != 0 {
		t.Error("the ring went out although somebody was woken")
	}
}

func busyNode(t *testing.T, m *Medium) {
	q := doorbell.Queue("t", "busy")
	for range 10 {
		busy := m.idle(t, q, m.Nodes[1])
		idle := m.idle(t, q, m.Nodes[2])
		dismiss(busy) // the node may not have told anybody
		m.Nodes[0].Ring(q)
		within(t, idle[0].c, soon, "the ring ended at a node with nobody idle")
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
		within(t, worker, soon, "a worker who had just begun to listen was not woken")
		within(t, waiter, soon, "a waiter who had just begun to listen was not woken")
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
		within(t, w[0].c, soon, "who waits for %+v was not woken", whole)
		dismiss(w)
	}
	m.fence(t)
	if n := woken(others); n != 0 {
		t.Errorf("%d workers that don't take the kind were woken", n)
	}
}

func names(t *testing.T, m *Medium) {
	all := []string{"a.b", "a", "b", "*", ">", "a b", "ü", "数据", "\x01", "'; DROP TABLE runs", "perdure.all", "Q", "q", string(make([]byte, 300))}
	heard := make([]<-chan struct{}, len(all))
	for i, name := range all {
		w := m.idle(t, doorbell.Queue("t. >*", name), m.Nodes[1])
		defer dismiss(w)
		c, stop := m.Nodes[1].Listen(doorbell.Run("t. >*", name))
		defer stop()
		m.Nodes[0].Ring(doorbell.Queue("t. >*", name))
		within(t, w[0].c, soon, "the queue %q is not heard", name)
		heard[i] = c
	}
	for i, name := range all {
		m.Nodes[0].Ring(doorbell.Run("t. >*", name))
		within(t, heard[i], soon, "%q is not heard", name)
		for j, c := range heard {
			if rung(c) {
				t.Errorf("%q rings for %q", name, all[j])
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
			t.Error("a ring was kept for one who came later")
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
		within(t, c, soon, "run %d was not heard", i)
	}
	m.fence(t)
	if n := m.Nodes[0].Stats().Lost - lost; n != 0 || rung(other) {
		t.Errorf("%d messages were lost, or everybody was woken", n)
	}
}

// many are more rings than anybody keeps.
const many = 100_000

func burst(t *testing.T, m *Medium) {
	c, stop := m.Nodes[1].Listen(doorbell.Run("t", "last"))
	defer stop()
	for i := range many {
		m.Nodes[0].Ring(doorbell.Run("t", fmt.Sprint(i)))
	}
	m.Nodes[0].Ring(doorbell.Run("t", "last"))
	within(t, c, soon, "the last ring of a burst got lost")
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
		t.Fatalf("only %d messages were overheard", len(heard))
	}
	before := m.Nodes[1].Stats()
	slices.Reverse(heard)
	for range 3 { // again, and backwards
		for _, p := range heard {
			tap.Send(p)
			for _, bad := range [][]byte{nil, {0}, p.Data[:len(p.Data)/2], append(slices.Clone(p.Data), 'x'), []byte("hello"), slices.Repeat([]byte{'q'}, 5000)} {
				tap.Send(Packet{p.Subject, bad})
			}
		}
	}
	eventually.True(t, "forged messages are neither heard nor ignored", func() bool {
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
	within(t, c, soon, "a run is no longer heard")
	within(t, w[0].c, soon, "a queue is no longer heard")
}

func restart(t *testing.T, m *Medium) {
	for range 2 {
		c, stop := m.Nodes[1].Listen(doorbell.Run("t", "missed"))
		w := m.idle(t, doorbell.Queue("t", "missed"), m.Nodes[1])
		m.Stop()
		eventually.True(t, "nobody noticed that the medium is away", func() bool {
			return !m.Nodes[0].Stats().Connected && !m.Nodes[1].Stats().Connected
		})
		for i := range many {
			m.Nodes[0].Ring(doorbell.Run("t", fmt.Sprint(i)))
			m.Nodes[0].Ring(doorbell.Queue("t", fmt.Sprint(i)))
		}
		near, stopNear := m.Nodes[0].Listen(doorbell.Run("t", "near"))
		m.Nodes[0].Ring(doorbell.Run("t", "near"))
		if !rung(near) {
			t.Error("a ring within the node needs the medium")
		}
		stopNear()
		m.Start()
		within(t, c, soon, "who waited while the medium was away does not look again")
		within(t, w[0].c, soon, "a worker who waited while the medium was away does not look again")
		stop()
		dismiss(w)
		m.settle(t)
		heardEverywhere(t, m)
	}
}

// ---- nodes and workers

// settle waits until the nodes hear one another and nothing is under way.
func (m *Medium) settle(t *testing.T) {
	t.Helper()
	for i, a := range m.Nodes {
		for j, b := range m.Nodes {
			eventually.True(t, fmt.Sprintf("node %d never hears node %d", j, i), func() bool {
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
		eventually.True(t, fmt.Sprintf("node %d is never done", i), func() bool { return m.Quiet(b) })
	}
}

// fence returns when all that was rung before has arrived, and what that has led to.
func (m *Medium) fence(t *testing.T) {
	t.Helper()
	for range 2 {
		for i, a := range m.Nodes {
			for j, b := range m.Nodes {
				c, stop := b.Listen(doorbell.Run("t", "fence"))
				a.Ring(doorbell.Run("t", "fence"))
				within(t, c, soon, "node %d does not hear node %d", j, i)
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

// idle gives a worker on each of the nodes, who has looked and found nothing, and whom a ring reaches.
func (m *Medium) idle(t *testing.T, topic doorbell.Topic, nodes ...doorbell.Bell) []*worker {
	t.Helper()
	out := make([]*worker, len(nodes))
	for i, b := range nodes {
		out[i] = &worker{bell: b, topic: topic}
		out[i].listen()
	}
	m.quiet(t)
	for _, w := range out { // who was woken has looked again
		if rung(w.c) {
			w.stop()
			w.listen()
		}
	}
	m.quiet(t)
	return out
}

func (w *worker) listen() { w.c, w.stop = w.bell.Listen(w.topic) }

func dismiss(ws []*worker) {
	for _, w := range ws {
		w.stop()
	}
}

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
