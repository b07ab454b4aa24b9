package doorbell

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

func TestAMessageIsReadAsItWasWritten(t *testing.T) {
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
				t.Fatalf("%d bytes, %+v %v", len(b), m, err)
			}
			for _, x := range m.rings {
				if rings[x.key] != x {
					t.Fatalf("%+v, not %+v", x, rings[x.key])
				}
				left--
			}
		}
		if left != 0 {
			t.Errorf("%d rings are not in a message of at most %d bytes", left, limit)
		}
	}
	if out := r.batch(nil, 0, maxMessage); out != nil {
		t.Errorf("%v: a message that says nothing", out)
	}
}

func TestHalfAMessageIsNone(t *testing.T) {
	for _, r := range []ring{{key: 2}, {key: 3, or: [3]key{4, 5, 6}, n: 500}} {
		good := appendRing(appendHeader(nil, 0, 1), r)
		var m message
		if err := m.decode(good); err != nil {
			t.Fatal(err)
		}
		if m.decode(append(good, 'x')) == nil || m.decode(append([]byte{wireVersion + 1}, good[1:]...)) == nil || m.decode(make([]byte, maxMessage+1)) == nil {
			t.Error("nonsense is taken for a message")
		}
		for n := range good {
			if n != wireHeader && m.decode(good[:n]) == nil {
				t.Errorf("%d of %d bytes are taken for a message", n, len(good))
			}
		}
	}
}

func FuzzWhatIsNoMessageIsIgnored(f *testing.F) {
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
				t.Errorf("%+v", r)
			}
		}
	})
}

func TestTheOutboxIsBoundedAndCountsRuns(t *testing.T) {
	var o outbox
	for range 3 {
		o.put(ringOf("", Queue("t", "q")))
		o.put(ringOf("", Run("t", "r")))
	}
	rings, flags := o.take()
	if q := rings[keyOf("", Queue("t", "q"))]; len(rings) != 2 || q.n != 3 || flags != 0 {
		t.Errorf("%v %d", rings, flags)
	}
	for i := range 2 * maxRings {
		o.put(ringOf("", Run("t", fmt.Sprint(i))))
	}
	if rings, flags = o.take(); len(rings) != 0 || flags != flagAll {
		t.Errorf("%d rings, flags %d: too many become one", len(rings), flags)
	}
	if rings, flags = o.take(); len(rings) != 0 || flags != 0 {
		t.Errorf("%d rings, flags %d are sent twice", len(rings), flags)
	}
}

func TestANodeThatIsAloneTellsNobody(t *testing.T) {
	p, err := newPostgres(Options{URL: "postgres://h/d"})
	if err != nil {
		t.Fatal(err)
	}
	p.Ring(Run("t", "r"))
	if len(p.out.rings) != 0 {
		t.Error("a ring waits for nobody")
	}
	if p.hear(appendHeader(nil, flagHello, p.node)) {
		t.Error("it takes itself for somebody else")
	}
	p.hear(appendHeader(nil, flagHello|flagAnswer, p.node+1))
	p.meet()
	if p.out.flags != flagAll|flagHello {
		t.Errorf("flags %d: who comes is told to look at everything, and gets an answer", p.out.flags)
	}
	p.out.take()
	p.Ring(Run("t", "r"))
	if len(p.out.rings) != 1 {
		t.Error("the other node is told nothing")
	}
}

func TestEverybodyIsNotWokenAgainAndAgain(t *testing.T) {
	t.Parallel()
	var l Local
	c, stop := l.Listen(Run("t", "r"))
	defer stop()
	l.wakeAll()
	if !rung(c) {
		t.Fatal("the first time it is at once")
	}
	for range 1000 {
		l.wakeAll()
	}
	if rung(c) {
		t.Error("the second time it is a second later")
	}
	<-c
}

func TestSecretsAreMasked(t *testing.T) {
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
		"postgres://u:p@h/d?sslmode=require&sslpassword=hunter2": "postgres://u:xxxxx@h/d?sslmode=require&sslpassword=xxxxx",
		"host=h password=hunter2":                                "xxxxx",
		"u:hunter2@h":                                            "xxxxx",
	} {
		if got := Mask(address); got != want || strings.Contains(got, "ter2") {
			t.Errorf("%s, not %s", got, want)
		}
	}
}
