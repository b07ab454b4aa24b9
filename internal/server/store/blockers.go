package store

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/perdure/perdure/internal/server/store/pg"
)

// Sessions that hold rows or tables locked.
//
// The number in xmax of a locked row is that of the transaction that holds it, and pg_locks has the
// session of a transaction. A statement that waits for a key that is not committed shows in
// pg_blocking_pids, while it waits. A lock on a whole table is in pg_locks itself. Asking has a
// session of its own, which connects when it is first needed. An ordinary role may not see what
// sessions of other roles execute, nor since when.

const (
	// lockWarnAfter is how long a row is held before it is logged: a slow commit of another node is
	// nothing to act on.
	lockWarnAfter = time.Second
	// lockWarnEvery is the interval of lines about locked rows, and about locked tables.
	lockWarnEvery = time.Minute
	// maxHolders bounds the transactions that are remembered.
	maxHolders = 1000
	// watchWait is how long a statement waits for a lock while its blocker is asked for.
	watchWait = 200 * time.Millisecond
	// observeTimeout is the time limit of a query about locks.
	observeTimeout = 2 * time.Second
)

// A Blocker is a session that holds something locked, as far as PostgreSQL tells.
type Blocker struct {
	PID               int64
	User, Application string
	State             string // "idle in transaction", "active", …
	Query             string // its begin
	Hidden            bool   // the role may not see state and query
	Since             time.Time
	Prepared          string // the name of a prepared transaction, which has no session
}

// String describes the blocker in a log line.
func (b *Blocker) String() string {
	switch {
	case b.Prepared != "":
		return fmt.Sprintf("prepared transaction %q", b.Prepared)
	case b.PID == 0:
		return "unknown"
	}
	out := fmt.Sprintf("pid %d, user %s", b.PID, b.User)
	if b.Application != "" {
		out += ", application " + b.Application
	}
	if b.Hidden {
		return out + ", its query is hidden (GRANT pg_read_all_stats shows it)"
	}
	if b.State != "" {
		out += ", " + b.State
	}
	if !b.Since.IsZero() {
		out += ", since " + b.Since.UTC().Format(time.RFC3339)
	}
	return out + ", query: " + b.Query
}

// A LockedRow is a row that this process leaves alone because another session holds it locked.
type LockedRow struct {
	Table string
	Key   []string
	Since time.Time // when the lock was found
	By    Blocker
}

// A TableLock is a lock of another session on a whole table.
type TableLock struct {
	Table string
	Mode  string // of PostgreSQL: ShareLock, AccessExclusiveLock, …
	// Waits is set if the session waits for the lock itself. Everything else waits behind it.
	Waits bool
	Since time.Time
	By    Blocker
	// For are the sessions that a waiting one waits for.
	For []Blocker
}

// String says who holds the table.
func (t *TableLock) String() string {
	out := fmt.Sprintf("the table %s is locked as a whole (%s) by %s", t.Table, t.Mode, &t.By)
	if t.Waits {
		out = fmt.Sprintf("everything waits for the table %s behind a session that waits for %s: %s", t.Table, t.Mode,
			&t.By)
	}
	for i := range t.For {
		out += fmt.Sprintf("; it waits for %s", &t.For[i])
	}
	return out
}

// A lockWatch knows which locks are in the way of this process. It is safe for concurrent use.
type lockWatch struct {
	until    atomic.Int64 // until when batches look before they write; zero: they don't
	aside    atomic.Int64 // rows that were set aside so far
	observer *pg.Conn     // asks about locks; nil on SQLite
	bell     chan struct{}

	mu       sync.Mutex
	holders  map[string]holder
	rows     map[*lane][]heldRow
	tables   []TableLock
	tablesAt time.Time
	// warnedRows and warnedTables are when a line was logged.
	warnedRows, warnedTables time.Time
}

// A holder is a transaction that holds rows.
type holder struct {
	seen  time.Time
	asked time.Time // when its session was asked for; zero: never
	who   Blocker
}

// askHolders is the interval at which a session that executes something is asked for again: what it
// does is over by the time that somebody reads about it.
const askHolders = time.Second

func (w *lockWatch) open() {
	w.bell = make(chan struct{}, 1)
	w.holders, w.rows = make(map[string]holder), make(map[*lane][]heldRow)
}

// wary tells whether batches have to look before they write.
func (w *lockWatch) wary() bool {
	until := w.until.Load()
	return until != 0 && time.Now().UnixNano() < until
}

// beWary has batches look before they write for a while.
func (w *lockWatch) beWary() { w.until.Store(time.Now().Add(wary).UnixNano()) }

// known records the transactions that hold rows, and gives the rows of those that were seen before.
func (w *lockWatch) known(rows []*heldRow) (out []*heldRow) {
	now := time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, h := range rows {
		x, ok := w.holders[h.holder]
		if !ok {
			if len(w.holders) >= maxHolders {
				clear(w.holders)
			}
			w.holders[h.holder] = holder{seen: now}
		} else if now.Sub(x.seen) >= lookAgain {
			out = append(out, h)
		}
	}
	return out
}

// setAside records the rows that a lane leaves alone, and how many of them are new.
func (w *lockWatch) setAside(l *lane, fresh int) {
	var rows []heldRow
	for _, h := range l.held {
		rows = append(rows, *h)
	}
	w.mu.Lock()
	if w.rows[l] = rows; len(rows) == 0 {
		delete(w.rows, l)
	}
	w.mu.Unlock()
	w.aside.Add(int64(fresh))
	if len(rows) > 0 {
		w.beWary()
		w.ring()
	}
}

// ring starts the looks that go on until nothing is locked.
func (w *lockWatch) ring() {
	select {
	case w.bell <- struct{}{}:
	default:
	}
}

// any tells whether something is locked.
func (w *lockWatch) any() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.rows)+len(w.tables) > 0
}

// follow looks at what is locked until nothing is, and logs it.
func (w *lockWatch) follow(s *Store) {
	for {
		select {
		case <-s.done:
			return
		case <-w.bell:
		}
		for w.any() && s.Err() == nil {
			s.pause(recheckEvery)
			for _, l := range s.lanes {
				if l.mu.TryLock() { // a lane at work looks by itself
					l.stillLocked()
					l.mu.Unlock()
				}
			}
			if w.anyTable() {
				w.lookAtTables(s)
			}
			w.name(s)
			w.log(s)
		}
	}
}

func (w *lockWatch) anyTable() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.tables) > 0
}

// log writes a line about what is locked, one a minute at most, and one when nothing is any more.
func (w *lockWatch) log(s *Store) {
	rows := s.LockedRows()
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	if n := len(rows); n > 0 && now.Sub(rows[0].Since) > lockWarnAfter && now.Sub(w.warnedRows) > lockWarnEvery {
		w.warnedRows = now
		s.log.Warn("rows are locked by another session: what needs them waits, the rest goes on", "rows", n,
			"table", rows[0].Table, "row", strings.Join(rows[0].Key, " "), "by", &rows[0].By)
	}
	if len(w.tables) > 0 && now.Sub(w.tables[0].Since) > lockWarnAfter && now.Sub(w.warnedTables) > lockWarnEvery {
		w.warnedTables = now
		s.log.Warn("a whole table is locked: what needs it waits", "tables", len(w.tables), "lock", &w.tables[0])
	}
	if len(rows)+len(w.tables) == 0 && !(w.warnedRows.IsZero() && w.warnedTables.IsZero()) {
		if w.warnedRows.Add(lockWarnEvery).After(now) || w.warnedTables.Add(lockWarnEvery).After(now) {
			s.log.Info("nothing is locked by another session any more")
		}
	}
	if len(rows)+len(w.tables) == 0 {
		clear(w.holders)
	}
}

// LockedRows gives the rows that this process leaves alone because another session holds them
// locked, the oldest first.
func (s *Store) LockedRows() (out []LockedRow) {
	w := &s.locks
	w.mu.Lock()
	defer w.mu.Unlock()
	seen := make(map[lockKey]bool)
	for _, rows := range w.rows {
		for i := range rows {
			h := &rows[i]
			if seen[h.locks[0]] || h.key == nil && h.again.text == "" {
				continue
			}
			seen[h.locks[0]] = true
			x := LockedRow{Table: h.table, Since: h.since, By: w.holders[h.holder].who}
			for _, k := range h.key {
				x.Key = append(x.Key, fmt.Sprint(k))
			}
			if h.key == nil {
				x.Key = strings.Split(string(h.locks[0]), "\x00")[1:]
			}
			out = append(out, x)
		}
	}
	slices.SortFunc(out, func(a, b LockedRow) int {
		return cmp.Or(a.Since.Compare(b.Since), strings.Compare(a.Table, b.Table), slices.Compare(a.Key, b.Key))
	})
	return out
}

// LockedTables gives the tables that another session holds locked as a whole.
func (s *Store) LockedTables() []TableLock {
	s.locks.mu.Lock()
	defer s.locks.mu.Unlock()
	return slices.Clone(s.locks.tables)
}

// RowsSetAside is the number of rows that were set aside since the start because another session held
// them locked.
func (s *Store) RowsSetAside() int64 { return s.locks.aside.Load() }

// tableModes are the locks on tables that writes wait for.
const tableModes = "('ShareLock','ShareRowExclusiveLock','ExclusiveLock','AccessExclusiveLock')"

// blockerColumns describe a session of pg_stat_activity.
const blockerColumns = "coalesce(a.pid,0)::bigint, coalesce(a.usename::text,''), coalesce(a.application_name,''), " +
	"coalesce(a.state,''), coalesce(left(a.query,80),''), " +
	"coalesce((extract(epoch FROM a.xact_start)*1000000)::bigint,0)"

// lookAtTables looks for locks of other sessions on whole tables.
func (w *lockWatch) lookAtTables(s *Store) []TableLock {
	w.mu.Lock()
	if time.Since(w.tablesAt) < recheckEvery || w.observer == nil {
		defer w.mu.Unlock()
		return slices.Clone(w.tables)
	}
	w.mu.Unlock()
	var found []TableLock
	waiting := make(map[int64][]Blocker)
	err := w.observer.Query("SELECT c.relname::text, l.mode, CASE WHEN l.granted THEN 0 ELSE 1 END, "+blockerColumns+
		" FROM pg_locks l JOIN pg_class c ON c.oid=l.relation LEFT JOIN pg_stat_activity a ON a.pid=l.pid"+
		" WHERE l.locktype='relation' AND l.mode IN "+tableModes+
		" AND l.database=(SELECT oid FROM pg_database WHERE datname=current_database())"+
		" AND c.relnamespace=(SELECT oid FROM pg_namespace WHERE nspname=current_schema())"+
		" AND c.relname=ANY(?::text[]) ORDER BY l.granted DESC, c.relname", []any{tableNames()},
		func(scan func(...any) error) error {
			t, waits, since := TableLock{}, int64(0), int64(0)
			b := &t.By
			err := scan(&t.Table, &t.Mode, &waits, &b.PID, &b.User, &b.Application, &b.State, &b.Query, &since)
			w.finish(s, b, since)
			t.Waits, t.Since = waits != 0, time.Now()
			if t.Waits {
				waiting[b.PID] = nil
			}
			found = append(found, t)
			return err
		})
	for pid := range waiting {
		waiting[pid] = w.blockersOf(s, pid)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil {
		return slices.Clone(w.tables)
	}
	for i := range found {
		t := &found[i]
		t.For = waiting[t.By.PID]
		for _, was := range w.tables {
			if was.Table == t.Table && was.By.PID == t.By.PID {
				t.Since = was.Since
			}
		}
	}
	if w.tables, w.tablesAt = found, time.Now(); len(found) > 0 {
		w.ring()
	}
	return slices.Clone(found)
}

// name finds the sessions of the transactions that hold rows.
func (w *lockWatch) name(s *Store) {
	w.mu.Lock()
	var ask []string
	for id, h := range w.holders {
		if _, err := strconv.Atoi(id); err == nil &&
			(h.asked.IsZero() || h.who.State == "active" && time.Since(h.asked) >= askHolders) {
			ask = append(ask, id)
		}
	}
	w.mu.Unlock()
	if len(ask) == 0 || w.observer == nil {
		return
	}
	found := make(map[string]Blocker)
	err := w.observer.Query("SELECT l.transactionid::text, coalesce(p.gid,''), "+blockerColumns+" FROM pg_locks l "+
		"LEFT JOIN pg_stat_activity a ON a.pid=l.pid LEFT JOIN pg_prepared_xacts p ON p.transaction=l.transactionid "+
		"WHERE l.locktype='transactionid' AND l.granted AND l.transactionid::text=ANY(?::text[])", []any{ask},
		func(scan func(...any) error) error {
			var id string
			var b Blocker
			var since int64
			err := scan(&id, &b.Prepared, &b.PID, &b.User, &b.Application, &b.State, &b.Query, &since)
			w.finish(s, &b, since)
			found[id] = b
			return err
		})
	if err != nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, id := range ask {
		if h, ok := w.holders[id]; ok {
			h.asked, h.who = time.Now(), found[id]
			w.holders[id] = h
		}
	}
}

// blockersOf gives the sessions at the end of the chain that a session waits for.
func (w *lockWatch) blockersOf(s *Store, pid int64) (out []Blocker) {
	// An error leaves the blocker unknown: the rows are set aside either way.
	_ = w.observer.Query("WITH RECURSIVE chain(pid, depth) AS (SELECT unnest(pg_blocking_pids(?::int)), 1 "+
		"UNION SELECT unnest(pg_blocking_pids(chain.pid)), depth+1 FROM chain WHERE depth<5) "+
		"SELECT "+blockerColumns+" FROM chain JOIN pg_stat_activity a ON a.pid=chain.pid "+
		"WHERE cardinality(pg_blocking_pids(chain.pid))=0 ORDER BY a.pid LIMIT 5", []any{pid},
		func(scan func(...any) error) error {
			var b Blocker
			var since int64
			err := scan(&b.PID, &b.User, &b.Application, &b.State, &b.Query, &since)
			w.finish(s, &b, since)
			out = append(out, b)
			return err
		})
	return out
}

// finish completes a blocker that was read.
func (w *lockWatch) finish(s *Store, b *Blocker, since int64) {
	if since != 0 {
		b.Since = time.UnixMicro(since)
	}
	if b.Query == "<insufficient privilege>" {
		b.Query, b.Hidden = "", true
	}
	b.Query = strings.Join(strings.Fields(b.Query), " ")
	if s.opt.Redact != nil {
		b.Query = s.opt.Redact(b.Query)
	}
}

// watch executes a statement that waits for a lock, and asks meanwhile for whom. It gives the name of
// the holder.
func (w *lockWatch) watch(l *lane, st *statement) string {
	if w.observer == nil {
		return ""
	}
	s, pid := l.s, int64(0)
	err := l.write.Query("SELECT pg_backend_pid()::bigint", nil,
		func(scan func(...any) error) error { return scan(&pid) })
	if err != nil || l.write.Begin() != nil {
		return ""
	}
	defer l.write.Rollback()
	limit := strconv.FormatInt(watchWait.Milliseconds(), 10)
	if _, err := l.write.Exec("SET LOCAL lock_timeout="+limit, nil); err != nil {
		return ""
	}
	seen := make(chan []Blocker, 1)
	go func() {
		s.pause(watchWait / 4)
		seen <- w.blockersOf(s, pid)
	}()
	_, err = l.write.Exec(st.text, st.args)
	by := <-seen
	if err == nil || !s.dialect.locked(err) || len(by) == 0 {
		return ""
	}
	name := fmt.Sprintf("pid %d", by[0].PID)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.holders[name] = holder{seen: time.Now(), asked: time.Now(), who: by[0]}
	return name
}

// errTableLocked is the reason of a read that waited for a table that is locked as a whole.
var errTableLocked = errors.New("nothing was read: somebody else holds a whole table locked in the database")
