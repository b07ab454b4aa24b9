package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync"

	"github.com/perdure/perdure"
)

// Options say where a store is and what it has to be careful about. The zero value is a database in
// memory, for tests and the simulator.
type Options struct {
	Path        string // the SQLite file; its folder is made if need be
	Synchronous string // FULL (default) or EXTRA; less is refused
	Memory      *Memory
	Redact      func(string) string // what secrets become, before anything is written
	Logger      *slog.Logger
	Hooks       Hooks
}

// Hooks are for tests: they see, and may disturb, what a store does.
type Hooks struct {
	Clock       func() perdure.Instant // instead of the machine's
	Wrap        func(Session) Session  // around the writing session
	BeforeWrite func()                 // after a batch was decided, before it is written
	Written     func([]perdure.RunID)  // after a batch was committed
}

// An Op is one operation of a batch.
type Op interface {
	// Needs names the runs that Do is going to read, so that a batch reads them together.
	Needs() []Ref
	// Do decides. It reads and stages through tx; a refusal leaves no trace. It may be called again
	// when somebody else was quicker.
	Do(tx *Tx) error
}

// A Ref names a run.
type Ref struct {
	Tenant perdure.TenantID
	Run    perdure.RunID
}

// Store is the durable state. It is safe for concurrent use; writes go one batch after the other.
type Store struct {
	dialect *dialect
	opt     Options
	log     *slog.Logger
	db      *sql.DB
	lock    *os.File
	clock   func() perdure.Instant

	mu   sync.Mutex // one batch at a time
	sess Session
	last perdure.Instant // no batch is earlier than the one before it
	fail error           // a commit that left the file in doubt: nothing more is written

	readers chan Session // nil: reads use the writing session
	queue   chan request
	done    chan struct{}
	closing sync.Once
}

// A Memory is a database in memory that several stores can open, as nodes open one database.
type Memory struct {
	db   *sql.DB
	sess *sqlSession
}

// NewMemory makes an empty database in memory.
func NewMemory() (*Memory, error) {
	db, err := openSQLite("", "")
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(1)
	sess, err := newSQLSession(db, "BEGIN IMMEDIATE")
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return &Memory{db, sess}, nil
}

// Close throws the database away.
func (m *Memory) Close() error { return errors.Join(m.sess.Close(), m.db.Close()) }

const readers = 4

// Open opens a store, bringing its schema up to date. It refuses settings under which an acknowledged
// write could be lost, a file that another server has open, and a clock that lies far behind the store.
func Open(opt Options) (*Store, error) {
	s := &Store{dialect: sqliteDialect, opt: opt, log: opt.Logger, queue: make(chan request, 1024), done: make(chan struct{})}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if err := s.open(); err != nil {
		s.release()
		return nil, err
	}
	go s.commitLoop()
	return s, nil
}

func (s *Store) open() (err error) {
	switch {
	case s.opt.Path != "":
		if err := os.MkdirAll(filepath.Dir(s.opt.Path), 0o700); err != nil {
			return fmt.Errorf("make the data folder: %w", err)
		}
		if s.lock, err = lockFile(s.opt.Path + ".lock"); err != nil {
			return err
		}
		level := s.opt.Synchronous
		if level == "" {
			level = "FULL"
		}
		if level != "FULL" && level != "EXTRA" {
			return fmt.Errorf("refusing to start with synchronous=%s: it loses acknowledged writes when the power fails; use FULL or EXTRA", level)
		}
		// The database's other files take its mode: what is in them is for the owner alone.
		if f, err := os.OpenFile(s.opt.Path, os.O_CREATE|os.O_RDWR, 0o600); err != nil {
			return fmt.Errorf("open the database: %w", err)
		} else if err := f.Close(); err != nil {
			return err
		}
		if s.db, err = openSQLite(s.opt.Path, level); err != nil {
			return err
		}
		if s.sess, err = newSQLSession(s.db, "BEGIN IMMEDIATE"); err != nil {
			return err
		}
	case s.opt.Memory != nil:
		s.sess = borrowed{s.opt.Memory.sess}
	default:
		m, err := NewMemory()
		if err != nil {
			return err
		}
		s.db, s.sess = m.db, m.sess
	}
	if err := migrate(s.sess, s.dialect); err != nil {
		return fmt.Errorf("bring the schema up to date: %w", err)
	}
	if s.clock = s.opt.Hooks.Clock; s.clock == nil {
		if s.clock, err = startClock(s.sess); err != nil {
			return err
		}
	}
	if s.opt.Path != "" {
		s.readers = make(chan Session, readers)
		for range readers {
			r, err := newSQLSession(s.db, "BEGIN")
			if err != nil {
				return err
			}
			s.readers <- r
		}
	}
	if s.opt.Redact != nil {
		s.sess = redacting{s.sess, s.opt.Redact}
	}
	if s.opt.Hooks.Wrap != nil {
		s.sess = s.opt.Hooks.Wrap(s.sess)
	}
	return nil
}

// borrowed is a session that belongs to somebody else.
type borrowed struct{ Session }

func (borrowed) Close() error { return nil }

// redacting is the seam where secrets are taken out: whatever is written passes here.
type redacting struct {
	Session
	redact func(string) string
}

func (r redacting) Exec(query string, args []any) (int64, error) {
	for i, a := range args {
		if text, ok := a.(string); ok {
			args[i] = r.redact(text)
		}
	}
	return r.Session.Exec(query, args)
}

// Close waits for the batch under way and closes the database. Operations after that are refused.
func (s *Store) Close() error {
	var err error
	s.closing.Do(func() {
		s.mu.Lock()
		if s.fail == nil {
			s.fail = errClosed
		}
		s.mu.Unlock()
		close(s.done)
		err = s.release()
	})
	return err
}

var errClosed = errors.New("the store is closed")

func (s *Store) release() error {
	var errs []error
	if s.readers != nil {
		for range cap(s.readers) {
			select {
			case r := <-s.readers:
				errs = append(errs, r.Close())
			default:
			}
		}
	}
	if s.sess != nil {
		errs = append(errs, s.sess.Close())
	}
	if s.db != nil {
		errs = append(errs, s.db.Close())
	}
	if s.lock != nil {
		errs = append(errs, s.lock.Close())
	}
	return errors.Join(errs...)
}

// Now is the store's clock.
func (s *Store) Now() perdure.Instant { return s.clock() }

// Err tells why the store takes no more writes, or nil. A server that sees one exits: only a restart
// finds out what is in the file.
func (s *Store) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fail
}

// ---- batches

const maxTries = 20

// Batch decides the operations one after the other and writes what they staged in one transaction. When
// it returns, what was not refused is durable. There is one error per operation, in order: a refusal
// concerns that one alone, CodeUnavailable means that nothing of the batch was written, CodeUnknown that
// it may have been.
func (s *Store) Batch(now perdure.Instant, ops ...Op) []error {
	s.mu.Lock()
	errs, after := s.batch(now, ops)
	s.mu.Unlock()
	for _, f := range after {
		f()
	}
	return errs
}

func (s *Store) batch(now perdure.Instant, ops []Op) ([]error, []func()) {
	if s.fail != nil {
		return all(len(ops), perdure.Errorf(perdure.CodeUnavailable, "%v", s.fail)), nil
	}
	now = max(now, s.last)
	s.last = now
	var err error
	for range maxTries {
		tx := &Tx{Now: now, s: s, sess: s.sess, read: make(map[runKey]int64), haveWaits: make(map[runKey]bool), haveItems: make(map[runKey]bool),
			claims: make(map[claimKey]claimPage)}
		var errs []error
		errs, err = tx.decide(ops)
		if err == nil {
			if s.opt.Hooks.BeforeWrite != nil {
				s.opt.Hooks.BeforeWrite()
			}
			err = s.commit(tx)
		}
		if err == nil {
			if s.opt.Hooks.Written != nil {
				s.opt.Hooks.Written(tx.touched())
			}
			return errs, tx.after
		}
		if errors.Is(err, errConflict) || s.dialect.conflict(err) {
			continue
		}
		if len(ops) > 1 && perdure.CodeOf(err) != perdure.CodeUnknown {
			// One of them may be to blame; the others shall not pay for it.
			return s.oneByOne(now, ops)
		}
		break
	}
	if perdure.CodeOf(err) == perdure.CodeInternal {
		s.log.Error("a batch was not written", "operations", len(ops), "error", err)
		err = perdure.Errorf(perdure.CodeUnavailable, "nothing was written: %v", err)
	}
	return all(len(ops), err), nil
}

func (s *Store) oneByOne(now perdure.Instant, ops []Op) (errs []error, after []func()) {
	for _, op := range ops {
		e, a := s.batch(now, []Op{op})
		errs, after = append(errs, e...), append(after, a...)
	}
	return errs, after
}

func all(n int, err error) []error {
	out := make([]error, n)
	for i := range out {
		out[i] = err
	}
	return out
}

// decide runs the operations. Refusals are theirs; any other error is the batch's.
func (tx *Tx) decide(ops []Op) ([]error, error) {
	if len(ops) > 1 {
		need := make(map[perdure.TenantID][]perdure.RunID)
		var order []perdure.TenantID
		for _, op := range ops {
			for _, ref := range op.Needs() {
				if need[ref.Tenant] == nil {
					order = append(order, ref.Tenant)
				}
				need[ref.Tenant] = append(need[ref.Tenant], ref.Run)
			}
		}
		for _, t := range order {
			if err := tx.Prefetch(t, need[t]); err != nil {
				return nil, err
			}
		}
	}
	errs := make([]error, len(ops))
	for i, op := range ops {
		tx.mark()
		err := guarded(tx, op)
		if err == nil {
			continue
		}
		tx.rollback()
		var refusal *perdure.Error
		if !errors.As(err, &refusal) {
			return nil, err
		}
		errs[i] = err
	}
	return errs, nil
}

// guarded turns a panic of one operation into a refusal of that operation.
func guarded(tx *Tx, op Op) (err error) {
	defer func() {
		if p := recover(); p != nil {
			tx.s.log.Error("an operation panicked", "operation", fmt.Sprintf("%T", op), "panic", p, "stack", string(debug.Stack()))
			err = perdure.Errorf(perdure.CodeInternal, "the server has a defect: %v", p)
		}
	}()
	return op.Do(tx)
}

// commit writes what a batch staged.
func (s *Store) commit(tx *Tx) error {
	if tx.empty() {
		return nil
	}
	if err := s.sess.Begin(); err != nil {
		return err
	}
	err := tx.write()
	if err == nil && s.dialect.ownClock {
		_, err = s.sess.Exec("INSERT INTO meta (name,value) VALUES ('clock',?) ON CONFLICT (name) DO UPDATE SET value=excluded.value",
			[]any{fmt.Sprint(int64(tx.Now))})
	}
	if err != nil {
		if back := s.sess.Rollback(); back != nil && s.dialect.fatal {
			s.fail = fmt.Errorf("a rollback failed: %w", back)
		}
		return err
	}
	if err := s.sess.Commit(); err != nil {
		_ = s.sess.Rollback()
		if s.dialect.fatal {
			s.fail = fmt.Errorf("a commit failed: %w", err)
		}
		s.log.Error("a commit failed; what it held may or may not be stored", "error", err)
		return perdure.Errorf(perdure.CodeUnknown, "the commit failed: %v", err)
	}
	return nil
}

// ---- group commit

type request struct {
	op   Op
	done chan error
}

// maxBatch bounds how many operations share a commit.
const maxBatch = 256

// Do has an operation decided and written together with whatever else is waiting, and returns when it is
// durable. A caller that goes away before its operation is begun withdraws it.
func (s *Store) Do(ctx context.Context, op Op) error {
	r := request{op, make(chan error, 1)}
	select {
	case s.queue <- r:
	case <-ctx.Done():
		return perdure.Errorf(perdure.CodeUnavailable, "not begun: %v", ctx.Err())
	case <-s.done:
		return perdure.Errorf(perdure.CodeUnavailable, "%v", errClosed)
	}
	select {
	case err := <-r.done:
		return err
	case <-s.done:
		// The loop answers what it has taken; what it has not will never be begun.
		select {
		case err := <-r.done:
			return err
		default:
			return perdure.Errorf(perdure.CodeUnknown, "%v", errClosed)
		}
	}
}

// commitLoop is the thin shell around Batch: while one batch is being made durable, the next one gathers.
func (s *Store) commitLoop() {
	batch := make([]request, 0, maxBatch)
	ops := make([]Op, 0, maxBatch)
	for {
		batch, ops = batch[:0], ops[:0]
		select {
		case r := <-s.queue:
			batch = append(batch, r)
		case <-s.done:
			return
		}
	gather:
		for len(batch) < maxBatch {
			select {
			case r := <-s.queue:
				batch = append(batch, r)
			default:
				break gather
			}
		}
		for _, r := range batch {
			ops = append(ops, r.op)
		}
		for i, err := range s.Batch(s.clock(), ops...) {
			batch[i].done <- err
		}
	}
}

// ---- reading

// A View reads what is committed, all of it as of one moment.
type View struct {
	Now  perdure.Instant
	sess Session
}

// View calls f with a consistent view.
func (s *Store) View(ctx context.Context, f func(*View) error) error {
	if s.readers == nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		return f(&View{s.clock(), s.sess})
	}
	var r Session
	select {
	case r = <-s.readers:
	case <-ctx.Done():
		return ctx.Err()
	case <-s.done:
		return perdure.Errorf(perdure.CodeUnavailable, "%v", errClosed)
	}
	defer func() { s.readers <- r }()
	if err := r.Begin(); err != nil {
		return err
	}
	defer r.Rollback()
	return f(&View{s.clock(), r})
}
