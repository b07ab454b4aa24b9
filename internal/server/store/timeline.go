package store

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/store/pg"
)

// Failover of PostgreSQL.
//
// A promotion raises the timeline of the server. The store has a row of meta, timelineRecord, that
// says which timeline it was last used on, and the id of that use. A node keeps the newest one that
// it has seen, also in a file of its data folder: the hint. judge compares a server with both, and
// refuses one that is older.
//
// An asynchronous standby may lack the last commits, and with them grants. The first connection to a
// server with a higher timeline therefore begins a new floor before anything else is written
// (settle): one row. From then on every rise of a run's epoch goes above the floor. No epoch that
// was granted before, and lost, can be granted again: those are all below. A lease that was not lost
// keeps its epoch and goes on.
//
// A batch that was decided under another floor is not written: see lane.commit.

// metaTimeline is the row of meta with the timelineRecord.
const metaTimeline = "timeline"

// A timelineRecord says on which timeline of which server a store is used.
type timelineRecord struct {
	System   string `json:"system"`
	Timeline int64  `json:"timeline"`
	// ID is new with each timeline: two standbys that were promoted have the same number.
	ID string `json:"id"`
	// Replaces are the ids of earlier records, the latest last.
	Replaces []string `json:"replaces,omitempty"`
	// Floor is the lowest value that an epoch has after its next rise. Zero: there was no failover.
	Floor int64 `json:"floor,omitempty"`
	// Failovers counts the rises of the timeline.
	Failovers int `json:"failovers,omitempty"`
	// Unsure is set if commits may have been lost by the last one.
	Unsure bool `json:"unsure,omitempty"`
	// Synchronous is set while the server waits for a standby with each commit.
	Synchronous bool            `json:"synchronous,omitempty"`
	At          perdure.Instant `json:"at"`
}

// maxReplaced bounds timelineRecord.Replaces. A node that missed more failovers than that needs
// consent.
const maxReplaced = 64

// floorMargin is how far a floor is above the one before, at least. The clock of another server may
// be behind, and a run's epoch does not rise as often as that between two failovers.
const floorMargin = 1 << 30

// FirstEpoch gives the epoch from which a store continues after a restore or a failover. The same
// backup may be restored twice, and the first restored store be lost. The later restore has greater
// epochs, because a run is not granted more often than once in a millisecond.
func FirstEpoch(generation int64, now perdure.Instant) int64 {
	const year2020 = 1_577_836_800_000
	return generation<<EpochBits | min(max(0, int64(now)/1000-year2020), 1<<EpochBits-1)
}

// EpochBits is the number of bits for milliseconds, which last until 2089. The generation is above
// them.
const EpochBits = 41

// A timelines is what a node knows of its PostgreSQL. It is safe for concurrent use.
type timelines struct {
	s      *Store
	hint   string // the file; empty: none
	log    *slog.Logger
	server *pg.Server
	// accepts is the system identifier of Options.Accepting: no other server is used, and this one
	// whatever its record says.
	accepts string
	again   chan struct{} // LookAgain
	// replaced is signalled when another server took the place of the store's.
	replaced chan struct{}

	mu    sync.Mutex
	known timelineRecord // the newest record that was seen; without an ID: none
	// number is that of the current admission.
	number int64
	// blank is the server that was admitted without a record, before the first start has made its tables.
	blank timelineRecord
	told  map[string]bool // refusals that were logged
}

// recordQuery reads the rows that a place is judged by.
const recordQuery = "SELECT json_object_agg(name,value) FROM meta WHERE name IN ('timeline','generation')"

// newTimelines reads the hint.
func newTimelines(s *Store) (*timelines, error) {
	t := &timelines{s: s, hint: s.opt.TimelineFile, log: s.log, number: 1,
		told: make(map[string]bool), again: make(chan struct{}, 1),
		replaced: make(chan struct{}, 1)}
	if s.opt.Accepting != nil {
		t.hint, t.accepts = "", s.opt.Accepting.System // Offer.Keep writes the file
		return t, nil
	}
	var err error
	if t.known, err = readHint(t.hint); errors.Is(err, errHint) { // a hint that can't be read is none
		err = nil
		t.log.Warn("the file with the timeline that this node has seen can't be read", "file", t.hint)
	}
	s.floor.Store(t.known.Floor)
	return t, err
}

// errHint refuses a file that is no record.
var errHint = errors.New("the file with the timeline that this node has seen is damaged")

// readHint reads the file of the hint. Without one the record is empty.
func readHint(file string) (r timelineRecord, err error) {
	if file == "" {
		return r, nil
	}
	text, err := os.ReadFile(file)
	if os.IsNotExist(err) {
		return r, nil
	}
	if err == nil && json.Unmarshal(text, &r) != nil {
		return timelineRecord{}, fmt.Errorf("%w: %s", errHint, file)
	}
	return r, err
}

// options give the rules of this file to a pg.Server.
func (t *timelines) options(url string) pg.Options {
	return pg.Options{URL: url, Table: "meta", Record: recordQuery, Judge: t.judge, Newer: newerPlace,
		Same:  func(a, b pg.Place) bool { return !newerPlace(a, b) && !newerPlace(b, a) && sameRecord(a, b) },
		Admit: t.admit, Refused: t.refused}
}

// A stored is what the rows of a place say.
type stored struct {
	timelineRecord
	text       string // of the row; empty: there is none
	generation int64
}

// recordOf reads the rows of a place.
func recordOf(pl pg.Place) (r stored, err error) {
	if pl.Record == "" {
		return r, nil
	}
	var rows map[string]string
	if err := json.Unmarshal([]byte(pl.Record), &rows); err != nil {
		return r, fmt.Errorf("read the store's timeline: %w", err)
	}
	if r.text = rows[metaTimeline]; r.text != "" {
		if err := json.Unmarshal([]byte(r.text), &r.timelineRecord); err != nil {
			return r, fmt.Errorf("the store says that its timeline is %.100q: it is damaged: %w", r.text, err)
		}
	}
	r.generation, _ = strconv.ParseInt(cmp.Or(rows[metaGeneration], "0"), 10, 64) // View.Generation complains
	return r, nil
}

// newerPlace tells whether a server replaces another one: by the store's own record, by its
// timeline, or because it is the one of two promoted standbys that was used.
func newerPlace(a, b pg.Place) bool {
	x, errX := recordOf(a)
	y, errY := recordOf(b)
	if errX != nil || errY != nil {
		return errY != nil && errX == nil
	}
	switch {
	case y.ID != "" && slices.Contains(x.Replaces, y.ID):
		return true
	case x.ID != "" && slices.Contains(y.Replaces, x.ID), a.System != b.System:
		return false
	case a.Timeline != b.Timeline:
		return a.Timeline > b.Timeline
	}
	return x.Timeline == a.Timeline && x.ID != "" && y.Timeline < b.Timeline
}

// sameRecord tells whether two servers may be one.
func sameRecord(a, b pg.Place) bool {
	x, _ := recordOf(a)
	y, _ := recordOf(b)
	return a.System == b.System && a.Timeline == b.Timeline && x.ID == y.ID
}

// judge refuses a server that is not the newest one.
func (t *timelines) judge(pl pg.Place) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.judgeLocked(pl)
}

func (t *timelines) judgeLocked(pl pg.Place) error {
	r, err := recordOf(pl)
	if err != nil {
		return err
	}
	const consent = "if it is right: perdure failover accept"
	k := &t.known
	switch {
	case t.accepts != "" && pl.System != t.accepts:
		return pg.Other("PostgreSQL at %s has the system identifier %s, and %s is to be accepted", pl.At, pl.System,
			t.accepts)
	case t.accepts != "":
		return nil
	case r.ID != "" && r.System != pl.System:
		return pg.Other("PostgreSQL at %s has a copy of a store of another server: that has the system identifier %s, "+
			"and this one %s (pg_dump and pg_upgrade make such copies; %s)", pl.At, r.System, pl.System, consent)
	case r.Timeline > pl.Timeline:
		return pg.OldPrimary(pl.At, pl.Timeline, r.Timeline, "that of its own store")
	case k.ID == "", r.ID == k.ID, r.ID != "" && slices.Contains(r.Replaces, k.ID):
		return nil
	case pl.System != k.System:
		return pg.Other("PostgreSQL at %s is another database: its system identifier is %s, and this node has worked "+
			"on %s (check the address; %s)", pl.At, pl.System, k.System, consent)
	case pl.Timeline < k.Timeline:
		return pg.OldPrimary(pl.At, pl.Timeline, k.Timeline, "the newest that this node has seen")
	case pl.Timeline == k.Timeline:
		return pg.Other("PostgreSQL at %s is not the store that this node has worked on, although its timeline %d is "+
			"the same: two standbys were promoted, or it is another store on the same server (stop the wrong one; %s)",
			pl.At, pl.Timeline, consent)
	}
	return nil
}

// refused logs a reachable primary that is not used, once.
func (t *timelines) refused(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if text := err.Error(); !t.told[text] {
		if len(t.told) >= 16 { // servers that come and go
			clear(t.told)
		}
		t.told[text] = true
		t.log.Warn("a primary is not used", "error", err)
	}
}

// admit judges the server of a new connection. It settles a timeline that the store was not used on
// yet, and gives the number of the admission.
func (t *timelines) admit(
	pl pg.Place, exec func(string, ...string) (int64, error), again func() (pg.Place, error),
) (int64, error) {
	for {
		if err := t.judge(pl); err != nil {
			return 0, err
		}
		r, err := recordOf(pl)
		if err != nil {
			return 0, err
		}
		if t.s.opt.AsIs || t.accepts != "" || !pl.Has || r.ID != "" && r.Timeline == pl.Timeline {
			return t.seen(pl, r.timelineRecord)
		}
		if pl.ReadOnly {
			return 0, pg.ErrStandby // the next connection that may write settles it
		}
		next := t.settle(pl, r)
		n, err := exec(replaceRecord, encode(next), r.text)
		if err != nil {
			return 0, err
		}
		if n == 1 && next.Floor > r.Floor {
			t.log.Warn("the primary was replaced: epochs go on above all that can have been granted", "server", pl.At,
				"timeline", pl.Timeline, "before", r.Timeline, "floor", next.Floor)
		}
		if pl, err = again(); err != nil {
			return 0, err
		}
	}
}

// replaceRecord writes a record in place of another one, unless another node was first. The empty
// text means that there was none.
const replaceRecord = "INSERT INTO meta (name,value) SELECT 'timeline',$1::text " +
	"WHERE $2::text='' OR EXISTS (SELECT 1 FROM meta WHERE name='timeline') " +
	"ON CONFLICT (name) DO UPDATE SET value=excluded.value WHERE meta.value=$2::text"

func encode(r timelineRecord) string {
	text, err := json.Marshal(r)
	if err != nil {
		panic(err) // texts and numbers
	}
	return string(text)
}

// settle gives the record of a timeline that the store was not used on yet.
func (t *timelines) settle(pl pg.Place, before stored) timelineRecord {
	t.mu.Lock()
	known := t.known
	t.mu.Unlock()
	next := before.timelineRecord
	next.At = perdure.Instant(pl.Clock)
	if before.ID != "" || known.ID != "" { // otherwise it is the first use, and nothing was replaced
		next.raise(before.generation, known)
		next.Failovers = max(before.Failovers, known.Failovers) + 1
		next.Unsure = !before.Synchronous
	}
	next.System, next.Timeline, next.ID, next.Synchronous = pl.System, pl.Timeline, rand.Text(), false
	return next
}

// raise records that a record and another one are replaced, and sets a floor above theirs.
func (r *timelineRecord) raise(generation int64, known timelineRecord) {
	r.Replaces = slices.Clone(r.Replaces)
	for _, id := range []string{r.ID, known.ID} {
		if id != "" && !slices.Contains(r.Replaces, id) {
			r.Replaces = append(r.Replaces, id)
		}
	}
	r.Replaces = r.Replaces[max(0, len(r.Replaces)-maxReplaced):]
	r.Floor = max(FirstEpoch(generation, r.At), r.Floor+floorMargin, known.Floor+floorMargin)
}

// seen records that a server was admitted, and keeps the hint.
func (t *timelines) seen(pl pg.Place, r timelineRecord) (int64, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.judgeLocked(pl); err != nil { // another connection was faster
		return 0, err
	}
	if r.ID == "" && t.known.ID == "" {
		r.System, r.Timeline = pl.System, pl.Timeline
		if t.blank.System != "" && !sameServer(t.blank, r) {
			t.number++
		}
		t.blank = r
	}
	if r.ID == "" || r.ID == t.known.ID {
		return t.number, nil
	}
	if t.known.ID != "" {
		select {
		case t.replaced <- struct{}{}:
		default: // a signal is pending
		}
	}
	if t.known.ID != "" || !sameServer(t.blank, r) { // else it is the record of the server that is in use
		t.number++
	}
	t.known = r
	clear(t.told)
	t.s.floor.Store(r.Floor)
	t.s.cache.clear() // after the floor: no run of the server before comes back
	t.keepHint()
	return t.number, nil
}

// sameServer tells whether two records are of one server, on one timeline.
func sameServer(a, b timelineRecord) bool { return a.System == b.System && a.Timeline == b.Timeline }

// keepHint writes the file of the hint. The caller holds mu.
func (t *timelines) keepHint() {
	if t.hint == "" || t.s.opt.AsIs {
		return
	}
	if err := writeHint(t.hint, t.known); err != nil {
		t.log.Warn("the timeline that this node has seen is not kept", "file", filepath.Base(t.hint), "error", err)
	}
}

// writeHint writes a file of the hint. It belongs to the owner of its folder, whoever writes it.
func writeHint(file string, r timelineRecord) error {
	temp := file + ".new"
	if err := os.WriteFile(temp, []byte(encode(r)+"\n"), 0o600); err != nil {
		return err
	}
	if dir, err := os.Stat(filepath.Dir(file)); err == nil {
		if of, ok := dir.Sys().(*syscall.Stat_t); ok && int(of.Uid) != os.Geteuid() {
			if err := os.Chown(temp, int(of.Uid), int(of.Gid)); err != nil {
				return err
			}
		}
	}
	return os.Rename(temp, file)
}

// lookPause is the least time between two looks, however often LookAgain is called.
const lookPause = time.Second

// follow asks all servers of the address from time to time which one is the primary, and at once
// when LookAgain was called.
func (t *timelines) follow(done <-chan struct{}) {
	tick := time.NewTicker(pg.LookEvery)
	defer tick.Stop()
	for {
		select {
		case <-done:
			return
		case <-tick.C:
		case <-t.again:
		}
		t.look(done)
		t.s.pause(lookPause)
	}
}

// look asks all servers once, and ends with done.
func (t *timelines) look(done <-chan struct{}) {
	ctx, cancel := context.WithTimeout(context.Background(), pg.LookEvery)
	defer cancel()
	go func() {
		select {
		case <-done:
			cancel()
		case <-ctx.Done():
		}
	}()
	_ = t.server.Look(ctx) // a session that needs the server says why it can't be used
}

// LookAgain has the store ask all servers of its address which one is the primary, soon. Anybody may
// call it: nothing but the servers' own answers counts.
func (s *Store) LookAgain() {
	if s.timelines == nil {
		return
	}
	select {
	case s.timelines.again <- struct{}{}:
	default: // it is about to look
	}
}

// Replaced is signalled when another server took the place of the store's. It is nil on SQLite.
func (s *Store) Replaced() <-chan struct{} {
	if s.timelines == nil {
		return nil
	}
	return s.timelines.replaced
}

// Primaries gives the connections of others to the same PostgreSQL, such as the doorbell's, the rule
// of the store: validate refuses a server that is not the newest, and current tells whether a
// connection still leads to it.
func (s *Store) Primaries() (validate pg.Validation, current func(*pg.Connection) bool) {
	return s.timelines.server.Validate, s.timelines.server.Current
}

// EpochFloor gives the lowest value that an epoch has after its next rise. Zero: there is none.
func (s *Store) EpochFloor() int64 { return s.floor.Load() }

// readFloor reads the floor of a store that has no timelines.
func readFloor(s *Store, sess Conn) error {
	text, err := metaValue(sess, metaTimeline)
	if err != nil || text == "" {
		return err
	}
	var r timelineRecord
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		return fmt.Errorf("the store says that its timeline is %.100q: it is damaged: %w", text, err)
	}
	s.floor.Store(r.Floor)
	return nil
}

// metaValue reads a row of meta. The text is empty if there is none.
func metaValue(sess Conn, name string) (v string, err error) {
	err = sess.Query("SELECT value FROM meta WHERE name=?", []any{name},
		func(scan func(...any) error) error { return scan(&v) })
	return v, err
}
