package sqlite

import (
	"errors"
	"fmt"
	"strings"
	"unsafe"

	"github.com/perdure/perdure/internal/server/store/scan"
	"modernc.org/libc"
	sqlite3 "modernc.org/sqlite/lib"
)

// A conn is a connection to SQLite, through the functions of its C interface, which
// modernc.org/sqlite/lib has in Go. The driver of that module for database/sql is not used: a
// statement of a batch takes as long in the driver and in database/sql as in SQLite itself
// (decision 062).
//
// Memory: SQLite gets addresses of Go values as numbers, and a number neither keeps a value alive
// nor follows it when a stack grows. So every value whose address is passed is stored in text or
// args first, which puts it on the heap, where it stays in place. Values that SQLite returns
// are copied before the next call.
type conn struct {
	tls *libc.TLS
	db  uintptr // the handle of the connection

	text []byte // a name or statement that SQLite reads
	args []any  // the arguments of the statement that is being executed

	// out and tail are written by sqlite3_open_v2 and sqlite3_prepare_v3.
	out, tail uintptr
}

func init() { sqlite3.PatchIssue199() } // as the driver does: initialises what SQLite needs of libc

// connect opens a database by its address, a URI.
func connect(address string) (*conn, error) {
	c := &conn{tls: libc.NewTLS()}
	c.text = append([]byte(address), 0)
	rc := sqlite3.Xsqlite3_open_v2(c.tls, addressOf(c.text), uintptr(unsafe.Pointer(&c.out)),
		sqlite3.SQLITE_OPEN_READWRITE|
			sqlite3.SQLITE_OPEN_CREATE|sqlite3.SQLITE_OPEN_NOMUTEX|sqlite3.SQLITE_OPEN_URI, 0)
	c.db, c.text = c.out, nil
	if rc == sqlite3.SQLITE_OK {
		rc = sqlite3.Xsqlite3_extended_result_codes(c.tls, c.db, 1)
	}
	if rc != sqlite3.SQLITE_OK {
		err := c.fail(rc) // a failed open gives a handle too, with the reason
		return nil, errors.Join(err, c.close())
	}
	return c, nil
}

// copyLogOnClose sets whether the last connection of a database that is closed copies the write-ahead
// log into the database and removes it.
func (c *conn) copyLogOnClose(on bool) error {
	not := int32(1)
	if on {
		not = 0
	}
	const size = 16 // two arguments
	p := c.tls.Alloc(size)
	defer c.tls.Free(size)
	rc := sqlite3.Xsqlite3_db_config(c.tls, c.db, sqlite3.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE,
		libc.VaList(p, not, uintptr(0)))
	if rc != sqlite3.SQLITE_OK {
		return c.fail(rc)
	}
	return nil
}

// close ends the connection. Its statements are finalized before.
func (c *conn) close() (err error) {
	if c.db != 0 {
		if rc := sqlite3.Xsqlite3_close_v2(c.tls, c.db); rc != sqlite3.SQLITE_OK {
			err = c.fail(rc)
		}
	}
	c.tls.Close()
	return err
}

// fail makes an error of a code.
func (c *conn) fail(rc int32) error {
	text := libc.GoString(sqlite3.Xsqlite3_errstr(c.tls, rc))
	if c.db != 0 {
		if more := libc.GoString(sqlite3.Xsqlite3_errmsg(c.tls, c.db)); more != text {
			text += ": " + more
		}
	}
	return &Error{Code: int(rc), text: text}
}

// A stmt is a prepared statement. It is zero for a text that has only comments.
type stmt struct {
	c      *conn
	p      uintptr
	params int
}

// prepare prepares the first statement of a text, and gives the rest of the text.
func (c *conn) prepare(text string) (st stmt, rest string, err error) {
	c.text = []byte(text)
	begin := addressOf(c.text)
	rc := sqlite3.Xsqlite3_prepare_v3(c.tls, c.db, begin, int32(len(text)), sqlite3.SQLITE_PREPARE_PERSISTENT,
		uintptr(unsafe.Pointer(&c.out)), uintptr(unsafe.Pointer(&c.tail)))
	if rc != sqlite3.SQLITE_OK {
		return stmt{}, "", c.fail(rc)
	}
	st = stmt{c: c, p: c.out}
	if st.p != 0 {
		st.params = int(sqlite3.Xsqlite3_bind_parameter_count(c.tls, st.p))
	}
	rest = strings.TrimSpace(text[c.tail-begin:])
	c.text = nil
	return st, rest, nil
}

// finalize frees the statement.
func (st stmt) finalize() { sqlite3.Xsqlite3_finalize(st.c.tls, st.p) }

// bind sets the parameters of the statement. SQLite uses the texts and bytes in place until end.
func (st stmt) bind(args []any) error {
	if len(args) != st.params {
		return fmt.Errorf("%d arguments for %d parameters", len(args), st.params)
	}
	st.c.args = args
	for i, a := range args {
		n, rc := int32(i+1), int32(sqlite3.SQLITE_OK)
		switch v := a.(type) {
		case nil: // parameters are NULL if they are not set
		case int64:
			rc = sqlite3.Xsqlite3_bind_int64(st.c.tls, st.p, n, v)
		case float64: // only a damaged row has one
			rc = sqlite3.Xsqlite3_bind_double(st.c.tls, st.p, n, v)
		case string:
			rc = sqlite3.Xsqlite3_bind_text(st.c.tls, st.p, n, addressOfText(v), int32(len(v)), sqlite3.SQLITE_STATIC)
		case []byte:
			if v == nil {
				continue
			}
			rc = sqlite3.Xsqlite3_bind_blob(st.c.tls, st.p, n, addressOf(v), int32(len(v)), sqlite3.SQLITE_STATIC)
		default:
			return fmt.Errorf("argument %d has type %T", i+1, a)
		}
		if rc != sqlite3.SQLITE_OK {
			return st.c.fail(rc)
		}
	}
	return nil
}

// step executes the statement up to its next row. It gives false when there are no more.
func (st stmt) step() (row bool, err error) {
	switch rc := sqlite3.Xsqlite3_step(st.c.tls, st.p); rc {
	case sqlite3.SQLITE_ROW:
		return true, nil
	case sqlite3.SQLITE_DONE:
		return false, nil
	default:
		return false, st.c.fail(rc)
	}
}

// end makes the statement ready for its next execution, and releases its arguments.
func (st stmt) end() {
	sqlite3.Xsqlite3_reset(st.c.tls, st.p) // its error is that of step
	if st.params > 0 {
		sqlite3.Xsqlite3_clear_bindings(st.c.tls, st.p)
		st.c.args = nil
	}
}

// changed gives the number of rows that the last statement has changed.
func (c *conn) changed() int64 { return sqlite3.Xsqlite3_changes64(c.tls, c.db) }

// scan reads the columns of the current row.
func (st stmt) scan(dest ...any) error {
	if n := int(sqlite3.Xsqlite3_data_count(st.c.tls, st.p)); n != len(dest) {
		return fmt.Errorf("%d columns into %d places", n, len(dest))
	}
	for i, d := range dest {
		if err := st.column(int32(i), d); err != nil {
			return fmt.Errorf("column %d: %w", i+1, err)
		}
	}
	return nil
}

// column reads a column of the current row.
func (st stmt) column(i int32, dest any) error {
	c := st.c
	switch sqlite3.Xsqlite3_column_type(c.tls, st.p, i) {
	case sqlite3.SQLITE_INTEGER:
		return scan.Int(dest, sqlite3.Xsqlite3_column_int64(c.tls, st.p, i))
	case sqlite3.SQLITE_TEXT:
		p := sqlite3.Xsqlite3_column_text(c.tls, st.p, i)
		return scan.Text(dest, libc.GoBytes(p, int(sqlite3.Xsqlite3_column_bytes(c.tls, st.p, i))))
	case sqlite3.SQLITE_BLOB:
		p := sqlite3.Xsqlite3_column_blob(c.tls, st.p, i)
		return scan.Bytes(dest, libc.GoBytes(p, int(sqlite3.Xsqlite3_column_bytes(c.tls, st.p, i))))
	case sqlite3.SQLITE_FLOAT:
		return scan.Value(dest, sqlite3.Xsqlite3_column_double(c.tls, st.p, i))
	}
	return scan.Value(dest, nil)
}

// interrupt ends the statement that is being executed. It may be called from any goroutine, with a
// TLS of its own, while the connection is open.
func (c *conn) interrupt(tls *libc.TLS) { sqlite3.Xsqlite3_interrupt(tls, c.db) }

// copyTo copies all pages of the database into another one.
func (c *conn) copyTo(to *conn) error {
	c.text = []byte("main\x00")
	b := sqlite3.Xsqlite3_backup_init(to.tls, to.db, addressOf(c.text), c.db, addressOf(c.text))
	c.text = nil
	if b == 0 {
		return to.fail(sqlite3.Xsqlite3_errcode(to.tls, to.db))
	}
	step := sqlite3.Xsqlite3_backup_step(to.tls, b, -1)
	if rc := sqlite3.Xsqlite3_backup_finish(to.tls, b); rc != sqlite3.SQLITE_OK {
		return to.fail(rc)
	}
	if step != sqlite3.SQLITE_DONE {
		return fmt.Errorf("pages are left: %w", to.fail(step))
	}
	return nil
}

// nothing is what an empty text points to: with a null pointer SQLite would store NULL.
var nothing = []byte{0}

func addressOf(b []byte) uintptr {
	if len(b) == 0 {
		b = nothing
	}
	return uintptr(unsafe.Pointer(unsafe.SliceData(b)))
}

func addressOfText(s string) uintptr {
	if s == "" {
		return addressOf(nil)
	}
	return uintptr(unsafe.Pointer(unsafe.StringData(s)))
}
