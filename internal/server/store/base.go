package store

import "github.com/perdure/perdure"

// A base holds the fields that the repositories of one Tx or View share.
type base struct {
	// Now is the instant of all that is read and written.
	Now perdure.Instant

	s       *Store
	dialect *dialect
	sess    Conn
	// tx is nil in a View, which stages nothing.
	tx *Tx
	// writers are the repositories of a Tx that write rows, in write order.
	writers []writer
}

// write registers a table whose rows the batch writes. It does nothing in a View.
func (b *base) write(w writer) {
	if b.tx != nil {
		b.writers = append(b.writers, w)
	}
}

// stage adds a statement that is executed after the rows of the batch are written.
func (b *base) stage(text string, args []any, want int64) {
	addRows(&b.tx.later, statement{text, args, want})
}
