package store

import (
	"embed"
	"fmt"
	"strconv"
	"strings"
)

//go:embed schema/*.sql
var schema embed.FS

// migrate applies the files of schema/ that the store does not have yet, in order, each in a
// transaction of its own. A store with files that this program does not know is accepted if its row
// schema_oldest allows it: the next release only adds, so that nodes are replaced one after the
// other, and back.
//
// With asIs nothing is applied, and a store of another version is refused.
func migrate(s Conn, d *dialect, asIs bool) error {
	if err := s.Begin(); err != nil {
		return err
	}
	have, err := schemaVersion(s, d)
	if err != nil {
		s.Rollback()
		return err
	}
	if err := s.Rollback(); err != nil {
		return err
	}
	files, err := schema.ReadDir("schema")
	if err != nil {
		return err
	}
	if newest := len(files); have > newest {
		oldest, err := oldestSchema(s, have)
		if err != nil {
			return err
		}
		if oldest > newest {
			return fmt.Errorf("the store has schema %d and needs a program that knows schema %d, and this one "+
				"knows %d: use a newer program", have, oldest, newest)
		}
	}
	if asIs && have != len(files) {
		return fmt.Errorf("the store has schema %d, and this program checks schema %d", have, len(files))
	}
	for i, f := range files[min(have, len(files)):] {
		text, err := schema.ReadFile("schema/" + f.Name())
		if err != nil {
			return err
		}
		if err := applyFile(s, d.schema.Replace(string(text)), have+i+1); err != nil {
			return fmt.Errorf("bring the store from schema %d to %d: %s: %w", have, len(files), f.Name(), err)
		}
	}
	return fillMetadata(s, d, asIs)
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
// have. Without a row of its own it is that schema.
func oldestSchema(s Conn, have int) (n int, err error) {
	text := strconv.Itoa(have)
	err = s.Query("SELECT value FROM meta WHERE name='schema_oldest'", nil,
		func(scan func(...any) error) error { return scan(&text) })
	if err != nil {
		return 0, err
	}
	if n, err = strconv.Atoi(text); err != nil || n < 1 || n > have {
		return 0, fmt.Errorf("the store has schema %d and says that programs need %q: it is damaged", have, text)
	}
	return n, nil
}

// applyFile applies one file of schema/ and records its version.
func applyFile(s Conn, text string, version int) error {
	if err := s.Begin(); err != nil {
		return err
	}
	if err := script(s, text); err != nil {
		s.Rollback()
		return err
	}
	_, err := s.Exec("INSERT INTO meta (name,value) VALUES ('schema',?) "+
		"ON CONFLICT (name) DO UPDATE SET value=excluded.value", []any{strconv.Itoa(version)})
	if err != nil {
		s.Rollback()
		return err
	}
	return s.Commit()
}

// script executes the statements of a file, in one call where the session can.
func script(s Conn, text string) error {
	if whole, ok := s.(interface{ Script(string) error }); ok {
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
