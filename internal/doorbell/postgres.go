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
)

// Postgres is a bell between the nodes on one PostgreSQL, by LISTEN and NOTIFY. Every node hears every ring,
// so a ring of a queue that nobody waits for where it rang wakes one listener on each of the others: one
// finds the run, the others nothing. NATS does better, and spares the database.
//
// One connection listens and one notifies. Neither takes part in anybody's transaction.
type Postgres struct {
	remote
	config  *pgconn.Config
	channel string
	buf     []byte // what a notification says

	heard   atomic.Int64 // when another node was last heard of
	company atomic.Bool  // whether there is another node: one that is alone tells nobody
}

const (
	notifyLimit = 7800 / 4 * 3 // bytes of a message before base64; PostgreSQL takes less than 8000 characters

	helloEvery = 5 * time.Second  // how often a node says that it is there
	goneAfter  = 15 * time.Second // without a word a node counts as gone
	idleCheck  = 15 * time.Second // how often a silent connection is asked whether it lives
)

func pgConfig(address string) (*pgconn.Config, error) {
	c, err := pgconn.ParseConfig(address)
	if err != nil {
		// Not with what pgx says: it may quote what it took for a port and is a piece of a password.
		return nil, fmt.Errorf("%s is not an address such as postgres://user@host:5432/database", Mask(address))
	}
	for name := range c.RuntimeParams {
		if strings.HasPrefix(name, "pool_") { // of a pool on the same address
			delete(c.RuntimeParams, name)
		}
	}
	if c.ConnectTimeout == 0 {
		c.ConnectTimeout = patience
	}
	c.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsReadWrite // a standby carries no rings
	c.RuntimeParams["application_name"] = "perdure doorbell"
	// A ring is never truth, so nobody waits for a disk because of it.
	c.RuntimeParams["synchronous_commit"] = "off"
	return c, nil
}

func newPostgres(opt Options) (*Postgres, error) {
	c, err := pgConfig(opt.URL)
	if err != nil {
		return nil, err
	}
	p := &Postgres{config: c}
	p.init(opt)
	p.channel = "perdure_" + p.name
	c.OnNotification = func(_ *pgconn.PgConn, n *pgconn.Notification) { p.notified(n.Payload) }
	return p, nil
}

// Ring wakes whoever listens.
func (p *Postgres) Ring(t Topic) {
	r := ringOf(p.local.space, t)
	if p.local.wake(r) == 0 && p.company.Load() {
		p.out.put(r)
	}
}

// Run listens and notifies until the context ends.
func (p *Postgres) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	wg.Go(func() { p.persist(ctx, p.listen) })
	wg.Go(func() { p.persist(ctx, p.notify) })
	wg.Wait()
	return nil
}

// persist gives a conversation a connection, and another one whenever it breaks off.
func (p *Postgres) persist(ctx context.Context, talk func(context.Context, *pgconn.PgConn, func()) error) {
	var o outage
	for n := 0; ctx.Err() == nil; n++ {
		conn, err := pgconn.ConnectConfig(ctx, p.config)
		if err == nil {
			err = talk(ctx, conn, func() {
				n = 0
				p.connects.Add(1)
				o.ends(p.opt.Logger, p.opt.URL)
			})
			closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
			_ = conn.Close(closing)
			cancel()
		}
		if ctx.Err() != nil {
			return
		}
		o.begins(p.opt.Logger, p.opt.URL, err)
		sleep(ctx, pause(n))
	}
}

// listen hears what others say until the connection breaks.
func (p *Postgres) listen(ctx context.Context, conn *pgconn.PgConn, up func()) error {
	if err := conn.Exec(ctx, "LISTEN "+p.channel).Close(); err != nil {
		return err
	}
	up()
	p.connected.Store(true)
	defer p.connected.Store(false)
	p.local.wakeAll() // what rang before can't be heard any more
	p.out.mark(flagHello | flagAnswer)
	for {
		waiting, cancel := context.WithTimeout(ctx, idleCheck)
		err := conn.WaitForNotification(waiting)
		cancel()
		if errors.Is(err, context.DeadlineExceeded) {
			asking, cancel := context.WithTimeout(ctx, patience)
			err = conn.Ping(asking)
			cancel()
		}
		if err != nil {
			return err
		}
	}
}

// notified reads what somebody has said.
func (p *Postgres) notified(text string) {
	var err error
	if p.buf, err = base64.RawStdEncoding.AppendDecode(p.buf[:0], []byte(text)); err != nil {
		p.nonsense.Add(1)
		return
	}
	if p.hear(p.buf) {
		p.meet()
	}
}

// meet notes that there is another node.
func (p *Postgres) meet() {
	p.heard.Store(time.Now().UnixNano())
	if !p.company.Swap(true) {
		p.out.mark(flagAll) // it was told nothing so far
	}
	if p.last.flags&flagAnswer != 0 {
		p.out.mark(flagHello)
	}
}

// notify sends what has gathered until the connection breaks. While one send is under way the next gathers.
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
				p.company.Store(false)
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
		sending, cancel := context.WithTimeout(ctx, patience)
		_, err := conn.ExecParams(sending, "SELECT pg_notify($1, x) FROM unnest($2::text[]) AS x",
			[][]byte{[]byte(p.channel), []byte("{" + strings.Join(texts, ",") + "}")}, nil, nil, nil).Close()
		cancel()
		if err != nil {
			p.lost.Add(int64(len(texts)))
			p.out.mark(flagAll | flagHello | flagAnswer) // to be sent on the next connection
			return err
		}
		p.sent.Add(int64(len(texts)))
		if !sleep(ctx, breath) {
			return ctx.Err()
		}
	}
}
