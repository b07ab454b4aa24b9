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
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// A Conn is one connection to PostgreSQL. It uses the binary formats of the wire protocol for
// texts, whole numbers and bytes, the only kinds of values that the store has. After a lost
// connection the next call connects again. A transaction that was open is lost.
type Conn struct {
	server *Server
	cfg    *pgconn.Config
	begin  string
	limit  time.Duration // how long one call may take before the connection is closed

	mu              sync.Mutex
	conn            *pgconn.PgConn
	stmts           map[string]*statement
	connectedBefore bool     // a connection was made before
	locks           bool     // it holds advisory locks
	onReconnect     func()   // called after a reconnect, perhaps to another server, with mu held
	beginPending    bool     // Begin was called, and the server does not know yet
	open            bool     // a transaction is open at the server
	tx              txNumber // the open transaction

	used, replanAt int // transactions on this connection, and the number at which to plan again
	plannedAt      time.Time
}

// The server plans a statement once, for the table sizes at that time. All plans are discarded when
// the session has written twice as often as at the last time, and every replanEvery, since other
// nodes write too. So a plan for small tables does not stay for large ones.
const (
	firstReplan = 16
	replanEvery = 20 * time.Second
)

// replan tells whether to discard the plans.
func (s *Conn) replan() bool {
	s.used++
	if s.used < s.replanAt && time.Since(s.plannedAt) < replanEvery {
		return false
	}
	s.replanAt, s.plannedAt = 2*s.used, time.Now()
	return true
}

// A txNumber identifies a transaction, to ask for its outcome if the answer to its commit is lost.
// It is the transaction's number, the time when it got it, and the start time of the server. A
// crashed server may have forgotten the number of a transaction that was not on disk, and give it
// to another one.
type txNumber struct{ id, at, server string }

const (
	queryNumber = "SELECT pg_current_xact_id()::text,(extract(epoch FROM clock_timestamp())*1000000)::bigint::text," +
		"(extract(epoch FROM pg_postmaster_start_time())*1000000)::bigint::text"
	// The second column tells whether the server has not crashed since: it has the same start time,
	// and a process that existed then still exists. A crash ends all of them.
	queryOutcome = "SELECT coalesce(pg_xact_status(?::text::xid8),''),(SELECT count(*) FROM pg_stat_activity" +
		" WHERE (extract(epoch FROM backend_start)*1000000)::bigint<?::text::bigint" +
		" AND (extract(epoch FROM pg_postmaster_start_time())*1000000)::bigint=?::text::bigint)"
)

// A statement is a prepared statement with the formats of its parameters and results.
type statement struct {
	desc    *pgconn.StatementDescription
	params  []int16 // formats
	results []int16
}

// patience is how long calls try to reconnect, counted from the first failure of any session. Later
// calls do not wait again, since they would wait for one another.
const patience = 5 * time.Second

func newSession(p *Server, cfg *pgconn.Config, begin string, limit time.Duration) *Conn {
	return &Conn{server: p, cfg: cfg, begin: begin, limit: limit, stmts: make(map[string]*statement)}
}

// connect makes a connection if there is none. It waits for a server that is starting or was away
// for a moment.
func (s *Conn) connect() error {
	if s.conn != nil && !s.conn.IsClosed() {
		if s.server.Current(s.conn) {
			return nil
		}
		open := s.open // on a server that was replaced: the transaction is lost
		s.drop()
		s.open = open
	}
	if s.open {
		s.open = false
		return ErrLost
	}
	if !s.connectedBefore && s.server.spares.take(s) {
		s.connectedBefore = true
		return nil
	}
	clear(s.stmts)
	var err error
	for pause := 20 * time.Millisecond; ; pause = min(2*pause, 500*time.Millisecond) {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		s.conn, err = s.server.dial(ctx, s.cfg)
		cancel()
		if err == nil {
			s.server.down.Store(0)
			if s.onReconnect != nil && s.connectedBefore {
				s.onReconnect()
			}
			s.connectedBefore, s.used, s.replanAt, s.plannedAt = true, 0, firstReplan, time.Now()
			return nil
		}
		s.conn = nil
		if errors.Is(err, pgconn.ErrReadOnlyConnection) || errors.Is(err, ErrStandby) { // waiting does not help
			return s.server.explain(ErrStandby, err)
		}
		s.server.down.CompareAndSwap(0, time.Now().UnixNano())
		if !passing(err) || time.Since(time.Unix(0, s.server.down.Load()))+pause > patience {
			return s.server.explain(ErrLost, err)
		}
		time.Sleep(pause + rand.N(pause))
	}
}

// connError turns an error of the connection into ErrLost. Errors of the server stay as they are.
func (s *Conn) connError(err error) error {
	if err == nil || dropped(err) {
		return err
	}
	var e *pgconn.PgError
	var n net.Error
	switch {
	case errors.As(err, &e):
		// With FATAL and PANIC the server closes the connection. A commit that ends so may be on
		// disk.
		if e.SeverityUnlocalized == "ERROR" && !strings.HasPrefix(e.Code, shutdown) &&
			!strings.HasPrefix(e.Code, noConnection) && e.Code != readOnly {
			return err
		}
	case s.conn != nil && s.conn.IsClosed(), errors.As(err, &n), errors.Is(err, io.EOF),
		errors.Is(err, io.ErrUnexpectedEOF), pgconn.SafeToRetry(err):
	default:
		return err
	}
	s.drop()
	if e != nil && e.Code == readOnly {
		return fmt.Errorf("%w: %w", ErrStandby, err)
	}
	return fmt.Errorf("%w: %w", ErrLost, err)
}

// drop closes the connection.
func (s *Conn) drop() {
	s.open, s.beginPending = false, false
	if s.conn != nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		s.conn.Close(ctx)
		cancel()
		s.conn = nil
	}
}

// setDeadline limits the time of the next round trip.
func (s *Conn) setDeadline() { s.conn.Conn().SetDeadline(time.Now().Add(s.limit)) }

// prepare gives the prepared statement of a text with ? for its parameters.
func (s *Conn) prepare(query string) (*statement, error) {
	if st := s.stmts[query]; st != nil {
		return st, nil
	}
	if len(s.stmts) > 500 {
		s.drop() // reconnecting is the cheapest way to discard them all; the store has fewer texts
		return nil, ErrLost
	}
	s.setDeadline()
	desc, err := s.conn.Prepare(context.Background(), "s"+strconv.Itoa(len(s.stmts)), numbered(query), nil)
	if err != nil {
		return nil, fmt.Errorf("prepare %.120q: %w", query, s.connError(err))
	}
	st := &statement{desc: desc, params: make([]int16, len(desc.ParamOIDs)), results: make([]int16, len(desc.Fields))}
	for i, oid := range desc.ParamOIDs {
		if oid != oidText { // texts are the same in both formats
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

// numbered replaces the question marks of a text that are not inside quotes by $1, $2, …
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

// Begin begins a transaction. The server learns of it with the first statement.
func (s *Conn) Begin() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.connect(); err != nil {
		return err
	}
	s.beginPending, s.tx = true, txNumber{}
	return nil
}

// Query reads. If the connection is lost before a row was passed to the caller, it is tried again.
func (s *Conn) Query(query string, args []any, row func(scan func(dest ...any) error) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var err error
	for range 3 {
		began, fresh := false, s.beginPending || !s.open
		if err = s.query(query, args, func(scan func(dest ...any) error) error {
			began = true
			return row(scan)
		}); err == nil || began || !fresh || !errors.Is(err, ErrLost) {
			return err
		}
	}
	return err
}

// query reads once. If Begin is pending, it sends BEGIN in the same round trip.
func (s *Conn) query(query string, args []any, row func(scan func(dest ...any) error) error) error {
	pending := s.beginPending
	err := s.connect()
	var st *statement
	if err == nil {
		st, err = s.prepare(query)
	}
	s.beginPending = pending // also after a lost connection: the next try begins the transaction again
	if err != nil {
		return err
	}
	values, err := st.encode(args)
	if err != nil {
		return err
	}
	s.setDeadline()
	if !s.beginPending {
		return s.connError(read(s.conn.ExecStatement(context.Background(), st.desc, values, st.params, st.results), st,
			row))
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
	if err = s.connError(err); !dropped(err) {
		s.beginPending, s.open = false, true
	} else {
		s.beginPending = true // nothing was read: the next try begins again
	}
	return err
}

// read passes the rows of a result to the caller.
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

// ExecAll begins a transaction and executes statements, each a text with its arguments, in one
// round trip. It gives how many rows each has changed. It also reads the number of the transaction,
// by which resolve finds the outcome of a commit.
func (s *Conn) ExecAll(list iter.Seq2[string, []any]) ([]int64, error) {
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
	before := 2 // number of results before those of the statements
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
	s.setDeadline()
	s.open, s.beginPending, s.tx = true, false, txNumber{}
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
	if err := s.connError(results.Close()); err != nil {
		return nil, err
	}
	return counts, nil
}

// Exec executes a statement inside the open transaction, or outside of any.
func (s *Conn) Exec(query string, args []any) (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.beginPending {
		s.beginPending = false
		if err := s.execText(s.begin); err != nil {
			return 0, err
		}
		s.open = true
		if err := s.query(queryNumber, nil,
			func(scan func(...any) error) error { return scan(&s.tx.id, &s.tx.at, &s.tx.server) }); err != nil {
			return 0, err
		}
	}
	if err := s.connect(); err != nil {
		return 0, err
	}
	if len(args) == 0 { // a text without arguments is executed once: not worth preparing
		s.setDeadline()
		tag, err := s.conn.ExecParams(context.Background(), query, nil, nil, nil, nil).Close()
		return tag.RowsAffected(), s.connError(err)
	}
	st, err := s.prepare(query)
	if err != nil {
		return 0, err
	}
	values, err := st.encode(args)
	if err != nil {
		return 0, err
	}
	s.setDeadline()
	tag, err := s.conn.ExecStatement(context.Background(), st.desc, values, st.params, st.results).Close()
	return tag.RowsAffected(), s.connError(err)
}

// Script executes statements without arguments in one round trip, inside the transaction that has
// begun.
func (s *Conn) Script(text string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.beginPending {
		s.beginPending = false
		if err := s.execText(s.begin); err != nil {
			return err
		}
		s.open = true
	}
	if err := s.connect(); err != nil {
		return err
	}
	s.setDeadline()
	return s.connError(s.conn.Exec(context.Background(), text).Close())
}

// execText executes a statement without arguments.
func (s *Conn) execText(text string) error {
	if err := s.connect(); err != nil {
		return err
	}
	s.setDeadline()
	_, err := s.conn.ExecParams(context.Background(), text, nil, nil, nil, nil).Close()
	return s.connError(err)
}

// Commit commits. If the connection is lost meanwhile, it asks the server for the outcome.
func (s *Conn) Commit() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.beginPending {
		s.beginPending = false
		return nil
	}
	if s.conn == nil || s.conn.IsClosed() {
		s.open = false
		return ErrLost
	}
	if !s.server.Current(s.conn) { // another session has found a newer server
		s.drop()
		return ErrLost
	}
	s.setDeadline()
	tag, err := s.conn.ExecParams(context.Background(), "COMMIT", nil, nil, nil, nil).Close()
	s.open = false
	switch {
	case err == nil && tag.String() == "ROLLBACK":
		return fmt.Errorf("%w: the transaction had failed", ErrLost)
	case err == nil:
		return nil
	}
	if err = s.connError(err); !errors.Is(err, ErrLost) {
		return fmt.Errorf("%w: %w", ErrLost, err) // the server has answered that it failed
	}
	return s.resolve(err)
}

// resolve asks for the outcome of a transaction by its number. The answer "committed" counts only
// if the server has not crashed meanwhile: after a crash the number may be another transaction's.
func (s *Conn) resolve(cause error) error {
	doubt := fmt.Errorf("%w: %v", ErrInDoubt, cause) // not ErrLost: it may be committed
	if s.tx.id == "" {
		return doubt
	}
	for begin := time.Now(); time.Since(begin) < 2*patience; time.Sleep(20 * time.Millisecond) {
		status, survivors := "", 0
		err := s.query(queryOutcome, []any{s.tx.id, s.tx.at, s.tx.server},
			func(scan func(...any) error) error { return scan(&status, &survivors) })
		switch {
		case code(err) == invalidParameter: // an unknown number: forgotten in a crash
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

// Rollback ends the transaction without its changes.
func (s *Conn) Rollback() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.beginPending = false
	if !s.open {
		return nil
	}
	s.open = false
	if s.conn == nil || s.conn.IsClosed() {
		return nil
	}
	err := s.execText("ROLLBACK")
	if errors.Is(err, ErrLost) {
		return nil // the server rolls back when a connection ends
	}
	return err
}

// Close closes the connection.
func (s *Conn) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.server.spares.keep(s) {
		s.conn, s.stmts = nil, make(map[string]*statement)
	}
	s.drop()
	return nil
}
