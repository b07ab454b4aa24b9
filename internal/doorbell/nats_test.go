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

	"github.com/perdure/perdure/internal/doorbell"
	"github.com/perdure/perdure/internal/eventually"
	"github.com/perdure/perdure/internal/natstest"
)

func TestNATSThatIsAwayAtTheStartIsFound(t *testing.T) {
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
	case <-time.After(20 * time.Second):
		t.Error("a worker who waited before NATS was there does not look")
	}
}

func TestNATSThatDoesNotLetUsInIsAskedAgain(t *testing.T) {
	s := natstest.Start(t, natstest.Options{User: "u", Password: "right"})
	var log logged
	opt := doorbell.Options{URL: strings.Replace(s.URL(), "right", "wrong", 1), Logger: slog.New(slog.NewTextHandler(&log, nil))}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	b, err := doorbell.Open(opt)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- b.Run(ctx) }()
	eventually.True(t, "something is said about it", func() bool { return strings.Contains(log.String(), "Authorization") })
	b.Ring(doorbell.Run("t", "r"))
	s.Kill()
	lenient := natstest.Start(t, natstest.Options{User: "u", Password: "wrong", Port: s.Port()})
	opt.URL = lenient.URL()
	hears(t, b, node(t, opt))
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if text := log.String(); strings.Contains(text, "wrong") || strings.Count(text, "WARN") != 1 || strings.Count(text, "the doorbell is there") != 1 {
		t.Errorf("%s", text)
	}
}

// logged is a log that is read while it is written.
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

func TestNATSThatAnswersNothingBlocksNobody(t *testing.T) {
	t.Parallel()
	s := natstest.Start(t, natstest.Options{})
	opt := doorbell.Options{URL: s.URL()}
	a, b := node(t, opt), node(t, opt)
	hears(t, a, b)
	s.Freeze()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range 100_000 { // far more than sockets and buffers hold
			q := doorbell.Queue("t", fmt.Sprint(i))
			_, stop := b.Listen(q)
			a.Ring(q)
			a.Ring(doorbell.Run("t", fmt.Sprint(i)))
			stop()
		}
	}()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		t.Error("who rings or listens waits for NATS")
	}
	s.Thaw()
	<-done
	hears(t, a, b)
}

func TestOtherSpacesAreNotHeard(t *testing.T) {
	s := natstest.Start(t, natstest.Options{})
	a, b := node(t, doorbell.Options{URL: s.URL(), Space: "one"}), node(t, doorbell.Options{URL: s.URL(), Space: "one"})
	other := node(t, doorbell.Options{URL: s.URL(), Space: "two"})
	hears(t, a, b)
	hears(t, b, a)
	settled(t, other)
	c, stop := other.Listen(doorbell.Run("t", "heard"))
	defer stop()
	hears(t, a, b)
	if got := other.Stats().Received; got != 0 || len(c) != 0 {
		t.Errorf("%d messages of another space came", got)
	}
}

func TestGroupsOfQueuesThatNobodyListensForAreLeft(t *testing.T) {
	s := natstest.Start(t, natstest.Options{})
	b := node(t, doorbell.Options{URL: s.URL()})
	_, stop := b.Listen(doorbell.Queue("t", "a"))
	_, stay := b.Listen(doorbell.Queue("t", "b"))
	defer stay()
	settled(t, b)
	if n := doorbell.Groups(b); n != 2 {
		t.Fatalf("in %d groups", n)
	}
	stop()
	_, again := b.Listen(doorbell.Queue("t", "b")) // the first was woken when its group was joined
	defer again()
	doorbell.Tidy(b)
	if n := doorbell.Groups(b); n != 1 {
		t.Errorf("in %d groups, and one is listened for", n)
	}
}

// A node that has nobody idle any more leaves the group of a queue while the next ring is on its way to it: that one
// is passed on too.
func TestNATSPassesOnWhatIsOnItsWay(t *testing.T) {
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
			first, stop := b.Listen(q) // whoever is first looks once for nothing
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
			case <-time.After(20 * time.Second):
				t.Fatalf("round %d: a hundred runs did not wake worker %d of a hundred", round, i)
			}
		}
	}
}

func settled(t testing.TB, b doorbell.Bell) {
	t.Helper()
	eventually.True(t, "the bell is quiet", func() bool { return doorbell.Quiet(b) })
}
