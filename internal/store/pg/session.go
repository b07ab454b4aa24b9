package pg

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// A Session is one connection to PostgreSQL. It speaks the wire protocol's binary formats for the two kinds of
// values that the store has, texts and whole numbers, and nothing else. A connection that is gone is made anew by
// the next call; whatever transaction was open on it is not.
type Session struct {
	cfg   *pgconn.Config
	begin string
	limit time.Duration // how long one call may take before the connection is given up
	down  *atomic.Int64 // since when no session of the server could connect; zero: one could

	mu    sync.Mutex
	conn  *pgconn.PgConn
	stmts map[string]*statement
	was   bool     // there was a connection before
	again func()   // is called when there is another one, perhaps to another server
	lazy  bool     // a transaction has begun, and the server does not know yet
	open  bool     // a transaction is open at the server
	tx    txNumber // which one

	used, replanAt int // transactions on this connection, and at how many its plans are made anew
	plannedAt      time.Time
}

// The server plans a statement once, for tables as large as they were then. So that a plan for small tables is not
// kept for large ones, all plans are made anew when the session has written twice as often as the last time, and from
// time to time in any case: other nodes write too.
const (
	firstReplan = 16
	replanEvery = 20 * time.Second
)

// replan tells whether it is time for new plans.
func (s *Session) replan() bool {
	s.used++
	if s.used < s.replanAt && time.Since(s.plannedAt) < replanEvery {
		return false
	}
	s.replanAt, s.plannedAt = 2*s.used, time.Now()
	return true
}

// txNumber is what a transaction can be asked for by when the answer to its commit was lost: its number, when it
// had it, and from which server, by when that was started. A server that crashes may have forgotten the number
// of a transaction that was not on disk, and gives it to another one.
type txNumber struct{ id, at, server string }

const (
	queryNumber = "SELECT pg_current_xact_id()::text,(extract(epoch FROM clock_timestamp())*1000000)::bigint::text," +
		"(extract(epoch FROM pg_postmaster_start_time())*1000000)::bigint::text"
	// The second column tells whether the server has not crashed since: it is the same, and some process of it that
	// was there then is there still. A crash takes them all.
	queryOutcome = "SELECT coalesce(pg_xact_status(?::text::xid8),''),(SELECT count(*) FROM pg_stat_activity" +
		" WHERE (extract(epoch FROM backend_start)*1000000)::bigint<?::text::bigint" +
		" AND (extract(epoch FROM pg_postmaster_start_time())*1000000)::bigint=?::text::bigint)"
)

type statement struct {
	desc    *pgconn.StatementDescription
	params  []int16 // formats
	results []int16
}

// patience is how long calls try to get a connection back, counted from when the first of them could not. Who
// comes later does not wait again: they would wait for one another.
const patience = 5 * time.Second

func newSession(cfg *pgconn.Config, begin string, limit time.Duration, down *atomic.Int64) *Session {
	return &Session{cfg: cfg, begin: begin, limit: limit, down: down, stmts: make(map[string]*statement)}
}

// connect makes sure that there is a connection. A server that is starting, or that has gone away for a moment, is
// given some time.
func (s *Session) connect() error {
	if s.conn != nil && !s.conn.IsClosed() {
		return nil
	}
	if s.open {
		s.open = false
		return ErrLost
	}
	clear(s.stmts)
	var err error
	for pause := 20 * time.Millisecond; ; pause = min(2*pause, 500*time.Millisecond) {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		s.conn, err = pgconn.ConnectConfig(ctx, s.cfg)
		cancel()
		if err == nil {
			s.down.Store(0)
			if s.again != nil && s.was {
				s.again()
			}
			s.was, s.used, s.replanAt, s.plannedAt = true, 0, firstReplan, time.Now()
			return nil
		}
		s.conn = nil
		if errors.Is(err, pgconn.ErrReadOnlyConnection) { // it does not pass by waiting
			return fmt.Errorf("%w: %w", ErrStandby, err)
		}
		s.down.CompareAndSwap(0, time.Now().UnixNano())
		if !passing(err) || time.Since(time.Unix(0, s.down.Load()))+pause > patience {
			return fmt.Errorf("%w: %w", ErrLost, err)
		}
		time.Sleep(pause + rand.N(pause))
	}
}

// gone turns an error of the connection into ErrLost; the server's own errors stay as they are.
func (s *Session) gone(err error) error {
	if err == nil || dropped(err) {
		return err
	}
	var e *pgconn.PgError
	var n net.Error
	switch {
	case errors.As(err, &e):
		// With FATAL and PANIC the server hangs up; a commit that ends so may be on disk.
		if e.SeverityUnlocalized == "ERROR" && !strings.HasPrefix(e.Code, shutdown) && !strings.HasPrefix(e.Code, noConnection) && e.Code != readOnly {
			return err
		}
	case s.conn != nil && s.conn.IsClosed(), errors.As(err, &n), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), pgconn.SafeToRetry(err):
	default:
		return err
	}
	s.drop()
	if e != nil && e.Code == readOnly {
		return fmt.Errorf("%w: %w", ErrStandby, err)
	}
	return fmt.Errorf("%w: %w", ErrLost, err)
}

// drop gives the connection up.
func (s *Session) drop() {
	s.open, s.lazy = false, false
	if s.conn != nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		s.conn.Close(ctx)
		cancel()
		s.conn = nil
	}
}

func (s *Session) hurry() { s.conn.Conn().SetDeadline(time.Now().Add(s.limit)) }

// prepare gives the statement of a text that has ? for its parameters.
func (s *Session) prepare(query string) (*statement, error) {
	if st := s.stmts[query]; st != nil {
		return st, nil
	}
	if len(s.stmts) > 500 {
		s.drop() // the cheapest way to be rid of them all; nobody has that many texts
		return nil, ErrLost
	}
	s.hurry()
	desc, err := s.conn.Prepare(context.Background(), "s"+strconv.Itoa(len(s.stmts)), numbered(query), nil)
	if err != nil {
		return nil, fmt.Errorf("prepare %.120q: %w", query, s.gone(err))
	}
	st := &statement{desc: desc, params: make([]int16, len(desc.ParamOIDs)), results: make([]int16, len(desc.Fields))}
	for i, oid := range desc.ParamOIDs {
		if oid != oidText { // a text is the same in both formats
			st.params[i] = binaryFormat
		}
	}
	for i, f := range desc.Fields {
		switch f.DataTypeOID {
		case oidInt2, oidInt4, oidInt8, oidBytes:
			st.results[i] = binaryFormat
		}
	}
	s.stmts[query] = st
	return st, nil
}

// numbered writes $1, $2, … for the question marks of a text that are not inside quotes.
func numbered(query string) string {
	var b strings.Builder
	n, quoted := 0, false
	for i := range len(query) {
		switch c := query[i]; {
		case c == '\'':
			quoted = !quoted
			b.WriteByte(c)
		case c == '?' && !quoted:
			n++
			b.WriteString("$" + strconv.Itoa(n))
		default:
			b.WriteByte(c)
		}
	}
	return b.String()
}

// Begin begins a transaction. The server hears of it with the first statement.
func (s *Session) Begin() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.connect(); err != nil {
		return err
	}
	s.lazy, s.tx = true, txNumber{}
	return nil
}

// Query reads. As long as no row has been handed out, a connection that turns out to be gone is replaced.
func (s *Session) Query(query string, args []any, row func(scan func(dest ...any) error) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var err error
	for range 3 {
		began, fresh := false, s.lazy || !s.open
		if err = s.query(query, args, func(scan func(dest ...any) error) error {
			began = true
			return row(scan)
		}); err == nil || began || !fresh || !errors.Is(err, ErrLost) {
			return err
		}
	}
	return err
}

func (s *Session) query(query string, args []any, row func(scan func(dest ...any) error) error) error {
	lazy := s.lazy
	err := s.connect()
	var st *statement
	if err == nil {
		st, err = s.prepare(query)
	}
	s.lazy = lazy // also when the connection was given up: the next try begins where this one did
	if err != nil {
		return err
	}
	values, err := st.encode(args)
	if err != nil {
		return err
	}
	s.hurry()
	if !s.lazy {
		return s.gone(read(s.conn.ExecStatement(context.Background(), st.desc, values, st.params, st.results), st, row))
	}
	var b pgconn.Batch
	b.ExecParams(s.begin, nil, nil, nil, nil)
	b.ExecStatement(st.desc, values, st.params, st.results)
	results := s.conn.ExecBatch(context.Background(), &b)
	for i := 0; err == nil && results.NextResult(); i++ {
		if i == 0 {
			_, err = results.ResultReader().Close()
		} else {
			err = read(results.ResultReader(), st, row)
		}
	}
	if cerr := results.Close(); err == nil {
		err = cerr
	}
	if err = s.gone(err); !dropped(err) {
		s.lazy, s.open = false, true
	} else {
		s.lazy = true // nothing was read: the next try begins anew
	}
	return err
}

func read(r *pgconn.ResultReader, st *statement, row func(scan func(dest ...any) error) error) error {
	var err error
	for err == nil && r.NextRow() {
		values := r.Values()
		err = row(func(dest ...any) error { return scanRow(st, values, dest) })
	}
	if _, cerr := r.Close(); cerr != nil {
		return cerr
	}
	return err
}

// ExecAll begins a transaction and executes the statements, each a text with its arguments, in one round trip. It
// gives how many rows each has changed. The number of the transaction comes with it: by that number the end of a
// commit can be asked for whose answer was lost.
func (s *Session) ExecAll(list iter.Seq2[string, []any]) ([]int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.connect(); err != nil {
		return nil, err
	}
	number, err := s.prepare(queryNumber)
	if err != nil {
		return nil, err
	}
	var b pgconn.Batch
	before := 2 // results before those of the statements
	if s.replan() {
		b.ExecParams("DISCARD PLANS", nil, nil, nil, nil)
		before = 3
	}
	b.ExecParams(s.begin, nil, nil, nil, nil)
	b.ExecStatement(number.desc, nil, nil, number.results)
	n := 0
	for text, args := range list {
		n++
		st, err := s.prepare(text)
		if err != nil {
			return nil, err
		}
		values, err := st.encode(args)
		if err != nil {
			return nil, fmt.Errorf("%.80q: %w", text, err)
		}
		b.ExecStatement(st.desc, values, st.params, st.results)
	}
	s.hurry()
	s.open, s.lazy, s.tx = true, false, txNumber{}
	counts := make([]int64, 0, n)
	results := s.conn.ExecBatch(context.Background(), &b)
	for i := 0; results.NextResult(); i++ {
		r := results.ResultReader()
		if i == before-1 && r.NextRow() {
			v := r.Values()
			s.tx = txNumber{string(v[0]), string(v[1]), string(v[2])}
		}
		tag, err := r.Close()
		if err != nil {
			break
		}
		if i >= before {
			counts = append(counts, tag.RowsAffected())
		}
	}
	if err := s.gone(results.Close()); err != nil {
		return nil, err
	}
	return counts, nil
}

// Exec executes a statement inside the open transaction, or outside of any.
func (s *Session) Exec(query string, args []any) (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lazy {
		s.lazy = false
		if err := s.say(s.begin); err != nil {
			return 0, err
		}
		s.open = true
		if err := s.query(queryNumber, nil, func(scan func(...any) error) error { return scan(&s.tx.id, &s.tx.at, &s.tx.server) }); err != nil {
			return 0, err
		}
	}
	if err := s.connect(); err != nil {
		return 0, err
	}
	if len(args) == 0 { // what has no arguments is executed once: no need to keep it prepared
		s.hurry()
		tag, err := s.conn.ExecParams(context.Background(), query, nil, nil, nil, nil).Close()
		return tag.RowsAffected(), s.gone(err)
	}
	st, err := s.prepare(query)
	if err != nil {
		return 0, err
	}
	values, err := st.encode(args)
	if err != nil {
		return 0, err
	}
	s.hurry()
	tag, err := s.conn.ExecStatement(context.Background(), st.desc, values, st.params, st.results).Close()
	return tag.RowsAffected(), s.gone(err)
}

// Script executes statements without arguments, all at once, inside the transaction that has begun.
func (s *Session) Script(text string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lazy {
		s.lazy = false
		if err := s.say(s.begin); err != nil {
			return err
		}
		s.open = true
	}
	if err := s.connect(); err != nil {
		return err
	}
	s.hurry()
	return s.gone(s.conn.Exec(context.Background(), text).Close())
}

func (s *Session) say(word string) error {
	if err := s.connect(); err != nil {
		return err
	}
	s.hurry()
	_, err := s.conn.ExecParams(context.Background(), word, nil, nil, nil, nil).Close()
	return s.gone(err)
}

// Commit commits. When the connection goes away meanwhile, the server is asked what became of the transaction.
func (s *Session) Commit() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lazy {
		s.lazy = false
		return nil
	}
	if s.conn == nil || s.conn.IsClosed() {
		s.open = false
		return ErrLost
	}
	s.hurry()
	tag, err := s.conn.ExecParams(context.Background(), "COMMIT", nil, nil, nil, nil).Close()
	s.open = false
	switch {
	case err == nil && tag.String() == "ROLLBACK":
		return fmt.Errorf("%w: the transaction had failed", ErrLost)
	case err == nil:
		return nil
	}
	if err = s.gone(err); !errors.Is(err, ErrLost) {
		return fmt.Errorf("%w: %w", ErrLost, err) // the server says that it did not
	}
	return s.resolve(err)
}

// resolve finds out what became of a transaction by its number. That it was committed is believed only of a
// server that has not crashed meanwhile: after a crash the number may be another transaction's.
func (s *Session) resolve(cause error) error {
	doubt := fmt.Errorf("%w: %v", ErrInDoubt, cause) // not ErrLost as well: it may have happened
	if s.tx.id == "" {
		return doubt
	}
	for begin := time.Now(); time.Since(begin) < 2*patience; time.Sleep(20 * time.Millisecond) {
		status, survivors := "", 0
		err := s.query(queryOutcome, []any{s.tx.id, s.tx.at, s.tx.server}, func(scan func(...any) error) error { return scan(&status, &survivors) })
		switch {
		case code(err) == invalidParameter: // a number of the future: forgotten in a crash
			return cause
		case err != nil:
			continue
		case status == "committed" && survivors > 0:
			return nil
		case status == "aborted":
			return cause
		case status != "in progress":
			return doubt
		}
	}
	return doubt
}

func (s *Session) Rollback() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lazy = false
	if !s.open {
		return nil
	}
	s.open = false
	if s.conn == nil || s.conn.IsClosed() {
		return nil
	}
	err := s.say("ROLLBACK")
	if errors.Is(err, ErrLost) {
		return nil // the server has rolled back
	}
	return err
}

func (s *Session) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drop()
	return nil
}
