package doorbell

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
)

func TestMessageRoundTrip(t *testing.T) {
	r := remote{node: 7}
	rings := make(map[key]ring)
	for i := range 5000 {
		k := key(rand.Uint64())
		rings[k] = ring{key: k, or: [3]key{key(i), 1, key(i)}, n: i % 3 * i}
		if rings[k].n == 0 {
			rings[k] = ring{key: k}
		}
	}
	for _, limit := range []int{100, notifyLimit, maxMessage} {
		left := len(rings)
		for i, b := range r.batch(rings, flagHello, limit) {
			var m message
			if err := m.decode(b); err != nil || len(b) > limit || m.node != 7 || (m.flags == flagHello) != (i == 0) {
				t.Fatalf("message %d of %d bytes (limit %d): %+v, %v", i, len(b), limit, m, err)
			}
			for _, x := range m.rings {
				if rings[x.key] != x {
					t.Fatalf("ring = %+v, want %+v", x, rings[x.key])
				}
				left--
			}
		}
		if left != 0 {
			t.Errorf("limit %d: %d rings are in no message", limit, left)
		}
	}
	if out := r.batch(nil, 0, maxMessage); out != nil {
		t.Errorf("no rings and no flags make the messages %v, want none", out)
	}
}

func TestTruncatedMessageIsInvalid(t *testing.T) {
	for _, r := range []ring{{key: 2}, {key: 3, or: [3]key{4, 5, 6}, n: 500}} {
		good := appendRing(appendHeader(nil, 0, 1), r)
		var m message
		if err := m.decode(good); err != nil {
			t.Fatal(err)
		}
		for name, b := range map[string][]byte{
			"a trailing byte": append(good, 'x'),
			"another version": append([]byte{wireVersion + 1}, good[1:]...),
			"too many bytes":  make([]byte, maxMessage+1),
		} {
			if m.decode(b) == nil {
				t.Errorf("decode accepts a message with %s", name)
			}
		}
		for n := range good {
			if n != wireHeader && m.decode(good[:n]) == nil {
				t.Errorf("decode accepts the first %d of %d bytes", n, len(good))
			}
		}
	}
}

func FuzzDecode(f *testing.F) {
	good := appendRing(appendRing(appendHeader(nil, 0, 1), ring{key: 2}), ring{key: 3, or: [3]key{4, 5, 6}, n: 5})
	f.Add(good)
	f.Add(good[:len(good)-1])
	f.Add(append(good, 'q'))
	f.Fuzz(func(t *testing.T, b []byte) {
		var m message
		if m.decode(b) != nil {
			return
		}
		for _, r := range m.rings {
			if r.n < 0 || r.n > maxCount {
				t.Errorf("decode returns the ring %+v, want n from 0 to %d", r, maxCount)
			}
		}
	})
}

func TestOutboxIsBoundedAndCountsRuns(t *testing.T) {
	var o outbox
	for range 3 {
		o.put(ringOf("", Queue("t", "q")))
		o.put(ringOf("", Run("t", "r")))
	}
	rings, flags := o.take()
	if q := rings[keyOf("", Queue("t", "q"))]; len(rings) != 2 || q.n != 3 || flags != 0 {
		t.Errorf("outbox: %v, flags %d, want two rings, the queue with 3 runs, and no flags", rings, flags)
	}
	for i := range 2 * maxRings {
		o.put(ringOf("", Run("t", fmt.Sprint(i))))
	}
	if rings, flags = o.take(); len(rings) != 0 || flags != flagAll {
		t.Errorf("after an overflow: %d rings, flags %d, want 0 and flagAll", len(rings), flags)
	}
	if rings, flags = o.take(); len(rings) != 0 || flags != 0 {
		t.Errorf("the second take: %d rings, flags %d, want nothing", len(rings), flags)
	}
}

func TestNodeWithoutPeersSendsNothing(t *testing.T) {
	p, err := newPostgres(Options{URL: "postgres://h/d"})
	if err != nil {
		t.Fatal(err)
	}
	p.Ring(Run("t", "r"))
	if len(p.out.rings) != 0 {
		t.Error("without peers a ring is in the outbox, want none")
	}
	if p.receive(appendHeader(nil, flagHello, p.node)) {
		t.Error("the node accepts its own message")
	}
	p.receive(appendHeader(nil, flagHello|flagAnswer, p.node+1))
	p.sawPeer()
	if p.out.flags != flagAll|flagHello {
		t.Errorf("flags for a new peer = %d, want flagAll and flagHello", p.out.flags)
	}
	p.out.take()
	p.Ring(Run("t", "r"))
	if len(p.out.rings) != 1 {
		t.Errorf("%d rings in the outbox for a peer, want 1", len(p.out.rings))
	}
}

func TestWakeAllIsLimitedToOncePerSecond(t *testing.T) {
	t.Parallel()
	var l Local
	c, stop := l.Listen(Run("t", "r"))
	defer stop()
	l.wakeAll()
	if !rung(c) {
		t.Fatal("the first wakeAll did not wake the listener at once")
	}
	for range 1000 {
		l.wakeAll()
	}
	if rung(c) {
		t.Error("the second wakeAll woke the listener at once, want a second later")
	}
	<-c
}

func TestMaskHidesSecrets(t *testing.T) {
	for address, want := range map[string]string{
		"":                                "",
		"none":                            "none",
		"perdure.db":                      "perdure.db",
		"nats://h:4222":                   "nats://h:4222",
		"nats://hunter2@h":                "nats://xxxxx@h",
		"nats://u:hunter2@a,tls://u:p@b":  "nats://u:xxxxx@a,tls://u:xxxxx@b",
		"nats://u:hun,ter2@h":             "xxxxx",
		"postgres://u@h/d":                "postgres://u@h/d",
		"postgres://u:hunter2@h/d":        "postgres://u:xxxxx@h/d",
		"postgres://u:hun@ter,2@h,i/d":    "postgres://u:xxxxx@h,i/d",
		"postgres://u:hun/ter#2@h/d":      "postgres://u:xxxxx@h/d",
		"postgres://u:hun?ter2@h/d":       "xxxxx",
		"postgres://h/d?password=hunter2": "postgres://h/d?password=xxxxx",
		"postgres://u:p@h/d?sslmode=require&sslpassword=hunter2": "" +
			"postgres://u:xxxxx@h/d?sslmode=require&sslpassword=xxxxx",
		"host=h password=hunter2": "xxxxx",
		"u:hunter2@h":             "xxxxx",
	} {
		if got := Mask(address); got != want || strings.Contains(got, "ter2") {
			t.Errorf("Mask(%s) = %s, want %s", address, got, want)
		}
	}
}

// The rings that a memo gives are those of their topics, also if many share a place in it.
func TestRememberedRings(t *testing.T) {
	m := new(memo)
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range 2000 {
				n := (i + g) % 300
				topic := []Topic{Queue("t", "q"), Queue("", "q").Of(fmt.Sprint(n)), Queue("t", fmt.Sprint(n)).Of("k"),
					Run("t", "*"), Run("", "*"), Run("t", fmt.Sprint("run", n)), Keys()}[i%7]
				if got, want := m.of("space", topic), ringOf("space", topic); got != want {
					t.Errorf("ring of %+v is %v, want %v", topic, got, want)
				}
			}
		})
	}
	wg.Wait()
	for i := range m {
		if r := m[i].Load(); r != nil && r.topic.Queue == "" && len(r.topic.ID) > 1 {
			t.Errorf("the ring of %+v is kept, want those of queues and of any run alone", r.topic)
		}
	}
}
