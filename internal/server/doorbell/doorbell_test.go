package doorbell

import "testing"

// rung tells whether a listener was woken.
func rung(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func TestQueueRingWakesOneListener(t *testing.T) {
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
			t.Errorf("ring %d woke %d listeners, want 1", i, n)
		}
	}
	l.Ring(Queue("t", "a")) // all listeners were woken and have not listened again
	l.Ring(Queue("other", "a"))
	if n := count(); n != 0 {
		t.Errorf("%d listeners were woken, want none", n)
	}
}

func TestRunRingWakesAllListeners(t *testing.T) {
	var l Local
	a, stopA := l.Listen(Run("t", "r"))
	b, stopB := l.Listen(Run("t", "r"), Run("t", "s"))
	l.Ring(Run("t", "r"))
	l.Ring(Run("t", "r")) // doubled
	if !rung(a) || !rung(b) || rung(a) {
		t.Error("want both listeners woken once by two rings")
	}
	stopA()
	l.Ring(Run("t", "r"))
	if rung(a) || !rung(b) {
		t.Error("want only the listener woken that has not stopped")
	}
	stopB()
	stopB()
	if len(l.topics) != 0 {
		t.Errorf("%d topics after all have stopped, want 0", len(l.topics))
	}
}

func TestStoppedListenerTakesNoRing(t *testing.T) {
	var l Local
	_, stop := l.Listen(Queue("t", "a"))
	b, stopB := l.Listen(Queue("t", "a"))
	defer stopB()
	stop()
	l.Ring(Queue("t", "a"))
	if !rung(b) {
		t.Error("the second listener was not woken after the first has stopped")
	}
}
