// Command river measures how fast River, a job queue on PostgreSQL, drains a backlog of empty jobs.
// In turns with it, it measures how fast Perdure does the same. It is a module of its own, so
// Perdure does not depend on River.
//
//	go run . -url postgres://… -perdure ../../bin/perdure
//
// The two don't do the same work. For a run, Perdure writes a log of every change, a lease that a
// worker has to renew, and a result. River updates one row twice. The ratio shows the cost of that.
package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

func main() {
	if err := run(context.Background(), os.Args[1:], os.Stdout, os.Stderr); err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(os.Stderr, "river:", err)
		}
		os.Exit(1)
	}
}

// A setting is a configuration of River.
type setting struct {
	Name     string        `json:"name"`
	Workers  int           `json:"max_workers"`
	Cooldown time.Duration `json:"fetch_cooldown_ns"`
	Poll     time.Duration `json:"fetch_poll_interval_ns"`
	Conns    int           `json:"connections"`
}

// A report has the measured rates, in the order of the rounds.
type report struct {
	Jobs    int                  `json:"jobs"`
	Cores   int                  `json:"cores"`
	Go      string               `json:"go"`
	River   []setting            `json:"river"`
	Rates   map[string][]float64 `json:"per_second"`
	Medians map[string]float64   `json:"median_per_second"`
	Ratio   float64              `json:"perdure_to_river_tuned,omitempty"`
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	f := flag.NewFlagSet("river", flag.ContinueOnError)
	f.SetOutput(stderr)
	address := f.String("url", os.Getenv("PERDURE_TEST_POSTGRES"), "`postgres://…`, as a role that may create databases")
	jobs := f.Int("jobs", 50_000, "jobs of the backlog")
	rounds := f.Int("rounds", 3, "how often each is measured")
	binary := f.String("perdure", "", "`file` of the program to compare with")
	tuned := setting{Name: "river tuned"}
	f.IntVar(&tuned.Workers, "workers", 2000, "MaxWorkers when tuned")
	f.DurationVar(&tuned.Cooldown, "cooldown", time.Millisecond, "FetchCooldown when tuned")
	f.DurationVar(&tuned.Poll, "poll", 5*time.Millisecond, "FetchPollInterval when tuned")
	f.IntVar(&tuned.Conns, "conns", 16, "connections when tuned")
	asJSON := f.Bool("json", false, "print JSON")
	if err := f.Parse(args); err != nil {
		return err
	}
	if *address == "" {
		return errors.New("-url is missing: postgres://…")
	}
	// The configuration of its documentation, with all defaults.
	shipped := setting{Name: "river as shipped", Workers: 100, Cooldown: river.FetchCooldownDefault,
		Poll: river.FetchPollIntervalDefault, Conns: 16}
	r := &report{Jobs: *jobs, Cores: runtime.NumCPU(), Go: runtime.Version(), River: []setting{shipped, tuned},
		Rates: make(map[string][]float64), Medians: make(map[string]float64)}
	for i := range *rounds {
		for _, s := range r.River {
			fmt.Fprintf(stderr, "round %d: %s\n", i+1, s.Name)
			rate, err := drain(ctx, *address, *jobs, s)
			if err != nil {
				return fmt.Errorf("%s: %w", s.Name, err)
			}
			r.Rates[s.Name] = append(r.Rates[s.Name], rate)
		}
		if *binary != "" {
			fmt.Fprintf(stderr, "round %d: perdure\n", i+1)
			rate, err := drainPerdure(ctx, *binary, *address, *jobs)
			if err != nil {
				return fmt.Errorf("perdure: %w", err)
			}
			r.Rates["perdure"] = append(r.Rates["perdure"], rate)
		}
	}
	for name, rates := range r.Rates {
		r.Medians[name] = slices.Sorted(slices.Values(rates))[len(rates)/2]
	}
	r.Ratio = r.Medians["perdure"] / r.Medians[tuned.Name]
	if *asJSON {
		e := json.NewEncoder(stdout)
		e.SetIndent("", "  ")
		return e.Encode(r)
	}
	return r.print(stdout)
}

func (r *report) print(w io.Writer) error {
	fmt.Fprintf(w, "%d jobs, %d cores, %s\n\n%-18s %12s   %s\n", r.Jobs, r.Cores, r.Go, "", "median/s", "rounds")
	for _, name := range []string{"river as shipped", "river tuned", "perdure"} {
		if rates, ok := r.Rates[name]; ok {
			fmt.Fprintf(w, "%-18s %12.0f   %.0f\n", name, r.Medians[name], rates)
		}
	}
	if r.Ratio > 0 {
		fmt.Fprintf(w, "\nperdure / river tuned: %.2f\n", r.Ratio)
	}
	return nil
}

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

// drain inserts jobs into a new database and measures how long River takes until all are completed.
func drain(ctx context.Context, address string, jobs int, s setting) (rate float64, err error) {
	db, drop, err := create(ctx, address)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, drop()) }()
	conf, err := pgxpool.ParseConfig(db)
	if err != nil {
		return 0, err
	}
	conf.MaxConns = int32(s.Conns)
	pool, err := pgxpool.NewWithConfig(ctx, conf)
	if err != nil {
		return 0, err
	}
	defer pool.Close()
	driver := riverpgxv5.New(pool)
	m, err := rivermigrate.New(driver, &rivermigrate.Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return 0, err
	}
	if _, err := m.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return 0, fmt.Errorf("migrate: %w", err)
	}
	w := &worker{done: new(atomic.Int64)}
	workers := river.NewWorkers()
	river.AddWorker(workers, w)
	client, err := river.NewClient(driver,
		&river.Config{Queues: map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: s.Workers}}, Workers: workers,
			FetchCooldown: s.Cooldown, FetchPollInterval: s.Poll, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return 0, err
	}
	if err := insert(ctx, client, jobs); err != nil {
		return 0, fmt.Errorf("insert: %w", err)
	}
	begin := time.Now()
	if err := client.Start(ctx); err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, client.Stop(ctx)) }()
	for open := true; open; {
		time.Sleep(2 * time.Millisecond)
		if w.done.Load() < int64(jobs) {
			continue
		}
		// All jobs were executed. The measurement ends when that is stored.
		if err := pool.QueryRow(ctx,
			"SELECT EXISTS (SELECT 1 FROM river_job WHERE state <> 'completed')").Scan(&open); err != nil {
			return 0, err
		}
	}
	return float64(jobs) / time.Since(begin).Seconds(), nil
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

// drainPerdure measures how fast Perdure drains as many runs, in a database of its own.
func drainPerdure(ctx context.Context, binary, address string, jobs int) (float64, error) {
	cmd := exec.CommandContext(ctx, binary, "bench", "--json", "--scenario", "drain", "--target", "process",
		"--store", address, "--backlog", fmt.Sprint(jobs))
	var complaint strings.Builder
	cmd.Stderr = &complaint
	out, err := cmd.Output()
	if err != nil {
		return 0, fmt.Errorf("%w: %s", err, strings.TrimSpace(complaint.String()))
	}
	var r struct {
		Figures []struct {
			Value float64 `json:"value"`
		} `json:"figures"`
	}
	if err := json.Unmarshal(out, &r); err != nil {
		return 0, err
	}
	if len(r.Figures) != 1 {
		return 0, fmt.Errorf("%d figures, not 1: %s", len(r.Figures), out)
	}
	return r.Figures[0].Value, nil
}
