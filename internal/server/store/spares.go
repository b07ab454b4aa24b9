package store

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/perdure/perdure/internal/server/store/sqlite"
)

// Databases in memory are used again: a store that is closed empties its own, and the next store begins
// with it. Tests open thousands of them, and half of what a short one cost was parsing the schema and
// the statements again, which a connection keeps.

// emptied has databases whose rows are those of the template.
type emptied struct {
	mu   sync.Mutex
	list []*sqlite.Conn
}

var spares emptied

// Limits of what is kept: the number of databases, and the pages of one.
const (
	mostSpares     = 4
	mostSparePages = 2000
)

// ownMemory gives a database in memory for one store.
func ownMemory() (*Memory, error) {
	spares.mu.Lock()
	if n := len(spares.list); n > 0 {
		sess := spares.list[n-1]
		spares.list = spares.list[:n-1]
		spares.mu.Unlock()
		return &Memory{sess}, nil
	}
	spares.mu.Unlock()
	return NewMemory()
}

// reused is the session of a database that is emptied and kept when it is closed.
type reused struct{ *sqlite.Conn }

func (r reused) Close() error {
	sess := r.Conn.Renew()
	if sess == nil {
		return nil
	}
	if err := reuse(sess); err != nil {
		return sess.Close() // its tables are not those of the template, or it has grown large
	}
	spares.mu.Lock()
	if len(spares.list) < mostSpares {
		spares.list = append(spares.list, sess)
		sess = nil
	}
	spares.mu.Unlock()
	if sess == nil {
		return nil
	}
	return sess.Close()
}

// A reset makes a database what the template is.
type reset struct {
	schema     int64    // number of the schema, which rises with its changes
	statements []string // delete all rows, and insert those of the template
}

var templateReset = sync.OnceValues(func() (reset, error) {
	m, err := NewMemory()
	if err != nil {
		return reset{}, err
	}
	defer m.Close()
	if err := begin(m.sess); err != nil {
		return reset{}, err
	}
	return readReset(m.sess)
})

// readReset makes the reset that leads back to the present rows.
func readReset(sess *sqlite.Conn) (r reset, err error) {
	if r.schema, err = readNumber(sess, "PRAGMA schema_version"); err != nil {
		return r, err
	}
	tables, err := readTexts(sess, "SELECT name FROM sqlite_master WHERE type='table'")
	if err != nil {
		return r, err
	}
	for _, table := range tables {
		if strings.HasPrefix(table, "sqlite_") {
			return r, fmt.Errorf("%s can't be reset", table)
		}
		columns, err := readTexts(sess, "SELECT 'quote('||name||')' FROM pragma_table_info('"+table+"')")
		if err != nil {
			return r, err
		}
		rows, err := readTexts(sess, "SELECT "+strings.Join(columns, "||','||")+" FROM "+table)
		if err != nil {
			return r, err
		}
		r.statements = append(r.statements, "DELETE FROM "+table)
		for _, row := range rows {
			r.statements = append(r.statements, "INSERT INTO "+table+" VALUES("+row+")")
		}
	}
	return r, nil
}

// reuse makes a database what the template is. It refuses one whose tables have changed, and a large one.
func reuse(sess *sqlite.Conn) error {
	r, err := templateReset()
	if err != nil {
		return err
	}
	if err := sess.Begin(); err != nil {
		return err // a transaction is open
	}
	schema, err := readNumber(sess, "PRAGMA schema_version")
	pages, err2 := readNumber(sess, "PRAGMA page_count")
	if err = errors.Join(err, err2); err == nil && (schema != r.schema || pages > mostSparePages) {
		err = errors.New("not the template's tables, or many pages")
	}
	for _, text := range r.statements {
		if err == nil {
			_, err = sess.Exec(text, nil)
		}
	}
	return errors.Join(err, sess.Commit())
}

// readTexts reads a column of texts.
func readTexts(sess *sqlite.Conn, query string) (out []string, err error) {
	err = sess.Query(query, nil, func(scan func(...any) error) error {
		out = append(out, "")
		return scan(&out[len(out)-1])
	})
	return slices.Clip(out), err
}

// readNumber reads a number.
func readNumber(sess *sqlite.Conn, query string) (n int64, err error) {
	err = sess.Query(query, nil, func(scan func(...any) error) error { return scan(&n) })
	return n, err
}
