package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/perdure/perdure/internal/server/store"
	"github.com/perdure/perdure/internal/wire/timer"
	"github.com/perdure/perdure/worker"
)

// footprintRuns bounds the runs of footprint: the size of one does not depend on their number.
const footprintRuns = 20_000

const (
	whatRunBytes  = "of an ended run"
	whatRunRows   = "of an ended run, rows"
	whatEventRows = "of an ended run, lines of its log"
)

// measureFootprint measures what an ended run leaves in the store: bytes with indexes, and rows. The runs have a key,
// as those of the client have, an input of some 40 bytes or b.Input, and a small result.
func measureFootprint(ctx context.Context, b *Bench, p *place, target string) ([]Figure, error) {
	before, err := p.left(ctx, b, target, 0)
	if err != nil {
		return nil, err
	}
	n := min(b.Backlog, footprintRuns)
	after, err := p.left(ctx, b, target, n)
	if err != nil {
		return nil, err
	}
	if got := after.rows["runs"] - before.rows["runs"]; got != int64(n) {
		return nil, fmt.Errorf("%d runs are stored, want %d", got, n)
	}
	rows := int64(0)
	for table, m := range after.rows {
		rows += m - before.rows[table]
	}
	each := func(m int64) float64 { return float64(m) / float64(n) }
	return []Figure{
		{What: whatRunBytes, Count: n, Value: each(after.bytes-before.bytes) / 1024, Unit: unitKilobytes},
		{What: whatRunRows, Count: n, Value: each(rows), Unit: unitRows},
		{What: whatEventRows, Count: n, Value: each(after.rows["events"] - before.rows["events"]), Unit: unitRows},
	}, nil
}

// contents is what a store has.
type contents struct {
	bytes int64
	rows  map[string]int64
}

// left executes runs, stops the server and looks at the store.
func (p *place) left(ctx context.Context, b *Bench, target string, n int) (c contents, err error) {
	a, err := p.agents(ctx, target, func(w *worker.Worker) {
		worker.Handle(w, kind, func(context.Context, json.RawMessage) (json.RawMessage, error) {
			return benchResult, nil
		})
	})
	if err != nil {
		return c, err
	}
	atOnce := min(b.Callers, agentsAtOnce)
	err = parallel(atOnce, func(i int) error {
		for range n/atOnce + min(1, max(0, n%atOnce-i)) {
			if _, err := a.c.Start(a.ctx, b.job()); err != nil {
				return err
			}
			b.did(1)
		}
		return nil
	})
	if err == nil {
		err = await(ctx, "the last run ends", lastRuns, func() (bool, error) {
			live, err := a.live(ctx)
			return live == 0, err
		})
	}
	if err == nil && n == 0 { // the worker is known, and so is its kind
		timer.Sleep(ctx, time.Second)
	}
	if err := errors.Join(err, a.close()); err != nil {
		return c, err
	}
	if c.bytes, err = p.size(ctx); err != nil {
		return c, err
	}
	s, err := p.open()
	if err != nil {
		return c, err
	}
	err = s.Audit(ctx, func(v *store.View) (err error) {
		c.rows, err = v.Count()
		return err
	})
	return c, errors.Join(err, s.Close())
}
