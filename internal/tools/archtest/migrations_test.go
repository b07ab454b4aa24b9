package archtest

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const firstMarked = "0030"

var (
	created    = regexp.MustCompile(`(?m)^CREATE TABLE (\w+)`)
	indexed    = regexp.MustCompile(`(?m)^CREATE (UNIQUE )?INDEX (\{concurrently\} )?\w+ ON (\w+)`)
	addsColumn = regexp.MustCompile(`(?m)^ALTER TABLE \w+ ADD COLUMN [^;]*;`)
	expanding  = regexp.MustCompile(`^(--.*|CREATE TABLE .*|CREATE (UNIQUE )?INDEX .*|ALTER TABLE \w+ ADD COLUMN .*)$`)
)

// Every file of the schema from 0030 on can be applied while nodes of the release before serve.
func TestMigrationsLetOlderNodesServe(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(moduleDir(t), "internal/server/store/schema/*.sql"))
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, path := range files {
		name := filepath.Base(path)
		if name < firstMarked {
			continue
		}
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, problem := range migrationProblems(string(b)) {
			t.Errorf("%s: %s", name, problem)
		}
	}
}

// migrationProblems says what is wrong with a file.
func migrationProblems(text string) (out []string) {
	own := make(map[string]bool)
	for _, m := range created.FindAllStringSubmatch(text, -1) {
		own[m[1]] = true
	}
	for _, m := range indexed.FindAllStringSubmatch(text, -1) {
		switch {
		case own[m[3]]:
		case m[1] != "":
			out = append(out, "a unique index on "+m[3]+" refuses what the release before writes")
		case m[2] == "":
			out = append(out, "the index on "+m[3]+" is to be built {concurrently}")
		case strings.Count(text, ";\n") > 1:
			out = append(out, "an index that is built {concurrently} is alone in its file")
		}
	}
	for _, stmt := range addsColumn.FindAllString(text, -1) {
		if strings.Contains(stmt, "NOT NULL") && !strings.Contains(stmt, "DEFAULT") {
			out = append(out, "a column without a default: "+stmt)
		}
	}
	if !strings.HasPrefix(text, "-- expand ") {
		return out
	}
	for stmt := range strings.SplitSeq(text, ";\n") {
		lines := strings.Split(strings.TrimSpace(stmt), "\n")
		for len(lines) > 0 && strings.HasPrefix(lines[0], "--") {
			lines = lines[1:]
		}
		if len(lines) > 0 && lines[0] != "" && !expanding.MatchString(lines[0]) {
			out = append(out, "an expand only adds: "+lines[0])
		}
	}
	return out
}

func TestMigrationProblemsAreFound(t *testing.T) {
	for text, want := range map[string]string{
		"-- expand 1.0.0: x\nALTER TABLE runs ADD COLUMN a BIGINT NOT NULL;\n":                    "without a default",
		"-- expand 1.0.0: x\nCREATE INDEX a ON runs (b);\n":                                       "{concurrently}",
		"-- expand 1.0.0: x\nCREATE UNIQUE INDEX a ON runs (b);\n":                                "unique",
		"-- expand 1.0.0: x\nCREATE TABLE a (b);\nCREATE INDEX {concurrently} c ON runs (d);\n":   "alone",
		"-- expand 1.0.0: x\nUPDATE runs SET a=1;\n":                                              "only adds",
		"-- expand 1.0.0: x\nDROP TABLE runs;\n":                                                  "only adds",
		"-- expand 1.0.0: x\nCREATE TABLE a (\n  b BIGINT\n);\nCREATE UNIQUE INDEX c ON a (b);\n": "",
	} {
		got := strings.Join(migrationProblems(text), "; ")
		if (want == "") != (got == "") || !strings.Contains(got, want) {
			t.Errorf("problems of %q = %q, want %q", text, got, want)
		}
	}
}

// A column that a later release adds is in no answer of an older node, because statements name their columns.
func TestStatementsNameTheirColumns(t *testing.T) {
	all := regexp.MustCompile(`SELECT \* FROM [a-z_]+\b|INSERT INTO [a-z_]+ (?:VALUES|SELECT)`)
	files, err := filepath.Glob(filepath.Join(moduleDir(t), "internal/server/store/*.go"))
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, path := range files {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		for _, found := range all.FindAllString(string(b), -1) {
			if !strings.HasPrefix(found, "SELECT * FROM unnest") {
				t.Errorf("%s: %s does not name its columns", filepath.Base(path), found)
			}
		}
	}
}
