package store

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"time"

	"github.com/perdure/perdure"
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

// Writable tells why the database takes no writes, as far as known, or nil.
func (s *Store) Writable() error {
	if o := s.obstacle.Load(); o != nil {
		return o.why
	}
	return nil
}

// refusedWrite records that the database takes no writes, and gives the error for callers.
func (s *Store) refusedWrite(why error) error {
	o := &obstacle{why, errors.Is(why, errNoSpace)}
	if before := s.obstacle.Swap(o); before == nil {
		s.log.Error("the store takes no writes", "error", why)
		select {
		case s.stuck <- struct{}{}:
		default: // the tests are already running
		}
	}
	if o.full {
		return perdure.Errorf(perdure.CodeStorageFull, "nothing was written: %v", why)
	}
	return perdure.Errorf(perdure.CodeUnavailable, "nothing was written: %v", why)
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
	if o := s.obstacle.Load(); o != nil && (!o.full || size >= spaceTest) && s.obstacle.CompareAndSwap(o, nil) {
		s.log.Info("the store takes writes again", "it was", o.why)
	}
}

// testStuck makes a test write every second while there is an obstacle.
func (s *Store) testStuck() {
	for {
		select {
		case <-s.done:
			return
		case <-s.stuck:
		}
		for s.obstacle.Load() != nil && s.Err() == nil {
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
	name := make([]byte, 16)
	if _, err := rand.Read(name); err != nil {
		return err
	}
	op := testOp{name: "test " + hex.EncodeToString(name)}
	if o := s.obstacle.Load(); o != nil && o.full {
		b := make([]byte, spaceTest/2)
		if _, err := rand.Read(b); err != nil {
			return err
		}
		op.value = hex.EncodeToString(b) // random, so that the database can't compress it
	}
	err := s.tester.batchIn(s.clock(), []Op{op})[0]
	if err == nil {
		s.wrote(len(op.value))
	}
	return err
}

// testOp inserts a row and deletes it.
type testOp struct{ name, value string }

func (testOp) Needs() []Ref { return nil }

func (op testOp) Do(tx *Tx) error {
	tx.Stage("INSERT INTO meta (name,value) VALUES (?,?)", op.name, op.value)
	tx.Stage("DELETE FROM meta WHERE name=?", op.name)
	return nil
}
