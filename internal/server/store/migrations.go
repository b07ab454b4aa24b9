package store

import (
	"embed"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

//go:embed schema/*.sql
var schema embed.FS

// Kinds of migrations. An expand only adds, and the release before works on what it makes. A
// contract removes what neither its own release nor the one before it uses.
const (
	expand   = "expand"
	contract = "contract"
)

// firstMarked is the first file of schema/ that says its kind. Those before it are of release 0.1.0
// or older.
const firstMarked = 30

// A migration is a file of schema/. From firstMarked on its first line is a mark:
//
//	-- expand 0.2.0: why
//	-- contract 0.3.0, needs schema 31: why
//
// The mark has the release that the file comes with. A contract also says which schema a program
// has to know at least: the last one of the release before.
type migration struct {
	n       int
	name    string // without ".sql"
	text    string
	kind    string
	release string
	// oldest is the schema that a program has to know to work on the store after this file. Zero: the
	// file changes nothing about that.
	oldest int
}

var (
	marked = regexp.MustCompile(`^-- (expand|contract) (\d+\.\d+\.\d+)(?:, needs schema (\d+))?: \S`)
	// concurrently matches an index that PostgreSQL builds while others write.
	concurrently = regexp.MustCompile(`(?m)^CREATE INDEX \{concurrently\} (\w+) ON `)
)

// migrations gives the files of schema/ in order.
func migrations() ([]migration, error) {
	files, err := schema.ReadDir("schema")
	if err != nil {
		return nil, err
	}
	out := make([]migration, len(files))
	for i, f := range files {
		text, err := schema.ReadFile("schema/" + f.Name())
		if err != nil {
			return nil, err
		}
		if out[i], err = parseMigration(i+1, strings.TrimSuffix(f.Name(), ".sql"), string(text)); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// parseMigration reads the mark of a file.
func parseMigration(n int, name, text string) (migration, error) {
	m := migration{n: n, name: name, text: text, kind: contract, release: "0.1.0", oldest: n}
	if n < firstMarked {
		return m, nil
	}
	mark := marked.FindStringSubmatch(text)
	if mark == nil || (mark[1] == contract) != (mark[3] != "") {
		return m, fmt.Errorf("schema/%s.sql does not begin with \"-- expand RELEASE: why\" or \"-- contract RELEASE, "+
			"needs schema N: why\"", name)
	}
	m.kind, m.release, m.oldest = mark[1], mark[2], 0
	if m.kind == contract {
		m.oldest, _ = strconv.Atoi(mark[3])
		if m.oldest >= n {
			return m, fmt.Errorf("schema/%s.sql needs schema %d, which is not older than itself", name, m.oldest)
		}
	}
	return m, nil
}

// sum is the SHA-256 of the file.
func (m *migration) sum() string { return Digest(m.text) }

// concurrent gives the name of the index that PostgreSQL builds while others write. A file
// with such an index has nothing else.
func (m *migration) concurrent() string {
	if found := concurrently.FindStringSubmatch(m.text); found != nil {
		return found[1]
	}
	return ""
}

// Statements that make or remove something.
var (
	makes   = regexp.MustCompile(`(?m)^CREATE (?:UNIQUE )?(TABLE|INDEX)|^ALTER TABLE \w+ ADD (COLUMN)`)
	removes = regexp.MustCompile(`(?m)^DROP (TABLE|INDEX)|^ALTER TABLE \w+ DROP (COLUMN)`)
)

// summary says what a file changes: "adds 2 tables, 1 index".
func (m *migration) summary() string {
	var parts []string
	for _, x := range []struct {
		verb string
		of   *regexp.Regexp
	}{{"adds", makes}, {"removes", removes}} {
		n := make(map[string]int)
		for _, found := range x.of.FindAllStringSubmatch(m.text, -1) {
			n[found[1]+found[2]]++
		}
		verb := x.verb + " "
		for _, thing := range []string{"TABLE", "COLUMN", "INDEX"} {
			if n[thing] > 0 {
				parts = append(parts, verb+countOf(n[thing], strings.ToLower(thing)))
				verb = ""
			}
		}
	}
	if len(parts) == 0 {
		return "changes rows"
	}
	return strings.Join(parts, ", ")
}

// countOf writes a number of things.
func countOf(n int, thing string) string {
	switch {
	case n == 1:
		return "1 " + thing
	case thing == "index":
		return strconv.Itoa(n) + " indexes"
	}
	return strconv.Itoa(n) + " " + thing + "s"
}
