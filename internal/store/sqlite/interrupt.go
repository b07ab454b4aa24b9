package sqlite

import (
	"database/sql"
	"errors"
	"reflect"
	"sync"
	"time"

	"modernc.org/libc"
	sqlite3 "modernc.org/sqlite/lib"
)

// An interrupter ends queries of one SQLite connection that take too long. The driver's own
// cancellation works only until the first row, and starts two goroutines per query. So the
// interrupter calls sqlite3_interrupt itself, from a timer that is reset for every query. The
// statement then fails with SQLITE_INTERRUPT, and the connection stays usable.
type interrupter struct {
	db    uintptr // the handle that sqlite3_interrupt takes
	after time.Duration

	mu    sync.Mutex
	timer *time.Timer
	until time.Time // when the current query has to end; zero: there is none
}

// interruptAgain is the pause between two interrupts. A query that has not started when it is
// interrupted does not notice.
const interruptAgain = 20 * time.Millisecond

// newInterrupter creates an interrupter. The driver does not export its connection's handle, so
// that it is read from a private field. The store's TestQueryThatTakesTooLongIsEnded fails if a new
// version of the driver renames that field.
func newInterrupter(conn *sql.Conn, after time.Duration) (*interrupter, error) {
	i := &interrupter{after: after}
	err := conn.Raw(func(driver any) error {
		v := reflect.Indirect(reflect.ValueOf(driver))
		if v.Kind() == reflect.Struct {
			if db := v.FieldByName("db"); db.Kind() == reflect.Uintptr {
				i.db = uintptr(db.Uint())
			}
		}
		if i.db == 0 {
			return errors.New("the driver of SQLite does not show its handle: queries can't be given a deadline")
		}
		return nil
	})
	return i, err
}

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
	i.timer.Stop()
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
	sqlite3.Xsqlite3_interrupt(tls, i.db)
	i.timer.Reset(interruptAgain)
}
