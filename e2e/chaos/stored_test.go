package chaos

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/perdure/perdure"
)

// Stored is what the store has of the runs.
type Stored struct{ Runs map[string]*StoredRun }

// A StoredRun is a run with what belongs to it. Instants are the store's, in microseconds.
type StoredRun struct {
	Key, Kind, State, Result, Parent, JournalKey string
	Epoch, DeadlineAt, EndedAt                   int64
	Attempt, Late                                int
	Cancelled                                    bool // a cancel was requested
	Lines                                        []Line
	Journal                                      map[string]bool
	Signals                                      map[string][]int64 // inbox numbers by data
}

// A Line is a line of a run's log.
type Line struct {
	Seq, At, Epoch int64
	Type           perdure.LineType
	Attempt        int
	Data           string
}

// readStore reads the store by its address.
func readStore(ctx context.Context, url string) (*Stored, error) {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return nil, err
	}
	defer conn.Close(ctx)
	s := &Stored{Runs: make(map[string]*StoredRun)}
	var id, text string
	var r StoredRun
	if err := each(ctx, conn, "SELECT id, kind, state, result, input, parent_id, journal_key, epoch, deadline_at, "+
		"finished_at, attempt, late FROM runs",
		[]any{&id, &r.Kind, &r.State, &r.Result, &text, &r.Parent, &r.JournalKey, &r.Epoch, &r.DeadlineAt, &r.EndedAt,
			&r.Attempt, &r.Late}, func() {
			one := r
			var in input
			if json.Unmarshal([]byte(text), &in) == nil {
				one.Key = in.Key
			}
			one.Journal, one.Signals = make(map[string]bool), make(map[string][]int64)
			s.Runs[id] = &one
		}); err != nil {
		return nil, err
	}
	var l Line
	if err := each(ctx, conn, "SELECT run_id, seq, type, at, attempt, epoch, data FROM events ORDER BY run_id, seq",
		[]any{&id, &l.Seq, &l.Type, &l.At, &l.Attempt, &l.Epoch, &l.Data}, func() {
			if r := s.Runs[id]; r != nil {
				r.Lines = append(r.Lines, l)
				r.Cancelled = r.Cancelled || l.Type == perdure.LineCancelRequested
			}
		}); err != nil {
		return nil, err
	}
	if err := each(ctx, conn, "SELECT run_id, key FROM journal", []any{&id, &text}, func() {
		if r := s.Runs[id]; r != nil {
			r.Journal[text] = true
		}
	}); err != nil {
		return nil, err
	}
	var seq int64
	return s, each(ctx, conn, "SELECT run_id, seq, data FROM inbox WHERE type = 'signal'", []any{&id, &seq, &text},
		func() {
			if r := s.Runs[id]; r != nil {
				r.Signals[text] = append(r.Signals[text], seq)
			}
		})
}

func each(ctx context.Context, conn *pgx.Conn, sql string, into []any, do func()) error {
	rows, err := conn.Query(ctx, sql)
	if err == nil {
		_, err = pgx.ForEachRow(rows, into, func() error {
			do()
			return nil
		})
	}
	if err != nil {
		return fmt.Errorf("%s: %w", sql, err)
	}
	return nil
}
