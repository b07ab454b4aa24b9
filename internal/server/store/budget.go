package store

import (
	"cmp"
	"time"
)

// Every operation has a budget, so that no caller waits for another's large operation. An operation
// that would cost more is cut into steps. Each step is complete, and leaves a row that says what is
// left; the watchdog continues from there. docs/architecture.md lists what is cut, and where the
// rest is kept.
const (
	// OpRows and OpBytes are how much an operation writes before it leaves the rest to a later
	// step. The lists of a single call have one common limit of 1,000 entries and 8 MiB, so that no
	// call has to be cut.
	OpRows  = 2000
	OpBytes = 8 << 20

	// mostWritten is the maximal number of rows that an operation writes: OpRows, and four rows for
	// each of the 1,000 entries of its call. MostRead bounds what it reads in the same way. The
	// simulator checks both for every operation.
	mostWritten = OpRows + 4*1000
	MostRead    = 4 * mostWritten

	// sweepTime is how long a sweep decides before it leaves the rest to the next one. It stages at
	// least sweepRows, so that it makes progress however slow the database is.
	sweepTime = 20 * time.Millisecond
	sweepRows = 64
)

// A Cost is how much a batch, or one operation of it, has read and is going to write.
type Cost struct {
	Read    int // rows, and queries that found none
	Written int // rows
	Bytes   int // estimated bytes of values in the rows to write
}

// Minus gives the cost since an earlier one.
func (c Cost) Minus(b Cost) Cost {
	return Cost{c.Read - b.Read, c.Written - b.Written, c.Bytes - b.Bytes}
}

// Cost gives the cost of the batch so far.
func (tx *Tx) Cost() Cost { return Cost{tx.reads, tx.writes, tx.bytes} }

// OpRows gives how many rows an operation writes before it leaves the rest to a later step.
func (tx *Tx) OpRows() int { return cmp.Or(tx.s.opt.Hooks.OpRows, OpRows) }

// Lateness gives how much of sweepRows and of sweepTime the batch has used while callers wait for
// it, whichever is less: it is late from one on. In tests and the simulator it is always zero.
func (tx *Tx) Lateness() float64 {
	if !tx.paced || tx.s.opt.Hooks.Clock != nil {
		return 0
	}
	return min(float64(tx.writes)/sweepRows, float64(time.Since(tx.begun))/float64(sweepTime))
}

// spend counts rows and bytes to be written. The caller's undo passes the result to refund.
func (tx *Tx) spend(rows, bytes int) (before Cost) {
	before = Cost{Written: tx.writes, Bytes: tx.bytes}
	tx.writes += rows
	tx.bytes += bytes
	return before
}

// refund restores an earlier count.
func (tx *Tx) refund(before Cost) { tx.writes, tx.bytes = before.Written, before.Bytes }

// A counted session counts the rows that a batch reads.
type counted struct {
	Conn
	tx *Tx
}

func (c counted) Query(query string, args []any, row func(scan func(dest ...any) error) error) error {
	if c.tx.locked != nil && c.tx.readsLocked(query) {
		return refusedTable
	}
	n := 0
	err := c.Conn.Query(query, args, func(scan func(...any) error) error {
		n++
		return row(scan)
	})
	c.tx.reads += max(1, n)
	return err
}
