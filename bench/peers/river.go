package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

// A setting is a configuration of River.
type setting struct {
	name     string
	workers  int
	cooldown time.Duration
	poll     time.Duration
	conns    int
}

var (
	// shipped is the configuration of River's documentation, with all defaults.
	shipped = setting{name: "River as shipped", workers: 100, cooldown: river.FetchCooldownDefault,
		poll: river.FetchPollIntervalDefault, conns: 16}
	// tuned drains a backlog of empty jobs fastest, of what we tried.
	tuned = setting{name: "River tuned", workers: 2000, cooldown: time.Millisecond, poll: 5 * time.Millisecond,
		conns: 16}
)

// Args is an empty job, with arguments as large as the input of a run in Perdure's bench.
type Args struct {
	Host  string `json:"host"`
	Check string `json:"check"`
}

// Kind names the job.
func (Args) Kind() string { return "noop" }

type worker struct {
	river.WorkerDefaults[Args]
	done *atomic.Int64
}

// Work does nothing.
func (w *worker) Work(context.Context, *river.Job[Args]) error {
	w.done.Add(1)
	return nil
}

// A queue is River on a database of its own.
type queue struct {
	pool   *pgxpool.Pool
	client *river.Client[pgx.Tx]
	done   *atomic.Int64
	close  func() error
}

// openRiver makes a database with River's tables. Its workers do not run yet.
func openRiver(ctx context.Context, address string, s setting) (*queue, error) {
	db, drop, err := create(ctx, address)
	if err != nil {
		return nil, err
	}
	conf, err := pgxpool.ParseConfig(db)
	if err != nil {
		return nil, errors.Join(err, drop())
	}
	conf.MaxConns = int32(s.conns)
	pool, err := pgxpool.NewWithConfig(ctx, conf)
	if err != nil {
		return nil, errors.Join(err, drop())
	}
	q := &queue{pool: pool, done: new(atomic.Int64), close: func() error {
		pool.Close()
		return drop()
	}}
	driver := riverpgxv5.New(pool)
	quiet := slog.New(slog.DiscardHandler)
	m, err := rivermigrate.New(driver, &rivermigrate.Config{Logger: quiet})
	if err == nil {
		_, err = m.Migrate(ctx, rivermigrate.DirectionUp, nil)
	}
	if err == nil {
		workers := river.NewWorkers()
		river.AddWorker(workers, &worker{done: q.done})
		q.client, err = river.NewClient(driver, &river.Config{
			Queues: map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: s.workers}}, Workers: workers,
			FetchCooldown: s.cooldown, FetchPollInterval: s.poll, Logger: quiet})
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("River: %w", err), q.close())
	}
	return q, nil
}

// drain measures how long River takes until a backlog of jobs is completed.
func (s setting) drain(ctx context.Context, b *bench) (rate float64, err error) {
	q, err := openRiver(ctx, b.postgres, s)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, q.close()) }()
	if err := insert(ctx, q.client, b.backlog); err != nil {
		return 0, fmt.Errorf("insert: %w", err)
	}
	begin := time.Now()
	if err := q.client.Start(ctx); err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, q.client.Stop(ctx)) }()
	for open := true; open; {
		time.Sleep(2 * time.Millisecond)
		if q.done.Load() < int64(b.backlog) {
			continue
		}
		// All jobs were executed. The measurement ends when that is stored.
		if err := q.pool.QueryRow(ctx,
			"SELECT EXISTS (SELECT 1 FROM river_job WHERE state <> 'completed')").Scan(&open); err != nil {
			return 0, err
		}
	}
	return float64(b.backlog) / time.Since(begin).Seconds(), nil
}

// enqueueOne measures callers who insert jobs, one call for each.
func enqueueOne(ctx context.Context, b *bench) (rate float64, err error) {
	q, err := openRiver(ctx, b.postgres, tuned)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, q.close()) }()
	return b.callers(ctx, callers, func() (int, error) {
		_, err := q.client.Insert(ctx, Args{"cube", "disk"}, nil)
		return 1, err
	})
}

// enqueueMany measures one caller who inserts jobs, a thousand with each call.
func enqueueMany(ctx context.Context, b *bench) (rate float64, err error) {
	q, err := openRiver(ctx, b.postgres, tuned)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, q.close()) }()
	params := make([]river.InsertManyParams, 1000)
	for i := range params {
		params[i].Args = Args{"cube", "disk"}
	}
	return b.callers(ctx, 4, func() (int, error) {
		_, err := q.client.InsertMany(ctx, params)
		return len(params), err
	})
}

func insert(ctx context.Context, c *river.Client[pgx.Tx], jobs int) error {
	params := make([]river.InsertManyParams, min(jobs, 5000))
	for i := range params {
		params[i].Args = Args{"cube", "disk"}
	}
	for left := jobs; left > 0; left -= len(params) {
		params = params[:min(left, len(params))]
		if _, err := c.InsertManyFast(ctx, params); err != nil {
			return err
		}
	}
	return nil
}

// create creates an empty database.
func create(ctx context.Context, address string) (db string, drop func() error, err error) {
	u, err := url.Parse(address)
	if err != nil {
		return "", nil, err
	}
	name := "perdure_bench_river_" + strings.ToLower(rand.Text())
	exec := func(sql string) error {
		c, err := pgx.Connect(ctx, address)
		if err != nil {
			return err
		}
		defer c.Close(ctx)
		_, err = c.Exec(ctx, sql)
		return err
	}
	u.Path = "/" + name
	return u.String(), func() error {
		return exec("DROP DATABASE " + name + " WITH (FORCE)")
	}, exec("CREATE DATABASE " + name)
}
