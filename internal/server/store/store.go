package store

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/fair"
	"github.com/perdure/perdure/internal/server/store/pg"
	"github.com/perdure/perdure/internal/server/store/sqlite"
)

// An Op is one operation of a batch.
type Op interface {
	// Needs names the runs that Do is going to read, so that a batch reads them together.
	Needs() []Ref
	// Do decides: it reads and stages through tx. The changes of a refused operation are undone. Do
	// is called again after a conflict.
	Do(tx *Tx) error
}

// A Ref names a run.
type Ref struct {
	Tenant perdure.TenantID
	Run    perdure.RunID
}

// Store is the durable state. It is safe for concurrent use.
type Store struct {
	dialect *dialect
	opt     Options
	log     *slog.Logger
	file    *sqlite.File // nil unless the database is a SQLite file

	// obstacle is why the database takes no writes; see writable.go.
	obstacle atomic.Pointer[obstacle]
	// wroteAt is when this process last committed.
	wroteAt atomic.Int64
	// outage logs that the database is away; see outage.go.
	outage outage
	// level knows which releases are connected; see levels.go.
	level level
	// replication is what was last known of the standbys; nil on SQLite. See standbys.go.
	replication atomic.Pointer[Replication]
	// locks knows what other sessions hold locked; see blockers.go.
	locks lockWatch
	// stuck starts the test writes that go on until the store takes writes again.
	stuck chan struct{}

	clock  func() perdure.Instant
	stored perdure.Instant // the latest instant in the file when it was opened
	away   func() error    // tells why the database does not answer; nil: it is local

	// timelines tells the primaries of a PostgreSQL apart; nil on SQLite. See timeline.go.
	timelines *timelines
	// floor is the lowest value that an epoch has after its next rise.
	floor atomic.Int64

	lanes  [lanes]*lane
	tester *lane // of test writes; see writable.go
	cache  cache
	// last is the instant of the latest batch. No batch of this process is decided earlier.
	last    atomic.Int64
	commits atomic.Int64         // number of commits
	begun   atomic.Int64         // number of batches begun
	changes [inputs]atomic.Int64 // number of calls of Outdate
	// age gives the age of a decision. It is nil if decisions do not age, since no other process
	// writes.
	age     func(time.Time) time.Duration
	readers *idle      // nil: reads use the only session
	gate    *fair.Gate // shares the readers between tenants
	keeper  *idle      // for Keep
	keys    *idle      // for Keys
	counter *idle      // for Count
	auditor func() (Conn, error)
	// audit is held during a read by Audit. It is taken before the lock of the session.
	audit sync.Mutex

	mu sync.Mutex
	// fail is why nothing more is written: a commit left the file in doubt, or the store is closed.
	fail error

	done    chan struct{}
	running sync.WaitGroup
	closing sync.Once
	// limited is set once this process has met a row of a limit.
	limited atomic.Bool
	// turns is held by a batch from the first count of a limit that it reads until it is written.
	turns sync.RWMutex
}

// Options say where a store is and how careful it is. The zero value is a database in memory, for
// tests and the simulator.
type Options struct {
	Path        string // the SQLite file; its folder is created if it is missing
	Synchronous string // of SQLite: FULL (default) or EXTRA; lower levels are refused
	Reserve     int64  // bytes of disk space kept for when the disk is full; default 32 MiB
	URL         string // of a PostgreSQL database: postgres://…
	// TimelineFile is a file in which the newest timeline of PostgreSQL is kept that was seen. Empty:
	// it is known while the store is open.
	TimelineFile string
	// Migrating is called while Open waits for a lock that a migration needs, or for another node that
	// migrates. Open gives up if it returns false. Nil: it goes on.
	Migrating func(why string) bool
	// Accepting is a server of PostgreSQL that an operator accepts: it is used although nodes refuse it.
	Accepting *Offer
	AsIs      bool // a schema of another version is refused instead of migrated
	// AnyClock uses the machine's clock even if the store's is ahead. It is for reading, and for
	// setting the store's clock back.
	AnyClock bool
	// QueryDeadline is the time limit of a query in View, Keep and Keys; default 5 s. A database in
	// memory has none.
	QueryDeadline time.Duration
	Memory        *Memory
	// Redact replaces secrets in every text before it is written.
	Redact func(string) string
	Logger *slog.Logger
	// Observe is called for every batch that was written. It must not block.
	Observe func(Written)
	Hooks   Hooks
}

// Hooks are for tests: they observe and disturb a store.
type Hooks struct {
	Clock func() perdure.Instant // replaces the machine's clock
	Wrap  func(Conn) Conn        // wraps the sessions that write
	// Age is the age of a decision. If it is nil, the machine's clock counts, and with Clock
	// decisions do not age.
	Age         func() time.Duration
	BeforeWrite func()                // called between decision and write
	Written     func([]perdure.RunID) // called after a commit
	Spent       func(Op, Cost)        // called after an operation was decided
	OpRows      int                   // replaces the constant OpRows
	WALPages    int                   // length of the write-ahead log, instead of 4000 pages

	// LockPatience replaces the 5 s that a write waits for another program's lock on the file.
	LockPatience time.Duration
	// OlderNode replaces the answer of Store.OlderNode.
	OlderNode func() string
}

// A Memory is a database in memory that several stores can open, as nodes share a database.
type Memory struct{ sess *sqlite.Conn }

// NewMemory creates an empty database in memory.
func NewMemory() (*Memory, error) {
	sess, err := sqlite.OpenMemory()
	if err != nil {
		return nil, err
	}
	return &Memory{sess}, nil
}

// Close discards the database.
func (m *Memory) Close() error { return m.sess.Close() }

// The numbers of sessions that read at once. One tenant holds at most readerShare readers, even
// while no other asks: a query that has begun can't be interrupted to make room. API keys have
// sessions of their own, since every call looks one up.
const (
	readers     = 5
	readerShare = readers - 1
	keyReaders  = 2
)

// Time limits of queries: of a reader, and of Count.
const (
	queryDeadline = 5 * time.Second
	countDeadline = time.Minute
)

// Missing refuses to create a database where one was before; see sqlite.Missing.
func Missing(path string, signs ...string) error { return sqlite.Missing(path, signs...) }

// Open opens a store and migrates its schema. It refuses settings under which an acknowledged write
// could be lost. It also refuses a file that another server has open, and a clock that is far
// behind the store's.
func Open(opt Options) (*Store, error) {
	if opt.QueryDeadline <= 0 {
		opt.QueryDeadline = queryDeadline
	}
	s := &Store{dialect: sqliteDialect, opt: opt, log: opt.Logger, done: make(chan struct{}),
		stuck: make(chan struct{}, 1)}
	s.cache.floor = &s.floor
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	s.level.hook = opt.Hooks.OlderNode
	s.outage.out, s.outage.test = s.log, s.startTests
	s.locks.open()
	s.log = slog.New(folding{s.log.Handler(), &s.outage})
	var err error
	switch {
	case opt.URL != "":
		s.dialect = postgresDialect
		err = openPostgres(s)
	case opt.Path != "":
		err = openFile(s)
	default:
		err = openMemory(s)
	}
	if err != nil {
		s.release()
		return nil, err
	}
	switch {
	case opt.Hooks.Age != nil:
		s.age = func(time.Time) time.Duration { return opt.Hooks.Age() }
	case s.Shared() && opt.Hooks.Clock == nil: // a test's clock says nothing about real time
		s.age = time.Since
	}
	if s.readers != nil { // a store in memory is driven step by step and needs no tests
		s.running.Go(s.testStuck)
	}
	started := make(map[*lane]bool)
	for i, l := range s.lanes {
		if !started[l] {
			started[l], l.id = true, Lane(i)
			s.running.Go(func() { l.commitLoop() })
		}
	}
	if s.locks.observer != nil && !opt.AsIs && opt.Accepting == nil {
		s.running.Go(s.followReleases)
	}
	return s, nil
}

// openFile opens a SQLite file. The lanes read on connections of their own and share the one that
// writes.
func openFile(s *Store) (err error) {
	s.file, err = sqlite.Open(s.opt.Path,
		sqlite.Options{Synchronous: s.opt.Synchronous, Reserve: s.opt.Reserve, WALPages: s.opt.Hooks.WALPages,
			Every: lookEvery(s), LockWait: s.opt.Hooks.LockPatience, Logger: s.log})
	if err != nil {
		return err
	}
	write, err := s.file.Writer()
	if err != nil {
		return err
	}
	writing := new(sync.Mutex)
	w := wrap(s, write)
	for i := range s.lanes {
		switch Lane(i) {
		case LaneSubmit, LaneClaim:
			// SQLite has a single writer anyway. A poll and a child's end both change the parent,
			// so that two lanes would conflict and each retry.
			s.lanes[i] = s.lanes[LaneWork]
			continue
		}
		r, err := s.file.Reader(0)
		if err != nil {
			return err
		}
		s.lanes[i] = newLane(s, r, w, writing)
	}
	s.tester = newLane(s, w, w, writing) // a test write reads nothing
	if err := prepare(s, write); err != nil {
		return err
	}
	if err := s.file.Settle(); err != nil {
		return err
	}
	s.auditor = func() (Conn, error) { return s.file.Reader(0) }
	if err := addReaders(s, func(deadline time.Duration) (Conn,
		error) {
		return s.file.Reader(deadline)
	}); err != nil {
		return err
	}
	s.running.Go(func() {
		if err := s.file.Checkpoints(s.done, writing, s.commits.Load); err != nil {
			s.stopWrites(err)
		}
	})
	return nil
}

// lookEvery is the interval of checkpoints and disk checks. Zero means the default.
func lookEvery(s *Store) time.Duration {
	switch {
	case s.opt.Hooks.Clock != nil:
		return time.Minute // a test's clock may advance by days
	case s.opt.Hooks.WALPages > 0:
		return 5 * time.Millisecond
	}
	return 0
}

// openMemory opens a database in memory, with one session for everything.
func openMemory(s *Store) error {
	m, sess := s.opt.Memory, Conn(nil)
	if m != nil {
		sess = borrowed{m.sess}
	} else {
		var err error
		if m, err = ownMemory(); err != nil {
			return err
		}
		if sess = m.sess; s.opt.Hooks.Wrap == nil { // a hook may change settings of the session
			sess = reused{m.sess}
		}
	}
	if err := prepare(s, m.sess); err != nil {
		return errors.Join(err, sess.Close())
	}
	sess = wrap(s, sess)
	one := newLane(s, sess, sess, new(sync.Mutex))
	for i := range s.lanes {
		s.lanes[i] = one
	}
	s.tester = one
	return nil
}

// openPostgres opens a PostgreSQL database. Each lane has a connection of its own, so that the
// watchdog can act whatever the other lanes do.
func openPostgres(s *Store) error {
	var err error
	if s.timelines, err = newTimelines(s); err != nil {
		return fmt.Errorf("read the timeline that this node has seen: %w", err)
	}
	opt := s.timelines.options(s.opt.URL)
	opt.Tool = s.opt.AsIs
	p, err := pg.Open(opt)
	if err != nil {
		return err
	}
	s.timelines.server = p
	if err := migratePostgres(p, s.log, s.opt.AsIs, s.opt.Migrating); err != nil {
		return fmt.Errorf("bring the schema up to date: %w", err)
	}
	if s.clock = s.opt.Hooks.Clock; s.clock == nil {
		c, err := startServerClock(p, s.log, s.outage.note)
		if err != nil {
			return fmt.Errorf("read the clock of the database: %w", err)
		}
		s.clock, s.away = c.now, c.away
		c.back = func() { s.last.Store(0) }
		s.running.Go(func() { c.follow(s.done) })
	}
	for i := range s.lanes {
		// After a lost connection the server may be another one with another history.
		opt := pg.WriterOptions{Timeout: writeTimeout, LockTimeout: lockPatience, Reconnected: s.cache.clear}
		if Lane(i) == LaneSweep {
			opt.Timeout = watchTimeout
		}
		w := wrap(s, p.Writer(opt))
		s.lanes[i] = newLane(s, w, w, new(sync.Mutex))
	}
	t := wrap(s, p.Writer(pg.WriterOptions{Timeout: writeTimeout, LockTimeout: lockPatience}))
	s.tester = newLane(s, t, t, new(sync.Mutex))
	s.locks.observer = p.Reader(observeTimeout)
	s.running.Go(func() { s.locks.follow(s) })
	if err := s.openLevel(p); err != nil {
		return fmt.Errorf("read which releases are connected: %w", err)
	}
	s.openStandbys()
	s.auditor = func() (Conn, error) { return p.Auditor(), nil }
	s.running.Go(func() { s.timelines.follow(s.done) })
	return addReaders(s, func(deadline time.Duration) (Conn, error) { return p.Reader(deadline), nil })
}

// prepare migrates the schema, and starts the clock of a store whose database has none. An empty
// database becomes a copy of the template.
func prepare(s *Store, sess *sqlite.Conn) (err error) {
	if err := refuseBackup(sess); err != nil {
		return err
	}
	if !s.opt.AsIs {
		if err := begin(sess); err != nil {
			return fmt.Errorf("bring the schema up to date: %w", err)
		}
	}
	m, err := newMigrator(sess, s.dialect, s.log)
	if err == nil {
		err = m.run(s.opt.AsIs)
	}
	if err == nil {
		err = s.settleLevel(sess)
	}
	if err != nil {
		return fmt.Errorf("bring the schema up to date: %w", err)
	}
	if s.stored, err = storedClock(sess); err != nil {
		return err
	}
	if err := readFloor(s, sess); err != nil {
		return err
	}
	if s.clock = s.opt.Hooks.Clock; s.clock == nil {
		s.clock, err = startClock(s)
	}
	return err
}

// wrap applies the test hook for sessions that write.
func wrap(s *Store, sess Conn) Conn {
	if s.opt.Hooks.Wrap != nil {
		return s.opt.Hooks.Wrap(sess)
	}
	return sess
}

// addReaders opens the sessions that read.
func addReaders(s *Store, open func(deadline time.Duration) (Conn, error)) error {
	s.gate = fair.NewGate(fair.Limits{Size: readers, Share: readerShare, Strict: true})
	for _, x := range []struct {
		idle     **idle
		n        int
		deadline time.Duration
	}{
		{&s.readers, readers, s.opt.QueryDeadline}, {&s.keeper, 1, s.opt.QueryDeadline},
		{&s.keys, keyReaders, s.opt.QueryDeadline}, {&s.counter, 1, countDeadline},
	} {
		*x.idle = newIdle(x.n)
		for range x.n {
			r, err := open(x.deadline)
			if err != nil {
				return err
			}
			(*x.idle).put(r)
		}
	}
	return nil
}

// borrowed is a session that is not closed with the store.
type borrowed struct{ Conn }

func (borrowed) Close() error { return nil }

// Close waits for the batches under way and closes the database. Later operations are refused.
func (s *Store) Close() error {
	var err error
	s.closing.Do(func() {
		s.stopWrites(errClosed)
		s.outage.close()
		close(s.done)
		s.running.Wait()
		err = s.release()
	})
	return err
}

// errClosed refuses operations after Close.
var errClosed = errors.New("the store is closed")

// release closes all sessions and the file.
func (s *Store) release() error {
	var errs []error
	for _, x := range []*idle{s.readers, s.keeper, s.keys, s.counter} {
		errs = append(errs, x.close())
	}
	closed := make(map[Conn]bool)
	for _, l := range append(s.lanes[:], s.tester) {
		if l == nil {
			continue
		}
		l.mu.Lock() // Batch may be running in the caller's goroutine
		for _, sess := range []Conn{l.read, l.write} {
			if !closed[sess] {
				closed[sess] = true
				errs = append(errs, sess.Close())
			}
		}
		l.mu.Unlock()
	}
	if s.locks.observer != nil {
		errs = append(errs, s.locks.observer.Close())
	}
	if s.file != nil {
		errs = append(errs, s.file.Close(s.Err() == errClosed))
	}
	return errors.Join(errs...)
}

// Now is the store's clock.
func (s *Store) Now() perdure.Instant { return s.clock() }

// Shared tells whether other processes may write to the database.
func (s *Store) Shared() bool { return !s.dialect.ownClock }

// Err tells why the store takes no more writes, or nil. A server that sees an error exits: only a
// restart shows what is in the file.
func (s *Store) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fail
}

// Away tells why the database does not answer right now, or nil. The condition may pass without a
// restart.
func (s *Store) Away() error {
	if d := s.file.BlockedFor(); d != 0 {
		return fmt.Errorf("another program has held the database locked for %s", d.Round(time.Second))
	}
	if s.away == nil {
		return nil
	}
	return s.away()
}

// stopWrites stops all writes of the store, for a reason. The first reason counts.
func (s *Store) stopWrites(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fail == nil {
		s.fail = err
	}
}
