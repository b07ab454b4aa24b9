package doorbell_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"

	"github.com/perdure/perdure/internal/server/doorbell"
	"github.com/perdure/perdure/internal/testkit/belltest"
	"github.com/perdure/perdure/internal/testkit/eventually"
	"github.com/perdure/perdure/internal/testkit/natstest"
	"github.com/perdure/perdure/internal/testkit/pgtest"
)

func TestLocalConforms(t *testing.T) {
	var l doorbell.Local
	belltest.Conform(t, belltest.Medium{Nodes: [3]doorbell.Bell{&l, &l, &l}, Quiet: doorbell.Quiet})
}

func TestNATSConforms(t *testing.T) {
	t.Parallel()
	s := natstest.Start(t, natstest.Options{User: "perdure", Password: "p.w d/é"})
	m := belltest.Medium{Quiet: doorbell.Quiet, Stop: s.Kill, Start: s.Restart}
	m.Tap = func(t testing.TB) belltest.Tap { return tapNATS(t, s.URL()) }
	for i := range m.Nodes {
		m.Nodes[i] = node(t, doorbell.Options{URL: s.URL(), Space: "conformance"})
	}
	belltest.Conform(t, m)
}

func TestPostgresConforms(t *testing.T) {
	t.Parallel()
	url := pgtest.New(t)
	m := belltest.Medium{PerNode: true, Quiet: doorbell.Quiet}
	m.Stop, m.Start = outOfReach(t, url)
	for i := range m.Nodes {
		m.Nodes[i] = node(t, doorbell.Options{URL: url, Space: "conformance"})
	}
	m.Tap = func(t testing.TB) belltest.Tap { return tapPostgres(t, url, doorbell.Channel(m.Nodes[0])) }
	belltest.Conform(t, m)
}

// outOfReach returns a function that ends all connections to a database and refuses new ones, and a
// function that allows them again.
func outOfReach(t testing.TB, address string) (stop, start func()) {
	t.Helper()
	config, err := pgx.ParseConfig(address)
	if err != nil {
		t.Fatal(err)
	}
	name := config.Database
	config.Database = "postgres"
	do := func(sql string) {
		t.Helper()
		ctx := context.Background()
		conn, err := pgx.ConnectConfig(ctx, config)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close(ctx)
		if _, err := conn.Exec(ctx, sql); err != nil {
			t.Fatal(err)
		}
	}
	return func() {
			do("ALTER DATABASE " + name + " ALLOW_CONNECTIONS false")
			do("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname='" + name + "'")
		}, func() {
			do("ALTER DATABASE " + name + " ALLOW_CONNECTIONS true")
		}
}

func TestPostgresBellReconnectsAfterCrash(t *testing.T) {
	t.Parallel()
	c, err := pgtest.Start(pgtest.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Stop(); err != nil {
			t.Errorf("stop PostgreSQL: %v", err)
		}
	})
	opt := doorbell.Options{URL: c.URL("postgres")}
	a, b := node(t, opt), node(t, opt)
	for _, mode := range []pgtest.Mode{pgtest.Fast, pgtest.Kill} {
		hears(t, a, b)
		if err := c.Restart(mode); err != nil {
			t.Fatal(err)
		}
	}
	hears(t, a, b)
	hears(t, b, a)
}

func TestListenersAreWokenAfterReconnect(t *testing.T) {
	t.Parallel()
	url := pgtest.New(t)
	opt := doorbell.Options{URL: url}
	a, b := node(t, opt), node(t, opt)
	hears(t, a, b)
	hears(t, b, a)
	settled(t, b)
	c, stop := b.Listen(doorbell.Run("t", "missed"))
	defer stop()
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	// Only the listening connections are ended. The notifying ones continue and do not send
	// flagAll.
	const end = `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
		WHERE datname=current_database() AND query LIKE 'LISTEN %'`
	if _, err := conn.Exec(ctx, end); err != nil {
		t.Fatal(err)
	}
	select {
	case <-c:
	case <-time.After(eventually.Within):
		t.Error("the listener was not woken after the reconnect")
	}
}

// hears waits until a ring at a wakes a listener at b.
func hears(t testing.TB, a, b doorbell.Bell) {
	t.Helper()
	settled(t, a)
	settled(t, b)
	c, stop := b.Listen(doorbell.Run("t", "heard"))
	defer stop()
	limit := time.After(eventually.Within)
	for {
		a.Ring(doorbell.Run("t", "heard"))
		select {
		case <-c:
			return
		case <-time.After(20 * time.Millisecond):
		case <-limit:
			t.Fatal("no ring of one node has reached the other within 30s")
		}
	}
}

// node runs a bell until the test ends.
func node(t testing.TB, opt doorbell.Options) doorbell.Bell {
	t.Helper()
	b, err := doorbell.Open(opt)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- b.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run of the bell = %v, want nil", err)
		}
	})
	return b
}

// A record has the messages that a tap has received.
type record struct {
	mu      sync.Mutex
	packets []belltest.Packet
}

func (r *record) add(subject string, b []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.packets = append(r.packets, belltest.Packet{Subject: subject, Data: bytes.Clone(b)})
}

func (r *record) heard() []belltest.Packet {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]belltest.Packet(nil), r.packets...)
}

func tapNATS(t testing.TB, url string) belltest.Tap {
	t.Helper()
	conn, err := nats.Connect(url, nats.NoEcho())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	var r record
	if _, err := conn.Subscribe("perdure.>", func(m *nats.Msg) { r.add(m.Subject, m.Data) }); err != nil {
		t.Fatal(err)
	}
	if err := conn.Flush(); err != nil {
		t.Fatal(err)
	}
	return belltest.Tap{Heard: r.heard, Send: func(p belltest.Packet) {
		if err := conn.Publish(p.Subject, p.Data); err != nil {
			t.Errorf("publish through the tap: %v", err)
		}
	}}
}

func tapPostgres(t testing.TB, url, channel string) belltest.Tap {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	open := func() *pgx.Conn {
		conn, err := pgx.Connect(ctx, url)
		if err != nil {
			t.Fatal(err)
		}
		return conn
	}
	in, out := open(), open()
	if _, err := in.Exec(ctx, "LISTEN "+channel); err != nil {
		t.Fatal(err)
	}
	var r record
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			n, err := in.WaitForNotification(ctx)
			if err != nil {
				return
			}
			b, err := base64.RawStdEncoding.DecodeString(n.Payload)
			if err != nil {
				continue // sent by the tap itself
			}
			r.add("", b)
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-done
		in.Close(context.Background())
		out.Close(context.Background())
	})
	return belltest.Tap{Heard: r.heard, Send: func(p belltest.Packet) {
		for _, text := range []string{base64.RawStdEncoding.EncodeToString(p.Data), "no base64!"} {
			if _, err := out.Exec(ctx, "SELECT pg_notify($1, $2)", channel, text); err != nil {
				t.Errorf("notify through the tap: %v", err)
			}
		}
	}}
}
