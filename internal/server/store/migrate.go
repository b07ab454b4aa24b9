package store

import (
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"time"
)

// Two rows of meta say which programs may work on a store: metaSchema has the number of the last
// file of schema/ that was applied, and metaOldest the number that a program has to know at least.
// A file that only adds raises the first one alone, so that the release before works on the newer
// schema. Without a row metaOldest the two are the same.

// ErrOtherSchema means that a store that was opened as it is has an older schema.
var ErrOtherSchema = errors.New("the store has schema")

// A migrator brings a store up to date.
type migrator struct {
	sess Conn
	d    *dialect
	log  *slog.Logger
	list []migration
	// progress says how far the statement that is executed is. nil: nothing is known.
	progress func() string
	// every is how often a migration that takes long is logged.
	every time.Duration
	// waits is called while a migration waits for a lock; false ends that. It may be nil.
	waits func(why string) bool
}

// errMigrationStopped ends a start that waits for a lock. The store is as the migrations before have
// left it.
var errMigrationStopped = errors.New("stopped while it waited for a lock")

// slowEvery is how often a migration that takes long says so.
const slowEvery = 10 * time.Second

// newMigrator prepares the migration of a store with the files of this program.
func newMigrator(s Conn, d *dialect, log *slog.Logger) (*migrator, error) {
	list, err := migrations()
	return &migrator{sess: s, d: d, log: log, list: list, every: slowEvery}, err
}

// migrate brings a store up to date that nobody else uses, without a log.
func migrate(s Conn, d *dialect, asIs bool) error {
	m, err := newMigrator(s, d, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	return m.run(asIs)
}

// run applies the files that the store does not have yet, in order, each in a transaction of its
// own. A store with files that this program does not know is accepted if metaOldest allows it.
//
// With asIs nothing is applied, and a store of another version is refused.
func (m *migrator) run(asIs bool) error {
	have, err := m.have()
	if err != nil {
		return err
	}
	newest := len(m.list)
	if err := m.accepts(have); err != nil {
		return err
	}
	if asIs && have != newest {
		return fmt.Errorf("%w %d, and this program checks schema %d", ErrOtherSchema, have, newest)
	}
	begun := time.Now()
	for i := have; i < newest; i++ {
		if err := m.apply(&m.list[i], have > 0); err != nil {
			return fmt.Errorf("bring the store from schema %d to %d: %s.sql: %w", have, newest, m.list[i].name, err)
		}
	}
	if have == 0 {
		m.log.Info(fmt.Sprintf("schema 0 → %d: a new store, %s", newest, took(begun)))
	}
	return fillMetadata(m.sess, m.d, asIs)
}

// accepts refuses a store that needs a newer program.
func (m *migrator) accepts(have int) error {
	if have <= len(m.list) {
		return nil
	}
	oldest, err := oldestSchema(m.sess, have)
	if err == nil && oldest > len(m.list) {
		err = fmt.Errorf("the store has schema %d and needs a program that knows schema %d, and this one "+
			"knows %d: use a newer program", have, oldest, len(m.list))
	}
	return err
}

// have reads the schema of the store.
func (m *migrator) have() (int, error) {
	if err := m.sess.Begin(); err != nil {
		return 0, err
	}
	have, err := schemaVersion(m.sess, m.d)
	return have, errors.Join(err, m.sess.Rollback())
}

// apply applies one file, and logs it. A lock that others hold is waited for briefly, so that callers
// that come behind do not wait for long, and is asked for again.
func (m *migrator) apply(f *migration, tell bool) error {
	begun, said := time.Now(), time.Now()
	stop := m.watch(f, begun)
	defer stop()
	for {
		err := m.try(f)
		switch {
		case err == nil:
			if tell {
				m.log.Info(fmt.Sprintf("schema %d → %d: %s, %s, %s", f.n-1, f.n, f.name, f.summary(), took(begun)))
			}
			return nil
		case !m.d.locked(err) && !m.d.conflict(err):
			return err
		case m.waits != nil && !m.waits("the migration "+f.name+" waits for a lock that another session holds"):
			return fmt.Errorf("%w: %w", errMigrationStopped, err)
		case time.Since(said) >= m.every:
			said = time.Now()
			m.log.Warn("a migration waits for a lock that another session holds", "migration", f.name, "for",
				took(begun), "error", err)
		}
		time.Sleep(lockPause)
	}
}

// lockPause is how long a migration that did not get a lock leaves the table to others.
const lockPause = 200 * time.Millisecond

func took(begun time.Time) string {
	if d := time.Since(begun); d < time.Second {
		return d.Round(time.Millisecond).String()
	} else {
		return d.Round(100 * time.Millisecond).String()
	}
}

// watch logs now and then how far a file is, until stop is called.
func (m *migrator) watch(f *migration, begun time.Time) (stop func()) {
	done := make(chan struct{})
	go func() {
		tick := time.NewTicker(m.every)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
			}
			args := []any{"migration", f.name, "for", took(begun)}
			if m.progress != nil {
				if text := m.progress(); text != "" {
					args = append(args, "progress", text)
				}
			}
			m.log.Info("a migration goes on", args...)
		}
	}()
	return func() { close(done) }
}

// try applies one file.
func (m *migrator) try(f *migration) error {
	text := m.d.schema.Replace(f.text)
	if index := f.concurrent(); index != "" && m.d.invalidIndex != "" {
		if err := m.buildIndex(index, text); err != nil {
			return err
		}
		text = ""
	}
	return applyFile(m.sess, text, f)
}

// buildIndex builds an index on PostgreSQL while others write. The remains of a killed build are
// removed first. The waits for older transactions hold up nobody, so they have no limit.
func (m *migrator) buildIndex(index, text string) error {
	invalid := 0
	err := m.sess.Query(m.d.invalidIndex, []any{index}, func(scan func(...any) error) error { return scan(&invalid) })
	if err == nil && invalid > 0 {
		_, err = m.sess.Exec("DROP INDEX "+index, nil)
	}
	if err != nil {
		return err
	}
	if _, err := m.sess.Exec("SET lock_timeout=0", nil); err != nil {
		return err
	}
	_, err = m.sess.Exec(withoutComments(text), nil)
	_, reset := m.sess.Exec("RESET lock_timeout", nil)
	return errors.Join(err, reset)
}

// withoutComments leaves out the lines that are comments.
func withoutComments(text string) string {
	var out strings.Builder
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "--") {
			out.WriteString(line)
		}
	}
	return strings.TrimRight(out.String(), ";\n")
}

// schemaVersion gives the schema version of a store. It is zero for a store without tables.
func schemaVersion(s Conn, d *dialect) (n int, err error) {
	exists := 0
	err = s.Query(d.tableExists, []any{"meta"}, func(scan func(...any) error) error { return scan(&exists) })
	if err != nil || exists == 0 {
		return 0, err
	}
	var text string
	err = s.Query("SELECT value FROM meta WHERE name='schema'", nil,
		func(scan func(...any) error) error { return scan(&text) })
	if err != nil {
		return 0, err
	}
	if n, err = strconv.Atoi(text); err != nil || n < 1 {
		return 0, fmt.Errorf("the store says that its schema is %q, which is none: it is damaged, or not a store "+
			"of Perdure", text)
	}
	return n, nil
}

// oldestSchema gives the schema that a program has to know at least, for a store whose schema is
// have.
func oldestSchema(s Conn, have int) (n int, err error) {
	text := strconv.Itoa(have)
	err = s.Query("SELECT value FROM meta WHERE name=?", []any{metaOldest},
		func(scan func(...any) error) error { return scan(&text) })
	if err != nil {
		return 0, err
	}
	if n, err = strconv.Atoi(text); err != nil || n < 1 || n > have {
		return 0, fmt.Errorf("the store has schema %d and says that programs need %q: it is damaged", have, text)
	}
	return n, nil
}

// applyFile executes the statements of a file in one transaction, which records its number too.
func applyFile(s Conn, text string, f *migration) error {
	if err := s.Begin(); err != nil {
		return err
	}
	err := script(s, text)
	rows := map[string]string{metaSchema: strconv.Itoa(f.n)}
	if err == nil && f.n > 1 {
		var oldest int
		if oldest, err = oldestSchema(s, f.n-1); err == nil {
			rows[metaOldest] = strconv.Itoa(max(oldest, f.oldest))
		}
	}
	if err == nil {
		err = writeMeta(s, rows)
	}
	if err != nil {
		return errors.Join(err, s.Rollback())
	}
	return s.Commit()
}

// script executes the statements of a file, in one call where the session can.
func script(s Conn, text string) error {
	if whole, ok := s.(interface{ Script(string) error }); ok && text != "" {
		return whole.Script(text)
	}
	for stmt := range strings.SplitSeq(text, ";\n") {
		if strings.TrimSpace(stmt) == "" {
			continue
		}
		if _, err := s.Exec(stmt, nil); err != nil {
			return fmt.Errorf("%.60q: %w", strings.TrimSpace(stmt), err)
		}
	}
	return nil
}
