package store

import (
	"slices"
	"strings"
	"time"

	"github.com/perdure/perdure/internal/server/store/sqlite"
)

var sqliteDialect = &dialect{
	name: "sqlite",
	schema: strings.NewReplacer("{without rowid}", "WITHOUT ROWID", "{text}", "TEXT", "{bytes}", "BLOB",
		"{concurrently}", "IF NOT EXISTS"),
	ownClock:    true,
	fatal:       true,
	tableExists: "SELECT count(*) FROM sqlite_master WHERE type='table' AND name=?",
	contains:    func(column string) string { return "instr(" + column + ", ?)>0" },
	sizes:       []int{64, 32, 16, 8, 4, 2, 1},
	orFail:      "OR FAIL ",
	indexed:     func(index string) string { return "INDEXED BY " + index + " " },
	anyOf: func(column string, values []string) (string, []any) {
		args := make([]any, len(values))
		for i, v := range values {
			args[i] = v
		}
		return column + " IN (" + marks(len(values)) + ")", args
	},
	keyed: func(_ string, columns, fixed, values []string) (string, []any) {
		args := make([]any, 0, len(fixed)+len(values))
		for _, v := range slices.Concat(fixed, values) {
			args = append(args, v)
		}
		var given strings.Builder
		for _, c := range columns[:len(fixed)] {
			given.WriteString(c + "=? AND ")
		}
		return "WHERE " + given.String() + columns[len(fixed)] + " IN (" + marks(len(values)) + ")", args
	},
	// All columns are compared as one tuple, even one that is equal in all rows. Written
	// separately, it would lead the planner to another index that begins with that column.
	among: func(_ string, columns []string, rows string) string {
		return "WHERE (" + strings.Join(columns, ",") + ") IN (" + rows + ")"
	},
	rows: func(part [][]any) string {
		row := "(" + marks(len(part[0])) + ")"
		return "VALUES " + strings.TrimSuffix(strings.Repeat(row+",", len(part)), ",")
	},
	args:     flat,
	conflict: sqlite.IsConflict,
	lost:     func(error) bool { return false },
	locked:   func(error) bool { return false },
	late:     sqlite.IsLate,
	readOnly: sqlite.IsReadOnly,
	busy:     sqlite.IsLocked,
	blocked:  sqlite.IsLocked,
}

func marks(n int) string { return strings.TrimSuffix(strings.Repeat("?,", n), ",") }

// SlowDown makes every commit on SQLite in this process take longer, for measurements.
func SlowDown(by time.Duration) { sqlite.SlowDown(by) }
