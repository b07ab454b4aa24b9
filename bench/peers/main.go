// Command peers measures Perdure beside other systems that do similar work, in turns on the same
// machine, and prints the ratios. It is a module of its own, so Perdure does not depend on them.
//
//	go run . -url postgres://… -bench ../../bin/perdure-bench -restate restate
//
// Perdure is measured by "perdure-bench", through its SDK. River is measured in this process.
// Restate is its own server with its defaults, called over its ingress without idempotency keys,
// and a service that uses its TypeScript SDK. Every result is checked.
//
// The systems do not do the same work. River updates one row twice for a job; nobody gets a result.
// The ratio shows what a user of one would see with the other.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"
)

// callers is the number of callers at once.
const callers = 64

// A bench has the settings of a measurement.
type bench struct {
	postgres string
	binary   string
	restate  string
	backlog  int
	rounds   int
	duration time.Duration
	progress io.Writer
	// machine is perdure-bench's description of the machine, with the commit.
	machine json.RawMessage
}

// A peer is another system that does a comparison's work.
type peer struct {
	name    string
	measure func(context.Context, *bench) (float64, error)
	restate bool // needs Restate
}

// A comparison is work that Perdure and its peers do.
type comparison struct {
	name     string
	scenario string // of "perdure-bench"
	what     string // the figure of the scenario
	latency  string // p50 for a latency in milliseconds; otherwise the figure is a rate
	peers    []peer
	// goals are the ratios to the last peer that Perdure should reach, by the store and target.
	// Ratios of latencies are at most the goal, ratios of rates at least.
	goals map[string]float64
}

var comparisons = []comparison{
	{"a run for a caller who waits, 64 at once", "jobs", "", "",
		[]peer{{"Restate", waiting("Jobs", 0, 1, false), true}},
		map[string]float64{"SQLite, HTTP": 4, "PostgreSQL, HTTP": 3}},
	{"a run for a caller who waits, alone", "jobs", "alone", "p50",
		[]peer{{"Restate", waiting("Jobs", 0, 1, true), true}},
		map[string]float64{"SQLite, HTTP": .5, "PostgreSQL, HTTP": .8}},
	{"five recorded steps, 64 at once", "agent-steps", "", "",
		[]peer{{"Restate", waiting("Steps", 5, 5, false), true}},
		map[string]float64{"SQLite, HTTP": 3, "PostgreSQL, HTTP": 2.5}},
	{"five recorded steps alone", "agent-steps", "alone", "p50",
		[]peer{{"Restate", waiting("Steps", 5, 5, true), true}},
		map[string]float64{"SQLite, HTTP": .5, "PostgreSQL, HTTP": .8}},
	{"a hundred children joined, 64 at once", "agent-children", "", "",
		[]peer{{"Restate", waiting("Children", 100, 100, false), true}},
		map[string]float64{"SQLite, HTTP": 3, "PostgreSQL, HTTP": 2}},
	{"a hundred steps at the same time, 64 at once", "agent-parallel", "", "",
		[]peer{{"Restate", waiting("Parallel", 100, 100, false), true}},
		map[string]float64{"SQLite, HTTP": 1.5, "PostgreSQL, HTTP": 1.5}},
	{"a backlog drained", "jobs-drain", "", "",
		[]peer{{shipped.name, shipped.drain, false}, {tuned.name, tuned.drain, false}},
		map[string]float64{"PostgreSQL, HTTP": .6, "PostgreSQL, embedded": 1}},
	{"enqueued one by one, 64 callers", "jobs-enqueue", "", "",
		[]peer{{"River", enqueueOne, false}},
		map[string]float64{"SQLite, HTTP": 2, "PostgreSQL, HTTP": 2}},
	{"enqueued in batches", "jobs-batch", "", "",
		[]peer{{"River", enqueueMany, false}},
		map[string]float64{"SQLite, HTTP": .5, "PostgreSQL, HTTP": .5}},
}

// A line is a row of the table: one system at one comparison.
type line struct {
	Work   string    `json:"work"`
	System string    `json:"system"`
	Unit   string    `json:"unit"`
	Rounds []float64 `json:"rounds"`
	Median float64   `json:"median"`
	Ratio  float64   `json:"ratio,omitempty"` // to the last peer
	Goal   float64   `json:"goal,omitempty"`
	Met    bool      `json:"met,omitempty"`
}

func main() {
	if err := run(context.Background(), os.Args[1:], os.Stdout, os.Stderr); err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(os.Stderr, "peers:", err)
		}
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	f := flag.NewFlagSet("peers", flag.ContinueOnError)
	f.SetOutput(stderr)
	b := &bench{progress: stderr}
	f.StringVar(&b.postgres, "url", os.Getenv("PERDURE_TEST_POSTGRES"),
		"`postgres://…`, as a role that may create databases")
	f.StringVar(&b.binary, "bench", "../../bin/perdure-bench",
		"`file` of the program perdure-bench, which measures the perdure beside it")
	f.StringVar(&b.restate, "restate", "",
		"`folder` of Restate, in which npm install was run; without it, Restate is left out")
	f.IntVar(&b.backlog, "backlog", 20_000, "runs of the backlog")
	f.IntVar(&b.rounds, "rounds", 3, "how often each is measured")
	f.DurationVar(&b.duration, "duration", 5*time.Second, "how long each is measured")
	only := f.String("only", "", "`words`: only comparisons whose names contain them")
	asJSON := f.Bool("json", false, "print JSON")
	if err := f.Parse(args); err != nil {
		return err
	}
	if b.postgres == "" {
		return errors.New("-url is missing: postgres://…")
	}
	var lines []*line
	for _, c := range comparisons {
		if !strings.Contains(c.name, *only) {
			continue
		}
		of, err := b.compare(ctx, c)
		if err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		lines = append(lines, of...)
	}
	if *asJSON {
		e := json.NewEncoder(stdout)
		e.SetIndent("", "  ")
		return e.Encode(map[string]any{"machine": b.machine, "lines": lines})
	}
	return printTable(stdout, lines)
}

// compare measures a comparison in rounds. In each round all systems take their turn.
func (b *bench) compare(ctx context.Context, c comparison) (lines []*line, err error) {
	unit := "/s"
	if c.latency != "" {
		unit = "ms"
	}
	var own, others []*line
	for _, p := range places {
		own = append(own, &line{Work: c.name, System: "Perdure, " + p.name, Unit: unit, Goal: c.goals[p.name]})
	}
	var peers []peer
	for _, p := range c.peers {
		if p.restate && b.restate == "" {
			continue
		}
		peers = append(peers, p)
		others = append(others, &line{Work: c.name, System: p.name, Unit: unit})
	}
	for n := range b.rounds {
		for i, p := range places {
			fmt.Fprintf(b.progress, "%s, round %d of %d: %s\n", c.name, n+1, b.rounds, own[i].System)
			figures, err := b.perdure(ctx, c.scenario, p)
			if err != nil {
				return nil, err
			}
			v, err := c.pick(figures)
			if err != nil {
				return nil, err
			}
			own[i].Rounds = append(own[i].Rounds, v)
		}
		for i, p := range peers {
			fmt.Fprintf(b.progress, "%s, round %d of %d: %s\n", c.name, n+1, b.rounds, p.name)
			v, err := p.measure(ctx, b)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", p.name, err)
			}
			others[i].Rounds = append(others[i].Rounds, v)
		}
	}
	lines = append(own, others...)
	for _, l := range lines {
		l.Median = slices.Sorted(slices.Values(l.Rounds))[len(l.Rounds)/2]
	}
	if len(others) > 0 {
		for _, l := range own {
			l.Ratio = l.Median / others[len(others)-1].Median
			l.Met = l.Goal > 0 && (c.latency == "" && l.Ratio >= l.Goal || c.latency != "" && l.Ratio <= l.Goal)
		}
	}
	return lines, nil
}

// pick returns the comparison's value of a scenario's figures.
func (c *comparison) pick(figures []figure) (float64, error) {
	for _, f := range figures {
		if f.Scenario == c.scenario && f.What == c.what {
			if c.latency == "p50" {
				return f.Latency.P50, nil
			}
			return f.Value, nil
		}
	}
	return 0, fmt.Errorf("perdure-bench has no figure %q of %s", c.what, c.scenario)
}

// callers calls do from n goroutines for the bench's duration, and returns how much it did a second.
// do returns how much it did.
func (b *bench) callers(ctx context.Context, n int, do func() (int, error)) (float64, error) {
	var (
		mu    sync.Mutex
		wg    sync.WaitGroup
		total int
		first error
	)
	begin := time.Now()
	for range n {
		wg.Go(func() {
			for time.Since(begin) < b.duration && ctx.Err() == nil {
				did, err := do()
				mu.Lock()
				total += did
				if first == nil {
					first = err
				}
				stop := first != nil
				mu.Unlock()
				if stop {
					return
				}
			}
		})
	}
	wg.Wait()
	return float64(total) / time.Since(begin).Seconds(), first
}

// median calls do again and again for the bench's duration, and returns the median of how long a
// call took, in milliseconds.
func (b *bench) median(ctx context.Context, do func() (int, error)) (float64, error) {
	var took []time.Duration
	for begin := time.Now(); time.Since(begin) < b.duration && ctx.Err() == nil; {
		at := time.Now()
		if _, err := do(); err != nil {
			return 0, err
		}
		took = append(took, time.Since(at))
	}
	slices.Sort(took)
	return float64(took[len(took)/2].Nanoseconds()) / 1e6, ctx.Err()
}

func printTable(w io.Writer, lines []*line) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	work := ""
	for _, l := range lines {
		if l.Work != work {
			work = l.Work
			fmt.Fprintf(tw, "\n%s\tmedian\tfrom\tto\tratio\tgoal\n", work)
		}
		ratio, goal := "", ""
		if l.Ratio > 0 {
			ratio = fmt.Sprintf("%.2f", l.Ratio)
		}
		if l.Goal > 0 && l.Ratio > 0 {
			sign, mark := "≥", "✗"
			if l.Unit == "ms" {
				sign = "≤"
			}
			if l.Met {
				mark = "✓"
			}
			goal = fmt.Sprintf("%s %s %g", mark, sign, l.Goal)
		}
		number := func(v float64) string {
			if v < 100 {
				return fmt.Sprintf("%.1f %s", v, l.Unit)
			}
			return fmt.Sprintf("%.0f %s", v, l.Unit)
		}
		fmt.Fprintf(tw, "  %s\t%s\t%s\t%s\t%s\t%s\n", l.System, number(l.Median), number(slices.Min(l.Rounds)),
			number(slices.Max(l.Rounds)), ratio, goal)
	}
	return tw.Flush()
}
