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
)

// NATS is a bell between nodes by core NATS: no stream, nothing stored.
//
// Rings of runs go to all nodes, many in one message. A ring of a queue goes to one node that has an idle
// listener for it: nodes that have one share the queue's subject as a group, of which NATS picks a member.
// A member that has nobody idle when a ring comes leaves the group and passes the ring on to who is left.
// Whoever waits for a queue of any tenant, or for any kind, has a subject of his own, so where workers of a
// tenant and of the platform, of this kind and of all, wait for the same queue elsewhere, one of each is woken.
type NATS struct {
	remote
	prefix string
	inbox  chan *nats.Msg

	mu     sync.Mutex
	joined map[key]*nats.Subscription // groups that this node is in, for sure
	wanted map[key]struct{}           // groups that it should be in
	caught int64                      // the connection since which nothing was missed, by number
	change chan struct{}              // signalled when there is a group to join, or a new connection
}

const (
	group = "perdure"

	inboxSize = 4096 // messages that wait to be read; more are lost
	maxHops   = 16   // how often a ring is passed on

	// settle is how long a listener stays before its node joins a group for it. Whoever finds something to do
	// at once is not worth it.
	settle = 2 * time.Millisecond

	// tidyEvery is how often groups are left that nobody has listened for since.
	tidyEvery = 10 * time.Second
)

func newNATS(opt Options) *NATS {
	n := &NATS{inbox: make(chan *nats.Msg, inboxSize), joined: make(map[key]*nats.Subscription), wanted: make(map[key]struct{}), change: make(chan struct{}, 1)}
	n.init(opt)
	n.prefix = "perdure." + n.name
	return n
}

func (n *NATS) everybody() string { return n.prefix + ".all" }

func (n *NATS) subject(k key) string { return fmt.Sprintf("%s.q.%016x", n.prefix, uint64(k)) }

// Ring wakes whoever listens.
func (n *NATS) Ring(t Topic) {
	r := ringOf(n.local.space, t)
	if n.local.wake(r) == 0 {
		n.out.put(r)
	}
}

// Listen listens. The first listener of a queue is woken once for nothing, when this node has joined the
// queue's group: whatever rang before that went elsewhere, so he has to look again.
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

// Run connects, and carries rings until the context ends. It does not fail because NATS is away.
func (n *NATS) Run(ctx context.Context) error {
	conn, err := n.connect()
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

func (n *NATS) connect() (*nats.Conn, error) {
	var o outage
	log, address := n.opt.Logger, n.opt.URL
	up := func(*nats.Conn) {
		n.connects.Add(1)
		n.connected.Store(true)
		o.ends(log, address)
		n.changed()
		n.out.signal()
	}
	down := func(_ *nats.Conn, err error) {
		n.connected.Store(false)
		if err == nil {
			err = nats.ErrDisconnected
		}
		o.begins(log, address, err)
	}
	return nats.Connect(address,
		nats.Name("perdure"), nats.NoEcho(),
		nats.RetryOnFailedConnect(true), nats.MaxReconnects(-1), nats.IgnoreAuthErrorAbort(), nats.CustomReconnectDelay(pause),
		nats.ReconnectBufSize(-1), // a ring that is late is worth nothing
		nats.Timeout(2*time.Second), nats.PingInterval(10*time.Second), nats.FlusherTimeout(patience), nats.ReconnectOnFlusherError(),
		nats.ConnectHandler(up), nats.ReconnectHandler(up), nats.DisconnectErrHandler(down), nats.ReconnectErrHandler(down),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			switch {
			case errors.Is(err, nats.ErrSlowConsumer):
				n.lost.Add(1)
			case !n.connected.Load(): // it won't have us; that is tried again
				o.begins(log, address, err)
			default:
				log.Warn("the doorbell complains", "doorbell", Mask(address), "error", err)
			}
		}), nats.NoCallbacksAfterClientClose())
}

// send publishes what has gathered; what gathers while NATS is away stays until it is there.
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
		if !sleep(ctx, breath) {
			return
		}
	}
}

func (n *NATS) ringQueue(conn *nats.Conn, k key, count int, hops byte) {
	n.publish(conn, n.subject(k), binary.AppendUvarint([]byte{wireVersion, hops}, uint64(min(count, maxCount))))
}

func (n *NATS) publish(conn *nats.Conn, subject string, b []byte) {
	if err := conn.Publish(subject, b); err != nil {
		n.lost.Add(1)
		n.out.mark(flagAll)
		return
	}
	n.sent.Add(1)
}

// read wakes listeners for what others rang.
func (n *NATS) read(ctx context.Context, conn *nats.Conn) {
	for {
		select {
		case <-ctx.Done():
			return
		case m := <-n.inbox:
			if m.Subject == n.everybody() {
				n.hear(m.Data)
			} else {
				n.hearQueue(conn, m)
			}
		}
	}
}

func (n *NATS) hearQueue(conn *nats.Conn, m *nats.Msg) {
	id, err := strconv.ParseUint(strings.TrimPrefix(m.Subject, n.prefix+".q."), 16, 64)
	if err != nil || len(m.Data) < 3 || m.Data[0] != wireVersion {
		n.nonsense.Add(1)
		return
	}
	count, size := binary.Uvarint(m.Data[2:])
	if size != len(m.Data)-2 || count == 0 || count > maxCount {
		n.nonsense.Add(1)
		return
	}
	n.received.Add(1)
	k, hops := key(id), m.Data[1]
	left := int(count) - n.local.wake(ring{key: k, n: int(count)})
	if left == 0 {
		return
	}
	n.leaveGroup(k) // before it is passed on, so that it doesn't come back
	if hops < maxHops {
		n.ringQueue(conn, k, left, hops+1)
	}
}

// leaveGroup leaves the group of a queue unless somebody listens for it. What is on its way to this node by then
// still comes, and is passed on. Nothing of NATS is called with the lock held: it may take its time, and Listen
// must not.
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
		_ = sub.Unsubscribe() // nothing is on its way, and a new connection must not take it up again
	}
}

// join keeps this node in the groups of the queues that somebody here listens for.
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
			if !sleep(ctx, settle) {
				return
			}
			n.joinGroups(ctx, conn)
		}
	}
}

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

// joinGroups joins what is wanted, and has everybody look who could not be reached before.
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
	missed := now != n.caught
	n.mu.Unlock()
	if len(keys) == 0 && !missed {
		return
	}
	subs := make([]*nats.Subscription, len(keys))
	for i, k := range keys {
		var err error
		if subs[i], err = conn.ChanQueueSubscribe(n.subject(k), group, n.inbox); err != nil {
			return // closed
		}
	}
	if n.connected.Load() {
		waiting, cancel := context.WithTimeout(ctx, patience)
		_ = conn.FlushWithContext(waiting) // if this fails, a new connection makes good for it
		cancel()
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for i, k := range keys {
		n.joined[k] = subs[i]
		delete(n.wanted, k)
		n.local.wakeRoom(k)
	}
	if missed {
		n.caught = now
		n.local.wakeAll()
	}
}
