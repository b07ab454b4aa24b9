package doorbell

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/perdure/perdure/internal/wire/timer"
)

// Postgres is a bell between the nodes on one PostgreSQL, by LISTEN and NOTIFY. Every node gets
// every ring. A ring of a queue without a local listener therefore wakes one listener on each other
// node: one finds the run, the others nothing. NATS avoids that, and the load on the database.
//
// One connection listens and one notifies. Neither takes part in a transaction of the store.
type Postgres struct {
	remote
	config  *pgconn.Config
	channel string
	buf     []byte // the decoded notification

	heard    atomic.Int64 // when a message of another node last arrived
	hasPeers atomic.Bool  // there is another node; without one, nothing is sent
}

const (
	// notifyLimit is the size of a message before base64. PostgreSQL accepts less than 8000
	// characters.
	notifyLimit = 7800 / 4 * 3

	helloEvery = 5 * time.Second  // interval of a node's flagHello
	goneAfter  = 15 * time.Second // without a message for this long, there are no other nodes
	idleCheck  = 15 * time.Second // a silent connection is pinged after this
)

// pgConfig parses an address and sets the parameters of the doorbell's connections.
func pgConfig(address string) (*pgconn.Config, error) {
	c, err := pgconn.ParseConfig(address)
	if err != nil {
		// The error of pgx is left out: it may quote a part of the password that it took for a
		// port.
		return nil, fmt.Errorf("%s is not an address such as postgres://user@host:5432/database", Mask(address))
	}
	for name := range c.RuntimeParams {
		if strings.HasPrefix(name, "pool_") { // settings of a pgx pool with the same address
			delete(c.RuntimeParams, name)
		}
	}
	if c.ConnectTimeout == 0 {
		c.ConnectTimeout = stepTimeout
	}
	c.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsReadWrite // NOTIFY fails on a standby
	c.RuntimeParams["application_name"] = "perdure doorbell"
	// A ring need not be durable, so NOTIFY does not wait for the disk.
	c.RuntimeParams["synchronous_commit"] = "off"
	return c, nil
}

func newPostgres(opt Options) (*Postgres, error) {
	c, err := pgConfig(opt.URL)
	if err != nil {
		return nil, err
	}
	if opt.Admit != nil {
		c.ValidateConnect = opt.Admit
	}
	p := &Postgres{config: c}
	p.init(opt)
	p.channel = "perdure_" + p.name
	c.OnNotification = func(_ *pgconn.PgConn, n *pgconn.Notification) { p.notified(n.Payload) }
	return p, nil
}

// Ring wakes local listeners, and listeners of other nodes if there are none for a queue here.
func (p *Postgres) Ring(t Topic) {
	r := p.local.rings.of(p.local.space, t)
	if p.local.wake(r) == 0 && p.hasPeers.Load() {
		p.out.put(r)
	}
}

// Run listens and notifies until the context ends.
func (p *Postgres) Run(ctx context.Context) error {
	o := newOutage(p.opt)
	defer o.close()
	var wg sync.WaitGroup
	wg.Go(func() { p.keepConnected(ctx, o, "listen", p.listen) })
	wg.Go(func() { p.keepConnected(ctx, o, "notify", p.notify) })
	wg.Wait()
	return nil
}

// keepConnected calls talk with a connection, and again with a new one whenever it fails. talk
// calls its last argument when the connection works.
func (p *Postgres) keepConnected(ctx context.Context, o *outage, use string,
	talk func(context.Context, *pgconn.PgConn, func()) error) {
	for n := 0; ctx.Err() == nil; n++ {
		conn, err := pgconn.ConnectConfig(ctx, p.config)
		if err == nil {
			err = talk(ctx, conn, func() {
				n = 0
				p.connects.Add(1)
				o.ends(use)
			})
			closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
			_ = conn.Close(closing)
			cancel()
		}
		if ctx.Err() != nil {
			return
		}
		o.begins(use, err)
		timer.Sleep(ctx, pause(n))
	}
}

// current refuses a connection to a server that was replaced.
func (p *Postgres) current(conn *pgconn.PgConn) error {
	if p.opt.Current != nil && !p.opt.Current(conn) {
		return errReplaced
	}
	return nil
}

var errReplaced = errors.New("another server has taken the place of this one")

// listen receives notifications until the connection breaks.
func (p *Postgres) listen(ctx context.Context, conn *pgconn.PgConn, up func()) error {
	if err := conn.Exec(ctx, "LISTEN "+p.channel).Close(); err != nil {
		return err
	}
	up()
	p.connected.Store(true)
	defer p.connected.Store(false)
	p.local.wakeAll() // rings from before the LISTEN were missed
	p.out.mark(flagHello | flagAnswer)
	for {
		waiting, cancel := context.WithTimeout(ctx, idleCheck)
		err := conn.WaitForNotification(waiting)
		cancel()
		if errors.Is(err, context.DeadlineExceeded) {
			asking, cancel := context.WithTimeout(ctx, stepTimeout)
			err = conn.Ping(asking)
			cancel()
		}
		if err == nil {
			err = p.current(conn)
		}
		if err != nil {
			return err
		}
	}
}

// notified handles a notification.
func (p *Postgres) notified(text string) {
	var err error
	if p.buf, err = base64.RawStdEncoding.AppendDecode(p.buf[:0], []byte(text)); err != nil {
		p.invalid.Add(1)
		return
	}
	if p.receive(p.buf) {
		p.sawPeer()
	}
}

// sawPeer records that there is another node.
func (p *Postgres) sawPeer() {
	p.heard.Store(time.Now().UnixNano())
	if !p.hasPeers.Swap(true) {
		p.out.mark(flagAll) // nothing was sent to it so far
	}
	if p.last.flags&flagAnswer != 0 {
		p.out.mark(flagHello)
	}
}

// notify sends the rings of the outbox until the connection breaks. Rings that arrive during a send
// go into the next batch.
func (p *Postgres) notify(ctx context.Context, conn *pgconn.PgConn, up func()) error {
	hello := time.NewTicker(helloEvery)
	defer hello.Stop()
	up()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-hello.C:
			if time.Since(time.Unix(0, p.heard.Load())) > goneAfter {
				p.hasPeers.Store(false)
			}
			p.out.mark(flagHello)
			continue
		case <-p.out.waiting():
		}
		rings, flags := p.out.take()
		var texts []string
		for _, b := range p.batch(rings, flags, notifyLimit) {
			texts = append(texts, base64.RawStdEncoding.EncodeToString(b))
		}
		if len(texts) == 0 {
			continue
		}
		if err := p.current(conn); err != nil {
			p.out.mark(flagAll | flagHello | flagAnswer)
			return err
		}
		sending, cancel := context.WithTimeout(ctx, stepTimeout)
		_, err := conn.ExecParams(sending, "SELECT pg_notify($1, x) FROM unnest($2::text[]) AS x",
			[][]byte{[]byte(p.channel), []byte("{" + strings.Join(texts, ",") + "}")}, nil, nil, nil).Close()
		cancel()
		if err != nil {
			p.lost.Add(int64(len(texts)))
			p.out.mark(flagAll | flagHello | flagAnswer) // sent on the next connection
			return err
		}
		p.sent.Add(int64(len(texts)))
		if !timer.Sleep(ctx, sendPause) {
			return ctx.Err()
		}
	}
}
