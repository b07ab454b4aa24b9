package store

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"slices"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/store/pg"
)

// Whether the database takes writes is known from the writes themselves. A batch that fails because
// the database is read-only or its disk is full leaves an obstacle. A write that succeeds removes
// it. While there is an obstacle, a test write is made every second, so that the store notices when
// writes are possible again. Without an obstacle a test is made only on request, if nothing was
// committed within the last second.
//
// The test write inserts a row into meta and deletes it in the same transaction. Its key is random,
// so that it never waits for a lock of another node. On PostgreSQL it has a session of its own, so
// that no lane waits for it.

// Refusals of writes that no operation is the reason of. Each is one value, so that it can be told
// apart from other errors with the same code.
var (
	refusedReadOnly = perdure.Errorf(perdure.CodeUnavailable, "nothing was written: %v", errReadOnly)
	refusedFull     = perdure.Errorf(perdure.CodeStorageFull, "nothing was written: %v", errNoSpace)
	refusedLost     = perdure.Errorf(perdure.CodeUnavailable, "nothing was written: %v", pg.ErrLost)
	refusedRead     = perdure.Errorf(perdure.CodeUnavailable, "nothing was read: %v", pg.ErrLost)
	refusedStandby  = perdure.Errorf(perdure.CodeUnavailable, "nothing was read: %v", pg.ErrStandby)
	refusedBlocked  = perdure.Errorf(perdure.CodeUnavailable,
		"nothing was written: another program holds the database locked")
	refusedLate = perdure.Errorf(perdure.CodeUnavailable,
		"nothing was written: the database took too long, which is in the server's log")
)

// Outage tells whether a write was refused because the database as a whole took none: no operation
// and no row is the reason.
func Outage(err error) bool {
	return same(err, refusedReadOnly) || same(err, refusedFull) || same(err, refusedLost) ||
		same(err, refusedBlocked) || same(err, refusedTable)
}

// TimedOut tells whether a write was given up because a statement or a lock took too long. Either
// the database is slow, or something in the write is.
func TimedOut(err error) bool { return same(err, refusedLate) }

// same tells whether an error is this very refusal. errors.Is compares refusals by their code.
func same(err error, refusal *perdure.Error) bool {
	var e *perdure.Error
	return errors.As(err, &e) && e == refusal
}

// testEvery is the maximal age of the last commit before TryWrite makes a test write.
const testEvery = time.Second

// spaceTest is the size of the test write after the disk was full. A small row could fit into an
// allocated page, and would prove nothing.
const spaceTest = 64 << 10

// An obstacle is the reason why the database takes no writes.
type obstacle struct {
	why  error
	full bool // only a write of spaceTest bytes removes it
}

// The reasons, as /readyz shows them. They are the same for both databases.
var (
	errReadOnly = errors.New("the store takes no writes: it is read-only")
	errNoSpace  = errors.New("the store takes no writes: its disk is full")
)

// readOnly gives the reason of a database that takes no writes. A server that is not used at all has
// a reason of its own.
func readOnly(err error) error {
	var refused error
	for e := err; e != nil && refused == nil; e = errors.Unwrap(e) {
		if pg.Refused(e) {
			refused = e
		}
	}
	if refused != nil {
		return refused
	}
	return errReadOnly
}

// Writable tells why the database takes no writes, as far as known, or nil.
func (s *Store) Writable() error {
	if o := s.obstacle.Load(); o != nil {
		return o.why
	}
	return nil
}

// refusedWrite records that operations were refused because the database takes no writes, and gives
// the error for callers.
func (s *Store) refusedWrite(ops int, why error) error {
	o := &obstacle{why, errors.Is(why, errNoSpace)}
	s.obstacle.Store(o)
	s.outage.refused(0, ops, why)
	if o.full {
		return refusedFull
	}
	return refusedReadOnly
}

// written records a commit.
func (s *Store) written() {
	s.commits.Add(1)
	s.wrote(0)
	s.file.Written()
}

// wrote records a commit with so many bytes of test data.
func (s *Store) wrote(size int) {
	s.wroteAt.Store(time.Now().UnixNano())
	o := s.obstacle.Load()
	if o != nil && (o.full && size < spaceTest || !s.obstacle.CompareAndSwap(o, nil)) {
		return
	}
	s.outage.over()
}

// startTests starts the test writes.
func (s *Store) startTests() {
	select {
	case s.stuck <- struct{}{}:
	default: // the tests are already running
	}
}

// testStuck makes a test write every second while the database takes no writes or is away.
func (s *Store) testStuck() {
	for {
		select {
		case <-s.done:
			return
		case <-s.stuck:
		}
		for s.outage.active() && s.Err() == nil {
			s.pause(testEvery)
			_ = s.testWrite() // the batch records the error as obstacle
		}
	}
}

// TryWrite checks that the database takes writes. A commit within the last second is proof enough.
func (s *Store) TryWrite() error {
	if err := s.Writable(); err == nil && time.Since(time.Unix(0, s.wroteAt.Load())) < testEvery {
		return nil
	}
	return s.testWrite()
}

// testWrite makes a test write.
func (s *Store) testWrite() error {
	op, err := newTest(s)
	if err == nil {
		err = s.tester.batchIn(s.clock(), []Op{op})[0]
	}
	if err == nil {
		s.wrote(len(op.value))
	}
	return err
}

// Probe checks for the watchdog, in its lane, that the database takes writes of every kind. On
// PostgreSQL it therefore also takes the lock that a write takes of every table: somebody may have
// locked a whole one. Tables that a sweep can do without are left out while they are locked.
func Probe(ctx context.Context, s *Store) error {
	op, err := newTest(s)
	if err == nil {
		op.tables = s.dialect.lockTables != nil
		err = s.Do(ctx, op)
	}
	if err == nil {
		s.wrote(len(op.value))
	}
	return err
}

// newTest makes the operation of a test write. After the disk was full, it is a large one.
func newTest(s *Store) (op testOp, err error) {
	name := make([]byte, 16)
	if _, err := rand.Read(name); err != nil {
		return op, err
	}
	op.name = "test " + hex.EncodeToString(name)
	if o := s.obstacle.Load(); o != nil && o.full {
		b := make([]byte, spaceTest/2)
		if _, err := rand.Read(b); err != nil {
			return op, err
		}
		op.value = hex.EncodeToString(b) // random, so that the database can't compress it
	}
	return op, nil
}

// testOp inserts a row and deletes it. tables says that it also takes the lock of a write of every table.
type testOp struct {
	name, value string
	tables      bool
}

func (testOp) Needs() []Ref { return nil }

// Lane is that of the watchdog, the one caller of a test write that is queued.
func (testOp) Lane() Lane { return LaneSweep }

func (op testOp) Do(tx *Tx) error {
	if op.tables {
		tx.Stage(tx.dialect.lockTables(slices.DeleteFunc(tableNames(), tx.TableLocked)))
	}
	tx.Stage("INSERT INTO meta (name,value) VALUES (?,?)", op.name, op.value)
	tx.Stage("DELETE FROM meta WHERE name=?", op.name)
	return nil
}
