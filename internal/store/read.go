package store

import (
	"errors"
)

// atMost ends a query after so many rows. With a bare parameter SQLite would plan the statement anew every time one is
// bound, which takes longer than to read a few rows.
const atMost = " LIMIT CAST(? AS BIGINT)"

// errEnough ends a query whose rows are as many as were wanted.
var errEnough = errors.New("enough")

// Rows runs a query of the caller's own, for checks and tests.
func (v *View) Rows(query string, args []any, row func(scan func(...any) error) error) error {
	return v.sess.Query(query, args, row)
}
