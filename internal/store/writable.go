package store

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"time"

	"github.com/perdure/perdure"
)

// Whether the database takes writes is known from the writes themselves. A batch that the database refuses because it
// is read-only, or because its disk is full, leaves an obstacle; a write that succeeds removes it. While there is one, a
// test write is made every second, so that the store notices by itself when the obstacle is gone. A store without
// obstacles is tested only when somebody asks and nothing was committed within the last second.
//
// The test write inserts a row into meta and removes it in the same transaction. Its key is random, so that it waits for
// no lock of another node. It has a session of its own on PostgreSQL, so that no lane waits for it.

// testEvery is how old the last commit may be before a store is tested by a write.
const testEvery = time.Second

// spaceTest is the size of the test write after the disk was full. A small row fits into a page that is there already,
// and proves nothing.
const spaceTest = 64 << 10

// An obstacle is the reason why the database takes no writes.
type obstacle struct {
	why  error
	full bool // only a write that takes space removes it
}

// The reasons, in the words of /readyz. They are the same for both databases.
var (
	errReadOnly = errors.New("the store takes no writes: it is read-only")
	errNoSpace  = errors.New("the store takes no writes: its disk is full")
)

// Writable tells why the last write was refused that the database could not take, or nil.
func (s *Store) Writable() error {
	if o := s.obstacle.Load(); o != nil {
		return o.why
	}
	return nil
}

// refusedWrite notes that the database takes no writes, and gives what callers are told.
func (s *Store) refusedWrite(why error) error {
	o := &obstacle{why, errors.Is(why, errNoSpace)}
	if before := s.obstacle.Swap(o); before == nil {
		s.log.Error("the store takes no writes", "error", why)
		select {
		case s.stuck <- struct{}{}:
		default: // it is being tested already
		}
	}
	if o.full {
		return perdure.Errorf(perdure.CodeStorageFull, "nothing was written: %v", why)
	}
	return perdure.Errorf(perdure.CodeUnavailable, "nothing was written: %v", why)
}

// written notes a commit.
func (s *Store) written() {
	s.commits.Add(1)
	s.wrote(0)
	s.file.Written()
}

// wrote notes a commit of so many bytes of test data.
func (s *Store) wrote(size int) {
	s.wroteAt.Store(time.Now().UnixNano())
	if o := s.obstacle.Load(); o != nil && (!o.full || size >= spaceTest) && s.obstacle.CompareAndSwap(o, nil) {
		s.log.Info("the store takes writes again", "it was", o.why)
	}
}

// testStuck tests the store every second while it has an obstacle.
func (s *Store) testStuck() {
	for {
		select {
		case <-s.done:
			return
		case <-s.stuck:
		}
		for s.obstacle.Load() != nil && s.Err() == nil {
			s.pause(testEvery)
			_ = s.testWrite() // the error is noted as the obstacle
		}
	}
}

// TryWrite makes sure that the database takes writes. A commit within the last second is proof enough.
func (s *Store) TryWrite() error {
	if err := s.Writable(); err == nil && time.Since(time.Unix(0, s.wroteAt.Load())) < testEvery {
		return nil
	}
	return s.testWrite()
}

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
		op.value = hex.EncodeToString(b) // random: the database can't compress it
	}
	err := s.tester.batchIn(s.clock(), []Op{op})[0]
	if err == nil {
		s.wrote(len(op.value))
	}
	return err
}

// testOp writes a row and removes it.
type testOp struct{ name, value string }

func (testOp) Needs() []Ref { return nil }

func (op testOp) Do(tx *Tx) error {
	tx.Stage("INSERT INTO meta (name,value) VALUES (?,?)", op.name, op.value)
	tx.Stage("DELETE FROM meta WHERE name=?", op.name)
	return nil
}
