package pg

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// Spares keeps the connections of closed sessions for the next sessions with the same settings. It
// is for tests that open stores on one database, one after the other. Without it each of them has
// PostgreSQL start a dozen processes, which parse and plan all statements again.
//
// A session that reconnects gets a new connection.
type Spares struct {
	mu     sync.Mutex
	closed bool
	free   map[string][]spare // by the settings
}

// A spare is a connection without a transaction, and what it has prepared.
type spare struct {
	conn           *pgconn.PgConn
	stmts          map[string]*statement
	used, replanAt int
	plannedAt      time.Time
}

// mostSpares is how many connections with the same settings are kept.
const mostSpares = 8

// spares has the Spares of each address.
var spares sync.Map

// KeepSpares has servers that are opened from now on with this address keep connections.
func KeepSpares(url string) *Spares {
	k := &Spares{free: make(map[string][]spare)}
	spares.Store(url, k)
	return k
}

// sparesOf gives the Spares of an address, or nil.
func sparesOf(url string) *Spares {
	k, _ := spares.Load(url)
	s, _ := k.(*Spares)
	return s
}

// settingsOf names the settings of a connection.
func settingsOf(cfg *pgconn.Config) string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(cfg.RuntimeParams)) {
		b.WriteString(name + "=" + cfg.RuntimeParams[name] + "\n")
	}
	return b.String()
}

// take gives the session a connection, if there is one that the server has not closed.
func (k *Spares) take(s *Conn) bool {
	if k == nil {
		return false
	}
	key := settingsOf(s.cfg)
	for {
		k.mu.Lock()
		list := k.free[key]
		if len(list) == 0 {
			k.mu.Unlock()
			return false
		}
		x := list[len(list)-1]
		k.free[key] = list[:len(list)-1]
		k.mu.Unlock()
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		err := s.cfg.ValidateConnect(ctx, x.conn)
		cancel()
		if err == nil {
			s.conn, s.stmts, s.used, s.replanAt, s.plannedAt = x.conn, x.stmts, x.used, x.replanAt, x.plannedAt
			return true
		}
		x.end()
	}
}

// keep takes the connection of a session that is closed.
func (k *Spares) keep(s *Conn) bool {
	if k == nil || s.conn == nil || s.conn.IsClosed() || s.open || s.conn.TxStatus() != 'I' {
		return false
	}
	if s.locks {
		s.setDeadline()
		if err := s.conn.Exec(context.Background(), "SELECT pg_advisory_unlock_all()").Close(); err != nil {
			return false
		}
	}
	if err := s.conn.Conn().SetDeadline(time.Time{}); err != nil {
		return false
	}
	key := settingsOf(s.cfg)
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed || len(k.free[key]) == mostSpares {
		return false
	}
	k.free[key] = append(k.free[key], spare{s.conn, s.stmts, s.used, s.replanAt, s.plannedAt})
	return true
}

// PIDs names the server's processes of the connections that no session has.
func (k *Spares) PIDs() (pids []uint32) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, list := range k.free {
		for _, x := range list {
			pids = append(pids, x.conn.PID())
		}
	}
	return pids
}

// Close ends the connections that no session has. None is kept any more.
func (k *Spares) Close() {
	k.mu.Lock()
	all := k.free
	k.closed, k.free = true, nil
	k.mu.Unlock()
	for _, list := range all {
		for _, x := range list {
			x.end()
		}
	}
}

func (x spare) end() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	x.conn.Close(ctx)
}
