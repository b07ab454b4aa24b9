package store

// A Conn is one connection to the database. Tests wrap it to make statements fail before or
// after their execution.
type Conn interface {
	Begin() error
	Exec(query string, args []any) (affected int64, err error)
	// Query calls row for every row; scan is valid during that call.
	Query(query string, args []any, row func(scan func(dest ...any) error) error) error
	Commit() error
	Rollback() error
	Close() error
}
