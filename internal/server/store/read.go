package store

import (
	"errors"
)

// atMost limits the rows of a query by an argument. Without the CAST, SQLite would plan the
// statement again whenever the parameter is bound.
const atMost = " LIMIT CAST(? AS BIGINT)"

// errEnough stops a query early, when the caller has enough rows.
var errEnough = errors.New("enough")

// Rows runs a query of the caller's own, for checks and tests.
func (v *View) Rows(query string, args []any, row func(scan func(...any) error) error) error {
	return v.sess.Query(query, args, row)
}
