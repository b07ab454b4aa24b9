package store

import (
	"fmt"
	"strings"
	"testing"

	"github.com/perdure/perdure/internal/testkit/pgtest"
)

// The patrol asks every few seconds for runs without an alarm. The query has to use the partial
// index instead of reading all runs.
func TestUnwatchedRunsUseTheirIndex(t *testing.T) {
	const question = "EXPLAIN %SELECT id FROM runs WHERE " + unwatched + " AND id>'' ORDER BY id LIMIT 128"
	plan := func(t *testing.T, s *Store, how string, columns int) string {
		t.Helper()
		text := ""
		err := s.lanes[LaneSweep].write.Query(strings.Replace(question, "%", how, 1), nil,
			func(scan func(...any) error) error {
				row, places := make([]any, columns), make([]any, columns)
				for i := range row {
					places[i] = &row[i]
				}
				err := scan(places...)
				line, _ := row[columns-1].(string)
				text += line + "\n"
				return err
			})
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	t.Run("SQLite", func(t *testing.T) {
		if got := plan(t, open(t, Options{}), "QUERY PLAN ", 4); !strings.Contains(got,
			"SEARCH runs USING INDEX runs_unwatched") || strings.Contains(got, "TEMP B-TREE") {
			t.Errorf("the plan does not use runs_unwatched in its order:\n%s", got)
		}
	})
	t.Run("PostgreSQL", func(t *testing.T) {
		s := open(t, Options{URL: pgtest.New(t)})
		many := make([]Op, 2000)
		for i := range many {
			many[i] = insert(fmt.Sprint("r", i))
		}
		for _, grow := range []func(){func() {}, func() { must(t, s, many...) },
			func() { execDirect(t, s, "ANALYZE runs") }} {
			grow()
			if got := plan(t, s, "", 1); !strings.Contains(got, "using runs_unwatched") {
				t.Errorf("the plan does not use runs_unwatched in its order:\n%s", got)
			}
		}
	})
}
