package doorbell

import "testing"

func rung(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func TestOneRunWakesOneWorker(t *testing.T) {
	var l Local
	var cs []<-chan struct{}
	for range 3 {
		c, stop := l.Listen(Queue("t", "a"), Queue("t", "b"))
		defer stop()
		cs = append(cs, c)
	}
	count := func() (n int) {
		for _, c := range cs {
			if rung(c) {
				n++
			}
		}
		return n
	}
	for i, topic := range []Topic{Queue("t", "a"), Queue("t", "b"), Queue("t", "a")} {
		l.Ring(topic)
		if n := count(); n != 1 {
			t.Errorf("ring %d woke %d", i, n)
		}
	}
	l.Ring(Queue("t", "a")) // everybody has been woken and has not listened again
	l.Ring(Queue("other", "a"))
	if n := count(); n != 0 {
		t.Errorf("woke %d", n)
	}
}

func TestARunWakesEverybodyWhoListens(t *testing.T) {
	var l Local
	a, stopA := l.Listen(Run("t", "r"))
	b, stopB := l.Listen(Run("t", "r"), Run("t", "s"))
	l.Ring(Run("t", "r"))
	l.Ring(Run("t", "r")) // doubled
	if !rung(a) || !rung(b) || rung(a) {
		t.Error("each is woken, and a second ring is the same ring")
	}
	stopA()
	l.Ring(Run("t", "r"))
	if rung(a) || !rung(b) {
		t.Error("one who has stopped listening is woken")
	}
	stopB()
	stopB()
	if len(l.rooms) != 0 {
		t.Errorf("%d topics are left", len(l.rooms))
	}
}

func TestAWorkerThatGivesUpDoesNotSwallowARing(t *testing.T) {
	var l Local
	_, stop := l.Listen(Queue("t", "a"))
	b, stopB := l.Listen(Queue("t", "a"))
	defer stopB()
	stop()
	l.Ring(Queue("t", "a"))
	if !rung(b) {
		t.Error("the ring is lost")
	}
}
