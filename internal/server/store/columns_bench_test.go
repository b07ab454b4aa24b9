package store

import (
	"fmt"
	"testing"

	"github.com/perdure/perdure"
)

// A given session answers a query with the same row, again and again.
type given struct {
	Conn
	row []any
	n   int
}

func (g *given) Query(_ string, _ []any, row func(scan func(...any) error) error) error {
	for range g.n {
		if err := row(func(dest ...any) error {
			for i, d := range dest {
				switch v := g.row[i].(type) {
				case string:
					if p, ok := d.(*string); ok {
						*p = v
					}
				case int64:
					if p, ok := d.(*int64); ok {
						*p = v
					}
				}
			}
			return nil
		}); err != nil {
			return err
		}
	}
	return nil
}

// The garbage and the time of writing and reading rows, without the database.
func BenchmarkColumns(b *testing.B) {
	run := newRun("01890a5d-ac96-774b-bcce-b302099a8057", 1_700_000_000_000_000)
	run.Input, run.Metadata, run.Worker, run.Result = `{"a":1}`, `{"b":2}`, "worker-1", `{"c":3}`
	run.GrantedAt, run.SeenAt, run.StartedAt = run.CreatedAt, run.CreatedAt, run.CreatedAt
	line := eventRow{tenant, run.ID, perdure.Line{Seq: 300, Type: "run:created", At: run.CreatedAt, Data: `{"a":1}`}}
	for _, n := range []int{1, 8, 64} {
		runs, lines, changed := make([]perdure.Run, n), make([]eventRow, n), make([]changedRun, n)
		for i := range n {
			runs[i], lines[i], changed[i] = run, line, changedRun{&runs[i], 300}
		}
		for _, d := range []*dialect{sqliteDialect, postgresDialect} {
			b.Run(fmt.Sprintf("%s/insert-runs/%d", d.name, n), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					runTable.insert(d, runs)
				}
			})
			b.Run(fmt.Sprintf("%s/update-runs/%d", d.name, n), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					saveRuns(d, changed, onlyChanging)
				}
			})
			b.Run(fmt.Sprintf("%s/insert-lines/%d", d.name, n), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					eventTable.insert(d, lines)
				}
			})
		}
		b.Run(fmt.Sprintf("read-runs/%d", n), func(b *testing.B) {
			s := &given{row: runTable.bind(&run), n: n}
			b.ReportAllocs()
			for b.Loop() {
				_ = runTable.query(s, "", nil, func(*perdure.Run) error { return nil })
			}
		})
		b.Run(fmt.Sprintf("read-lines/%d", n), func(b *testing.B) {
			s := &given{row: eventTable.bind(&line), n: n}
			b.ReportAllocs()
			for b.Loop() {
				_ = eventTable.query(s, "", nil, func(*eventRow) error { return nil })
			}
		})
	}
}
