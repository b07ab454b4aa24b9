package doorbell

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/perdure/perdure/internal/wire/timer"
)

// NATS is a bell between nodes by core NATS, without JetStream. Nothing is stored.
//
// Rings of runs go to all nodes, many in one message. A ring of a queue goes to one node that has
// an idle listener for it. For that, each queue has a subject, and the nodes with listeners
// subscribe to it as a queue group, of which NATS picks one member per message. A member without an
// idle listener leaves the group and publishes the ring again for the remaining members.
//
// Listeners of the queue of any tenant, or of any kind, have their own subjects. If several of
// these have members on other nodes, a ring wakes one listener of each.
type NATS struct {
	remote
	prefix string
	inbox  chan *nats.Msg

	mu       sync.Mutex                 // taken before the lock of local
	joined   map[key]*nats.Subscription // groups that this node has joined
	wanted   map[key]struct{}           // groups that it is to join
	caughtUp int64                      // number of the connection after which all listeners were woken
	change   chan struct{}              // signalled for a new entry in wanted, and for a new connection
}

const (
	group = "perdure"

	inboxSize = 4096 // messages that wait to be read; more are lost
	maxHops   = 16   // how often a ring is passed on

	// joinDelay is how long a listener must stay before its node joins a group for it. A listener
	// that finds a run at once is not worth a subscription.
	joinDelay = 2 * time.Millisecond

	// tidyEvery is the interval at which groups without listeners are left.
	tidyEvery = 10 * time.Second
)

func newNATS(opt Options) *NATS {
	n := &NATS{
		inbox: make(chan *nats.Msg, inboxSize), joined: make(map[key]*nats.Subscription),
		wanted: make(map[key]struct{}), change: make(chan struct{}, 1),
	}
	n.init(opt)
	n.prefix = "perdure." + n.name
	return n
}

// everybody is the subject that all nodes read.
func (n *NATS) everybody() string { return n.prefix + ".all" }

// subject is the subject of a queue.
func (n *NATS) subject(k key) string { return fmt.Sprintf("%s.q.%016x", n.prefix, uint64(k)) }

// Ring wakes local listeners, and listeners of other nodes if there are none for a queue here.
func (n *NATS) Ring(t Topic) {
	r := n.local.rings.of(n.local.space, t)
	if n.local.wake(r) == 0 {
		n.out.put(r)
	}
}

// Listen implements Bell. The first listener of a queue gets a wake-up when this node has joined
// the queue's group. Rings from before went to other nodes, so it has to read the store again.
func (n *NATS) Listen(topics ...Topic) (<-chan struct{}, func()) {
	c, stop := n.local.Listen(topics...)
	news := false
	n.mu.Lock()
	for _, t := range topics {
		if t.Queue == "" {
			continue
		}
		if k := keyOf(n.local.space, t); n.joined[k] == nil {
			n.wanted[k], news = struct{}{}, true
		}
	}
	n.mu.Unlock()
	if news {
		n.changed()
	}
	return c, stop
}

func (n *NATS) changed() {
	select {
	case n.change <- struct{}{}:
	default:
	}
}

// Run connects and carries rings until the context ends. It retries while NATS is away.
func (n *NATS) Run(ctx context.Context) error {
	o := newOutage(n.opt)
	defer o.close()
	conn, err := n.connect(o)
	if err != nil {
		return fmt.Errorf("doorbell %s: %w", Mask(n.opt.URL), err)
	}
	defer conn.Close()
	if _, err := conn.ChanSubscribe(n.everybody(), n.inbox); err != nil {
		return fmt.Errorf("doorbell: %w", err)
	}
	var wg sync.WaitGroup
	wg.Go(func() { n.send(ctx, conn) })
	wg.Go(func() { n.read(ctx, conn) })
	wg.Go(func() { n.join(ctx, conn) })
	wg.Wait()
	return nil
}

func (n *NATS) connect(o *outage) (*nats.Conn, error) {
	log, address := n.opt.Logger, n.opt.URL
	up := func(c *nats.Conn) {
		n.connects.Add(1)
		log.Info("the doorbell is connected", "doorbell", Mask(address), "server", "NATS "+c.ConnectedServerVersion())
		n.connected.Store(true)
		o.ends(group)
		n.changed()
		n.out.signal()
	}
	down := func(_ *nats.Conn, err error) {
		n.connected.Store(false)
		if err == nil {
			err = nats.ErrDisconnected
		}
		o.begins(group, err)
	}
	return nats.Connect(address,
		nats.Name("perdure"), nats.NoEcho(),
		nats.RetryOnFailedConnect(true), nats.MaxReconnects(-1), nats.IgnoreAuthErrorAbort(),
		nats.CustomReconnectDelay(pause),
		nats.ReconnectBufSize(-1), // no buffer: a late ring has no use
		nats.Timeout(2*time.Second), nats.PingInterval(10*time.Second),
		nats.FlusherTimeout(stepTimeout), nats.ReconnectOnFlusherError(),
		nats.ConnectHandler(up), nats.ReconnectHandler(up),
		nats.DisconnectErrHandler(down), nats.ReconnectErrHandler(down),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			switch {
			case errors.Is(err, nats.ErrSlowConsumer):
				n.lost.Add(1)
			case !n.connected.Load(): // NATS refuses the connection, which is retried
				o.begins(group, err)
			default:
				o.complains(err)
			}
		}), nats.NoCallbacksAfterClientClose())
}

// send publishes the rings of the outbox. While NATS is away they stay in the outbox.
func (n *NATS) send(ctx context.Context, conn *nats.Conn) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-n.out.waiting():
		}
		if !n.connected.Load() {
			continue
		}
		rings, flags := n.out.take()
		for k, r := range rings {
			if r.n > 0 {
				n.ringQueue(conn, r.key, r.n, 0)
				last := r.key
				for _, other := range r.or {
					if other != last {
						n.ringQueue(conn, other, r.n, 0)
					}
					last = other
				}
				delete(rings, k)
			}
		}
		for _, b := range n.batch(rings, flags, maxMessage) {
			n.publish(conn, n.everybody(), b)
		}
		if !timer.Sleep(ctx, sendPause) {
			return
		}
	}
}

// ringQueue publishes a ring of a queue. hops counts how often it was passed on.
func (n *NATS) ringQueue(conn *nats.Conn, k key, count int, hops byte) {
	n.publish(conn, n.subject(k), binary.AppendUvarint([]byte{wireVersion, hops}, uint64(min(count, maxCount))))
}

// publish sends a message. If that fails, all nodes are asked to look at everything.
func (n *NATS) publish(conn *nats.Conn, subject string, b []byte) {
	if err := conn.Publish(subject, b); err != nil {
		n.lost.Add(1)
		n.out.mark(flagAll)
		return
	}
	n.sent.Add(1)
}

// read handles messages of other nodes.
func (n *NATS) read(ctx context.Context, conn *nats.Conn) {
	for {
		select {
		case <-ctx.Done():
			return
		case m := <-n.inbox:
			if m.Subject == n.everybody() {
				n.receive(m.Data)
			} else {
				n.receiveQueue(conn, m)
			}
		}
	}
}

// receiveQueue wakes listeners of a queue, and passes on the runs for which there are none.
func (n *NATS) receiveQueue(conn *nats.Conn, m *nats.Msg) {
	id, err := strconv.ParseUint(strings.TrimPrefix(m.Subject, n.prefix+".q."), 16, 64)
	if err != nil || len(m.Data) < 3 || m.Data[0] != wireVersion {
		n.invalid.Add(1)
		return
	}
	count, size := binary.Uvarint(m.Data[2:])
	if size != len(m.Data)-2 || count == 0 || count > maxCount {
		n.invalid.Add(1)
		return
	}
	n.received.Add(1)
	k, hops := key(id), m.Data[1]
	left := int(count) - n.local.wake(ring{key: k, n: int(count)})
	if left == 0 {
		return
	}
	n.leaveGroup(k) // before the ring is passed on, so that NATS does not send it back
	if hops < maxHops {
		n.ringQueue(conn, k, left, hops+1)
	}
}

// leaveGroup leaves the group of a queue without listeners. Messages that are already on their way
// still arrive and are passed on. NATS is called without the lock, because the call may block and
// Listen must not.
func (n *NATS) leaveGroup(k key) {
	n.mu.Lock()
	sub := n.joined[k]
	if sub == nil || n.local.listens(k) {
		n.mu.Unlock()
		return
	}
	delete(n.joined, k)
	n.mu.Unlock()
	if n.connected.Load() {
		_ = sub.Drain()
	} else {
		_ = sub.Unsubscribe() // nothing is on its way, and a reconnect must not subscribe again
	}
}

// join keeps this node in the groups of the queues that have local listeners.
func (n *NATS) join(ctx context.Context, conn *nats.Conn) {
	tidy := time.NewTicker(tidyEvery)
	defer tidy.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tidy.C:
			n.tidy()
		case <-n.change:
			if !timer.Sleep(ctx, joinDelay) {
				return
			}
			n.joinGroups(ctx, conn)
		}
	}
}

// tidy leaves the groups of queues without listeners.
func (n *NATS) tidy() {
	n.mu.Lock()
	keys := make([]key, 0, len(n.joined))
	for k := range n.joined {
		keys = append(keys, k)
	}
	n.mu.Unlock()
	for _, k := range keys {
		n.leaveGroup(k)
	}
}

// joinGroups joins the wanted groups and wakes their listeners. After a reconnect it wakes all
// listeners, because rings were missed.
func (n *NATS) joinGroups(ctx context.Context, conn *nats.Conn) {
	now := n.connects.Load()
	var keys []key
	n.mu.Lock()
	for k := range n.wanted {
		if n.joined[k] != nil || !n.local.listens(k) {
			delete(n.wanted, k)
			continue
		}
		keys = append(keys, k)
	}
	missed := now != n.caughtUp
	n.mu.Unlock()
	if len(keys) == 0 && !missed {
		return
	}
	subs := make([]*nats.Subscription, len(keys))
	for i, k := range keys {
		var err error
		if subs[i], err = conn.ChanQueueSubscribe(n.subject(k), group, n.inbox); err != nil {
			return // the connection is closed
		}
	}
	if n.connected.Load() {
		waiting, cancel := context.WithTimeout(ctx, stepTimeout)
		_ = conn.FlushWithContext(waiting) // a failure leads to a reconnect, which wakes all listeners
		cancel()
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for i, k := range keys {
		n.joined[k] = subs[i]
		delete(n.wanted, k)
		n.local.wakeTopic(k)
	}
	if missed {
		n.caughtUp = now
		n.local.wakeAll()
	}
}
