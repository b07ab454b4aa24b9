package store

import (
	"errors"
	"fmt"
	"sync"

	"github.com/perdure/perdure/internal/server/store/sqlite"
)

// template is a database with the newest schema, migrated once per process. A copy takes a fraction
// of the time of the migrations, and tests and simulations open many stores.
var template = sync.OnceValues(func() (*sqlite.Template, error) {
	sess, err := sqlite.OpenMemory()
	if err != nil {
		return nil, err
	}
	if err := migrate(sess, sqliteDialect, false); err != nil {
		return nil, errors.Join(err, sess.Close())
	}
	t, err := sess.Template()
	return t, errors.Join(err, sess.Close())
})

// begin makes an empty database a copy of the template. A database with tables is left to migrate. In
// a file the copy is one transaction, so that a crash leaves an empty file or all tables.
func begin(sess *sqlite.Conn) error {
	tables := 0
	err := sess.Query("SELECT count(*) FROM sqlite_master", nil,
		func(scan func(...any) error) error { return scan(&tables) })
	if err != nil || tables > 0 {
		return err
	}
	t, err := template()
	if err != nil {
		return fmt.Errorf("prepare a new database: %w", err)
	}
	return t.Fill(sess)
}
