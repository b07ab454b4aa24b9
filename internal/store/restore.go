package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/store/sqlite"
)

// maxGeneration keeps epochs exact where numbers are doubles: beside it they have 41 bits.
const maxGeneration = 1<<12 - 1

// An Adoption decides what becomes of what somebody had in his hands when a backup was made.
type Adoption struct {
	Run  func(perdure.Run) (perdure.Run, []perdure.Line, error) // of a live run
	Item func(perdure.Item) perdure.Item                        // of an inbox item that was handed over

	Key func(perdure.Key) perdure.Key // of a key; nil: it stays as it is

	// More gives what is added when everything else is copied; nil: nothing is.
	More func() ([]perdure.Key, []perdure.AuditEntry, error)
}

// errNotEmpty refuses to mix two histories.
var errNotEmpty = errors.New("the store is not empty: a backup is restored into one that no server has worked on")

// Restore fills an empty store from a backup, all of it or nothing. The store is of the next generation then: adopt is told which
// one, and as of when, before anything is written. The backup itself is not touched.
func (s *Store) Restore(ctx context.Context, path string, adopt func(generation int64, now perdure.Instant) Adoption, told func(Copied)) (b Backup, generation int64, err error) {
	from, discard, err := s.private(ctx, path)
	if err != nil {
		return b, 0, err
	}
	defer discard()
	if b, err = readBackup(from); err != nil {
		return b, 0, err
	}
	if generation = b.Generation + 1; generation > maxGeneration {
		return b, 0, fmt.Errorf("the backup has been restored %d times: there are no more epochs", b.Generation)
	}
	l := s.lanes[LaneWork]
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.write.Begin(); err != nil {
		return b, 0, err
	}
	now := max(s.clock(), b.At)
	if err := s.fill(ctx, from, l.write, &b, generation, now, adopt(generation, now), told); err != nil {
		if s.dialect.conflict(err) || s.dialect.locked(err) { // somebody else fills it at the same time
			err = errNotEmpty
		}
		return b, 0, errors.Join(err, l.write.Rollback())
	}
	return b, generation, l.write.Commit()
}

// private opens a copy of a backup, which is brought up to date without changing the backup.
func (s *Store) private(ctx context.Context, path string) (sess *sqlite.Session, discard func() error, err error) {
	in, err := os.Open(path)
	if err != nil {
		return nil, nil, err
	}
	defer in.Close()
	folder := "" // where the system has such things
	if s.opt.Path != "" {
		folder = filepath.Dir(s.opt.Path)
	}
	out, err := os.CreateTemp(folder, ".perdure-restore-*") // 0600
	if err != nil {
		return nil, nil, err
	}
	gone := func() error {
		return errors.Join(os.Remove(out.Name()), ignoreMissing(os.Remove(out.Name()+"-journal")))
	}
	if err = unseal(ctx, out, in); err == nil {
		err = out.Close()
	} else {
		out.Close()
	}
	if err != nil {
		return nil, nil, errors.Join(err, gone())
	}
	sess, err = sqlite.OpenPlain(out.Name(), "synchronous(OFF)")
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("this is no backup, or it is damaged: %w", err), gone())
	}
	return sess, func() error { return errors.Join(sess.Close(), gone()) }, nil
}

func ignoreMissing(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

type cancellable struct {
	ctx  context.Context
	from io.Reader
}

func (c cancellable) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.from.Read(p)
}

// ReadBackup says what a backup holds, if it is one and whole. It is not changed.
func ReadBackup(path string) (b Backup, err error) {
	f, err := os.Open(path)
	if err != nil {
		return b, err
	}
	if err := errors.Join(unseal(context.Background(), io.Discard, f), f.Close()); err != nil {
		return b, err
	}
	sess, err := sqlite.OpenPlain(path, "query_only(1)")
	if err != nil {
		return b, fmt.Errorf("this is no backup, or it is damaged: %w", err)
	}
	b, err = describeBackup(sess)
	return b, errors.Join(err, sess.Close())
}

// readBackup reads a backup, brings it up to date, and holds it against the invariants.
func readBackup(from *sqlite.Session) (b Backup, err error) {
	if b, err = describeBackup(from); err != nil {
		return b, err
	}
	before, err := countMetadata(from)
	if err != nil {
		return b, err
	}
	if err := migrate(from, sqliteDialect, false); err != nil {
		return b, fmt.Errorf("bring the backup up to date: %w", err)
	}
	after, err := countMetadata(from)
	if err != nil {
		return b, err
	}
	b.Rows += after - before // a backup from before there was the index of metadata has been given one
	found, err := (&View{b.At, sqliteDialect, from}).Check(nil)
	if err == nil && len(found) > 0 {
		err = fmt.Errorf("the backup breaks %d invariants, the first: %s: %s", len(found), found[0].Statement, found[0].Row)
	}
	return b, err
}

func describeBackup(from *sqlite.Session) (b Backup, err error) {
	damage := ""
	err = from.Query("PRAGMA integrity_check(1)", nil, func(scan func(...any) error) error { return scan(&damage) })
	if err != nil || damage != "ok" {
		return b, fmt.Errorf("this is no backup, or it is damaged: %w", errors.Join(err, errors.New(damage)))
	}
	exists := 0
	if err := from.Query(sqliteDialect.tableExists, []any{"meta"}, func(scan func(...any) error) error { return scan(&exists) }); err != nil {
		return b, err
	}
	meta := map[string]string{}
	if exists > 0 {
		if meta, err = readMeta(from); err != nil {
			return b, err
		}
	}
	if meta[metaBackup] == "" {
		return b, errors.New("this is no backup: perdure backup makes one")
	}
	if err := json.Unmarshal([]byte(meta[metaBackup]), &b); err != nil {
		return b, fmt.Errorf("what the backup says of itself: %w", err)
	}
	if b.Generation < 0 || b.Generation > maxGeneration {
		return b, fmt.Errorf("the backup says that its generation is %d: it is damaged", b.Generation)
	}
	return b, nil
}

// fill copies a backup into an empty store.
func (s *Store) fill(ctx context.Context, from, into Session, b *Backup, generation int64, now perdure.Instant, adopt Adoption, told func(Copied)) error {
	tables, err := knownShapes(from)
	if err != nil {
		return err
	}
	if err := s.empty(into, tables); err != nil {
		return err
	}
	c := &copying{ctx: ctx, into: into, d: s.dialect, told: told}
	added := int64(0)
	for i := range tables {
		switch t := &tables[i]; t.name {
		case runTable.name:
			added, err = c.adoptRuns(from, adopt)
		case itemTable.name:
			err = c.adoptItems(from, adopt)
		case keysTable.name:
			err = adoptAll(c, keysTable, from, adopt.Key)
		default:
			_, err = c.table(t, from)
		}
		if err != nil {
			return err
		}
	}
	more, err := c.more(adopt)
	if err != nil {
		return err
	}
	if added += more; c.rows-added != b.Rows {
		return fmt.Errorf("the backup says that it has %d rows, and %d were found", b.Rows, c.rows-added)
	}
	meta, err := readMeta(from)
	if err != nil {
		return err
	}
	delete(meta, metaSchema)
	delete(meta, metaBackup)
	delete(meta, metaClock)
	meta[metaGeneration] = strconv.FormatInt(generation, 10)
	if s.dialect.ownClock {
		meta[metaClock] = strconv.FormatInt(int64(now), 10)
	}
	return writeMeta(into, meta)
}

// more writes what is added to a restored store.
func (c *copying) more(adopt Adoption) (int64, error) {
	if adopt.More == nil {
		return 0, nil
	}
	keys, audits, err := adopt.More()
	if err != nil {
		return 0, err
	}
	n := len(keys) + len(audits)
	return int64(n), c.statements(auditTable.name, n, append(keysTable.insert(c.d, keys), auditTable.insert(c.d, audits)...))
}

// knownShapes gives the tables of a backup, which are those of a store and no others: their names become part of statements.
func knownShapes(from Session) ([]shape, error) {
	m, err := NewMemory()
	if err != nil {
		return nil, err
	}
	defer m.Close()
	if err := migrate(m.sess, sqliteDialect, false); err != nil {
		return nil, err
	}
	known, err := shapes(m.sess)
	if err != nil {
		return nil, err
	}
	have, err := shapes(from)
	if err == nil && !reflect.DeepEqual(have, known) {
		err = errors.New("the backup has other tables than a store of its schema: it is damaged")
	}
	return known, err
}

// empty makes sure that nothing is overwritten.
func (s *Store) empty(into Session, tables []shape) error {
	parts := []string{"SELECT 1 FROM meta WHERE name='" + metaSecret + "'"}
	for _, t := range tables {
		parts = append(parts, "SELECT 1 FROM (SELECT 1 FROM "+t.name+" LIMIT 1) AS t_"+t.name)
	}
	found := 0
	err := into.Query(strings.Join(parts, " UNION ALL "), nil, func(scan func(...any) error) error { return scan(&found) })
	if err == nil && found != 0 {
		err = errNotEmpty
	}
	return err
}

// adoptRuns copies the runs. Those that live are adopted, with the lines that this adds to their logs.
func (c *copying) adoptRuns(from Session, adopt Adoption) (added int64, err error) {
	var part []perdure.Run
	var lines []EventRow
	flush := func() error {
		n := len(part) + len(lines)
		err := c.statements(runTable.name, n, append(runTable.insert(c.d, part), eventTable.insert(c.d, lines)...))
		added += int64(len(lines))
		part, lines = part[:0], lines[:0]
		return err
	}
	err = runTable.query(from, "", nil, func(r *perdure.Run) error {
		if r.State.Live() {
			next, told, err := adopt.Run(*r)
			if err != nil {
				return fmt.Errorf("adopt run %s: %w", r.ID, err)
			}
			for _, l := range told {
				lines = append(lines, EventRow{r.Tenant, r.ID, l})
			}
			*r = next
		}
		if part = append(part, *r); len(part) < copyRows {
			return nil
		}
		return flush()
	})
	if err == nil {
		err = flush()
	}
	return added, err
}

// adoptAll copies the records of a table, each changed as the adoption says.
func adoptAll[T any](c *copying, t *table[T], from Session, change func(T) T) error {
	var part []T
	flush := func() error {
		err := c.statements(t.name, len(part), t.insert(c.d, part))
		part = part[:0]
		return err
	}
	err := t.query(from, "", nil, func(v *T) error {
		if change != nil {
			*v = change(*v)
		}
		if part = append(part, *v); len(part) < copyRows {
			return nil
		}
		return flush()
	})
	if err == nil {
		err = flush()
	}
	return err
}

// adoptItems copies the inboxes. What was handed over is taken back.
func (c *copying) adoptItems(from Session, adopt Adoption) error {
	return adoptAll(c, itemTable, from, func(i perdure.Item) perdure.Item {
		if i.Status == perdure.ItemProcessing {
			return adopt.Item(i)
		}
		return i
	})
}
