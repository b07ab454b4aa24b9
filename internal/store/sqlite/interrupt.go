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

// An interrupter ends the queries of one SQLite connection that take too long. The driver ends a query with its
// context only until the first row comes, and starts two goroutines for it. So the interrupter calls
// sqlite3_interrupt itself, from a timer that is set anew for every query. The statement that is under way then
// fails with SQLITE_INTERRUPT, and the connection can be used as before.
type interrupter struct {
	db    uintptr // the handle that sqlite3_interrupt takes
	after time.Duration

	mu    sync.Mutex
	timer *time.Timer
	until time.Time // when the query under way has to end; zero: there is none
}

// A query that is not running yet when it is interrupted does not notice: it is interrupted again after this.
const interruptAgain = 20 * time.Millisecond

// newInterrupter makes an interrupter. The driver does not give out the handle of its connection, so it is read from
// the field that holds it; the store's TestQueryThatTakesTooLongIsEnded fails if a version of the driver calls it otherwise.
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

// begin starts the time of a query, which end stops. An interrupter that is nil lets queries run.
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

// fire interrupts the query under way, if its time is over: the timer may have been set by the one before.
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
