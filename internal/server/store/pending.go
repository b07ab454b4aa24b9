package store

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"

	"github.com/perdure/perdure/internal/server/store/pg"
	"github.com/perdure/perdure/internal/server/store/sqlite"
	"github.com/perdure/perdure/internal/wire/release"
)

// An Upgrade says what a start of this program would change in a store.
type Upgrade struct {
	// Schema is that of the store, and Program the newest that this program knows.
	Schema  int `json:"schema"`
	Program int `json:"program_schema"`
	// Oldest is the schema that a program has to know afterwards, so that it works on the store.
	Oldest int `json:"oldest_program_schema"`
	// Level is the newest release that was alone on the store. Empty: 0.1.0, which does not record it.
	Level      string    `json:"level,omitempty"`
	Migrations []Planned `json:"migrations"`
	// Releases are connected now. On SQLite they are not known.
	Releases []Release `json:"releases"`
	// Refused is why this program does not start on the store. It is empty if it does.
	Refused string `json:"refused,omitempty"`
}

// A Planned is a migration that a start would apply.
type Planned struct {
	Name    string `json:"name"`
	Kind    string `json:"kind"` // expand or contract
	Release string `json:"release"`
	Changes string `json:"changes"` // "adds 1 column"
	// Concurrently is set if an index is built while others write.
	Concurrently bool `json:"concurrently,omitempty"`
	// Rows are the numbers of rows of the tables that are there and change.
	Rows map[string]int64 `json:"rows,omitempty"`
}

// Pending looks what a start of this program would change. It changes nothing, and servers may work on
// the store meanwhile.
func Pending(opt Options) (*Upgrade, error) {
	if opt.URL == "" {
		if _, err := os.Stat(opt.Path); err != nil {
			return nil, err
		}
		sess, err := sqlite.OpenLooking(opt.Path)
		if err != nil {
			return nil, err
		}
		u, err := pending(sess, sqliteDialect)
		return u, errors.Join(err, sess.Close())
	}
	p, err := openTool(opt.URL)
	if err != nil {
		return nil, err
	}
	sess := p.Auditor()
	defer sess.Close()
	u, err := pending(sess, postgresDialect)
	if err == nil {
		u.Releases, err = nodeReleases(sess)
	}
	return u, err
}

// openTool opens a PostgreSQL for a command, whose connections are not those of a node.
func openTool(url string) (*pg.Server, error) { return pg.Open(pg.Options{URL: url, Tool: true}) }

// Connected gives the releases of the nodes that are connected to a PostgreSQL, the oldest first. It
// reads nothing of the store.
func Connected(url string) ([]Release, error) {
	p, err := openTool(url)
	if err != nil {
		return nil, err
	}
	sess := p.Reader(observeTimeout)
	defer sess.Close()
	return nodeReleases(sess)
}

// nodeReleases leaves out the commands.
func nodeReleases(sess Conn) ([]Release, error) {
	list, err := releases(sess)
	return slices.DeleteFunc(list, func(r Release) bool { return r.Tool }), err
}

func pending(sess Conn, d *dialect) (*Upgrade, error) {
	list, err := migrations()
	if err != nil {
		return nil, err
	}
	u := &Upgrade{Program: len(list), Migrations: []Planned{}, Releases: []Release{}}
	if u.Schema, err = schemaVersion(sess, d); err != nil || u.Schema == 0 {
		u.Oldest = u.Program
		return u, err
	}
	if u.Oldest, err = oldestSchema(sess, u.Schema); err != nil {
		return nil, err
	}
	if u.Level, err = levelOf(sess); err != nil {
		return nil, err
	}
	if u.Oldest > u.Program {
		u.Refused = fmt.Sprintf("the store needs a program that knows schema %d, and release %s knows %d", u.Oldest,
			release.Version, u.Program)
	}
	for i := u.Schema; i < len(list); i++ {
		m := &list[i]
		x := Planned{Name: m.name, Kind: m.kind, Release: m.release, Changes: m.summary(),
			Concurrently: m.concurrent() != ""}
		if x.Rows, err = m.rows(sess, d); err != nil {
			return nil, err
		}
		u.Migrations, u.Oldest = append(u.Migrations, x), max(u.Oldest, m.oldest)
	}
	return u, nil
}

// changesTable matches a statement that changes a table, or makes an index of one.
var changesTable = regexp.MustCompile(
	`(?m)^(?:ALTER TABLE|UPDATE|DELETE FROM|DROP TABLE|CREATE (?:UNIQUE )?INDEX (?:\{concurrently\} )?\w+ ON) (\w+)`)

// rows counts the rows of the tables that are there and that a file changes.
func (m *migration) rows(sess Conn, d *dialect) (map[string]int64, error) {
	out := make(map[string]int64)
	for _, found := range changesTable.FindAllStringSubmatch(m.text, -1) {
		name, exists := found[1], 0
		err := sess.Query(d.tableExists, []any{name}, func(scan func(...any) error) error { return scan(&exists) })
		if err == nil && exists > 0 {
			n := int64(0)
			err = sess.Query("SELECT count(*) FROM "+name, nil,
				func(scan func(...any) error) error { return scan(&n) })
			out[name] = n
		}
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}
