package sqlite

import (
	"sync"
	"time"

	"modernc.org/libc"
)

// An interrupter ends queries of one connection that take too long, from a timer that is reset for
// every query. The statement then fails with SQLITE_INTERRUPT, and the connection stays usable.
type interrupter struct {
	conn  *conn
	after time.Duration

	mu    sync.Mutex
	timer *time.Timer
	until time.Time // when the current query has to end; zero: there is none
}

// interruptAgain is the pause between two interrupts. A query that has not started when it is
// interrupted does not notice.
const interruptAgain = 20 * time.Millisecond

// begin starts the time of a query, and end stops it. A nil interrupter does nothing.
func (i *interrupter) begin() {
	if i == nil {
		return
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.until = time.Now().Add(i.after)
	if i.timer == nil {
		i.timer = time.AfterFunc(i.after, i.fire)
	} else {
		i.timer.Reset(i.after)
	}
}

func (i *interrupter) end() {
	if i == nil {
		return
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.until = time.Time{}
	if i.timer != nil {
		i.timer.Stop()
	}
}

// fire interrupts the current query if its time is over. The timer may be that of the query before.
func (i *interrupter) fire() {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.until.IsZero() || time.Now().Before(i.until) {
		return
	}
	tls := libc.NewTLS()
	defer tls.Close()
	i.conn.interrupt(tls)
	i.timer.Reset(interruptAgain)
}
