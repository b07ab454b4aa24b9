package doorbell_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/perdure/perdure/internal/server/doorbell"
	"github.com/perdure/perdure/internal/testkit/eventually"
	"github.com/perdure/perdure/internal/testkit/natstest"
)

func TestNATSThatStartsLaterIsFound(t *testing.T) {
	s := natstest.Start(t, natstest.Options{})
	s.Kill()
	opt := doorbell.Options{URL: s.URL()}
	a, b := node(t, opt), node(t, opt)
	c, stop := b.Listen(doorbell.Queue("t", "q"))
	defer stop()
	a.Ring(doorbell.Queue("t", "q"))
	s.Restart()
	hears(t, a, b)
	select {
	case <-c:
	case <-time.After(eventually.Within):
		t.Error("a listener from before the connection was not woken")
	}
}

func TestRefusedConnectionIsRetried(t *testing.T) {
	s := natstest.Start(t, natstest.Options{User: "u", Password: "right"})
	var log logged
	opt := doorbell.Options{URL: strings.Replace(s.URL(), "right", "wrong", 1)}
	opt.Logger = slog.New(slog.NewTextHandler(&log, nil))
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	b, err := doorbell.Open(opt)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- b.Run(ctx) }()
	eventually.True(t, "the refusal is logged", func() bool { return strings.Contains(log.String(), "Authorization") })
	b.Ring(doorbell.Run("t", "r"))
	s.Kill()
	lenient := natstest.Start(t, natstest.Options{User: "u", Password: "wrong", Port: s.Port()})
	opt.URL = lenient.URL()
	hears(t, b, node(t, opt))
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("Run = %v, want nil", err)
	}
	text := log.String()
	if strings.Contains(text, "wrong") || strings.Count(text, "WARN") != 1 ||
		strings.Count(text, "the doorbell is there") != 1 {
		t.Errorf("log: %s\nwant one warning, one recovery and no password", text)
	}
}

// logged is a log that can be read while it is written.
type logged struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func TestFrozenNATSBlocksNoCaller(t *testing.T) {
	t.Parallel()
	s := natstest.Start(t, natstest.Options{})
	opt := doorbell.Options{URL: s.URL()}
	a, b := node(t, opt), node(t, opt)
	hears(t, a, b)
	s.Freeze()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range 100_000 { // more than the buffers of sockets hold
			q := doorbell.Queue("t", fmt.Sprint(i))
			_, stop := b.Listen(q)
			a.Ring(q)
			a.Ring(doorbell.Run("t", fmt.Sprint(i)))
			stop()
		}
	}()
	select {
	case <-done:
	case <-time.After(eventually.Within):
		t.Error("Ring or Listen waits for NATS")
	}
	s.Thaw()
	<-done
	hears(t, a, b)
}

func TestOtherSpacesAreNotHeard(t *testing.T) {
	s := natstest.Start(t, natstest.Options{})
	one := doorbell.Options{URL: s.URL(), Space: "one"}
	a, b := node(t, one), node(t, one)
	other := node(t, doorbell.Options{URL: s.URL(), Space: "two"})
	hears(t, a, b)
	hears(t, b, a)
	settled(t, other)
	c, stop := other.Listen(doorbell.Run("t", "heard"))
	defer stop()
	hears(t, a, b)
	if got := other.Stats().Received; got != 0 || len(c) != 0 {
		t.Errorf("%d messages and %d wake-ups from another space, want none", got, len(c))
	}
}

func TestGroupsWithoutListenersAreLeft(t *testing.T) {
	s := natstest.Start(t, natstest.Options{})
	b := node(t, doorbell.Options{URL: s.URL()})
	_, stop := b.Listen(doorbell.Queue("t", "a"))
	_, stay := b.Listen(doorbell.Queue("t", "b"))
	defer stay()
	settled(t, b)
	if n := doorbell.Groups(b); n != 2 {
		t.Fatalf("in %d groups, want 2", n)
	}
	stop()
	_, again := b.Listen(doorbell.Queue("t", "b")) // the first listener was woken by the join
	defer again()
	doorbell.Tidy(b)
	if n := doorbell.Groups(b); n != 1 {
		t.Errorf("in %d groups, want 1", n)
	}
}

// A node without idle listeners leaves a queue's group. Rings that are already on their way to it
// are passed on as well.
func TestRingsAfterLeavingAGroupArePassedOn(t *testing.T) {
	s := natstest.Start(t, natstest.Options{})
	opt := doorbell.Options{URL: s.URL()}
	a, b := node(t, opt), node(t, opt)
	conn, err := nats.Connect(s.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for round := range 50 {
		q := doorbell.Queue("t", fmt.Sprint("passed-", round))
		var idle []<-chan struct{}
		listen := func(b doorbell.Bell, n int) {
			first, stop := b.Listen(q) // the first listener is woken by the join
			t.Cleanup(stop)
			<-first
			for range n {
				c, stop := b.Listen(q)
				t.Cleanup(stop)
				idle = append(idle, c)
			}
			settled(t, b)
		}
		listen(a, 30)
		listen(b, 70)
		subject, ring := doorbell.QueueMessage(a, q)
		for range idle {
			if err := conn.Publish(subject, ring); err != nil {
				t.Fatal(err)
			}
		}
		for i, c := range idle {
			select {
			case <-c:
			case <-time.After(eventually.Within):
				t.Fatalf("round %d: listener %d of 100 was not woken by 100 rings", round, i)
			}
		}
	}
}

func settled(t testing.TB, b doorbell.Bell) {
	t.Helper()
	eventually.True(t, "the bell is quiet", func() bool { return doorbell.Quiet(b) })
}
