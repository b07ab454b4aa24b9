package pg

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"golang.org/x/sys/unix"

	"github.com/perdure/perdure/internal/testkit/pgtest"
)

// native is a session on pgx.Conn: with its cache of prepared statements, its batches and its
// codecs. It makes the same round trips as Conn, without the handling of lost connections. The
// benchmark compares Conn with it.
type native struct {
	conn  *pgx.Conn
	texts map[string]string
}

func (n *native) text(query string) string {
	text, ok := n.texts[query]
	if !ok {
		text = numbered(query)
		n.texts[query] = text
	}
	return text
}

func (n *native) ExecAll(list iter.Seq2[string, []any]) (counts []int64, err error) {
	var b pgx.Batch
	b.Queue("BEGIN")
	b.Queue(queryNumber)
	for text, args := range list {
		b.Queue(n.text(text), args...)
	}
	results := n.conn.SendBatch(context.Background(), &b)
	for i := range b.Len() {
		var tag pgconn.CommandTag
		if i == 1 {
			var number txNumber
			err = results.QueryRow().Scan(&number.id, &number.at, &number.server)
		} else {
			tag, err = results.Exec()
		}
		if err != nil {
			break
		}
		if i > 1 {
			counts = append(counts, tag.RowsAffected())
		}
	}
	if cerr := results.Close(); err == nil {
		err = cerr
	}
	return counts, err
}

func (n *native) Query(query string, args []any, row func(scan func(dest ...any) error) error) error {
	rows, err := n.conn.Query(context.Background(), n.text(query), args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := row(rows.Scan); err != nil {
			return err
		}
	}
	return rows.Err()
}

func (n *native) Rollback() error {
	_, err := n.conn.Exec(context.Background(), "ROLLBACK")
	return err
}

// nativeColumn is a Column as pgx wants an array.
type nativeColumn struct {
	Rows [][]any
	At   int
}

func (c nativeColumn) Dimensions() []pgtype.ArrayDimension {
	return []pgtype.ArrayDimension{{Length: int32(len(c.Rows)), LowerBound: 1}}
}
func (c nativeColumn) Index(i int) any { return c.Rows[i][c.At] }
func (c nativeColumn) IndexType() any  { return c.Rows[0][c.At] }

func nativeColumns(rows [][]any) []any {
	out := make([]any, len(rows[0]))
	for i := range out {
		out[i] = nativeColumn{rows, i}
	}
	return out
}

// nativeSlices gives the columns as slices, for which pgx has codecs of their own. They can't hold
// NULL.
func nativeSlices(rows [][]any) []any {
	out := make([]any, len(rows[0]))
	for i := range out {
		if _, ok := rows[0][i].(string); ok {
			out[i] = slice[string](rows, i)
		} else {
			out[i] = slice[int64](rows, i)
		}
	}
	return out
}

func slice[T any](rows [][]any, at int) []T {
	out := make([]T, len(rows))
	for i, row := range rows {
		out[i] = row[at].(T)
	}
	return out
}

// The table is like that of runs: a key, texts and numbers.
const wideTexts, wideNumbers, wideRows = 20, 20, 64

func wideRow(i int) (row []any) {
	for c := range wideTexts {
		row = append(row, fmt.Sprintf("text %d of row %06d", c, i))
	}
	for c := range wideNumbers {
		row = append(row, int64(1_700_000_000_000_000+1000*i+c))
	}
	return row
}

type session interface {
	ExecAll(iter.Seq2[string, []any]) ([]int64, error)
	Query(query string, args []any, row func(scan func(dest ...any) error) error) error
	Rollback() error
}

// A round is the time of some operations of one side, per operation.
type round struct {
	wall, cpu, server time.Duration // cpu is of this process, server that of the server's process for this connection
	allocs            float64
}

// roundOps is the number of operations of a round. It is small, so that both sides have the same
// load on the machine.
const roundOps = 10

func measure(b *testing.B, op func() error, pid int) (r round) {
	b.Helper()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	server, cpu, wall := serverTime(pid), cpuTime(b), time.Now()
	for range roundOps {
		if err := op(); err != nil {
			b.Fatal(err)
		}
	}
	r.wall, r.cpu = time.Since(wall)/roundOps, (cpuTime(b)-cpu)/roundOps
	r.server = (serverTime(pid) - server) / roundOps
	runtime.ReadMemStats(&after)
	r.allocs = float64(after.Mallocs-before.Mallocs) / roundOps
	return r
}

func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// serverTime is the processor time of a process on this machine; zero: it can't be read.
func serverTime(pid int) (d time.Duration) {
	if text, err := os.ReadFile(fmt.Sprintf("/proc/%d/schedstat", pid)); err == nil {
		fmt.Sscan(string(text), &d)
	}
	return d
}

// A side is one way to do an operation.
type side struct {
	name   string
	op     func() error
	pid    int // of the server's process
	rounds []round
}

// inTurns measures the sides, one round after the other, and reports the medians.
func inTurns(b *testing.B, sides ...side) {
	b.Helper()
	for i := range sides { // statements are prepared
		measure(b, sides[i].op, sides[i].pid)
	}
	for b.Loop() {
		for i := range sides {
			sides[i].rounds = append(sides[i].rounds, measure(b, sides[i].op, sides[i].pid))
		}
		slices.Reverse(sides) // the order alternates
	}
	for _, s := range sides {
		median := func(of func(round) float64) float64 {
			all := make([]float64, len(s.rounds))
			for i, r := range s.rounds {
				all[i] = of(r)
			}
			slices.Sort(all)
			return all[len(all)/2]
		}
		b.ReportMetric(median(func(r round) float64 { return float64(r.wall.Microseconds()) }), s.name+"-µs/op")
		b.ReportMetric(median(func(r round) float64 { return float64(r.cpu.Microseconds()) }), s.name+"-cpu-µs/op")
		b.ReportMetric(median(func(r round) float64 { return float64(r.server.Microseconds()) }),
			s.name+"-server-cpu-µs/op")
		b.ReportMetric(median(func(r round) float64 { return r.allocs }), s.name+"-allocs/op")
	}
}

// BenchmarkSession compares Conn with a session on pgx.Conn. It uses the store's two kinds of
// statements: a transaction that changes rows by arrays of columns, and a query by keys.
func BenchmarkSession(b *testing.B) {
	url := pgtest.New(b)
	p, err := Open(Options{URL: url})
	if err != nil {
		b.Fatal(err)
	}
	ours := p.Writer(WriterOptions{Timeout: 30 * time.Second})
	defer ours.Close()
	cfg, err := pgx.ParseConfig(url)
	if err != nil {
		b.Fatal(err)
	}
	cfg.RuntimeParams = ours.cfg.RuntimeParams
	conn, err := pgx.ConnectConfig(b.Context(), cfg)
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close(context.Background())

	var names, typed, set, kinds []string
	for c := range wideTexts + wideNumbers {
		name, kind := fmt.Sprint("c", c), "TEXT"
		if c >= wideTexts {
			kind = "BIGINT"
		}
		names, typed, kinds = append(names, name), append(typed, name+" "+kind), append(kinds, "?::"+kind+"[]")
		if c > 0 {
			set = append(set, name+"=input."+name)
		}
	}
	all := strings.Join(names, ",")
	input := "SELECT * FROM unnest(" + strings.Join(kinds, ",") + ")"
	var rows [][]any
	var keys []string
	for i := range wideRows {
		rows = append(rows, wideRow(i))
		keys = append(keys, rows[i][0].(string))
	}
	if err := ours.Script("CREATE TABLE wide (" + strings.Join(typed, ",") + ", PRIMARY KEY (c0))"); err != nil {
		b.Fatal(err)
	}
	if _, err := ours.Exec("INSERT INTO wide ("+all+") "+input, Columns(rows)); err != nil {
		b.Fatal(err)
	}
	update := "WITH input(" + all + ") AS (" + input + ") UPDATE wide SET " + strings.Join(set, ",") +
		" FROM input WHERE wide.c0=input.c0"
	read := "SELECT " + all + " FROM wide WHERE c0 = ANY(?::text[])"

	other := &native{conn, make(map[string]string)}
	write := func(s session, args func([][]any) []any) func() error {
		return func() error {
			counts, err := s.ExecAll(func(yield func(string, []any) bool) { yield(update, args(rows)) })
			if err == nil && (len(counts) != 1 || counts[0] != wideRows) {
				err = fmt.Errorf("changed %v rows, want %d", counts, wideRows)
			}
			return errors.Join(err, s.Rollback()) // no commit, so that the disk is not measured
		}
	}
	query := func(s session) func() error {
		var texts [wideTexts]string
		var numbers [wideNumbers]int64
		var dest []any
		for i := range texts {
			dest = append(dest, &texts[i])
		}
		for i := range numbers {
			dest = append(dest, &numbers[i])
		}
		return func() error {
			n := 0
			err := s.Query(read, []any{keys}, func(scan func(...any) error) error {
				n++
				return scan(dest...)
			})
			if err == nil && n != wideRows {
				err = fmt.Errorf("read %d rows, want %d", n, wideRows)
			}
			return err
		}
	}
	pid := func(s session) (n int) {
		err := s.Query("SELECT pg_backend_pid()", nil, func(scan func(...any) error) error { return scan(&n) })
		if err != nil {
			b.Fatal(err)
		}
		return n
	}
	b.Run("write", func(b *testing.B) {
		inTurns(b, side{name: "ours", op: write(ours, Columns), pid: pid(ours)},
			side{name: "pgx", op: write(other, nativeColumns), pid: pid(other)},
			side{name: "pgx-slices", op: write(other, nativeSlices), pid: pid(other)})
	})
	b.Run("read", func(b *testing.B) {
		inTurns(b, side{name: "ours", op: query(ours), pid: pid(ours)},
			side{name: "pgx", op: query(other), pid: pid(other)})
	})
}
