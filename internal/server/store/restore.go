package store

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/store/backup"
)

// An Adoption decides what becomes of records that were in use when the backup was made, such as
// leased runs.
type Adoption struct {
	Run  func(perdure.Run) (perdure.Run, []perdure.Line, error) // for each live run
	Item func(perdure.Item) perdure.Item                        // for each inbox item that was handed over

	Key func(perdure.Key) perdure.Key // for each key; nil: keys stay as they are
	// Schedule is for each schedule; nil: schedules stay as they are.
	Schedule func(ScheduleRow) ScheduleRow

	// LimitKey is for the counts of each key of a limit; nil: they stay as they are.
	LimitKey func(LimitKeyRow) LimitKeyRow

	// More gives records to add after everything else is copied; nil: none.
	More func() ([]perdure.Key, []perdure.AuditEntry, error)
}

// errNotEmpty refuses to mix two histories.
var errNotEmpty = errors.New("the store is not empty: a backup is restored into one that no server has worked on")

// Restore fills an empty store from a backup, in one transaction. The store gets the next
// generation. adopt is called with that generation and the instant before anything is written. The
// backup is not changed.
func (s *Store) Restore(
	ctx context.Context, path string, adopt func(generation int64, now perdure.Instant) Adoption, progress func(Copied),
) (b Backup, generation int64, err error) {
	folder := "" // the system's folder for temporary files
	if s.opt.Path != "" {
		folder = filepath.Dir(s.opt.Path)
	}
	from, b, err := backup.OpenCopy(ctx, path, folder)
	if err != nil {
		return b, 0, err
	}
	defer from.Close()
	if err := upgradeCopy(from, &b); err != nil {
		return b, 0, err
	}
	if generation = b.Generation + 1; generation > backup.MaxGeneration {
		return b, 0, fmt.Errorf("the backup has been restored %d times: there are no more epochs", b.Generation)
	}
	l := s.lanes[LaneWork]
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.write.Begin(); err != nil {
		return b, 0, err
	}
	now := max(s.clock(), b.At)
	if err := fill(s, ctx, from, l.write, &b, generation, now, adopt(generation, now), progress); err != nil {
		if s.dialect.conflict(err) || s.dialect.locked(err) { // another process restores at the same time
			err = errNotEmpty
		}
		return b, 0, errors.Join(err, l.write.Rollback())
	}
	return b, generation, l.write.Commit()
}

// upgradeCopy migrates a copy of a backup, and checks the invariants.
func upgradeCopy(from *backup.Copy, b *Backup) error {
	have, err := schemaVersion(from, sqliteDialect)
	if err != nil {
		return err
	}
	list, err := migrations()
	if err != nil {
		return err
	}
	if have > len(list) { // this program would leave out what was added
		return fmt.Errorf("the backup has schema %d, and this program knows %d: use a newer program", have, len(list))
	}
	before, err := countMetadata(from)
	if err != nil {
		return err
	}
	if err := migrate(from, sqliteDialect, false); err != nil {
		return fmt.Errorf("bring the backup up to date: %w", err)
	}
	after, err := countMetadata(from)
	if err != nil {
		return err
	}
	b.Rows += after - before // an older backup has just got its metadata index
	found, err := newView(b.At, sqliteDialect, from).Check(nil)
	if err == nil && len(found) > 0 {
		err = fmt.Errorf("the backup breaks %d invariants, the first: %s: %s", len(found), found[0].Statement,
			found[0].Row)
	}
	return err
}

// A restoring is a copy into a store.
type restoring struct {
	backup.Copier
	ctx context.Context
	d   *dialect
}

// save writes records of a table.
func (c *restoring) save(name string, rows int, list []statement) error {
	return c.Write(c.ctx, name, rows, inOrder(list))
}

// fill copies a backup into an empty store.
func fill(
	s *Store, ctx context.Context, from, into Conn, b *Backup, generation int64, now perdure.Instant,
	adopt Adoption, progress func(Copied),
) error {
	tables, err := knownTables(from)
	if err != nil {
		return err
	}
	if err := empty(s, into, tables); err != nil {
		return err
	}
	c := &restoring{backup.Copier{Into: into, Inserts: s.dialect.inserts, Told: progress}, ctx, s.dialect}
	added := int64(0)
	for i := range tables {
		switch t := &tables[i]; t.Name {
		case runTable.name:
			added, err = c.adoptRuns(from, adopt)
		case itemTable.name:
			err = c.adoptItems(from, adopt)
		case apiKeyTable.name:
			err = adoptAll(c, apiKeyTable, from, adopt.Key)
		case limitKeyTable.name:
			err = adoptAll(c, limitKeyTable, from, adopt.LimitKey)
		case scheduleTable.name:
			err = adoptAll(c, scheduleTable, from, adopt.Schedule)
		default:
			_, err = c.Table(ctx, t, from)
		}
		if err != nil {
			return err
		}
	}
	more, err := c.more(adopt)
	if err != nil {
		return err
	}
	if added += more; c.Rows-added != b.Rows {
		return fmt.Errorf("the backup says that it has %d rows, and %d were found", b.Rows, c.Rows-added)
	}
	meta, err := readMeta(from)
	if err != nil {
		return err
	}
	delete(meta, metaSchema)
	delete(meta, metaOldest)
	delete(meta, backup.InfoName)
	delete(meta, metaClock)
	delete(meta, metaTimeline)
	meta[metaGeneration] = strconv.FormatInt(generation, 10)
	if s.dialect.ownClock {
		meta[metaClock] = strconv.FormatInt(int64(now), 10)
	}
	return writeMeta(into, meta)
}

// more writes the records that Adoption.More adds.
func (c *restoring) more(adopt Adoption) (int64, error) {
	if adopt.More == nil {
		return 0, nil
	}
	keys, audits, err := adopt.More()
	if err != nil {
		return 0, err
	}
	n := len(keys) + len(audits)
	return int64(n), c.save(auditTable.name, n,
		append(apiKeyTable.insert(c.d, keys), auditTable.insert(c.d, audits)...))
}

// knownTables gives the tables of a backup. They have to be those of a store exactly, because their
// names become part of statements.
func knownTables(from Conn) ([]backup.Table, error) {
	m, err := NewMemory()
	if err != nil {
		return nil, err
	}
	defer m.Close()
	if err := begin(m.sess); err != nil {
		return nil, err
	}
	known, err := backup.Tables(m.sess)
	if err != nil {
		return nil, err
	}
	have, err := backup.Tables(from)
	if err == nil && !reflect.DeepEqual(have, known) {
		err = errors.New("the backup has other tables than a store of its schema: it is damaged")
	}
	return known, err
}

// empty refuses a store that has any rows.
func empty(s *Store, into Conn, tables []backup.Table) error {
	parts := []string{"SELECT 1 FROM meta WHERE name='" + metaSecret + "'"}
	for _, t := range tables {
		parts = append(parts, "SELECT 1 FROM (SELECT 1 FROM "+t.Name+" LIMIT 1) AS t_"+t.Name)
	}
	found := 0
	err := into.Query(strings.Join(parts, " UNION ALL "), nil,
		func(scan func(...any) error) error { return scan(&found) })
	if err == nil && found != 0 {
		err = errNotEmpty
	}
	return err
}

// adoptRuns copies the runs. Live ones are adopted, and the lines that this adds to their logs are
// counted.
func (c *restoring) adoptRuns(from Conn, adopt Adoption) (added int64, err error) {
	var part []perdure.Run
	var lines []eventRow
	flush := func() error {
		n := len(part) + len(lines)
		err := c.save(runTable.name, n, append(runTable.insert(c.d, part), eventTable.insert(c.d, lines)...))
		added += int64(len(lines))
		part, lines = part[:0], lines[:0]
		return err
	}
	err = runTable.query(from, "", nil, func(r *perdure.Run) error {
		if r.State.Live() {
			next, newLines, err := adopt.Run(*r)
			if err != nil {
				return fmt.Errorf("adopt run %s: %w", r.ID, err)
			}
			for _, l := range newLines {
				lines = append(lines, eventRow{r.Tenant, r.ID, l})
			}
			*r = next
		}
		if part = append(part, *r); len(part) < backup.MaxRows {
			return nil
		}
		return flush()
	})
	if err == nil {
		err = flush()
	}
	return added, err
}

// adoptAll copies the records of a table, each changed by the adoption.
func adoptAll[T any](c *restoring, t *table[T], from Conn, change func(T) T) error {
	var part []T
	flush := func() error {
		err := c.save(t.name, len(part), t.insert(c.d, part))
		part = part[:0]
		return err
	}
	err := t.query(from, "", nil, func(v *T) error {
		if change != nil {
			*v = change(*v)
		}
		if part = append(part, *v); len(part) < backup.MaxRows {
			return nil
		}
		return flush()
	})
	if err == nil {
		err = flush()
	}
	return err
}

// adoptItems copies the inboxes. Items that were handed over are adopted.
func (c *restoring) adoptItems(from Conn, adopt Adoption) error {
	return adoptAll(c, itemTable, from, func(i perdure.Item) perdure.Item {
		if i.Status == perdure.ItemProcessing {
			return adopt.Item(i)
		}
		return i
	})
}
