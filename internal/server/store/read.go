package store

import (
	"errors"

	"github.com/perdure/perdure"
)

// atMost limits the rows of a query by an argument. Without the CAST, SQLite would plan the
// statement again whenever the parameter is bound.
const atMost = " LIMIT CAST(? AS BIGINT)"

// errEnough stops a query early, when the caller has enough rows.
var errEnough = errors.New("enough")

// A View reads committed rows, all of it as of one moment.
type View struct{ Records }

// newView creates a view over a session.
func newView(now perdure.Instant, d *dialect, sess Conn) *View {
	v := &View{Records{base: base{Now: now, dialect: d, sess: sess}}}
	v.open()
	return v
}

// Rows runs a query of the caller's own, for checks and tests.
func (v *View) Rows(query string, args []any, row func(scan func(...any) error) error) error {
	return v.sess.Query(query, args, row)
}
