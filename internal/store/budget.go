package store

import (
	"cmp"
	"time"
)

// Every operation has a budget, so that nobody waits for somebody else's large thing. An operation that
// would cost more is cut into steps. Each step is whole, and leaves a row that says what is left; the
// watchdog goes on from there. docs/architecture.md lists what is cut, and where its rest is kept.
const (
	// OpRows and OpBytes are how much an operation writes before it leaves the rest to a later step. The
	// lists of a single call share one bound of 1 000 entries and 8 MiB, so that no call has to be cut.
	OpRows  = 2000
	OpBytes = 8 << 20

	// mostWritten is how many rows an operation ever writes: what follows from it, and four rows for each
	// of the 1 000 entries that its call may have. MostRead bounds what it reads in the same way. The
	// simulator holds every operation to both.
	mostWritten = OpRows + 4*1000
	MostRead    = 4 * mostWritten

	// sweepTime is how long a sweep decides before it stops and leaves the rest to the next one. It has to
	// have staged sweepRows by then, so that it gets on however slow the database is.
	sweepTime = 20 * time.Millisecond
	sweepRows = 64
)

// A Cost is how much a batch, or one operation of it, has read and means to write.
type Cost struct {
	Read    int // rows
	Written int // rows
	Bytes   int // about how many bytes of values stand in the rows to be written
}

// Minus is what was spent since an earlier cost.
func (c Cost) Minus(b Cost) Cost {
	return Cost{c.Read - b.Read, c.Written - b.Written, c.Bytes - b.Bytes}
}

// Cost is how much the batch has spent so far.
func (tx *Tx) Cost() Cost { return Cost{tx.reads, tx.writes, tx.bytes} }

// OpRows is how many rows an operation writes before it leaves the rest to a later step.
func (tx *Tx) OpRows() int { return cmp.Or(tx.s.opt.Hooks.OpRows, OpRows) }

// Late tells whether the batch has staged sweepRows and has been decided on for longer than sweepTime, so that
// others wait for it. A batch that is made step by step, in tests and in the simulator, is never late.
func (tx *Tx) Late() bool {
	return tx.paced && tx.s.opt.Hooks.Clock == nil && tx.writes >= sweepRows && time.Since(tx.begun) > sweepTime
}

// spend counts rows and bytes that are to be written. The caller's undo restores what it gives back.
func (tx *Tx) spend(rows, bytes int) (before Cost) {
	before = Cost{Written: tx.writes, Bytes: tx.bytes}
	tx.writes += rows
	tx.bytes += bytes
	return before
}

// refund takes back what was counted since.
func (tx *Tx) refund(before Cost) { tx.writes, tx.bytes = before.Written, before.Bytes }

// A counted session counts the rows that a batch reads.
type counted struct {
	Session
	rows *int
}

func (c counted) Query(query string, args []any, row func(scan func(dest ...any) error) error) error {
	return c.Session.Query(query, args, func(scan func(...any) error) error {
		*c.rows++
		return row(scan)
	})
}
